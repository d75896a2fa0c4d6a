"""Clamp extents of loops and allocations to at least 0.

Before::

    D = T.allocate((n - 4,), "float32")
    for i in range(n - i0 * 8):
        ...

After::

    D = T.allocate((T.max(n - 4, 0),), "float32")
    for i in range(T.max(n - i0 * 8, 0)):
        ...

Extents that are provably nonnegative stay unchanged. The pass runs after allocations have reached
their final places, because facts that hold inside a loop or a branch need not hold outside of it.
"""

from __future__ import annotations

from blockwright.analysis.sizes import nonnegative
from blockwright.ir import Allocate, For, PrimFunc, Stmt
from blockwright.ir import stmt as S
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import Analysed, Renamed, Statements, stable


@lowering_pass
def clamp_sizes(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Clamp the extents of the function to at least 0."""
    return func.replace(body=_Clamp(function_analyzer(func))(func.body))


class _Clamp(Analysed, Statements):
    def rewrite_For(self, node: For) -> Stmt:
        extent = nonnegative(node.extent, self.analyzer)
        with self.inside(node.loop_var, node.dom):
            body = self(node.body)
        if extent is node.extent and body is node.body:
            return node
        return node.replace(extent=extent, body=body)

    def rewrite_IfThenElse(self, node: S.IfThenElse) -> Stmt:
        with self.analyzer.assume(stable(node.condition)):
            then_case = self(node.then_case)
        else_case = None if node.else_case is None else self(node.else_case)
        if then_case is node.then_case and else_case is node.else_case:
            return node
        return node.replace(then_case=then_case, else_case=else_case)

    def rewrite_Allocate(self, node: Allocate) -> Stmt:
        body = self(node.body)
        shape = tuple(nonnegative(extent, self.analyzer) for extent in node.buffer.shape)
        if all(new is old for new, old in zip(shape, node.buffer.shape, strict=True)):
            return node if body is node.body else node.replace(body=body)
        buffer = node.buffer.replace(shape=shape)
        return node.replace(buffer=buffer, body=Renamed(node.buffer, buffer)(body))
