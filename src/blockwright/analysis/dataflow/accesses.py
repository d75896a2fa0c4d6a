"""Accesses that happen for certain, with the conditions around each.

    if vi < 4:
        B[vi] = A[vi] + T.if_then_else(vi > 0, C[vi - 1], 0.0)

reads A[vi] where vi < 4, reads C[vi - 1] where vi < 4 and vi > 0, and writes B[vi] where vi < 4. An
access is omitted if it may not happen although its conditions hold: after a jump, in the body of a
`while` loop, or as an operand of an operation with effects. Signatures state the opposite bound,
everything that may be accessed (`access.regions`).
"""

from __future__ import annotations

from typing import NamedTuple

from blockwright import ir
from blockwright.analysis.access.tree import jumps
from blockwright.analysis.access.views import element_behind_view
from blockwright.analysis.access.walk import AccessWalker
from blockwright.analysis.dataflow.contexts import BlockContext
from blockwright.analysis.dataflow.counterexample import VarRange


class ConditionalAccess(NamedTuple):
    """An access that happens whenever its conditions hold.

    Attributes:
        how: "read", "write" or "atomic".
        spans: loops inside the block; conditions and indices are in terms of loop variables.
    """

    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    how: str
    spans: tuple[VarRange, ...]
    guards: tuple[ir.Expr, ...]


def definite_accesses(context: BlockContext) -> list[ConditionalAccess]:
    """Definite accesses of a block without inner blocks, in order of execution.

    These are the accesses of its body (without the init statement), predicate and iterator values.
    Accesses to views are accesses to the underlying buffer.
    """
    walker = _DefiniteAccesses(context)
    starts = [rng.min for view in context.block.match_buffers for rng in view.source.region]
    for expr in (context.realize.predicate, *context.realize.iter_values, *starts):
        walker.visit(expr)
    walker.visit(context.block.body)
    return walker.found


class _DefiniteAccesses(AccessWalker):
    def __init__(self, context: BlockContext) -> None:
        super().__init__()
        self.context = context
        self.views = list(context.views())
        self.spans: tuple[VarRange, ...] = ()
        self.guards: tuple[ir.Expr, ...] = ()
        self.found: list[ConditionalAccess] = []

    # ------------------------------------------------------------------ control flow
    def visit_For(self, node: ir.For) -> None:
        self.visit(node.min)
        self.visit(node.extent)
        if jumps(node.body):
            return  # statements after the jump may not run
        around = self.spans
        low, count = self._resolved(node.min), self._resolved(node.extent)
        self.spans = (*around, VarRange(node.loop_var, low, count))
        self.visit(node.body)
        self.spans = around

    def branch(self, condition: ir.Expr, part: ir.Stmt | ir.Expr) -> None:
        around = self.guards
        self.guards = (*around, self._resolved(condition))
        self.visit(part)
        self.guards = around

    def uncertain(self, part: ir.Node) -> None:
        pass

    # ------------------------------------------------------------------ accesses
    def visit_BufferStore(self, node: ir.BufferStore) -> None:
        for part in (node.value, *node.indices):
            self.visit(part)
        if node.predicate is None:
            self._record(node, "write")
        else:
            self.visit(node.predicate)

    def visit_BufferLoad(self, node: ir.BufferLoad) -> None:
        self.operands(node)
        if node.predicate is None:
            self._record(node, "read")

    def atomic(self, node: ir.Call) -> None:
        place = ir.atomic_place(node)
        self.visit(node.args[1])
        if place is not None:
            self.operands(place)
            self._record(place, "atomic")

    def _record(self, element: ir.BufferLoad | ir.BufferStore, how: str) -> None:
        buffer, indices = element.buffer, element.indices
        for view in self.views:
            if view.buffer is buffer:
                buffer, indices = view.source.buffer, element_behind_view(view.source, indices)
        resolved = tuple(map(self._resolved, indices))
        self.found.append(ConditionalAccess(buffer, resolved, how, self.spans, self.guards))

    def _resolved(self, expr: ir.Expr) -> ir.Expr:
        return self.context.resolved(self.without_names(expr))
