"""unsafe.assume_independent: parallelize or vectorize a loop without a dependence check."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import UnsafePrimitive
from blockwright.schedule.engine.state import StepResult, StepState

_KINDS = {"parallel": ir.ForKind.PARALLEL, "vectorized": ir.ForKind.VECTORIZED}


class AssumeIndependent(UnsafePrimitive, frozen=True, eq=False):
    """Parallelize or vectorize a loop without proving that its iterations are independent.

    The caller guarantees that no iteration accesses an element that another iteration writes, for
    example because the indices of a scatter are all different.

    Args:
        loop: the loop.
        kind: "parallel" or "vectorized".

    Requires: the loop is serial (BW312).

    Before::

        @T.prim_func
        def main(P: T.Buffer((16,), "int32"), A: T.Buffer((16,), "float32"),
                 B: T.Buffer((16,), "float32")):
            for i in range(16):
                with T.block("B"):
                    vi = T.axis.opaque(16, i)
                    B[P[vi]] = A[vi]

    Steps::

        (i,) = sch.get_loops(sch.get_block("B"))
        sch.unsafe.assume_independent(i, "parallel")

    After::

        @T.prim_func
        def main(P: T.Buffer((16,), "int32"), A: T.Buffer((16,), "float32"),
                 B: T.Buffer((16,), "float32")):
            for i in T.parallel(16):
                with T.block("B"):
                    vi = T.axis.opaque(16, i)
                    B[P[vi]] = A[vi]
    """

    method: ClassVar[str] = "assume_independent"

    loop: LoopRV
    kind: str = "parallel"

    def apply(self, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        kind = _KINDS.get(self.kind)
        if kind is None:
            state.fail(
                f"kind={self.kind!r} is not a loop kind for independent iterations",
                code="BW304",
                help=f"use {' or '.join(map(repr, _KINDS))}",
            )
        if loop.kind is not ir.ForKind.SERIAL:
            state.fail(
                f"loop {loop.loop_var.name} is {loop.kind.value} already",
                code="BW312",
                guilty=[loop],
                help="choose a serial loop",
            )
        edit = Edit(state)
        edit.replace(loop, loop.replace(kind=kind))
        return edit.finish()
