"""reorder_block_iter_var: permute the iterators of a block."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState


class ReorderBlockIterVar(Primitive, frozen=True, eq=False):
    """Permute the iterators of a block; the computation does not change.

    Args:
        block: the block.
        new_order: for each new position, the position of the old iterator.

    Requires:
    - `new_order` is a permutation of the iterator positions (BW304).

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32")):
            for i, j in T.grid(16, 8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] + 1.0

    Steps::

        sch.reorder_block_iter_var(sch.get_block("B"), new_order=[1, 0])

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32")):
            for i, j in T.grid(16, 8):
                with T.block("B"):
                    vj, vi = T.axis.remap("SS", [j, i])
                    B[vi, vj] = A[vi, vj] + 1.0
    """

    method: ClassVar[str] = "reorder_block_iter_var"

    block: BlockRV
    new_order: tuple[int, ...]

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        realize = state.realize(block)
        count = len(block.iter_vars)
        if sorted(self.new_order) != list(range(count)):
            state.fail(
                f"new_order={list(self.new_order)} does not name each of the {count} "
                f"iterators of block {block.name} once",
                code="BW304",
                guilty=[realize],
                help=f"pass the numbers 0 to {count - 1} in the new order",
            )
        if list(self.new_order) == list(range(count)):
            return StepResult(state.func)
        new = block.replace(iter_vars=tuple(block.iter_vars[k] for k in self.new_order))
        values = tuple(realize.iter_values[k] for k in self.new_order)
        edit = Edit(state)
        edit.forward[block] = new
        edit.replace(realize, realize.replace(iter_values=values, block=new))
        return edit.finish()
