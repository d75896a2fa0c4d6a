"""reindex_cache_write: write a buffer through a copy with a layout chosen by an index map."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import AnyIndexMap, Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_scope_name
from blockwright.schedule.legality.buffers import accessed_buffer
from blockwright.schedule.primitive.reindex import reindexed


class ReindexCacheWrite(Primitive, frozen=True, eq=False):
    """Write a buffer through a copy whose layout is a function of the block's iterators.

    Args:
        block: a block that writes one element of the buffer per instance.
        write_buffer_index: position among its write regions, or the buffer's name.
        storage_scope: scope of the copy.
        index_map: map from all iterators of the block to the indices of the copy; it uses only
            iterators that occur in the indices of the buffer.

    Requires:
    - the block writes the buffer element by element (BW359), always at the same indices. The
      indices are an injective function of spatial iterators and sizes; these iterators start at 0,
      there are no inner blocks, and the block runs on its whole domain (BW325, BW350, BW361,
      BW362);
    - the block declares no stride alignment for the buffer (BW328);
    - the map has one parameter per iterator, uses only iterators in the indices of the buffer, is
      injective, and produces no negative index (BW324);
    - the block is the only writer in the scope, does not read the buffer, and the outermost loop
      around it contains no block that does (BW323).

    Returns: the block that copies back, placed after the block.

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16,), "float32")):
            for i, k in T.grid(16, 8):
                with T.block("B"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        B[vi] = T.float32(0)
                    B[vi] = B[vi] + A[vi, vk]

    Steps::

        sch.reindex_cache_write(sch.get_block("B"), 0, "local", lambda i, k: (i // 4, i % 4))

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16,), "float32")):
            B_local = T.alloc_buffer((4, 4), "float32", scope="local")
            for i, k in T.grid(16, 8):
                with T.block("B"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        B_local[vi // 4, vi % 4] = T.float32(0)
                    B_local[vi // 4, vi % 4] = B_local[vi // 4, vi % 4] + A[vi, vk]
            for ax0 in range(16):
                with T.block("B_local"):
                    v0 = T.axis.spatial(16, ax0)
                    B[v0] = B_local[v0 // 4, v0 % 4]
    """

    method: ClassVar[str] = "reindex_cache_write"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "block"

    block: BlockRV
    write_buffer_index: int | str
    storage_scope: str
    index_map: AnyIndexMap

    def apply(self, state: StepState) -> StepResult:
        require_scope_name(state, self.storage_scope)
        block = state.block(self.block)
        buffer = accessed_buffer(state, block, self.write_buffer_index, "write")
        name = f"{buffer.name}_{self.storage_scope.replace('.', '_')}"
        return reindexed(state, block, buffer, "write", name, self.storage_scope, self.index_map)
