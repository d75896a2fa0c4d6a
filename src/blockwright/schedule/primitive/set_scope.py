"""set_scope: set the storage scope of a buffer."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis.kernels import BLOCK_AXES, shares
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_scope_name, require_seen
from blockwright.schedule.legality.buffers import accessed_buffer, home
from blockwright.schedule.legality.try_remedies import THEN, called, first_legal


class SetScope(Primitive, frozen=True, eq=False):
    """Set the storage scope of a buffer that a block writes.

    Args:
        block: a block that writes the buffer.
        buffer_index: position among the block's write regions, or the buffer's name.
        storage_scope: "global", "local", "shared", …

    Requires:
    - the buffer is allocated in the program, not a parameter (BW321);
    - the scope is a valid name (BW304);
    - a buffer with atomic updates is not moved to a thread-private scope (BW338);
    - if the scope is private to the members of a bound loop, the buffer is not used both inside and
      outside that loop (BW317).

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

    def apply(self, state: StepState) -> StepResult:
        require_scope_name(state, self.storage_scope)
        block = state.block(self.block)
        self._require_written(state, block)
        buffer = accessed_buffer(state, block, self.buffer_index, "write")
        owner = home(state, buffer)
        if owner is None:
            copy = f'copy = cache_write("{block.name}", "{buffer.name}", "{self.storage_scope}")'
            loops = state.tree.loops_above(block)
            way = first_legal(
                state,
                [
                    *(f"{copy}{THEN}reverse_compute_at(copy, {called(state, f)})" for f in loops),
                    copy,
                ],
            )
            which = f" (loops around it: {state.loops_of(block)})" if loops else ""
            state.fail(
                f"{buffer.name} is a parameter of the function, and the caller chooses its scope",
                code="BW321",
                guilty=[block],
                help=f"{way or copy} lets block {block.name} write a buffer in that scope, "
                f"which is copied back in each iteration of that loop{which}",
            )
        if buffer.scope == self.storage_scope:
            return StepResult(state.func)
        inner = [b for b in ir.blocks(owner) if b is not owner]
        require_seen(state, inner, buffer, self.storage_scope)
        _require_in_members(state, owner, buffer, self.storage_scope)
        edit = Edit(state)
        fresh: ir.Buffer = buffer.replace(scope=self.storage_scope)
        edit.replace_block(owner, edit.substitute(owner, {buffer: fresh}))
        return edit.finish()

    def _require_written(self, state: StepState, block: ir.Block) -> None:
        """Reject the name of a buffer that the block reads but does not write."""
        name = self.buffer_index
        read = any(r.buffer.name == name for r in block.reads)
        if not read or any(r.buffer.name == name for r in block.writes):
            return
        makers = [
            b.name
            for b in state.tree.blocks
            if b is not state.func.root and any(r.buffer.name == name for r in b.writes)
        ]
        owned = (
            f'; or set_scope("{makers[0]}", "{name}", …), because block {makers[0]} writes it'
            if makers
            else ""
        )
        copy = f'copy = cache_read("{block.name}", "{name}", "{self.storage_scope}")'
        loops = state.tree.loops_above(block)
        way = first_legal(
            state, [*(f"{copy}{THEN}compute_at(copy, {called(state, f)})" for f in loops), copy]
        )
        readers = [
            b.name
            for b in state.flow_at(block).blocks
            if any(r.buffer.name == name for r in b.reads)
        ]
        all_of = (
            f"; all readers of {name} ({', '.join(readers)}) then read the copy"
            if len(readers) > 1
            else ""
        )
        state.fail(
            f"block {block.name} only reads {name!r} and does not write it",
            code="BW320",
            guilty=[block],
            help=f"{way or copy}{all_of}{owned}",
        )


def _require_in_members(state: StepState, owner: ir.Block, buffer: ir.Buffer, scope: str) -> None:
    """Reject uses outside a bound loop of a buffer that is private to each member of its axis."""
    users = [
        b
        for b in ir.blocks(owner)
        if b is not owner
        and not state.tree.child_blocks(b)
        and any(r.buffer is buffer for r in (*b.reads, *b.writes))
    ]
    for user in users:
        for above in state.tree.ancestors(user):
            if above is owner:
                break
            thread = above.thread if isinstance(above, ir.For) else None
            if thread is None or shares(scope, thread.thread_tag):
                continue
            other = next((b for b in users if not state.tree.is_below(b, above)), None)
            if other is not None:
                state.fail(
                    f"each member of {thread.thread_tag} would have a private {buffer.name}, "
                    f"but block {other.name} uses it outside the loop",
                    code="BW317",
                    guilty=[above, state.tree.realize(other)],
                    help=f"{_shared_scope(thread.thread_tag)}, or compute_at block {user.name} or "
                    f"reverse_compute_at block {other.name}, so that both are in the loop",
                )


def _shared_scope(tag: str) -> str:
    """Suggest a scope that the members of an axis share."""
    scope = "global" if tag in BLOCK_AXES else "shared"
    return f'choose "{scope}", which the members share'
