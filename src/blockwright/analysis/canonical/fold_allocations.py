"""Move allocation statements around blocks into `alloc_buffers` of the enclosing block.

Before::

    B = T.allocate((64,), "float32")
    for i in range(64):
        with T.block("B"): ...

After, in the block around these statements::

    B = T.alloc_buffer((64,), "float32")

Schedule steps find the buffers of a scope in `Block.alloc_buffers`, and free, shrink and move them
there. A buffer allocated anew in each iteration of a serial loop can be shared by all iterations,
because its initial content is undefined either way. Allocations are not moved out of concurrent
loops and conditions; they also stay if their size is known only inside or if they have annotations.
"""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.analysis.access.tree import stands_around_a_block

_SEQUENTIAL = (ir.ForKind.SERIAL, ir.ForKind.UNROLLED)


def fold_allocations(func: ir.PrimFunc) -> ir.PrimFunc:
    """Move allocations around blocks into block lists; see the module docstring."""
    if not stands_around_a_block(func.body, ir.Allocate):
        return func
    body = _Fold()(func.body)
    return func if body is func.body else func.replace(body=body)


class _Fold(ir.Mutator):
    """Collects in `found` the buffers to move to the innermost enclosing block.

    Attributes:
        found: the buffers; None where allocations must stay.
        inner: variables defined between that block and the current statement.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[ir.Buffer] | None = None
        self.inner: set[ir.Var] = set()

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_SeqStmt(self, node: ir.SeqStmt) -> ir.Stmt:
        new = self.descend(node)
        return new if new is node else ir.seq(new.seq)

    def rewrite_Allocate(self, node: ir.Allocate) -> Any:
        sizes = ir.collect(node.buffer, ir.Var)
        if (
            self.found is None
            or node.annotations
            or not self.inner.isdisjoint(sizes)
            or not ir.blocks(node.body)
        ):
            return self.descend(node)
        self.found.append(node.buffer)
        return self(node.body)

    def rewrite_For(self, node: ir.For) -> Any:
        if node.kind not in _SEQUENTIAL:
            return self._apart(node)
        self.inner.add(node.loop_var)
        return self.descend(node)

    def rewrite_LetStmt(self, node: ir.LetStmt) -> Any:
        self.inner.add(node.var)
        return self.descend(node)

    def rewrite_IfThenElse(self, node: ir.IfThenElse) -> Any:
        return self._apart(node)

    def rewrite_While(self, node: ir.While) -> Any:
        return self._apart(node)

    def rewrite_AttrStmt(self, node: ir.AttrStmt) -> Any:
        return self._apart(node)

    def rewrite_Block(self, node: ir.Block) -> Any:
        around = self.found, self.inner
        self.found, self.inner = None, set()
        init = None if node.init is None else self(node.init)
        self.found = result = []
        body = self(node.body)
        self.found, self.inner = around
        if body is node.body and init is node.init:
            return node
        return node.replace(body=body, init=init, alloc_buffers=(*node.alloc_buffers, *result))

    def _apart(self, node: ir.Stmt) -> Any:
        """Visit a statement whose allocations must stay, except those inside its blocks."""
        result, self.found = self.found, None
        new = self.descend(node)
        self.found = result
        return new
