"""transform_layout: the elements of a buffer in another order."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from blockwright import ir
from blockwright.arith import IterMapError
from blockwright.schedule.buffers import (
    accessed_buffer,
    lowest_indices,
    require_elements,
    require_home,
    rewrite_accesses,
    with_index_type,
    with_regions,
)
from blockwright.schedule.edit import Edit
from blockwright.schedule.handle import BlockRV
from blockwright.schedule.record import AnyIndexMap, Primitive
from blockwright.schedule.state import State, Step


class TransformLayout(Primitive, frozen=True, eq=False):
    """Store a buffer so that element `i` lies at `index_map(i)`.

    Args:
        block: a block that reads or writes the buffer.
        buffer: ("read" | "write", position) or a name.
        index_map: from old indices to new ones, one to one; elements of the new shape that no old
            index reaches stay unused.

    Requires:
    - the buffer is allocated in the program, not a parameter (BW321);
    - the map takes an index per dimension, is one to one and leads to no negative index (BW324);
    - every use of the buffer is an element access in a block without inner blocks: no view
      (`match_buffer`), no address, no vector (BW324).

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

        sch.transform_layout(sch.get_block("B"), ("write", 0), lambda i, j: (i // 16, j, i % 16))

    After::

        @T.prim_func
        def main(A: T.Buffer((128, 64), "float32"), C: T.Buffer((128, 64), "float32")):
            B = T.alloc_buffer((8, 64, 16), "float32")
            for i, j in T.grid(128, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi // 16, vj, vi % 16] = A[vi, vj] * 2.0
            for i, j in T.grid(128, 64):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vi // 16, vj, vi % 16] + 1.0
    """

    method: ClassVar[str] = "transform_layout"

    block: BlockRV
    buffer: Any
    index_map: AnyIndexMap

    def apply(self, state: State) -> Step:
        block = state.block(self.block)
        buffer = named_buffer(state, block, self.buffer)
        owner = require_home(state, block, buffer)
        dtype = buffer.shape[0].dtype if buffer.shape else ir.dtype_of("int64")
        mapping = with_index_type(self.index_map, dtype)
        if len(mapping.initial) != buffer.ndim:
            state.fail(f"the map takes {len(mapping.initial)} indices, {buffer.name} has "
                       f"{buffer.ndim} dimensions", code="BW324", guilty=[block])  # fmt: skip
        analyzer = state.analyzer(block)
        try:
            shape = mapping.map_shape(buffer.shape, analyzer)
            mapping.non_surjective_inverse(buffer.shape, analyzer)
        except IterMapError as error:
            state.fail(f"the index map is not one to one: {error}", code="BW324", guilty=[block],
                       help="map each element to a place of its own")  # fmt: skip
        for low in lowest_indices(mapping, buffer.shape, analyzer):
            if low is None or not analyzer.prove(ir.GE(*ir.match_types(low, 0))):
                state.fail("the index map leads to negative indices", code="BW324",
                           guilty=[block])  # fmt: skip
        require_elements(state, owner, buffer)
        fresh = buffer.replace(shape=shape, strides=())
        edit = Edit(state)
        for inner in state.tree.blocks:
            touches = any(r.buffer is buffer for r in (*inner.reads, *inner.writes))
            if inner is owner or not touches or state.tree.child_blocks(inner):
                continue
            known = state.analyzer(inner)
            for it in inner.iter_vars:
                known.bind(it.var, it.dom)
            new = rewrite_accesses(inner, buffer, fresh, lambda i, k=known: mapping.apply(i, k))
            edit.replace_block(inner, with_regions(new, known))
        edit.free(owner, buffer)
        edit.allocate(owner, fresh)
        edit.refresh_signatures()
        step = edit.finish()
        for node in ir.walk(step.func.body):
            if isinstance(node, (ir.BufferLoad, ir.BufferStore)) and node.buffer is buffer:
                state.fail(f"{buffer.name} is used outside blocks or beside inner blocks",
                           code="BW324", guilty=[node],
                           help="wrap the statement in a block of its own")  # fmt: skip
        return step


def named_buffer(state: State, block: ir.Block, which: Any) -> ir.Buffer:
    """The buffer that ("read" | "write", position) or a name means."""
    if isinstance(which, tuple):
        kind, position = (*cast("tuple[Any, ...]", which), None, None)[:2]
        if kind in ("read", "write") and isinstance(position, (int, str)):
            return accessed_buffer(state, block, position, kind)
    if isinstance(which, str):
        kind = "write" if any(r.buffer.name == which for r in block.writes) else "read"
        return accessed_buffer(state, block, which, kind)
    return state.fail(f"{which!r} names no buffer", code="BW320", guilty=[block],
                      help='write ("read", 0), ("write", 0) or the name')  # fmt: skip
