"""cache_write: a block writes into a copy that is stored back afterwards."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import clip_region
from blockwright.schedule.buffers import (
    accessed_buffer,
    copy_nest,
    fresh_name,
    readers,
    require_in_blocks,
    require_no_readback,
    require_scope_name,
    writers,
)
from blockwright.schedule.copies import anchor, copied_nest
from blockwright.schedule.edit import Edit
from blockwright.schedule.handle import BlockRV
from blockwright.schedule.primitive.cache_read import require_all_in
from blockwright.schedule.record import Primitive, Returns
from blockwright.schedule.state import State, Step


class CacheWrite(Primitive, frozen=True, eq=False):
    """Let a block write into another storage scope, and copy the result back behind it.

    Args:
        block: the only writer of the buffer in its scope.
        write_buffer_index: position among its write regions, or the buffer's name.
        storage_scope: scope of the copy.
        consumer_blocks: blocks that read the copy instead of the buffer; default: none.

    Requires:
    - no other block of the scope writes the buffer, and the block does not read it (BW323);
    - the block writes all of the buffer, or, when it shares loops with readers of the buffer, a
      whole box in each iteration of these (BW323);
    - `consumer_blocks` stand behind the block and read only what it has written (BW323);
    - the buffer is used in blocks only (BW313).

    Returns: the block that copies back.

    Before::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), B: T.Buffer((128, 64), "float32")):
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * 2.0

    Steps::

        sch.cache_write(sch.get_block("B"), 0, "local")

    After::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), B: T.Buffer((128, 64), "float32")):
            B_local = T.alloc_buffer((128, 64), "float32", scope="local")
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B_local[vi, vj] = A[vi, vj] * 2.0
            for ax0, ax1 in T.grid(128, 64):
                with T.block("B_local"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    B[v0, v1] = B_local[v0, v1]
    """

    method: ClassVar[str] = "cache_write"
    returns: ClassVar[Returns] = "block"

    block: BlockRV
    write_buffer_index: int | str
    storage_scope: str
    consumer_blocks: tuple[BlockRV, ...] | None = None

    def apply(self, state: State) -> Step:
        require_scope_name(state, self.storage_scope)
        block = state.block(self.block)
        buffer = accessed_buffer(state, block, self.write_buffer_index, "write")
        scope = state.scope(block)
        others = [b for b in writers(state, scope, buffer) if b is not block]
        if others:
            state.fail(f"{buffer.name} is written by other blocks too", code="BW323",
                       guilty=[block, *others],
                       help="do this before decompose_reduction")  # fmt: skip
        require_in_blocks(state, scope, buffer)
        require_no_readback(state, block, buffer)
        wanted = self._consumers(state, scope, block, buffer)
        whole = ir.full_region(buffer).region
        for stated in () if scope is state.func.root else scope.writes:
            if stated.buffer is buffer:
                whole = clip_region(stated, state.analyzer(scope.body)).region
        name = fresh_name(state, f"{buffer.name}_{self.storage_scope.replace('.', '_')}")
        cache = ir.Buffer(name, buffer.dtype, buffer.shape, scope=self.storage_scope)
        plain, made = copy_nest(
            name, buffer, lambda v: v, lambda v: ir.BufferLoad(cache, tuple(v)), whole,
            state.analyzer(block),
        )  # fmt: skip
        users = [b for b in readers(state, scope, buffer) if b is not block]
        at = anchor(state, state.realize(block), scope, map(state.realize, users))
        region = next(r for r in block.writes if r.buffer is buffer)
        own = [(block, region)]
        nest = copied_nest(state, scope, at, made, plain, whole, own, own)
        edit = Edit(state)
        edit.replace_block(block, edit.substitute(block, {buffer: cache}))
        for reader in wanted:
            edit.replace_block(reader, edit.substitute(reader, {buffer: cache}))
        edit.allocate(scope, cache)
        edit.insert_after(at, nest)
        edit.refresh_signatures()
        return edit.finish(made)

    def _consumers(
        self, state: State, scope: ir.Block, block: ir.Block, buffer: ir.Buffer
    ) -> list[ir.Block]:
        """The blocks that shall read the copy, each of which finds there what it reads."""
        chosen = list(dict.fromkeys(state.block(h) for h in self.consumer_blocks or ()))
        require_all_in(state, chosen, readers(state, scope, buffer), buffer)
        flow = state.data_flow(scope)
        for reader in chosen:
            region = next(r for r in reader.reads if r.buffer is buffer)
            later = flow.position[reader] > flow.position[block]
            if not later or not flow.covers([block], reader, region):
                state.fail(f"block {reader.name} reads elements of {buffer.name} that block "
                           f"{block.name} has not written", code="BW323",
                           guilty=[state.realize(reader), state.realize(block)])  # fmt: skip
        return chosen
