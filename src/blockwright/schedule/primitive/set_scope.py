"""set_scope: where a buffer is stored."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import updated_atomically
from blockwright.analysis.atomics import PRIVATE_SCOPES
from blockwright.schedule.buffers import accessed_buffer, require_home, require_scope_name
from blockwright.schedule.edit import Edit
from blockwright.schedule.handle import BlockRV
from blockwright.schedule.record import Primitive
from blockwright.schedule.state import State, Step


class SetScope(Primitive, frozen=True, eq=False):
    """Store the buffer a block writes in another scope.

    Args:
        block: a block that writes the buffer.
        buffer_index: position among the block's write regions, or the buffer's name.
        storage_scope: "global", "local", "shared", …

    Requires: the buffer is allocated in the program, not a parameter (BW321); the scope is a name
    (BW304).

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

        sch.set_scope(sch.get_block("B"), 0, "local")

    After::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), C: T.Buffer((128, 64), "float32")):
            B = T.alloc_buffer((128, 64), "float32", scope="local")
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * 2.0
            for i, j in T.grid(128, 64):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vi, vj] + 1.0
    """

    method: ClassVar[str] = "set_scope"

    block: BlockRV
    buffer_index: int | str
    storage_scope: str

    def apply(self, state: State) -> Step:
        require_scope_name(state, self.storage_scope)
        block = state.block(self.block)
        buffer = accessed_buffer(state, block, self.buffer_index, "write")
        owner = require_home(state, block, buffer)
        if buffer.scope == self.storage_scope:
            return Step(state.func)
        _require_seen(state, owner, buffer, self.storage_scope)
        edit = Edit(state)
        fresh: ir.Buffer = buffer.replace(scope=self.storage_scope)
        edit.replace_block(owner, edit.substitute(owner, {buffer: fresh}))
        return edit.finish()


def _require_seen(state: State, owner: ir.Block, buffer: ir.Buffer, scope: str) -> None:
    """Other threads see what is updated atomically."""
    for block in ir.blocks(owner) if scope in PRIVATE_SCOPES else ():
        if block is not owner and updated_atomically(block, buffer):
            state.fail(f"block {block.name} updates {buffer.name} atomically; in {scope!r} no "
                       "other thread sees it", code="BW372", guilty=[state.tree.realize(block)],
                       help="set the scope before atomic_update")  # fmt: skip
