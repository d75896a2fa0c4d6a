"""reindex: a copy of a buffer laid out by the iterators that access it."""

from __future__ import annotations

from typing import Any, ClassVar

from blockwright import ir
from blockwright.arith import is_bijective
from blockwright.schedule.buffers import (
    accesses_to,
    copy_nest,
    fresh_name,
    reached,
    readers,
    require_elements,
    require_in_blocks,
    require_no_readback,
    require_reached,
    with_regions,
    writers,
)
from blockwright.schedule.edit import Edit
from blockwright.schedule.handle import BlockRV
from blockwright.schedule.primitive.transform_layout import named_buffer
from blockwright.schedule.record import Primitive, Returns
from blockwright.schedule.state import State, Step


class Reindex(Primitive, frozen=True, eq=False):
    """Access a buffer through a copy whose dimensions are the block's iterators.

    Args:
        block: the block; all its accesses of the buffer use the same indices.
        buffer: ("read" | "write", position) or a name.

    Requires:
    - the block accesses the buffer element by element (BW324), always at the same indices, which
      depend on its iterators and sizes only; iterators start at 0 (BW325);
    - the outermost loop around the block holds no other block that writes the buffer, nor, when
      the block writes it, one that reads it (BW323);
    - read: the indices are inside the buffer on the whole domain, and what they name has been
      written; this needs proof when the block does not run on its whole domain, or reads under a
      condition (BW325);
    - written: the indices are one to one in the spatial iterators, the block runs on its whole
      domain (BW325), is the only writer in the scope, and does not read the buffer (BW323).

    Returns: the copying block, before (read) or behind (write) the block.

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
    returns: ClassVar[Returns] = "block"

    block: BlockRV
    buffer: Any

    def apply(self, state: State) -> Step:
        block = state.block(self.block)
        buffer = named_buffer(state, block, self.buffer)
        scope = state.scope(block)
        written = any(r.buffer is buffer for r in block.writes)
        indices = self._indices(state, block, buffer)
        outer = outermost(state, block, scope)
        require_in_blocks(state, scope, buffer)
        used = [
            it for it in block.iter_vars if any(ir.uses_var(index, it.var) for index in indices)
        ]
        self._check_sharers(state, block, buffer, outer, written)
        if written:
            self._check_written(state, block, buffer, indices)
        else:
            _require_readable(state, block, buffer, indices)
        name = fresh_name(state, f"{buffer.name}_reindex")
        shape = tuple(it.dom.extent for it in used)
        copy = ir.Buffer(name, buffer.dtype, shape)
        analyzer = state.analyzer(block)

        def place(v: Any) -> tuple[ir.Expr, ...]:
            mapping = {it.var: x for it, x in zip(used, v, strict=True)}
            return tuple(ir.substitute(i, mapping) for i in indices)

        domain = [ir.Range(ir.const(0, s.dtype), s) for s in shape]
        if written:
            nest, made = copy_nest(name, buffer, place, lambda v: ir.BufferLoad(copy, tuple(v)),
                                   domain, analyzer)  # fmt: skip
        else:
            nest, made = copy_nest(
                name, copy, lambda v: v, lambda v: ir.BufferLoad(buffer, place(v)), domain, analyzer
            )
        own = tuple(it.var for it in used)
        edit = Edit(state)
        new = _redirect(block, buffer, copy, own)
        edit.replace_block(block, with_regions(new, analyzer))
        edit.allocate(scope, copy)
        (edit.insert_after if written else edit.insert_before)(outer, nest)
        edit.refresh_signatures()
        return edit.finish(made)

    def _indices(self, state: State, block: ir.Block, buffer: ir.Buffer) -> tuple[ir.Expr, ...]:
        require_elements(state, block, buffer)
        found = accesses_to(block.body, buffer)
        if block.init is not None:
            found += accesses_to(block.init, buffer)
        if not found:
            state.fail(f"{block.name} does not access {buffer.name} by elements", code="BW320",
                       guilty=[block])  # fmt: skip
        first = found[0].indices
        if any(not ir.structural_equal(other.indices, first) for other in found[1:]):
            state.fail(f"{block.name} accesses {buffer.name} at different indices", code="BW325",
                       guilty=found)  # fmt: skip
        iters = {it.var for it in block.iter_vars}
        symbols = {v for b in state.func.buffers for d in b.shape for v in ir.free_vars(d)}
        symbols |= set(state.func.params)
        for index in first:
            loads = any(isinstance(n, ir.BufferLoad) for n in ir.walk(index))
            if loads or any(v not in iters and v not in symbols for v in ir.free_vars(index)):
                state.fail(f"an index of {buffer.name} depends on more than the block's iterators",
                           code="BW325", guilty=[block])  # fmt: skip
        if any(not ir.is_const_int(it.dom.min, 0) for it in block.iter_vars):
            state.fail(f"an iterator of {block.name} does not start at 0", code="BW325",
                       guilty=[block])  # fmt: skip
        return first

    @staticmethod
    def _check_sharers(
        state: State, block: ir.Block, buffer: ir.Buffer, outer: ir.Stmt, written: bool
    ) -> None:
        scope = state.scope(block)
        makers = [b for b in writers(state, scope, buffer) if b is not block]
        users = [*makers, *(readers(state, scope, buffer) if written else ())]
        for other in users:
            near = written and other in makers
            if other is not block and (near or state.tree.is_below(state.realize(other), outer)):
                state.fail(f"block {other.name} uses {buffer.name} too, "
                           + ("and writes it" if other in makers else "in the same loops"),
                           code="BW323", guilty=[state.realize(other), state.realize(block)],
                           help="reindex before blocks share loops")  # fmt: skip

    def _check_written(
        self, state: State, block: ir.Block, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]
    ) -> None:
        require_no_readback(state, block, buffer)
        require_reached(state, block)
        spatial = {it.var: it.dom for it in block.iter_vars if it.iter_type is ir.IterType.SPATIAL}
        others = {it.var for it in block.iter_vars} - spatial.keys()
        if any(ir.uses_var(index, others) for index in indices):
            state.fail(f"the indices of {buffer.name} use a reduction iterator", code="BW325",
                       guilty=[block])  # fmt: skip
        if not is_bijective(indices, spatial, None, state.analyzer(block)):
            state.fail(f"the indices of {buffer.name} are not one to one in the spatial iterators",
                       code="BW325", guilty=[block])  # fmt: skip


def _require_readable(
    state: State, block: ir.Block, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]
) -> None:
    """The elements at the indices exist and are known on the whole domain of the block."""
    conditional = any(isinstance(n, _CHOICES) or (isinstance(n, ir.Call)
                      and n.op == "if_then_else") for n in ir.walk(block))  # fmt: skip
    if not conditional and reached(state, block):
        return  # the block itself reads them all
    analyzer = state.analyzer(block)
    for it in block.iter_vars:
        analyzer.bind(it.var, it.dom)
    for index, size in zip(indices, buffer.shape, strict=True):
        low = ir.GE(*ir.match_types(index, 0))
        if not analyzer.prove(low) or not analyzer.prove(ir.LT(*ir.match_types(index, size))):
            state.fail(f"block {block.name} guards its reads of {buffer.name}: without the "
                       "guard an index may lie outside it", code="BW325",
                       guilty=[block])  # fmt: skip
    flow = state.data_flow(state.scope(block))
    region = next(r for r in block.reads if r.buffer is buffer)
    makers = [w for w in flow.writers.get(buffer, ()) if flow.position[w] < flow.position[block]]
    if makers and not flow.covers(makers, block, region):
        state.fail(f"block {block.name} guards its reads of {buffer.name}, which is not written "
                   "everywhere", code="BW325", guilty=[block, *makers])  # fmt: skip


_CHOICES = (ir.IfThenElse, ir.Select, ir.And, ir.Or)


def _redirect(
    block: ir.Block, buffer: ir.Buffer, copy: ir.Buffer, own: tuple[ir.Expr, ...]
) -> ir.Block:
    def change(node: ir.Node) -> ir.Node | None:
        if isinstance(node, (ir.BufferLoad, ir.BufferStore)) and node.buffer is buffer:
            return node.replace(buffer=copy, indices=own)
        return None

    body = ir.rewrite_bottom_up(block.body, change)
    init = None if block.init is None else ir.rewrite_bottom_up(block.init, change)
    return block.replace(body=body, init=init)


def outermost(state: State, block: ir.Block, scope: ir.Block) -> ir.Stmt:
    """The statement of the scope in which the block stands alone or with others."""
    stmt: ir.Stmt = state.realize(block)
    for above in state.tree.ancestors(stmt):
        if above is scope or (above is scope.body and isinstance(above, ir.SeqStmt)):
            return stmt
        stmt = above
    return stmt
