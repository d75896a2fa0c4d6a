"""Errors teach: each names the rule, marks what breaks it, says what to do, and has a code."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from blockwright import ir
from blockwright.ir.printer import script
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source
from tests.schedule.refused_programs import ARGMAX
from tests.schedule.refused_schedules import CASES

NAMES = [schedule.__name__ for _, schedule, _ in CASES]
UNMARKED = {"misspelt_block"}
"""What is wrong in these stands nowhere in the program."""


def start(program: str) -> Schedule:
    found = from_source(program)
    assert isinstance(found, ir.PrimFunc)
    return Schedule(found)


@pytest.mark.parametrize(("program", "schedule", "code"), CASES, ids=NAMES)
def test_a_refusal_names_the_rule_marks_the_nodes_and_says_what_to_do(
    program: str, schedule: Callable[[Schedule], None], code: str
) -> None:
    sch = start(program)
    with pytest.raises(ScheduleError) as caught:
        schedule(sch)
    (problem,) = caught.value.diagnostics
    assert problem.code == code
    assert re.match(r"[a-z_]+: .", problem.message), "the step, then the rule"
    assert problem.help
    if schedule.__name__ in UNMARKED:
        return
    note = str(problem.notes[0])
    marks = [line for line in note.splitlines() if re.fullmatch(r" *\^[ ^]*", line)]
    assert marks, "guilty nodes are underlined"
    lines = [line for line in note.splitlines()[1:] if line not in marks]
    assert "\n".join(lines).strip() == script(sch.func).strip(), "the program as it still is"


@pytest.mark.parametrize(("program", "schedule", "code"), CASES, ids=NAMES)
def test_what_a_terminal_shows_is_all_of_it(
    program: str, schedule: Callable[[Schedule], None], code: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        schedule(start(program))
    text = str(caught.value)
    assert text.startswith(f"error[{code}]: ")
    assert "\n  help: " in text


def test_a_dead_handle_shows_what_has_taken_its_place() -> None:
    program, schedule, _ = CASES[NAMES.index("loop_that_was_split")]
    with pytest.raises(
        ScheduleError, match=r"loop i is gone: step 2, split\(i, \[None, 8\]\), consumed"
    ) as caught:
        schedule(start(program))
    assert "what split returned (i_0, i_1)" in str(caught.value.help)
    assert 'get_loops("blur_y")' in str(caught.value.help)


def test_a_name_that_a_block_does_not_read_leads_to_the_blocks_that_do() -> None:
    program, schedule, _ = CASES[NAMES.index("cache_what_is_not_read")]
    with pytest.raises(ScheduleError) as caught:
        schedule(start(program))
    assert caught.value.help == "choose what it reads, X, S, or a block that reads G: norm"


def refusal(name: str) -> tuple[str, str]:
    """Message and help of one of the refused schedules."""
    program, schedule, _ = CASES[NAMES.index(name)]
    with pytest.raises(ScheduleError) as caught:
        schedule(start(program))
    return caught.value.message, str(caught.value.help)


SUBSTANCE = [
    ("tensorize_another_tile", "(loop j_1) runs over 16, vj of the intrinsic over 8",
     "split(j_1, [None, 8])"),
    ("tile_a_size_that_does_not_divide", "the new shape (7, 4, 16, 16)", "pad_value=0.0"),
    ("tile_a_size_that_does_not_divide", "(100, 60)", "D_pad after block scale"),
    ("two_sizes_left_open", "axis w = w0 * w1 * (w2=8)", "leaves only w0"),
    ("output_into_shared_memory", "Y is a parameter", 'cache_write("div", "Y", "shared")'),
    ("output_into_shared_memory", "Y is a parameter", "reverse_compute_at(copy, i)"),
    ("parallel_over_the_sum", "drives the reduction iterator vk of block matmul",
     "choose a spatial loop (j_0, j_1, i); or part = rfactor(k_0, 0), then parallel("),
    ("threads_of_two_sizes", "extent 128, loop ax1_1 has 64", "threadIdx.y"),
    ("inline_the_product", "it is a reduction", 'compute_at("matmul", j_1)'),
    ("pad_at_the_wrong_consumer", "not inside loop h", "all its readers (conv)"),
    ("bias_inside_the_sum", "has not written all of M", "i_0, j_0 (of block matmul)"),
    ("merge_of_unequal_halves", "i (block upper) and i (block lower)",
     'outer, inner = split(get_loops("upper")[0], [16, 3]), then merge(outer, '),
    ("atomic_argmax", "more than one store", "rfactor(k_0, 0)"),
    ("block_of_a_part_of_the_sum", "matmul is not complete", 'decompose_reduction("matmul"'),
    ("split_after_parallel", "parallel already", "apply split to loop i first"),
    ("fuse_past_a_second_statement", "block relu is beside", "before block relu"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rule", "remedy"), SUBSTANCE)
def test_names_of_the_program_are_filled_in(name: str, rule: str, remedy: str) -> None:
    message, help = refusal(name)
    assert rule in message
    assert remedy in help


def test_a_misspelt_block_leads_to_the_one_that_was_meant() -> None:
    with pytest.raises(ScheduleError) as caught:
        start(CASES[0][0]).get_block("matmull")
    assert caught.value.help == "did you mean 'matmul'? blocks: matmul"


def test_an_input_is_brought_into_a_scope_by_a_copy_of_what_is_read() -> None:
    sch = start(CASES[0][0])
    with pytest.raises(ScheduleError, match="only reads 'A'") as caught:
        sch.set_scope(sch.get_block("matmul"), "A", "shared")
    assert 'cache_read("matmul", "A", "shared"), then compute_at(copy, i)' in str(caught.value.help)


NAN = "\n                or X[vi, vk] != X[vi, vk] and (M[vi] == M[vi] or vk < P[vi])"
TIE = " or X[vi, vk] == M[vi] and vk < P[vi]"
ARGMAX_PARTS = [
    (NAN, "", r"does not say what becomes of NaN"),
    (TIE, "", r"which of two equal numbers is taken.*: \(X\[vi, vk\] == M\[vi\]\) and \(vk < P"),
    ("Select(taken, vk", "Select(vk > 3, vk", r"P\[vi\] by vk > 3: both must be chosen by"),
    ("T.Select(taken, X[vi, vk], M[vi])", "T.max(X[vi, vk], M[vi])",
     r"M\[vi\] becomes max\(.*not a choice"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "instead", "words"), ARGMAX_PARTS)
def test_an_argmax_that_is_none_says_which_part_fails(part: str, instead: str, words: str) -> None:
    assert part in ARGMAX
    sch = start(ARGMAX.replace(part, instead))
    with pytest.raises(ScheduleError, match=words):
        sch.rfactor(sch.get_loops("argmax")[1], 0)
