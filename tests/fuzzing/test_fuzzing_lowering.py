"""Lowering is checked pass by pass, and the pass that goes wrong is named."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright import ir
from blockwright.lower import partition
from blockwright.lower.rewrite import no_op
from blockwright.schedule import Schedule
from blockwright.script import tir as T
from blockwright.script.compute import Program
from blockwright.support import BuildError
from blockwright.testing.moves.lowering_hints import PARTITION
from fuzzing.schedules import lowering
from fuzzing.schedules.case import Case, outcome
from fuzzing.schedules.finding import Finding
from fuzzing.schedules.lowering import check_lowering
from fuzzing.schedules.play import Settings, play_chunk
from fuzzing.schedules.reduce import reduced

_LOWERED = Settings(length=4, native=0, lowered=1.0)


def _tiles_in_tiles(n: int = 28) -> Schedule:
    """Blocks of two tiles of six elements, all of them to be partitioned."""
    p = Program("tiles")
    x = p.param("X", (n,), "float32")
    half = p.compute("Y", (n,), lambda i: ir.mul(x[i], 0.5))
    sch = Schedule(p.finish([half], {"num_outputs": 1}))
    blocks, tiles, own = sch.split(sch.get_loops(sch.get_block("Y"))[0], [None, 2, 6])
    for loop in (blocks, tiles):
        sch.annotate(loop, PARTITION, True)
    sch.unroll(own)
    return sch


def _lost(_self: Any, node: ir.For, *args: Any) -> ir.For:
    """A loop without iterations, in place of those that the pass takes off."""
    nothing = ir.const(0, node.loop_var.dtype)
    return node.replace(min=nothing, extent=nothing, body=no_op())


def test_random_wishes_are_lowered_right() -> None:
    played = play_chunk(6000, 15, _LOWERED)
    assert not played.failures, played.failures[0].words
    assert played.lowered > 10


def test_iterations_lost_where_inner_bounds_move_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of inner loops that depend on the loop to be split count as if they did not."""

    @T.prim_func
    def tiles(A: T.Buffer((28,)), B: T.Buffer((28,))):
        for i in T.serial(3, annotations={"loop_partition": True}):
            for j in range(T.min(2 - i * 2, 0) + 2):
                for v in range(6):
                    B[i * 12 + j * 6 + v] = A[i * 12 + j * 6 + v]
            for j in T.serial(T.min(2 - i * 2, 0) + 2, T.max(2 - i * 2, 0) + T.min(i * 2, 3) - 2):
                for v in range(6):
                    if i * 12 + j * 6 + v < 28:
                        B[i * 12 + j * 6 + v] = A[i * 12 + j * 6 + v]

    assert check_lowering(tiles, tiles, 1) is None
    monkeypatch.setattr(partition, "_domains_use", lambda *_: False)
    with pytest.raises(Finding, match="B differs") as caught:
        check_lowering(tiles, tiles, 1)
    assert caught.value.symptom == "AssertionError after partition_loops"


def test_a_faulty_pass_is_named_in_a_script_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition._Partition, "_checked", _lost)
    monkeypatch.setattr("fuzzing.schedules.play.reduced", lambda case, fails: case)
    failure = next(f for seed in range(6000, 6100) for f in play_chunk(seed, 1, _LOWERED).failures)
    assert failure.symptom.startswith("lowering: ")
    assert failure.symptom.endswith(" after partition_loops")
    with pytest.raises((Finding, AssertionError), match="before partition_loops"):
        exec(failure.script, {})


def test_steps_that_the_failure_does_not_need_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition._Partition, "_checked", _lost)
    sch = _tiles_in_tiles()
    case = Case(sch.history[0].func, sch.trace.instructions, "lowering", 1)
    wanted = outcome(case)
    assert wanted == "lowering: AssertionError after partition_loops"
    small = reduced(case, lambda other: outcome(other) == wanted)
    names = [step.record.path() for step in small.steps if not step.record.pure]
    assert names == ["split", "annotate"]


def test_an_error_of_a_pass_is_a_failure_and_a_refusal_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sch = _tiles_in_tiles()
    program = sch.history[0].func

    def passes(error: Exception) -> list[tuple[str, Any]]:
        def broken(func: ir.PrimFunc, context: Any) -> ir.PrimFunc:
            raise error

        return [*lowering.LOWERING[:3], ("broken", broken)]

    monkeypatch.setattr(lowering, "LOWERING", passes(KeyError("i")))
    with pytest.raises(Finding) as caught:
        check_lowering(program, sch.func, 1)
    assert caught.value.symptom == "KeyError in broken"
    monkeypatch.setattr(lowering, "LOWERING", passes(BuildError("no", code="BW630")))
    assert check_lowering(program, sch.func, 1) == "BW630"


def test_registers_may_be_read_where_a_mask_drops_what_nobody_wrote() -> None:
    @T.prim_func
    def rows(A: T.Buffer((3, 3)), B: T.Buffer((3, 3))):
        t = T.alloc_buffer((3, 3), scope="local")
        for i, j in T.grid(3, 3):
            t[i, j] = A[i, j]
        for i in range(3):
            for v in T.vectorized(8):
                if v < 3:
                    B[i, v] = t[i, v]

    for seed in range(6):
        assert check_lowering(rows, rows, seed) is None


def test_programs_that_take_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Program("total")
    x = p.param("X", (8, 9), "float32")
    func = p.finish([p.reduce("Y", (8,), [9], lambda i, k: x[i, k])], {"num_outputs": 1})
    assert check_lowering(func, func, 1) is None
    monkeypatch.setattr(lowering, "_ITERATIONS", 2)
    assert check_lowering(func, func, 1) == "BW757"
