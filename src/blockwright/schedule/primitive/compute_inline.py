"""compute_inline: a producer's expression replaces the loads of its result."""

from __future__ import annotations

from typing import Any, ClassVar

from blockwright import ir
from blockwright.schedule.checks import require_complete
from blockwright.schedule.edit import Edit, with_signature
from blockwright.schedule.handle import BlockRV
from blockwright.schedule.move import require_implied_predicate
from blockwright.schedule.primitive.compute_at import require_unchanged_reads
from blockwright.schedule.record import Primitive
from blockwright.schedule.renew import copied_expr
from blockwright.schedule.state import State, Step


class ComputeInline(Primitive, frozen=True, eq=False):
    """Replace every load of a block's result by the block's expression, and drop the block.

    Args:
        block: the producer.

    Requires:
    - the block is complete and its body is one store;
    - the store's indices are its iterators, each once (or constants in dimensions of extent 1);
    - what it writes lives in the scope and is read element by element;
    - nothing it reads is written again before its last consumer.

    Before::

        @T.prim_func
        def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
            B = T.alloc_buffer((64,), "float32")
            for i in range(64):
                with T.block("B"):
                    vi = T.axis.spatial(64, i)
                    B[vi] = A[vi] * 2.0
            for i in range(64):
                with T.block("C"):
                    vi = T.axis.spatial(64, i)
                    C[vi] = B[vi] + 1.0

    Steps::

        sch.compute_inline(sch.get_block("B"))

    After::

        @T.prim_func
        def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
            for i in range(64):
                with T.block("C"):
                    vi = T.axis.spatial(64, i)
                    C[vi] = A[vi] * 2.0 + 1.0
    """

    method: ClassVar[str] = "compute_inline"

    block: BlockRV

    def apply(self, state: State) -> Step:
        block = state.block(self.block)
        realize = state.realize(block)
        scope = state.scope(block)
        flow = state.data_flow(scope)
        require_complete(state, flow, block)
        require_implied_predicate(state, block)
        store = single_store(state, block)
        if flow.is_output(block):
            state.fail(f"block {block.name} writes an output of the scope", code="BW322",
                       guilty=[realize])  # fmt: skip
        others = [w for w in flow.writers[store.buffer] if w is not block]
        if others:
            state.fail(f"block {others[0].name} writes {store.buffer.name} too, so what readers "
                       f"find there is not what block {block.name} computes", code="BW314",
                       guilty=[realize, state.tree.realize(others[0])],
                       help="inline before decompose_reduction")  # fmt: skip
        mapping = self._iterators(state, block, store)
        readers = flow.readers.get(store.buffer, [])
        for reader in readers:
            require_element_reads(state, reader, store.buffer)
        if readers:
            require_unchanged_reads(state, flow, block, readers[-1])
        edit = Edit(state)
        for reader in readers:
            old = state.tree.realize(reader)
            edit.replace(old, _Inline(store, mapping, edit.forward)(old))
        edit.replace(realize, None)
        edit.free(scope, store.buffer)
        edit.refresh_signatures()
        return edit.finish()

    @staticmethod
    def _iterators(
        state: State, block: ir.Block, store: ir.BufferStore
    ) -> dict[ir.Var, int | ir.Expr]:
        """Where in the index each iterator stands; an iterator of extent 1 may be missing."""
        found: dict[ir.Var, int | ir.Expr] = {}
        own = {it.var for it in block.iter_vars}
        for position, index in enumerate(store.indices):
            if isinstance(index, ir.Var) and index in own and index not in found:
                found[index] = position
            elif not (ir.is_const_int(index, 0)
                      and ir.is_const_int(store.buffer.shape[position], 1)):  # fmt: skip
                state.fail(f"the indices of {store.buffer.name} in block {block.name} are not its "
                           "iterators, each once", code="BW324",
                           guilty=[state.tree.realize(block), store])  # fmt: skip
        for it in block.iter_vars:
            if it.var not in found:
                if not ir.is_const_int(it.dom.extent, 1):
                    state.fail(f"iterator {it.var.name} of block {block.name} does not index "
                               f"{store.buffer.name}", code="BW324", guilty=[it])  # fmt: skip
                found[it.var] = it.dom.min
        return found


def single_store(state: State, block: ir.Block) -> ir.BufferStore:
    """The store that is the whole body of a block."""
    if not isinstance(block.body, ir.BufferStore) or block.init is not None:
        state.fail(f"the body of block {block.name} is not a single store", code="BW324",
                   guilty=[state.tree.realize(block)])  # fmt: skip
    return block.body


def require_element_reads(state: State, reader: ir.Block, buffer: ir.Buffer) -> None:
    """A block uses a buffer only through scalar loads."""
    for node in ir.walk(reader):
        through_view = isinstance(node, ir.MatchBufferRegion) and node.source.buffer is buffer
        wide = isinstance(node, ir.BufferLoad) and node.buffer is buffer and any(
            not i.dtype.is_scalar for i in node.indices)  # fmt: skip
        address = isinstance(node, ir.Call) and node.op in ("address_of", "tensor") and any(
            isinstance(a, ir.BufferLoad) and a.buffer is buffer for a in node.args)  # fmt: skip
        if through_view or wide or address:
            state.fail(f"block {reader.name} uses {buffer.name} as a whole, not element by "
                       "element", code="BW324", guilty=[state.tree.realize(reader)])  # fmt: skip


class _Inline(ir.Mutator):
    """Loads become expressions; blocks that change get new signatures and are forwarded."""

    def __init__(
        self,
        store: ir.BufferStore,
        iterators: dict[ir.Var, int | ir.Expr],
        forward: dict[ir.Block, ir.Block],
    ) -> None:
        super().__init__()
        self.store, self.iterators, self.forward = store, iterators, forward

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> Any:
        new = self.descend(node)
        if node.buffer is not self.store.buffer:
            return new
        mapping = {v: new.indices[at] if isinstance(at, int) else at
                   for v, at in self.iterators.items()}  # fmt: skip
        typed = {v: ir.cast_to(e, v.type) for v, e in mapping.items()}
        return ir.substitute(copied_expr(self.store.value), typed)

    def rewrite_Block(self, node: ir.Block) -> Any:
        body = self(node.body)
        init = None if node.init is None else self(node.init)
        if body is node.body and init is node.init:
            return node
        new = self.forward[node] = with_signature(node.replace(body=body, init=init))
        return new
