"""reindex_cache_read: read a buffer through a copy with a layout chosen by an index map."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import AnyIndexMap, Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_scope_name
from blockwright.schedule.legality.buffers import accessed_buffer
from blockwright.schedule.primitive.reindex import reindexed


class ReindexCacheRead(Primitive, frozen=True, eq=False):
    """Read a buffer through a copy whose layout is a function of the block's iterators.

    Args:
        block: a block that reads one element of the buffer per instance.
        read_buffer_index: position among its read regions, or the buffer's name.
        storage_scope: scope of the copy.
        index_map: map from all iterators of the block to the indices of the copy; it uses only
            iterators that occur in the indices of the buffer.

    Requires:
    - the block reads the buffer element by element (BW359), always at the same indices, which
      depend on its iterators and sizes only; these iterators start at 0, and there are no inner
      blocks (BW325, BW350, BW362);
    - the map has one parameter per iterator, uses only iterators in the indices of the buffer, is
      injective, and produces no negative index (BW324);
    - the outermost loop around the block contains no block that writes the buffer (BW323);
    - on the whole domain, the indices are inside the buffer and refer to written elements. This
      needs proof if the block does not run on its whole domain, or reads under a condition (BW361,
      BW363).

    Returns: the copying block, placed before the block. Its iterators are the block's iterators
    that occur in the indices of the buffer, in the same order.

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32")):
            for i, j in T.grid(16, 8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * 2.0

    Steps::

        sch.reindex_cache_read(sch.get_block("B"), 0, "shared", lambda i, j: (j, i // 4, i % 4))

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32")):
            A_shared = T.alloc_buffer((8, 4, 4), "float32", scope="shared")
            for ax0, ax1 in T.grid(16, 8):
                with T.block("A_shared"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    A_shared[v1, v0 // 4, v0 % 4] = A[v0, v1]
            for i, j in T.grid(16, 8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A_shared[vj, vi // 4, vi % 4] * 2.0
    """

    method: ClassVar[str] = "reindex_cache_read"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "block"

    block: BlockRV
    read_buffer_index: int | str
    storage_scope: str
    index_map: AnyIndexMap

    def apply(self, state: StepState) -> StepResult:
        require_scope_name(state, self.storage_scope)
        block = state.block(self.block)
        buffer = accessed_buffer(state, block, self.read_buffer_index, "read")
        name = f"{buffer.name}_{self.storage_scope.replace('.', '_')}"
        return reindexed(state, block, buffer, "read", name, self.storage_scope, self.index_map)
