"""reindex: access a buffer through a copy indexed by the block's iterators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.analysis import relax_region
from blockwright.analysis.access.stride_alignment import align_rows
from blockwright.analysis.sizes import nonnegative
from blockwright.arith import IndexMap, covers
from blockwright.arith import clip_region as clip_box
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import rewritten_accesses, with_signature
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import BufferName, Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import (
    or_inplace,
    require_elements,
    require_in_blocks,
    require_no_readback,
)
from blockwright.schedule.legality.buffers import (
    accesses_to,
    named_buffer,
    readers,
    region_of,
    whole_box,
    writers,
)
from blockwright.schedule.legality.guards import may_fail
from blockwright.schedule.legality.injective import spans, why_not_injective
from blockwright.schedule.legality.own_loops import outermost, reached, require_reached
from blockwright.schedule.rewrite.copies import concurrent, fail_unwritten, is_held
from blockwright.schedule.rewrite.copy_nest import (
    copy_nest,
    fresh_name,
    visible_outside,
    with_index_type,
)


class Reindex(Primitive, frozen=True, eq=False):
    """Access a buffer through a copy whose dimensions are the block's iterators.

    Args:
        block: the block; all its accesses of the buffer use the same indices.
        buffer: ("read" | "write", position) or a name.

    Requires:
    - the block accesses the buffer element by element (BW359), always at the same indices, which
      depend on its iterators and sizes only; these iterators start at 0, and there are no inner
      blocks (BW325, BW350, BW362);
    - the block declares no stride alignment for a buffer that it writes (BW328);
    - the outermost loop around the block contains no other block that writes the buffer, nor, if
      the block writes it, one that reads it (BW323);
    - read: on the whole domain, the indices are inside the buffer, do not divide by 0, and refer to
      written elements. This needs proof if the block does not run on its whole domain, or reads
      under a condition (BW361, BW363);
    - write: the indices are injective in the spatial iterators, the block runs on its whole domain
      (BW325, BW361), is the only writer in the scope, and does not read the buffer (BW323).

    Returns: the copying block. A read copy is placed after the last earlier writer of the buffer,
    or, without one, before all blocks other than copies; a write copy is placed after the block.

    Before::

        @T.prim_func
        def main(A: T.Buffer((4, 4), "float32"), B: T.Buffer((16,), "float32")):
            for i in range(16):
                with T.block("B"):
                    vi = T.axis.spatial(16, i)
                    B[vi] = A[vi // 4, vi % 4] * 2.0

    Steps::

        sch.reindex(sch.get_block("B"), ("read", 0))

    After::

        @T.prim_func
        def main(A: T.Buffer((4, 4), "float32"), B: T.Buffer((16,), "float32")):
            A_reindex = T.alloc_buffer((16,), "float32")
            for ax0 in range(16):
                with T.block("A_reindex"):
                    v0 = T.axis.spatial(16, ax0)
                    A_reindex[v0] = A[v0 // 4, v0 % 4]
            for i in range(16):
                with T.block("B"):
                    vi = T.axis.spatial(16, i)
                    B[vi] = A_reindex[vi] * 2.0
    """

    method: ClassVar[str] = "reindex"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "block"

    block: BlockRV
    buffer: BufferName

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        buffer = named_buffer(state, block, self.buffer)
        kind = "write" if any(r.buffer is buffer for r in block.writes) else "read"
        return reindexed(state, block, buffer, kind)


def reindexed(
    state: StepState,
    block: ir.Block,
    buffer: ir.Buffer,
    kind: str,
    name: str | None = None,
    storage_scope: str = "global",
    index_map: IndexMap | None = None,
) -> StepResult:
    """Return the step that puts a copy between a block and a buffer.

    Args:
        block: the block, which accesses one element of the buffer per instance.
        buffer: the buffer.
        kind: "read" or "write": how the block uses the buffer.
        name: name of the copy.
        storage_scope: storage scope of the copy.
        index_map: map from all iterators of the block to the indices of the copy; default: the
            iterators that the block indexes the buffer with.
    """
    scope = state.scope(block)
    written = kind == "write"
    if not written and any(r.buffer is buffer for r in block.writes):
        state.fail(
            f"block {block.name} reads and writes {buffer.name}: the copy would be stale",
            code="BW323",
            guilty=[state.realize(block)],
            help=f"apply {state.step_name} to a block that only reads {buffer.name}"
            + or_inplace(state, block, buffer),
        )
    indices = _indices(state, block, buffer)
    outer = outermost(state, block, scope)
    require_in_blocks(state, scope, buffer)
    used = [it for it in block.iter_vars if any(ir.uses_var(index, it.var) for index in indices)]
    _check_sharers(state, block, buffer, outer, written)
    if written:
        _check_written(state, block, buffer, indices)
        _check_alignment(state, block, buffer)
    else:
        _require_readable(state, block, buffer, indices)
    around = state.analyzer(scope.body)
    own = tuple(it.var for it in used)
    shape = tuple(it.dom.extent for it in used)
    places: tuple[ir.Expr, ...] = own
    if index_map is not None:
        places = _mapped(state, block, buffer, used, index_map)
        shape = _extents(state, block, used, places)
    shape = tuple(nonnegative(extent, around) for extent in shape)
    name = fresh_name(state, f"{buffer.name}_reindex" if name is None else name)
    copy = ir.Buffer(name, buffer.dtype, shape, scope=storage_scope)

    def at(exprs: tuple[ir.Expr, ...], v: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
        mapping = dict(zip(own, v, strict=True))
        return tuple(ir.substitute(e, mapping) for e in exprs)

    source, target = (
        ((copy, places), (buffer, indices)) if written else ((buffer, indices), (copy, places))
    )
    nest, result = copy_nest(
        name,
        target[0],
        lambda v: at(target[1], v),
        lambda v: ir.BufferLoad(source[0], at(source[1], v)),
        [it.dom for it in used],
        around,
    )
    edit = Edit(state)
    new = _redirect(block, buffer, copy, places)
    edit.replace_block(block, with_signature(new, state.signature_facts(block)))
    edit.allocate(scope, copy)
    order = state.tree.order
    before = [w for w in writers(state, scope, buffer) if order[w] < order[block]]
    if written:
        edit.insert_after(outer, nest)
    elif before:
        edit.insert_after(outermost(state, before[-1], scope), nest)
    else:
        edit.insert_before(_first_behind_copies(scope, outer), nest)
    edit.refresh_signatures()
    return concurrent(state, edit.finish(result))


def _first_behind_copies(scope: ir.Block, last: ir.Stmt) -> ir.Stmt:
    """Return the first statement of a scope that is not a copy nest, at the latest `last`."""
    statements = scope.body.seq if isinstance(scope.body, ir.SeqStmt) else (scope.body,)
    for statement in statements:
        stores = [block.body for block in ir.blocks(statement)]
        copies = all(
            isinstance(s, ir.BufferStore) and isinstance(s.value, ir.BufferLoad) for s in stores
        )
        if statement is last or not copies:
            return statement
    return last


def _mapped(
    state: StepState,
    block: ir.Block,
    buffer: ir.Buffer,
    used: list[ir.IterVar],
    index_map: IndexMap,
) -> tuple[ir.Expr, ...]:
    """Return the indices of the copy as an injective function of the block's iterators."""
    if len(index_map.initial) != len(block.iter_vars):
        state.fail(
            f"the map takes {len(index_map.initial)} iterators, {block.name} has "
            f"{len(block.iter_vars)}",
            code="BW324",
            guilty=[block],
            help="give the map one parameter per iterator of the block, in their order",
        )
    dtype = ir.widest_type([it.var for it in block.iter_vars])
    mapping = with_index_type(index_map, dtype)
    analyzer = state.analyzer(state.scope(block).body)  # the copy is outside the loops
    for it in used:
        analyzer.bind(it.var, it.dom)
    places = mapping.apply([it.var for it in block.iter_vars], analyzer)
    inside = {it.var for it in used}
    for it in block.iter_vars:
        if it.var not in inside and any(ir.uses_var(e, it.var) for e in places):
            state.fail(
                f"the map uses iterator {it.var.name}, which is not in the indices of "
                f"{buffer.name}",
                code="BW324",
                guilty=[it, block],
                help="use only iterators that the buffer's indices use",
            )
    why = why_not_injective(places, {it.var: it.dom for it in used}, analyzer)
    if why:
        state.fail(
            f"the index map is not one to one: {why}",
            code="BW324",
            guilty=[block],
            help="map each element to a different index",
        )
    return places


def _extents(
    state: StepState, block: ir.Block, used: list[ir.IterVar], places: tuple[ir.Expr, ...]
) -> tuple[ir.Expr, ...]:
    """Return the smallest shape that contains the indices."""
    analyzer = state.analyzer(state.scope(block).body)
    domains = {it.var: it.dom for it in used}
    shape: list[ir.Expr] = []
    for span in spans(places, domains, analyzer):
        if span is None or not analyzer.prove(ir.GE(*ir.match_types(span[0], 0))):
            state.fail(
                "the index map leads to negative indices, or to indices without a known bound",
                code="BW324",
                guilty=[block],
                help="use a map whose results are nonnegative and bounded by "
                "the iterators' extents",
            )
        shape.append(analyzer.simplify(span[1] + 1))
    return tuple(shape)


def _indices(state: StepState, block: ir.Block, buffer: ir.Buffer) -> tuple[ir.Expr, ...]:
    if state.tree.child_blocks(block):
        state.fail(
            f"block {block.name} has inner blocks, to which the accesses belong",
            code="BW362",
            guilty=[block],
            help="choose one of them: " + ", ".join(b.name for b in state.tree.child_blocks(block)),
        )
    require_elements(state, block, buffer)
    result = accesses_to(block.body, buffer)
    if block.init is not None:
        result += accesses_to(block.init, buffer)
    if not result:
        state.fail(
            f"{block.name} does not access {buffer.name} by elements",
            code="BW359",
            guilty=[block],
            help="apply the step before the block is tensorized, while it accesses single elements",
        )
    first = result[0].indices
    if any(not ir.structural_equal(other.indices, first) for other in result[1:]):
        state.fail(
            f"{block.name} accesses {buffer.name} at different indices",
            code="BW325",
            guilty=result,
            help="copy with cache_read or cache_write, which keep the indices of each access",
        )
    iters = {it.var for it in block.iter_vars}
    symbols = visible_outside(state, block)
    for index in first:
        loads = any(isinstance(n, ir.BufferLoad) for n in ir.walk(index))
        if loads or any(v not in iters and v not in symbols for v in ir.free_vars(index)):
            help = (
                (
                    f'cache_read("{block.name}", "{buffer.name}", "local"), which copies in the '
                    "buffer's own layout"
                )
                if loads
                else (
                    f"apply {state.step_name} before the block is nested in blocks whose loops or "
                    "iterators index the buffer"
                )
            )
            state.fail(
                f"an index of {buffer.name} depends on more than the block's iterators",
                code="BW325",
                guilty=[index],
                help=help,
            )
    for it in block.iter_vars:
        if any(ir.uses_var(i, it.var) for i in first) and not ir.is_const_int(it.dom.min, 0):
            state.fail(
                f"iterator {it.var.name} of {block.name} does not start at 0",
                code="BW350",
                guilty=[it, block],
                help="use transform_block_layout first, to iterators that start at 0",
            )
    return first


def _check_sharers(
    state: StepState, block: ir.Block, buffer: ir.Buffer, outer: ir.Stmt, written: bool
) -> None:
    scope = state.scope(block)
    users = [*writers(state, scope, buffer), *(readers(state, scope, buffer) if written else ())]
    for other in users:
        if other is not block and state.tree.is_below(state.realize(other), outer):
            state.fail(
                f"block {other.name} uses {buffer.name} too, in the same loops",
                code="BW323",
                guilty=[state.realize(other), state.realize(block)],
                help="reindex before the blocks share loops",
            )


def _check_alignment(state: StepState, block: ir.Block, buffer: ir.Buffer) -> None:
    """Reject a block that declares a stride alignment: the copy has other dimensions."""
    if any(block.writes[index].buffer is buffer for index, _ in align_rows(block)):
        state.fail(
            f"block {block.name} declares a stride alignment for {buffer.name}, and "
            "would write a copy of another layout",
            code="BW328",
            guilty=[state.realize(block)],
            help=f"use storage_align after {state.step_name}",
        )


def _check_written(
    state: StepState, block: ir.Block, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]
) -> None:
    require_no_readback(state, block, buffer)
    require_reached(state, block)
    region = region_of(block.writes, buffer)
    if not state.flow_at(block).writes_all(block, region):
        fail_unwritten(state, state.scope(block), buffer, [(block, region)])
    spatial = {it.var: it.dom for it in block.iter_vars if it.iter_type is ir.IterType.SPATIAL}
    others = {it.var for it in block.iter_vars} - spatial.keys()
    if any(ir.uses_var(index, others) for index in indices):
        state.fail(
            f"the indices of {buffer.name} use a reduction iterator",
            code="BW325",
            guilty=[block],
            help="use cache_write: reindex needs an output indexed by spatial iterators only",
        )
    why = why_not_injective(indices, spatial, state.analyzer(state.scope(block).body))
    if why:
        state.fail(
            f"the indices of {buffer.name} are not one to one in the spatial iterators: {why}",
            code="BW325",
            guilty=[block],
            help="use cache_write, which copies the buffer in its own layout",
        )


def _require_readable(
    state: StepState, block: ir.Block, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]
) -> None:
    """Require that the elements at the indices exist and are written, on the whole domain."""
    conditional = any(
        isinstance(n, _CHOICES) or (isinstance(n, ir.Call) and n.op == "if_then_else")
        for n in ir.walk(block)
    )
    scope = state.scope(block)
    analyzer = state.analyzer(scope.body)  # the copy is outside the loops
    used = [any(ir.uses_var(index, it.var) for index in indices) for it in block.iter_vars]
    some = all(
        analyzer.prove(ir.GE(it.dom.extent, ir.const(1, it.var.type)))
        for it, index in zip(block.iter_vars, used, strict=True)
        if not index
    )
    if some and not conditional and reached(state, block):
        return  # the block itself reads all of them
    for it, index in zip(block.iter_vars, used, strict=True):
        if index:
            analyzer.bind(it.var, it.dom)
    if may_fail(indices, analyzer):
        state.fail(
            f"block {block.name} guards its reads of {buffer.name}: without the guard an "
            "index may divide by 0",
            code="BW363",
            guilty=[block],
            help=f'use cache_read("{block.name}", "{buffer.name}", "local"), which copies '
            "in the buffer's own layout",
        )
    for index, size in zip(indices, buffer.shape, strict=True):
        low = ir.GE(*ir.match_types(index, 0))
        if not analyzer.prove(low) or not analyzer.prove(ir.LT(*ir.match_types(index, size))):
            state.fail(
                f"block {block.name} guards its reads of {buffer.name}: without the "
                "guard an index may lie outside it",
                code="BW363",
                guilty=[block],
                help="pad the buffer in a separate block first, so that each read is inside",
            )
    flow = state.data_flow(scope)
    region = region_of(block.reads, buffer)
    makers = [w for w in flow.writers.get(buffer, ()) if flow.position[w] < flow.position[block]]
    own = [(w, region_of(w.writes, buffer)) for w in makers]
    domains = {it.var: it.dom for it in block.iter_vars}
    beside = state.analyzer(outermost(state, block, scope))
    box = relax_region(region, domains, beside).region  # on the whole domain
    held = is_held(state, scope, buffer, [], box, own, [], ir.const(True, "bool"), beside)
    stated = whole_box(state, scope, buffer, "read")
    if not held or not (makers or covers(stated, clip_box(box, buffer.shape, beside), beside)):
        state.fail(
            f"block {block.name} guards its reads of {buffer.name}, which is not written "
            "everywhere",
            code="BW363",
            guilty=[block, *makers],
            help="use cache_read, or write all of the buffer first",
        )


_CHOICES = (ir.IfThenElse, ir.Select, ir.And, ir.Or)


def _redirect(
    block: ir.Block, buffer: ir.Buffer, copy: ir.Buffer, own: tuple[ir.Expr, ...]
) -> ir.Block:
    def change(node: ir.BufferLoad | ir.BufferStore) -> ir.Node:
        return node.replace(buffer=copy, indices=own) if node.buffer is buffer else node

    body = rewritten_accesses(block.body, change)
    init = None if block.init is None else rewritten_accesses(block.init, change)
    return block.replace(body=body, init=init)
