"""unsafe.drop_predicate: remove the predicate of a block."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import UnsafePrimitive
from blockwright.schedule.engine.state import StepResult, StepState


class DropPredicate(UnsafePrimitive, frozen=True, eq=False):
    """Remove the predicate of a block.

    The caller guarantees that it always holds, for example because a symbolic extent is always a
    multiple of the tile size. If it does not hold, the block runs outside its domain.

    Args:
        block: the block.

    Requires: it is not the root block (BW311).

    Before::

        @T.prim_func
        def main(a: T.handle, b: T.handle):
            n = T.int64()
            A = T.match_buffer(a, (n,), "float32")
            B = T.match_buffer(b, (n,), "float32")
            for i in range(n):
                with T.block("B"):
                    vi = T.axis.spatial(n, i)
                    B[vi] = A[vi] + T.float32(1)

    Steps::

        (i,) = sch.get_loops(sch.get_block("B"))
        sch.split(i, [None, 8])
        sch.unsafe.drop_predicate(sch.get_block("B"))

    After::

        @T.prim_func
        def main(a: T.handle, b: T.handle):
            n = T.int64()
            A = T.match_buffer(a, (n,), "float32")
            B = T.match_buffer(b, (n,), "float32")
            for i_0, i_1 in T.grid((n + 7) // 8, T.int64(8)):
                with T.block("B"):
                    vi = T.axis.spatial(n, i_0 * 8 + i_1)
                    B[vi] = A[vi] + T.float32(1)
    """

    method: ClassVar[str] = "drop_predicate"

    block: BlockRV

    def apply(self, state: StepState) -> StepResult:
        realize = state.realize(state.block(self.block))
        if ir.is_const_int(realize.predicate, 1):
            return StepResult(state.func)
        edit = Edit(state)
        edit.replace(realize, realize.replace(predicate=ir.const(True, "bool")))
        return edit.finish()
