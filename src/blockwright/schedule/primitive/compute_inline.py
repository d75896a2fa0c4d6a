"""compute_inline: a producer's expression replaces the loads of its result."""

from __future__ import annotations

from typing import Any, ClassVar

from blockwright import ir
from blockwright.analysis import Scope
from blockwright.arith import simplify
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
    - the store's indices are its iterators, each once, or these plus something fixed (or constants
      in dimensions of extent 1);
    - where other blocks write parts of the same buffer, each consumer reads nothing but what this
      block writes, or nothing of it (BW322);
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
        mapping = self._iterators(state, block, store)
        rivals = [w for w in flow.writers[store.buffer] if w is not block]
        readers = flow.consumers(block) if rivals else flow.readers.get(store.buffer, [])
        if rivals:
            self._alone(state, flow, block, store.buffer, rivals, readers)
        for reader in readers:
            require_element_reads(state, reader, store.buffer)
        if readers:
            require_unchanged_reads(state, flow, block, readers[-1])
        edit = Edit(state)
        for reader in readers:
            old = state.tree.realize(reader)
            edit.replace(old, _Inline(store, mapping, edit.forward)(old))
        edit.replace(realize, None)
        if not rivals:
            edit.free(scope, store.buffer)
        edit.refresh_signatures()
        return edit.finish()

    @staticmethod
    def _alone(
        state: State, flow: Scope, block: ir.Block, buffer: ir.Buffer, rivals: list[ir.Block],
        readers: list[ir.Block],
    ) -> None:  # fmt: skip
        """What the readers read of a buffer with several writers, the block alone has written."""
        for other in rivals:
            if not flow.disjoint(block, other, buffer):
                state.fail(f"block {other.name} goes on with what block {block.name} writes to "
                           f"{buffer.name}", code="BW322",
                           guilty=[*map(state.tree.realize, (other, block))],
                           help="inline a block before decompose_reduction")  # fmt: skip
        for reader in readers:
            region = next(r for r in reader.reads if r.buffer is buffer)
            if not flow.covers([block], reader, region):
                state.fail(f"block {reader.name} reads parts of {buffer.name} that other blocks "
                           "write", code="BW322",
                           guilty=[*map(state.tree.realize, (reader, block))],
                           help="inline the consumer with reverse_compute_inline, or cut it where "
                           "the parts meet")  # fmt: skip

    @staticmethod
    def _iterators(state: State, block: ir.Block, store: ir.BufferStore) -> dict[ir.Var, Place]:
        """Where in the index each iterator stands; an iterator of extent 1 may be missing."""
        found: dict[ir.Var, Place] = {}
        own = {it.var for it in block.iter_vars}
        for position, index in enumerate(store.indices):
            place = _shifted(index, own)
            if place is not None and place[0] not in found:
                found[place[0]] = (position, place[1])
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
                found[it.var] = (None, it.dom.min)
        return found


Place = tuple[int | None, ir.Expr]
"""Which index tells an iterator and what to take off it; None: the value is that of the second."""


def _shifted(index: ir.Expr, own: set[ir.Var]) -> tuple[ir.Var, ir.Expr] | None:
    """The one iterator of an index and what is added to it, if that is all."""
    used = [v for v in ir.free_vars(index) if v in own]
    if len(used) != 1 or ir.collect(index, ir.BufferLoad):
        return None
    rest = simplify(ir.sub(index, used[0]))
    return None if ir.uses_var(rest, own) else (used[0], rest)


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


def _less(index: ir.Expr, rest: ir.Expr) -> ir.Expr:
    return index if ir.is_const_int(rest, 0) else simplify(ir.sub(*ir.match_types(index, rest)))


class _Inline(ir.Mutator):
    """Loads become expressions; blocks that change get new signatures and are forwarded."""

    def __init__(
        self,
        store: ir.BufferStore,
        iterators: dict[ir.Var, Place],
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
        mapping = {v: rest if at is None else _less(new.indices[at], rest)
                   for v, (at, rest) in self.iterators.items()}  # fmt: skip
        typed = {v: ir.cast_to(e, v.type) for v, e in mapping.items()}
        return ir.substitute(copied_expr(self.store.value), typed)

    def rewrite_Block(self, node: ir.Block) -> Any:
        body = self(node.body)
        init = None if node.init is None else self(node.init)
        if body is node.body and init is node.init:
            return node
        new = self.forward[node] = with_signature(node.replace(body=body, init=init))
        return new
