"""Traces: their forms, replay, and the removal of what nothing uses."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from blockwright import ir
from blockwright.schedule import RECORDS, Schedule, ScheduleError, Trace
from blockwright.script import tir as T
from blockwright.script.ir import from_source
from blockwright.testing import random_program
from blockwright.testing.moves import MOVES, Player

SOURCE = """
@T.prim_func
def main(a: T.handle, c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 32), "float32")
    C = T.match_buffer(c, (n, 32), "float32")
    B = T.alloc_buffer((n, 32), "float32")
    for i, j in T.grid(n, 32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for i, j in T.grid(n, 32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + T.float32(1)
"""


def program() -> ir.PrimFunc:
    parsed = from_source(SOURCE)
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


@pytest.fixture
def sch() -> Schedule:
    return Schedule(program(), verify="full")


def as_json(trace: Trace, func: ir.PrimFunc) -> Trace:
    return Trace.from_json(json.loads(json.dumps(trace.as_json())), RECORDS, func)


def test_queries_that_nothing_uses_are_dead(sch: Schedule) -> None:
    b, c = sch.get_block("B"), sch.get_block("C")
    sch.get_producers(c)
    i, _ = sch.get_loops(c)
    sch.sample_categorical([1, 2], [1, 1])
    sch.get_child_blocks(sch.get_block("root"))
    sch.split(i, [None, sch.sample_categorical([4], [1])])
    sch.get_loops(b)
    assert sch.trace.simplified().as_python().splitlines() == [
        "b1 = sch.get_block('C')",
        "l3, l4 = sch.get_loops(b1)",
        "v9 = sch.sample_categorical([4], [1.0], decision=0)",
        "l10, l11 = sch.split(l3, [None, v9])",
    ]
    ir.assert_structural_equal(sch.trace.simplified().apply_to(program()), sch.func)


def test_steps_with_effects_stay_whatever_becomes_of_their_results(sch: Schedule) -> None:
    sch.cache_read("C", "B", "local")
    assert len(sch.trace.simplified()) == len(sch.trace) == 2


def test_symbols_are_spelled_so_that_python_finds_them(sch: Schedule) -> None:
    n = sch.symbol("n")
    sch.transform_layout("B", ("write", 0), lambda i, j: (j, i + n), pad_value=0)
    sch.annotate("C", "note", [n * 2, ir.minimum(n, 8), n > 3, float("inf"), True, "x"])
    text = sch.trace.as_python()
    assert 'sch.symbol("n")' in text
    assert "T.min(" in text
    again = Schedule(program())
    exec(text, {"sch": again, "T": T})
    ir.assert_structural_equal(again.func, sch.func)
    ir.assert_structural_equal(as_json(sch.trace, program()).apply_to(program()), sch.func)
    with pytest.raises(ScheduleError, match="the program has no symbol 'm'") as caught:
        sch.symbol("m")
    assert caught.value.code == "BW302"
    assert "symbols: n" in str(caught.value)


def test_composite_calls_survive_json_and_replay(sch: Schedule) -> None:
    sch.tile("C", "i j -> i0 j0 i1 j1", i1=4, j1=8)
    sch.tile("B", "i j -> i0 j0 i1 j1", i1=4, j1=8)
    read = as_json(sch.trace, program())
    assert read.as_python() == sch.trace.as_python()
    again = Schedule(program())
    again.replay(read)
    assert again.trace.as_python() == sch.trace.as_python()
    assert [stage.call for stage in again.history] == [stage.call for stage in sch.history]
    again.undo()
    assert len(again.history) == 2


def test_a_trace_can_be_replayed_behind_other_steps(sch: Schedule) -> None:
    sch.tile("C", "i -> i0 i1", i1=4)
    twice = Schedule(program())
    twice.compute_inline("B")
    handles = twice.replay(sch.trace)
    assert [twice.get(h).loop_var.name for h in handles] == ["i0", "i1"]


def test_a_trace_that_does_not_fit_stops_where_it_does_not() -> None:
    source = Schedule(program())
    source.split(source.axis("C", "i"), [None, 4])
    other = Schedule(program())
    other.fuse(*other.get_loops("C"))
    with pytest.raises(ScheduleError, match="returns 1 handles here, 2 in the trace") as caught:
        source.trace.apply_to(other.func)
    assert caught.value.code == "BW306"


def test_a_replay_that_fails_changes_nothing(sch: Schedule) -> None:
    source = Schedule(program())
    source.tile("C", "i -> i0 i1", i1=4)
    source.compute_inline("B")
    sch.compute_inline("B")
    before, steps = sch.func, len(sch.trace)
    with pytest.raises(ScheduleError, match="step 3 of the trace: get_block: no block is"):
        sch.replay(source.trace)
    assert sch.func is before
    assert len(sch.trace) == steps


@pytest.mark.parametrize(
    ("step", "code", "words"),
    [
        (["split", {"loop": "l1", "factors": ["x"]}, []], "BW304", "argument 2, 'factors'"),
        (["split", {"loop": "l1", "speed": 1}, []], "BW304", "speed"),
        (["split", {"loop": "l1"}, []], "BW304", "factors"),
        (["get_block", {"name": "B"}, ["v1 = exit()"]], "BW306", "v1 = exit"),
        (["annotate", {"block_or_loop": "l1", "ann_key": "a", "ann_val": {"$expr": "exit(1)"}}, []],
         "BW306", "unsupported expression"),
    ],
)  # fmt: skip
def test_a_damaged_trace_is_not_believed(step: list[object], code: str, words: str) -> None:
    with pytest.raises(ScheduleError, match=words) as caught:
        Trace.from_json([step], RECORDS, program())
    assert caught.value.code == code


@pytest.mark.parametrize(
    "data",
    [
        None, "str", {"a": 1}, [["x"]], [[]], [None], [["split", [], []]], [["split", {}, [1]]],
        [["split", {}, [], [1]]], [["split", {"loop": "l1", "factors": [{"$expr": "1 +"}]}, []]],
        [["split", {"loop": "l1", "factors": [{"$expr": "2"}]}, []]],
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(data: Any) -> None:
    with pytest.raises(ScheduleError) as caught:
        Trace.from_json(data, RECORDS, program())
    assert caught.value.code == "BW306"


@pytest.mark.fuzz
def test_random_traces_replay_in_every_form(fuzz_factor: int) -> None:
    """Simplified or not, as Python, JSON or records, and after parts of it were taken back."""
    for seed in range(25 * fuzz_factor):
        player = Player(random_program(seed), MOVES, seed)
        player.play(8)
        chance = random.Random(seed)
        if len(player.sch.history) > 1 and chance.random() < 0.5:
            player.sch.undo(chance.randrange(1, len(player.sch.history)))
        func, trace = player.program, player.sch.trace
        as_python = Schedule(func)
        exec(trace.simplified().as_python(), {"sch": as_python, "T": T})
        forms = (trace, trace.simplified(), as_json(trace, func))
        for made in (as_python.func, *(form.apply_to(func) for form in forms)):
            ir.assert_structural_equal(made, player.sch.func)
