"""Merge the guards of a sequence into one guard around it.

Before::

    for i in range(24):
        if i < m: start
        for k in range(384):
            for r in range(8):
                if i * 8 + r < m * 8: load
            if i < m: update
        for r in range(8):
            if i * 8 + r < n: finish                        # n <= m * 8

After::

    for i in range(24):
        if i < m:
            start
            for k in range(384): ...
            for r in range(8):
                if i * 8 + r < n: finish

A condition of one statement moves around its whole sequence when all effects of the other
statements are proved to be under it as well; `simplify` then drops the conditions it implies.
Where the tile size does not divide the extent of a loop, each tile then has a single test, and
tile buffers are provably written before they are read.
"""

from __future__ import annotations

from typing import Any

from blockwright.arith import Analyzer, defined
from blockwright.ir import Expr, For, PrimFunc, Stmt, uses_var
from blockwright.ir import stmt as S
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import Analysed, reads_memory, stable


@lowering_pass
def merge_guards(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Merge common guards of sequences and hoist loop-invariant guards out of loops."""
    return func.replace(body=_MergeGuards(function_analyzer(func))(func.body))


class _MergeGuards(Analysed):
    def __call__(self, node: Any) -> Any:
        return node if isinstance(node, Expr) else super().__call__(node)

    def rewrite_For(self, node: For) -> Stmt:
        with self.inside(node.loop_var, node.dom):
            body = self(node.body)
        guard = _guard(body)
        if guard is not None and not uses_var(guard, node.loop_var) and not reads_memory(guard):
            assert isinstance(body, S.IfThenElse)
            outside = defined(guard, self.analyzer)
            if outside is not None:
                inner = node.replace(body=body.then_case)
                return body.replace(condition=outside, then_case=inner)
        return node if body is node.body else node.replace(body=body)

    def rewrite_SeqStmt(self, node: S.SeqStmt) -> Stmt:
        parts = tuple(self(part) for part in node.seq)
        same = all(new is old for new, old in zip(parts, node.seq, strict=True))
        result = node if same else S.SeqStmt(parts)
        for part in parts:
            guard = _guard(part)
            if guard is None or reads_memory(guard):
                continue
            if all(other is part or _implies(other, guard, self.analyzer) for other in parts):
                return S.IfThenElse(guard, result)
        return result


def _guard(stmt: object) -> Expr | None:
    """The condition of an `if` without `else`; None for other statements."""
    if isinstance(stmt, S.IfThenElse) and stmt.else_case is None:
        return stmt.condition
    return None


def _implies(stmt: Stmt, guard: Expr, analyzer: Analyzer) -> bool:
    """Whether every effect of `stmt` happens only where `guard` holds."""
    if isinstance(stmt, S.SeqStmt):
        return all(_implies(part, guard, analyzer) for part in stmt.seq)
    if isinstance(stmt, For):
        inner = analyzer.copy()
        inner.bind(stmt.loop_var, stmt.dom)
        return _implies(stmt.body, guard, inner)
    if isinstance(stmt, S.IfThenElse) and stmt.else_case is None:
        if stmt.condition is guard:
            return True
        with analyzer.assume(stable(stmt.condition)):
            return analyzer.prove(guard) or _implies(stmt.then_case, guard, analyzer)
    return False
