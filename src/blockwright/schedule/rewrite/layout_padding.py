"""Fill the padding that a layout transformation introduces.

The padding consists of the elements of the new buffer that no old index maps to.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.analysis import BlockKind
from blockwright.arith import IndexMap
from blockwright.schedule.engine.edit import Edit, wrap_loops
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import own_copies
from blockwright.schedule.legality.buffers import writers
from blockwright.schedule.legality.own_loops import first_of, nest_of, outermost, own_loops
from blockwright.schedule.rewrite.copy_nest import fresh_name


class LayoutPadding:
    """Generates the writes to the padding of a buffer after its layout has changed."""

    def __init__(
        self,
        state: StepState,
        owner: ir.Block,
        buffer: ir.Buffer,
        inverse: IndexMap,
        outside: ir.Expr,
        value: IndexMap,
        filled_by: dict[ir.Var, int],
    ) -> None:
        self.state, self.owner, self.buffer = state, owner, buffer
        self.inverse, self.outside, self.value = inverse, outside, value
        self.filled_by = filled_by
        self.analyzer = state.analyzer(owner.body)

    def step(self) -> StepResult:
        state = self.state
        makers = writers(state, self.owner, self.buffer)
        edit = Edit(state)
        if len(makers) == 1 and self._folded(edit, makers[0]):
            return edit.finish()
        nest = self._nest()
        if makers:
            around = self._with_own_copy()
            last = [
                b for b in ir.blocks(around.body) if any(r.buffer is self.buffer for r in b.writes)
            ][-1]
            edit.insert_after(outermost(state, last, around), nest)
            if around is not self.owner:
                edit.refresh_signatures()  # of the blocks between owner and loop
        else:
            edit.insert_before(first_of(self.owner), nest)
        return edit.finish()

    def _with_own_copy(self) -> ir.Block | ir.For | ir.AttrStmt:
        """The innermost concurrent loop whose iterations have private copies of the buffer; else
        the owner."""
        result: ir.Block | ir.For | ir.AttrStmt = self.owner
        for stmt in ir.walk(self.owner.body):
            if isinstance(stmt, (ir.For, ir.AttrStmt)) and own_copies(
                self.owner, stmt, self.buffer
            ):
                result = stmt  # the walk is in pre-order: the last match is the innermost
        return result

    def _axes(self) -> tuple[list[tuple[ir.Var, ir.Expr]], list[ir.IterVar]]:
        """Loops and iterators over the new shape."""
        loops = [(ir.Var(f"ax{k}", n.dtype), n) for k, n in enumerate(self.buffer.shape)]
        iters = [
            ir.IterVar(ir.Var(f"v{k}", dom.extent.dtype), dom)
            for k, dom in enumerate(ir.full_region(self.buffer).region)
        ]
        return loops, iters

    def _at(
        self, exprs: tuple[ir.Expr, ...], initial: tuple[ir.Var, ...], at: Sequence[ir.Var]
    ) -> list[ir.Expr]:
        mapping = dict(zip(initial, at, strict=True))
        known = self.analyzer.copy()
        for var, dom in zip(at, ir.full_region(self.buffer).region, strict=True):
            known.bind(var, dom)
        return [known.simplify(ir.substitute(e, mapping)) for e in exprs]

    def _nest(self) -> ir.Stmt:
        """A nest of a block that writes only the padding."""
        loops, iters = self._axes()
        places = tuple(it.var for it in iters)
        value = self._at(self.value.final, self.value.initial, places)[0]
        store = ir.BufferStore(self.buffer, value, places)
        name = fresh_name(self.state, f"{self.buffer.name}_pad")
        block = with_signature(ir.Block(name, tuple(iters), (), (), store), self.analyzer)
        variables = tuple(v for v, _ in loops)
        outside = self._at((self.outside,), self.inverse.initial, variables)[0]
        return wrap_loops(ir.BlockRealize(variables, outside, block), loops)

    def _folded(self, edit: Edit, block: ir.Block) -> bool:
        """Extend the only writer, with an iterator per dimension, to write the padding too.

        Returns False if the writer does not have this form.
        """
        state, store = self.state, block.body
        if not self.filled_by or not isinstance(store, ir.BufferStore):
            return False
        loops, why, _ = own_loops(state, block)
        if why or state.data_flow(self.owner).kind(block) is not BlockKind.COMPLETE:
            return False
        fresh, iters = self._axes()
        places = tuple(it.var for it in iters)
        old = self._at(self.inverse.final, self.inverse.initial, places)
        values = {var: ir.cast_to(old[dim], var.type) for var, dim in self.filled_by.items()}
        pad = self._at(self.value.final, self.value.initial, places)[0]
        outside = self._at((self.outside,), self.inverse.initial, places)[0]
        value = ir.if_then_else(outside, pad, ir.substitute(store.value, values))
        body = ir.BufferStore(self.buffer, value, places)
        new = with_signature(block.replace(iter_vars=tuple(iters), body=body), self.analyzer)
        edit.forward[block] = new
        realize = ir.BlockRealize(tuple(v for v, _ in fresh), ir.const(True, "bool"), new)
        edit.replace(nest_of(state, block, loops), wrap_loops(realize, fresh))
        edit.refresh_signatures()
        return True


def who_pads(state: StepState, owner: ir.Block, buffer: ir.Buffer) -> str:
    """Text: which block would write the padding of a buffer."""
    makers = writers(state, owner, buffer)
    if filling(state, owner, buffer) and not own_loops(state, makers[0])[1]:
        return f"block {makers[0].name} then runs over the new shape and writes the padding too"
    behind = f" after block {makers[-1].name}" if makers else " at the start"
    return f"a nest {fresh_name(state, f'{buffer.name}_pad')}{behind} then writes the padding"


def filling(state: StepState, owner: ir.Block, buffer: ir.Buffer) -> dict[ir.Var, int]:
    """Iterator → dimension for a buffer whose only writer fills it with one iterator per dimension.

    Empty if the writer does anything else.
    """
    makers = writers(state, owner, buffer)
    block = makers[0] if len(makers) == 1 else None
    if block is None or len(block.writes) != 1 or block.match_buffers or block.init is not None:
        return {}
    store = block.body
    if not isinstance(store, ir.BufferStore) or store.predicate is not None:
        return {}
    extents = {it.var: it.dom.extent for it in block.iter_vars}
    result: dict[ir.Var, int] = {}
    analyzer = state.analyzer(owner.body)  # the new shape may be nonempty where the old is empty
    for dim, (index, size) in enumerate(zip(store.indices, buffer.shape, strict=True)):
        extent = extents.get(index) if isinstance(index, ir.Var) else None
        if (
            extent is None
            or index in result
            or not analyzer.prove_equal(*ir.match_types(extent, size))
        ):
            return {}
        assert isinstance(index, ir.Var)
        result[index] = dim
    return result if len(result) == len(extents) else {}
