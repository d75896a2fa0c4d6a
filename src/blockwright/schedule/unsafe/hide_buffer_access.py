"""unsafe.hide_buffer_access: remove access regions from the signature of a block."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import UnsafePrimitive
from blockwright.schedule.engine.state import StepResult, StepState


class HideBufferAccess(UnsafePrimitive, frozen=True, eq=False):
    """Remove regions from the signature of a block, so that later steps do not see them.

    The caller guarantees that later steps are legal in spite of the hidden accesses. A program with
    a hidden access fails the "full" check of `Schedule` and of `bw.validate`, which compare the
    signature with the body.

    Args:
        block: the block.
        buf_type: "read" or "write".
        buf_index_array: positions among the block's read or write regions.

    Requires: the positions exist (BW320).

    Before::

        @T.prim_func
        def main(A: T.Buffer((16,), "int32"), B: T.Buffer((16,), "int32")):
            for i in range(16):
                with T.block("B"):
                    vi = T.axis.spatial(16, i)
                    T.reads(A[vi], B[vi])
                    T.writes(B[vi])
                    T.evaluate(T.call_extern("int32", "step", A[vi], B[vi]))

    Steps::

        sch.unsafe.hide_buffer_access(sch.get_block("B"), "read", [1])

    After::

        @T.prim_func
        def main(A: T.Buffer((16,), "int32"), B: T.Buffer((16,), "int32")):
            for i in range(16):
                with T.block("B"):
                    vi = T.axis.spatial(16, i)
                    T.reads(A[vi])
                    T.writes(B[vi])
                    T.evaluate(T.call_extern("int32", "step", A[vi], B[vi]))
    """

    method: ClassVar[str] = "hide_buffer_access"

    block: BlockRV
    buf_type: str
    buf_index_array: tuple[int, ...]

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        if self.buf_type not in ("read", "write"):
            state.fail(
                f"buf_type={self.buf_type!r} is not a kind of access",
                code="BW304",
                help='use "read" or "write"',
            )
        regions = block.reads if self.buf_type == "read" else block.writes
        hidden = set(self.buf_index_array)
        for position in hidden:
            if not 0 <= position < len(regions):
                names = ", ".join(r.buffer.name for r in regions) or "nothing"
                state.fail(
                    f"block {block.name} has {len(regions)} {self.buf_type} regions; position "
                    f"{position} does not exist",
                    code="BW320",
                    guilty=[block],
                    help=f"it {self.buf_type}s: {names}",
                )
        kept = tuple(r for k, r in enumerate(regions) if k not in hidden)
        if len(kept) == len(regions):
            return StepResult(state.func)
        edit = Edit(state)
        edit.replace_block(block, _with_regions(block, self.buf_type, kept))
        return edit.finish()


def _with_regions(block: ir.Block, kind: str, regions: tuple[ir.BufferRegion, ...]) -> ir.Block:
    return block.replace(reads=regions) if kind == "read" else block.replace(writes=regions)
