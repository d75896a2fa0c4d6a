"""Codes of refusals that belong to no primitive's own tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright import ir
from blockwright.schedule import LoopRV, Schedule, ScheduleError
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import Handle
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.engine.state import Target as Place
from blockwright.script.ir import from_source
from blockwright.strategies.cpu.gemm_canonical import canonicalize
from blockwright.target import Target
from tests.schedule.refusals import require_taught

CHAIN = """
@T.prim_func
def main(A: T.Buffer((16, 16), "float32"), B: T.Buffer((16, 16), "float32")):
    C = T.alloc_buffer((16, 16), "float32")
    for i, j in T.grid(16, 16):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * T.float32(2)
    for i, j in T.grid(16, 16):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] + T.float32(1)
"""
GUARDED = CHAIN.replace(
    'remap("SS", [i, j])\n            C',
    'remap("SS", [i, j])\n            T.where(i < 8)\n            C',
)


def program(source: str) -> ir.PrimFunc:
    func = from_source(source)
    assert isinstance(func, ir.PrimFunc)
    return func


def loop(sch: Schedule, block: str, position: int) -> LoopRV:
    return sch.get_loops(sch.get_block(block))[position]


def no_handles(handle: Handle) -> Place:
    raise AssertionError(handle)


def annotate_twice(sch: Schedule) -> None:
    sch.annotate(sch.get_block("B"), "note", 1)
    sch.annotate(sch.get_block("B"), "note", 2)


def share_among_threads(sch: Schedule) -> None:
    """C in memory that all threads of a block see, to be stored once for each thread."""
    sch.set_scope(sch.get_block("C"), 0, "shared")
    thread = loop(sch, "B", 0)
    sch.compute_at(sch.get_block("C"), thread)
    sch.bind(thread, "threadIdx.x")
    sch.store_at(sch.get_block("C"), thread)


CASES: dict[str, tuple[str, Callable[[Schedule], object], str, str]] = {
    "an annotation that is there": (CHAIN, annotate_twice, "BW319", "is annotated already"),
    "an annotation that is not there": (
        CHAIN, lambda s: s.unannotate(s.get_block("B"), "note"), "BW319", "is not annotated"),
    "an intrinsic that is none": (
        CHAIN, lambda s: s.tensorize(loop(s, "B", 0), "nothing"), "BW302", "no tensor intrinsic"),
    "a tile of another computation": (
        CHAIN, lambda s: s.tensorize(loop(s, "B", 0), "outer_product_32x32_float32"), "BW327",
        "does not match"),
    "shared storage for each thread": (
        CHAIN, share_among_threads, "BW352", "is shared by the threads"),
    "a predicate to be lost": (
        GUARDED, lambda s: s.compute_inline(s.get_block("C")), "BW356", "beyond the domains"),
    "a place that is none": (
        CHAIN, lambda s: s.compute_at(s.get_block("C"), loop(s, "B", 0), index=7), "BW357",
        "outside the legal positions"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "step", "code", "words"), CASES.values(), ids=CASES.keys())
def test_the_refusal_names_its_rule(
    source: str, step: Callable[[Schedule], object], code: str, words: str
) -> None:
    require_taught(program(source), step, code, words)


def test_an_error_without_a_code_has_that_of_its_class() -> None:
    assert ScheduleError("something is wrong").code == "BW300"


def test_a_rule_for_contractions_takes_nothing_else() -> None:
    sch = Schedule(program(CHAIN))
    with pytest.raises(ScheduleError, match="not a contraction") as caught:
        canonicalize(sch, sch.get_block("B"), None, Target("native"))
    assert caught.value.code == "BW340"
    assert "two buffers A and B" in str(caught.value.help)


def test_an_edit_leaves_no_block_without_a_body() -> None:
    sch = Schedule(program(CHAIN))
    sch.blockize(loop(sch, "C", 0))
    state = StepState(sch.func, no_handles, "step")
    (inner,) = (b for b in ir.blocks(sch.func) if b.name == "C")
    edit = Edit(state)
    edit.replace(state.realize(inner), None)
    with pytest.raises(ScheduleError, match="nothing would be left") as caught:
        edit.finish()
    assert caught.value.code == "BW349"
