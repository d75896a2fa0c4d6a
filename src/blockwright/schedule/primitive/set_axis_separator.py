"""set_axis_separator: group the dimensions of a buffer into physical axes."""

from __future__ import annotations

import itertools
from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import BufferName, Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffers import home, named_buffer


class SetAxisSeparator(Primitive, frozen=True, eq=False):
    """Set the dimensions of a buffer at which a new physical axis starts.

    A target with multi-dimensional memory (a texture) addresses each group of dimensions
    separately. In flat memory the groups are laid out row-major, and nothing changes.

    Args:
        block: a block that reads or writes the buffer.
        buffer: ("read" | "write", position) or a name.
        axis_separators: increasing positions between 1 and the number of dimensions minus 1; empty
            means one axis.

    Requires: the positions are increasing and in range (BW304).

    Before::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), C: T.Buffer((128, 64), "float32")):
            B = T.alloc_buffer((128, 64), "float32")
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * 2.0
            for i, j in T.grid(128, 64):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vi, vj] + 1.0

    Steps::

        sch.set_axis_separator(sch.get_block("B"), ("write", 0), [1])

    After::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), C: T.Buffer((128, 64), "float32")):
            B = T.alloc_buffer((128, 64), "float32", axis_separators=[1])
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * 2.0
            for i, j in T.grid(128, 64):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vi, vj] + 1.0
    """

    method: ClassVar[str] = "set_axis_separator"

    block: BlockRV
    buffer: BufferName
    axis_separators: tuple[int, ...]

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        buffer = named_buffer(state, block, self.buffer)
        bounds = (0, *self.axis_separators, buffer.ndim)
        if any(a >= b for a, b in itertools.pairwise(bounds)):
            state.fail(
                f"{list(self.axis_separators)} are not increasing positions inside the "
                f"{buffer.ndim} dimensions of {buffer.name}",
                code="BW304",
                guilty=[block],
                help="use positions such as [1] for a matrix",
            )
        if buffer.axis_separators == self.axis_separators:
            return StepResult(state.func)
        fresh: ir.Buffer = buffer.replace(axis_separators=self.axis_separators)
        edit = Edit(state)
        owner = home(state, buffer)
        top = state.func.root if owner is None else owner
        edit.replace_block(top, edit.substitute(top, {buffer: fresh}))
        if owner is None:
            edit.replace_parameter(buffer, fresh)
        return edit.finish()
