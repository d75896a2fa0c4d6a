"""Rewrite all accesses of a buffer to a buffer with another layout."""

from __future__ import annotations

from collections.abc import Callable

from blockwright import ir
from blockwright.analysis import facts_of_initial
from blockwright.arith import Analyzer
from blockwright.ir.annotations import EXPLICIT_READ
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.explicit_regions import stated_by_user
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.state import StepState

Moved = Callable[[tuple[ir.Expr, ...], Analyzer], tuple[ir.Expr, ...]]
"""(old indices of an element, analyzer at the access) → new indices."""


def relayout(
    state: StepState, edit: Edit, owner: ir.Block, old: ir.Buffer, new: ir.Buffer, moved: Moved
) -> ir.Block:
    """The block `owner`, which allocates `old`, with `old` replaced by `new`.

    Accesses are rewritten by `moved`; blocks inside are forwarded. All uses of `old` must be loads
    and stores of elements.
    """
    return _Relayout(state, edit, owner, old, new, moved)(owner)


class _Relayout(ir.Mutator):
    def __init__(
        self,
        state: StepState,
        edit: Edit,
        owner: ir.Block,
        old: ir.Buffer,
        new: ir.Buffer,
        moved: Moved,
    ) -> None:
        super().__init__()
        self.state, self.edit, self.owner = state, edit, owner
        self.old, self.new, self.moved = old, new, moved
        self.known = state.analyzer(owner)

    def rewrite_Block(self, node: ir.Block) -> ir.Block:
        outer = self.known
        inside = outer.copy()
        for it in node.iter_vars:
            inside.bind(it.var, it.dom)

        def part(child: ir.Node) -> ir.Node:
            self.known, self._memo = inside, {}  # facts differ, so results must not be shared
            if child is node.init:
                self.known = facts_of_initial(inside, self.state.tree.realize(node))
            return self(child)

        result = node.map_children(part)
        self._memo = {}
        stated = any(r.buffer is self.old for r in (*node.reads, *node.writes))
        if result is not node or stated:  # the access may be in the control flow around the block
            if node is self.owner:
                allocs = tuple(self.new if b is self.old else b for b in node.alloc_buffers)
                result = result.replace(alloc_buffers=allocs)
            elif stated:
                self._require_free(node)
                result = with_signature(result, self.state.signature_facts(node))
            self.edit.forward[node] = result
        self.known = outer
        return result

    def _require_free(self, block: ir.Block) -> None:
        """Reject explicit regions of the buffer: they may not be boxes in the new layout."""
        if self.old.name in stated_by_user(block):
            self.state.fail(
                f"block {block.name} declares the region it reads of {self.old.name} explicitly, "
                "in the current layout",
                code="BW366",
                guilty=[block],
                help="apply the step before annotate_buffer_access, or "
                f'unannotate("{block.name}", "{EXPLICIT_READ}") first',
            )

    def rewrite_BufferRegion(self, node: ir.BufferRegion) -> ir.BufferRegion:
        return node if node.buffer is self.old else self.descend(node)

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_For(self, node: ir.For) -> ir.For:
        outer, self.known = self.known, self.known.copy()
        self.known.bind(node.loop_var, node.dom)
        self._memo = {}
        result = self.descend(node)
        self.known, self._memo = outer, {}
        return result

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.BufferLoad:
        result = self.descend(node)
        if node.buffer is not self.old:
            return result
        return result.replace(buffer=self.new, indices=self.moved(result.indices, self.known))

    def rewrite_BufferStore(self, node: ir.BufferStore) -> ir.BufferStore:
        result = self.descend(node)
        if node.buffer is not self.old:
            return result
        return result.replace(buffer=self.new, indices=self.moved(result.indices, self.known))
