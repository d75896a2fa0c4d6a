"""compute_inline: inline a producer into its consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from blockwright import ir
from blockwright.analysis import BlockScope
from blockwright.arith import Analyzer, IterMapError, inverse_map
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import AccessRewrite
from blockwright.schedule.engine.fresh_copy import copied_expr, with_own_lets
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_complete
from blockwright.schedule.legality.kept_values import Unmarked, as_index, as_value, inside
from blockwright.schedule.rewrite.motion import (
    neighbours,
    require_alone,
    require_final_inputs,
    require_idempotent,
    require_implied_predicate,
    require_quiet,
    require_straight,
)


class ComputeInline(Primitive, frozen=True, eq=False):
    """Inline a producer: replace every load of its result with its expression, and drop the block.

    Args:
        block: the producer.

    Requires:
    - the block is complete and its body is one store (BW314, BW360); its predicate only bounds
      iterators to their domains (BW356);
    - the store indices are an injective map of the iterators, for example the iterators themselves
      or `vi // 8, vi % 8`, so that an element determines the instance that wrote it (BW324);
    - the buffer it writes is allocated in the scope (BW322), is read element by element (BW359),
      after the block (BW316), and only at elements that the block has written (BW323);
    - if other blocks write parts of the same buffer, each consumer reads only what this block
      writes, or nothing of it (BW322);
    - nothing it reads is written before its last consumer has run (BW316).

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
    siblings: ClassVar[bool] = True

    block: BlockRV

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        realize = state.realize(block)
        scope = state.scope(block)
        flow = state.data_flow(scope)
        require_complete(state, flow, block)
        require_idempotent(state, flow, block)
        require_straight(state, scope, [realize])
        require_implied_predicate(state, block)
        store = element_store(state, block)
        if flow.is_output(block):
            state.fail(
                f"block {block.name} writes an output of the scope",
                code="BW322",
                guilty=[realize],
                help="inline its producers instead, or use "
                "reverse_compute_inline to inline the block into its producer",
            )
        require_alone(state, scope, block)
        at = [ir.Var(f"at{k}", i.dtype) for k, i in enumerate(store.indices)]
        mapping = iterators_of(state, block, store, store.indices, at)
        rivals = [w for w in flow.writers[store.buffer] if w is not block]
        readers = flow.consumers(block) if rivals else flow.readers.get(store.buffer, [])
        if rivals:
            readers = [*flow.carried_readers(block), *readers]
            self._alone(state, flow, block, store.buffer, readers)
        for reader in readers:
            self._reads_well(state, flow, block, reader, store.buffer)
        sorts = ir.Sorts(ir.value_variables(state.func))
        template = as_value(ir.substitute(store.value, in_own_types(mapping)), sorts)
        edit = Edit(state)
        for reader in readers:
            old = state.tree.realize(reader)
            clean = Unmarked(sorts, inside(state, old))
            edit.replace(old, _Inline(store.buffer, at, template, edit.forward, clean)(old))
        edit.replace(realize, None)
        if not rivals:
            edit.free(scope, store.buffer)
        edit.refresh_signatures()
        return edit.finish()

    @staticmethod
    def _alone(
        state: StepState,
        flow: BlockScope,
        block: ir.Block,
        buffer: ir.Buffer,
        readers: list[ir.Block],
    ) -> None:
        """Require that the readers read no elements written by other blocks."""
        for reader in readers:
            region = next(r for r in reader.reads if r.buffer is buffer)
            if not flow.covers([block], reader, region):
                state.fail(
                    f"block {reader.name} reads parts of {buffer.name} that other blocks write",
                    code="BW322",
                    guilty=[*map(state.tree.realize, (reader, block))],
                    help="inline the consumer with reverse_compute_inline, or split it at "
                    "the border of the parts",
                )

    @staticmethod
    def _reads_well(
        state: StepState, flow: BlockScope, block: ir.Block, reader: ir.Block, buffer: ir.Buffer
    ) -> None:
        """Require that the reader computes the same value if it evaluates the expression itself."""
        guilty = [state.tree.realize(reader), state.tree.realize(block)]
        require_element_reads(state, reader, buffer)
        if flow.position[reader] < flow.position[block]:
            state.fail(
                f"block {reader.name} reads {buffer.name} before block {block.name} writes it",
                code="BW316",
                guilty=guilty,
                help="inline at consumers that come after the block; move or "
                "cache what reads the earlier values first",
            )
        region = next(r for r in reader.reads if r.buffer is buffer)
        if not flow.covers([block], reader, region):
            state.fail(
                f"block {reader.name} may read elements of {buffer.name} that block "
                f"{block.name} does not write",
                code="BW323",
                guilty=guilty,
                help="write all that is read first, or use compute_at on the block "
                "instead of inlining it",
            )
        around = neighbours(state, flow, block, state.tree.realize(reader))
        earlier = [b for b in around if flow.position[b] < flow.position[block]]
        require_final_inputs(state, flow, block, earlier)
        require_quiet(state, flow, block, writers=[b for b in around if b not in set(earlier)])


def iterators_of(
    state: StepState,
    block: ir.Block,
    access: ir.BufferLoad | ir.BufferStore,
    indices: Sequence[ir.Expr],
    outputs: Sequence[ir.Expr],
) -> dict[ir.Var, ir.Expr]:
    """Invert the indices of an access: return each iterator as an expression of `outputs`.

    `outputs` are the values of the `indices`. Fails unless the indices are an injective map of the
    iterators.
    """
    own = {it.var: it.dom for it in block.iter_vars}
    shape = access.buffer.shape
    plain = [isinstance(i, ir.Var) and i in own for i in indices]
    trivial = [
        ir.is_const_int(i, 0) and ir.is_const_int(n, 1) for i, n in zip(indices, shape, strict=True)
    ]
    result: dict[ir.Var, ir.Expr] = {}
    if all(p or t for p, t in zip(plain, trivial, strict=True)):
        for index, output in zip(indices, outputs, strict=True):
            if isinstance(index, ir.Var) and index in own:
                result[index] = ir.cast_to(output, index.type)
        if len(result) == sum(plain):
            for var, dom in own.items():
                if var not in result and not ir.is_const_int(dom.extent, 1):
                    state.fail(
                        f"iterator {var.name} of block {block.name} does not index "
                        f"{access.buffer.name}",
                        code="BW324",
                        guilty=[it for it in block.iter_vars if it.var is var],
                        help="drop the iterator, or use compute_at, which does not "
                        "need one value per element",
                    )
                result.setdefault(var, dom.min)
            return result
    return _inverse(state, block, access, indices, outputs)


def _inverse(
    state: StepState,
    block: ir.Block,
    access: ir.BufferLoad | ir.BufferStore,
    indices: Sequence[ir.Expr],
    outputs: Sequence[ir.Expr],
) -> dict[ir.Var, ir.Expr]:
    analyzer: Analyzer = state.analyzer(state.tree.realize(block))
    for output, dom in zip(outputs, ir.full_region(access.buffer).region, strict=True):
        if isinstance(output, ir.Var) and not analyzer.knows(output):
            analyzer.bind(output, dom)
    own = {it.var: it.dom for it in block.iter_vars}
    try:
        return inverse_map(indices, own, outputs, analyzer)
    except IterMapError as problem:
        state.fail(
            f"the indices of {access.buffer.name} in block {block.name} are not a one-to-one "
            f"map of its iterators: {problem.message}",
            code="BW324",
            guilty=[state.tree.realize(block), access],
            help="index by each iterator once, as in B[vi, vj]; or use compute_at to move "
            "the block to its reader",
        )


def in_own_types(mapping: Mapping[ir.Var, ir.Expr]) -> dict[ir.Var, ir.Expr]:
    """The iterators of `iterators_of`, which has the types of indices, in their own types."""
    return {var: without_round_trips(ir.cast_to(value, var.type)) for var, value in mapping.items()}


def without_round_trips(expr: ir.Expr) -> ir.Expr:
    """An expression with operands instead of their conversions to 64 bits and back.

    An iterator may be converted to index a buffer, and back to be used as an iterator.
    """

    def operand(node: ir.Node) -> ir.Node | None:
        if not isinstance(node, ir.Cast) or not isinstance(node.value, ir.Cast):
            return None
        inner, wide = node.value.value, node.value.type
        same = inner.dtype is node.type and wide.kind == node.type.kind == "int"
        return inner if same and 32 <= node.type.bits < wide.bits else None

    return ir.rewrite_bottom_up(expr, operand)


def single_store(state: StepState, block: ir.Block) -> ir.BufferStore:
    """Return the store that is the whole body of a block; fails for other bodies."""
    if not isinstance(block.body, ir.BufferStore) or block.init is not None:
        state.fail(
            f"the body of block {block.name} is not a single store",
            code="BW360",
            guilty=[state.tree.realize(block)],
            help="only a single store per instance can be inlined; "
            "compute_at moves the block unchanged",
        )
    if any(view.buffer is block.body.buffer for view in block.match_buffers):
        state.fail(
            f"block {block.name} writes {block.body.buffer.name}, a view of a region",
            code="BW359",
            guilty=[state.tree.realize(block)],
            help="store to the buffer itself instead of to T.match_buffer of a region of "
            "it, or use compute_at",
        )
    return block.body


def element_store(state: StepState, block: ir.Block) -> ir.BufferStore:
    """Return the store that is the whole body of a block; fails unless it stores one element."""
    store = single_store(state, block)
    if store.predicate is not None or any(not i.dtype.is_scalar for i in store.indices):
        state.fail(
            f"block {block.name} stores vectors to {store.buffer.name}, not elements",
            code="BW359",
            guilty=[state.tree.realize(block)],
            help="inline before the block uses vector stores, or use compute_at",
        )
    return store


def require_element_reads(state: StepState, reader: ir.Block, buffer: ir.Buffer) -> None:
    """Require that a block uses a buffer only through scalar loads."""
    for node in ir.walk(reader):
        through_view = isinstance(node, ir.MatchBufferRegion) and node.source.buffer is buffer
        wide = (
            isinstance(node, ir.BufferLoad)
            and node.buffer is buffer
            and any(not i.dtype.is_scalar for i in node.indices)
        )
        address = (
            isinstance(node, ir.Call)
            and node.op in ("address_of", "tensor")
            and any(isinstance(a, ir.BufferLoad) and a.buffer is buffer for a in node.args)
        )
        if through_view or wide or address:
            state.fail(
                f"block {reader.name} uses {buffer.name} as a whole, not element by element",
                code="BW359",
                guilty=[state.tree.realize(reader)],
                help="inline before the consumer is tensorized or passes the "
                "whole buffer to a call, or use compute_at",
            )


class _Inline(AccessRewrite):
    """Replace loads of a buffer with the inlined expression."""

    def __init__(
        self,
        buffer: ir.Buffer,
        at: Sequence[ir.Var],
        template: ir.Expr,
        forward: dict[ir.Block, ir.Block],
        clean: Unmarked,
    ) -> None:
        super().__init__(forward)
        self.buffer, self.at, self.template, self.clean = buffer, at, template, clean

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> Any:
        new = self.descend(node)
        if node.buffer is not self.buffer:
            return new
        sorts = self.clean.sorts
        places = [as_index(i, sorts) for i in new.indices]
        mapping = {v: ir.cast_to(i, v.type) for v, i in zip(self.at, places, strict=True)}
        inlined = ir.substitute(copied_expr(self.template), mapping)
        return without_round_trips(inlined)

    def rewrite_BufferStore(self, node: ir.BufferStore) -> Any:
        new = self.descend(node)  # the value may contain a load several times
        return new if new is node else self.clean(new).map_children(_own_lets)


def _own_lets(node: Any) -> Any:
    return with_own_lets(node) if isinstance(node, ir.Expr) else node
