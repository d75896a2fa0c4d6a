"""Handles, traces, copies and errors of a schedule."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from blockwright import ir, schedule
from blockwright.schedule import RECORDS, IndexMap, Schedule, ScheduleError, Trace
from blockwright.schedule.stub import stub_text
from blockwright.script.ir import from_source

SOURCE = """
@T.prim_func
def main(A: T.Buffer((64, 32), "float32"), D: T.Buffer((64, 32), "float32")):
    B = T.alloc_buffer((64, 32), "float32")
    C = T.alloc_buffer((64,), "float32")
    for i, j in T.grid(64, 32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(64, 32):
        with T.block("C"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + B[vi, vj]
    for i, j in T.grid(64, 32):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = B[vi, vj] + C[vi]
"""


def program() -> ir.PrimFunc:
    parsed = from_source(SOURCE)
    return parsed if isinstance(parsed, ir.PrimFunc) else next(iter(parsed.functions.values()))


@pytest.fixture
def sch() -> Schedule:
    return Schedule(program(), verify="full")


def test_block_handles_survive_what_happens_around_them(sch: Schedule) -> None:
    b, c, d = (sch.get_block(name) for name in "BCD")
    i, j = sch.get_loops(d)
    i0, _ = sch.split(i, [None, 8])
    sch.compute_at(c, i0)
    sch.compute_at(b, i0)
    for handle, name in ((b, "B"), (c, "C"), (d, "D")):
        found = sch.get(handle)
        assert isinstance(found, ir.Block)
        assert found.name == name
    assert sch.get_producers(d) != []
    assert sch.alive(j)
    assert not sch.alive(i)


def test_a_dead_handle_names_the_step_that_consumed_it(sch: Schedule) -> None:
    b = sch.get_block("B")
    i, j = sch.get_loops(b)
    sch.fuse(i, j)
    with pytest.raises(ScheduleError, match=r"loop i is gone: step 2, fuse\(i, j\)") as caught:
        sch.split(i, [2, None])
    assert caught.value.code == "BW301"
    sch.compute_inline(b)
    with pytest.raises(ScheduleError, match="step 3, compute_inline"):
        sch.get_loops(b)


def test_a_failed_step_changes_nothing(sch: Schedule) -> None:
    c = sch.get_block("C")
    before, steps = sch.func, len(sch.trace)
    _, k = sch.get_loops(c)
    with pytest.raises(ScheduleError) as caught:
        sch.parallel(k)
    assert sch.func is before
    assert len(sch.trace) == steps + 1  # get_loops
    text = str(caught.value)
    assert "drives the reduction iterator vj of block C" in text
    assert "^" in text


def test_handles_of_another_schedule_are_refused(sch: Schedule) -> None:
    other = Schedule(program())
    for _ in range(5):
        handle = other.get_block("D")
    with pytest.raises(ScheduleError, match="belongs to another schedule"):
        sch.get_loops(handle)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("nothing", "BW302", "no block is named"), ("root", None, "")],
)
def test_blocks_are_found_by_name(sch: Schedule, name: str, code: str | None, words: str) -> None:
    if code is None:
        assert sch.get(sch.get_block(name)) is sch.func.root
        return
    with pytest.raises(ScheduleError, match=words) as caught:
        sch.get_block(name)
    assert caught.value.code == code
    assert "blocks: B, C, D" in str(caught.value)


def test_an_ambiguous_name_is_reported() -> None:
    func = from_source(SOURCE.replace('T.block("D")', 'T.block("C")'))
    sch = Schedule(func)
    with pytest.raises(ScheduleError, match="2 blocks are named 'C'") as caught:
        sch.get_block("C")
    assert caught.value.code == "BW303"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([2, "x"],), "argument 2, 'factors': expected factors"),
        (([0, None],), "a factor is at least 1"),
        ((3,), "argument 2, 'factors'"),
        (([2, None], True, False, None, 1), "takes 5 arguments, got 6"),
    ],
)
def test_arguments_are_named_in_errors(sch: Schedule, arguments: tuple, words: str) -> None:
    i, _ = sch.get_loops(sch.get_block("B"))
    with pytest.raises(ScheduleError, match=words) as caught:
        sch.split(i, *arguments)
    assert caught.value.code == "BW304"


def test_copies_go_separate_ways(sch: Schedule) -> None:
    b = sch.get_block("B")
    twin = sch.copy()
    sch.compute_inline(b)
    assert not sch.alive(b)
    assert twin.alive(b)
    twin.get_loops(b)
    assert len(sch.trace) == 2
    assert ir.structural_equal(twin.func, program())


def scheduled() -> Schedule:
    sch = Schedule(program())
    b, c, d = (sch.get_block(name) for name in "BCD")
    sch.transform_layout(b, ("write", 0), lambda i, j: (i // 8, j, i % 8))
    i, _ = sch.get_loops(d)
    i0, i1 = sch.split(i, factors=[None, 8])
    sch.compute_at(c, i0)
    sch.annotate(i1, "note", {"a": [1, 2.5, "x"], "b": True})
    sch.parallel(i0)
    sch.rfactor(sch.get_loops(c)[-1], 0)
    return sch


def test_a_trace_replays_to_the_same_program() -> None:
    sch = scheduled()
    again = Schedule(program())
    again.replay(sch.trace)
    ir.assert_structural_equal(again.func, sch.func)
    assert again.trace.as_python() == sch.trace.as_python()


def test_a_trace_survives_json() -> None:
    sch = scheduled()
    data = json.loads(json.dumps(sch.trace.as_json()))
    again = Schedule(program())
    again.replay(Trace.from_json(data, RECORDS, again.func))
    ir.assert_structural_equal(again.func, sch.func)


def test_a_trace_is_python() -> None:
    sch = scheduled()
    again = Schedule(program())
    exec(sch.trace.as_python(), {"sch": again})
    ir.assert_structural_equal(again.func, sch.func)


def test_an_unknown_step_in_a_trace_is_an_error() -> None:
    with pytest.raises(ScheduleError, match="unknown step 'warp'") as caught:
        Trace.from_json([["warp", {}, []]], RECORDS, program())
    assert caught.value.code == "BW306"


def test_symbolic_factors_are_looked_up_by_name() -> None:
    source = SOURCE.replace("64", "n").replace("    B = ", "    B = ", 1)
    source = source.replace(
        'A: T.Buffer((n, 32), "float32"), D: T.Buffer((n, 32), "float32")',
        "a: T.handle, d: T.handle, m: T.int32",
    )
    source = source.replace(
        "    B = T",
        '    T.func_attr({"tir_var_lower_bound": {"m": 1}})\n'
        "    n = T.int32()\n"
        '    A = T.match_buffer(a, (n, 32), "float32")\n'
        '    D = T.match_buffer(d, (n, 32), "float32")\n    B = T',
        1,
    )
    func = from_source(source)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    m = func.params[-1]
    i, _ = sch.get_loops(sch.get_block("B"))
    sch.split(i, [None, m])
    other = from_source(source)
    again = Schedule(other)
    again.replay(Trace.from_json(sch.trace.as_json(), RECORDS, again.func))
    ir.assert_structural_equal(again.func, sch.func)


def test_modules_keep_their_other_functions() -> None:
    module = ir.IRModule({"f": program(), "g": program()})
    sch = Schedule(module)
    sch.work_on("g")
    sch.compute_inline(sch.get_block("B"))
    assert sch.mod["f"] is module["f"]
    assert len(ir.blocks(sch.mod["g"])) == 3


def test_index_maps_may_be_given_ready_made(sch: Schedule) -> None:
    b = sch.get_block("B")
    swap = IndexMap.from_func(lambda i, j: (j, i), 2)
    sch.transform_layout(b, "B", swap)
    (swapped,) = (x for x in sch.func.root.alloc_buffers if x.name == "B")
    assert [ir.const_int(d) for d in swapped.shape] == [32, 64]


def test_the_stub_of_the_methods_is_current() -> None:
    path = Path(schedule.__file__).with_name("facade.pyi")
    assert path.read_text() == stub_text(), "run python -m blockwright.schedule.stub"


def test_equal_numbers_do_not_make_equal_handles(sch: Schedule) -> None:
    """Handles of another schedule of the same program are refused, though their numbers agree."""
    other = Schedule(sch.func)
    mine, theirs = sch.get_loops("C"), other.get_loops("C")
    assert [repr(h) for h in mine] == [repr(h) for h in theirs]
    assert mine != theirs
    with pytest.raises(ScheduleError, match="belongs to another schedule") as found:
        other.parallel(mine[0])
    assert found.value.code == "BW301"
    other.parallel(theirs[0])


def test_handles_of_copies(sch: Schedule) -> None:
    """Handles made before a copy work in both, later ones only where they were made."""
    before = sch.get_block("C")
    for other in (sch.copy(), copy.deepcopy(sch)):
        mine, theirs = sch.get_loops(before), other.get_loops(before)
        other.parallel(theirs[0])
        with pytest.raises(ScheduleError, match="belongs to another schedule"):
            other.unroll(mine[0])
        with pytest.raises(ScheduleError, match="belongs to another schedule"):
            sch.unroll(theirs[0])
