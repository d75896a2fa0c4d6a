"""Simplify index arithmetic, conditions and control flow, using enclosing loops and conditions.

Before::

    for i in range(4):
        for j in range(1):
            if i * 16 + j < 64 and n > 3:
                B[(i * 16 + j) // 16] = A[i + 0]

After::

    if n > 3:
        for i in range(4):
            B[i] = A[i]

Removes single-iteration loops, empty loops, dead branches and statements without effect. A
loop-invariant condition is hoisted out of its loop, and so is a leading statement that runs only in
the first iteration. Arithmetic on values of element types is not reassociated.
"""

from __future__ import annotations

import contextlib
from typing import Any, TypeGuard

from blockwright.analysis.access.tree import jumps
from blockwright.arith import Analyzer, defined
from blockwright.arith.condition import conjuncts
from blockwright.arith.form import is_index
from blockwright.ir import (
    BufferLoad,
    Call,
    Expr,
    For,
    ForKind,
    IntImm,
    PrimFunc,
    Range,
    Stmt,
    Var,
    all_of,
    const_int,
    is_const_int,
    logical_not,
    structural_equal,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.lower.contents import Contents
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import (
    Analysed,
    Instantiate,
    has_effect,
    is_no_op,
    no_op,
    reads_memory,
    sequence,
    stable,
    stable_negation,
    walk_code,
)


@lowering_pass
def simplify(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Simplify the indices, conditions and control flow of the function."""
    return func.replace(body=_Simplify(function_analyzer(func))(func.body))


class _Simplify(Analysed):
    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__(analyzer)
        self.contents = Contents()

    def __call__(self, node: Any) -> Any:
        if not isinstance(node, Expr):
            return super().__call__(node)
        if isinstance(node, (Var, IntImm, E.FloatImm, E.StringImm)):
            return node
        type_ = node.dtype
        if type_.lanes == 1 and (type_.is_int or type_.is_bool):
            if self.contents.has_own_rules(node):
                node = self._kept_value(node, self._parts(node))
            return node if self.contents.has_effect(node) else self.analyzer.simplify(node)
        return super().__call__(node)

    def _parts(self, node: Expr) -> Expr:
        """The node with simplified children.

        A chain of `and` or `or` is simplified operand by operand, so that each operand is visited
        once instead of once per enclosing link."""
        if not isinstance(node, (E.And, E.Or)):
            return super().__call__(node)
        kind = type(node)
        chain: list[E.And | E.Or] = [node]
        while isinstance(below := chain[-1].a, (E.And, E.Or)) and type(below) is kind:
            chain.append(below)
        result: Expr = self(chain[-1].a)
        for link in reversed(chain):
            b = self(link.b)
            result = link if result is link.a and b is link.b else kind(result, b)
        return result

    def _kept_value(self, old: Expr, new: Any) -> Any:
        """`new`, unless a value would become an index; indices must not wrap around."""
        return old if not isinstance(new, IntImm) and self._lost_value(old, new) else new

    def _lost_value(self, old: Expr, new: Expr) -> bool:
        if not is_index(old.dtype) or self.contents.has_effect(old):
            return False
        return self.analyzer.is_value(old) and not self.analyzer.is_value(new)

    # ------------------------------------------------------------------------------- statements

    def rewrite_For(self, node: For) -> Stmt:
        low, extent = self(node.min), self(node.extent)
        count = const_int(extent)
        if count is None and self.analyzer.prove(E.LE(extent, _same(0, extent))):
            count = 0
        if count is not None and count <= 0:
            return no_op()
        early = jumps(node.body)  # keep such a loop as the target of its jumps
        if count == 1 and node.kind is not ForKind.THREAD_BINDING and not early:
            return self(Instantiate({node.loop_var: low}, fresh_definitions=False)(node.body))
        with self.inside(node.loop_var, Range(low, extent)):
            body = self(node.body)
        if is_no_op(body):
            return body
        if self._invariant(body, node.loop_var):
            outside = defined(body.condition, self.analyzer)
            if outside is not None:
                inner = node.replace(min=low, extent=extent, body=body.then_case)
                return body.replace(condition=outside, then_case=inner)
        if node.kind is ForKind.SERIAL and isinstance(body, S.SeqStmt) and not early:
            first = self._only_first(body.seq[0], node.loop_var, low)
            if first is not None:
                rest = node.replace(min=low, extent=extent, body=sequence(list(body.seq[1:])))
                some = E.GT(extent, _same(0, extent))
                return sequence([self(S.IfThenElse(some, first)), rest])
        if low is node.min and extent is node.extent and body is node.body:
            return node
        return node.replace(min=low, extent=extent, body=body)

    def _only_first(self, stmt: Stmt, var: Var, low: Expr) -> Stmt | None:
        """The effect of a loop's leading statement if it runs in the first iteration only.

        The initial value of a reduction has this form: `if k == 0: ...`.
        """
        if not isinstance(stmt, S.IfThenElse) or stmt.else_case is not None:
            return None
        parts = list(conjuncts(stmt.condition))
        for part in parts:
            if isinstance(part, E.EQ) and (part.a is var or part.b is var):
                other = part.b if part.a is var else part.a
                if self.analyzer.prove_equal(other, low):
                    kept = all_of(p for p in parts if p is not part)
                    return Instantiate({var: low}, fresh_definitions=False)(
                        S.IfThenElse(kept, stmt.then_case)
                    )
        return None

    def _invariant(self, body: Stmt, var: Var) -> TypeGuard[S.IfThenElse]:
        """Whether the body is a single `if` with a loop-invariant condition."""
        if not isinstance(body, S.IfThenElse) or body.else_case is not None:
            return False
        parts = walk_code(body.condition)
        return all(part is not var and not isinstance(part, (BufferLoad, Call)) for part in parts)

    def rewrite_IfThenElse(self, node: S.IfThenElse) -> Stmt:
        condition = self(node.condition)
        taken = self._decide(condition)
        if taken is not None:
            if taken:
                return self(node.then_case)
            return no_op() if node.else_case is None else self(node.else_case)
        with self.analyzer.assume(stable(condition)):
            then_case = self(node.then_case)
        else_case = node.else_case
        if else_case is not None:
            with self.analyzer.assume(stable_negation(condition)):
                else_case = self(else_case)
            if is_no_op(else_case):
                else_case = None
        if is_no_op(then_case):
            if else_case is None:
                return no_op()
            return S.IfThenElse(self.analyzer.simplify(logical_not(condition)), else_case)
        return node.replace(condition=condition, then_case=then_case, else_case=else_case)

    def _decide(self, condition: Expr) -> bool | None:
        """Whether the condition always holds (True) or never (False); None if unknown."""
        if isinstance(condition, IntImm):
            return bool(condition.value)
        if condition.dtype.lanes > 1:
            return None
        if self.analyzer.prove(condition):
            return True
        return False if self.analyzer.prove(logical_not(condition)) else None

    def rewrite_SeqStmt(self, node: S.SeqStmt) -> Stmt:
        out: list[Stmt] = []
        with contextlib.ExitStack() as known:
            for stmt in node.seq:
                new = self(stmt)
                out.append(new)
                if isinstance(new, S.AssertStmt):
                    known.enter_context(self.analyzer.assume(stable(new.condition)))
        if len(out) == len(node.seq) and all(a is b for a, b in zip(out, node.seq, strict=True)):
            return node
        result = sequence(out)
        return self._joined(result) if isinstance(result, S.SeqStmt) else result

    def _joined(self, node: S.SeqStmt) -> Stmt:
        """Merge adjacent identical statements that run under complementary conditions.

        The initial value of a reduction that may run no iteration has this form.
        """
        out: list[Stmt] = []
        for stmt in node.seq:
            last = out[-1] if out else None
            if (
                isinstance(stmt, S.IfThenElse)
                and isinstance(last, S.IfThenElse)
                and stmt.else_case is None
                and last.else_case is None
                and not reads_memory(last.condition)
                and structural_equal(stmt.then_case, last.then_case)
                and structural_equal(
                    self.analyzer.simplify(logical_not(last.condition)), stmt.condition
                )
            ):
                out[-1] = stmt.then_case
            else:
                out.append(stmt)
        return node if len(out) == len(node.seq) else sequence(out)

    def rewrite_LetStmt(self, node: S.LetStmt) -> Stmt:
        value = self(node.value)
        if self._lost_value(node.value, value):
            value = node.value  # keep a value from turning into an index
        if isinstance(value, (Var, IntImm, E.FloatImm)):
            return self(Instantiate({node.var: value}, fresh_definitions=False)(node.body))
        body = self(node.body)
        if is_no_op(body) and not has_effect(value):
            return body
        return node.replace(value=value, body=body)

    def rewrite_While(self, node: S.While) -> Stmt:
        condition = self(node.condition)
        if is_const_int(condition, 0):
            return no_op()
        return node.replace(condition=condition, body=self(node.body))

    def rewrite_AssertStmt(self, node: S.AssertStmt) -> Stmt:
        condition = self(node.condition)
        if self._decide(condition):
            return no_op()
        return node.replace(condition=condition, values=tuple(self(v) for v in node.values))

    def rewrite_Evaluate(self, node: S.Evaluate) -> Stmt:
        value = self(node.value)
        return node.replace(value=value) if has_effect(value) else no_op()

    def rewrite_Allocate(self, node: S.Allocate) -> Stmt:
        body = self(node.body)
        return body if is_no_op(body) else node.replace(body=body)

    def rewrite_DeclBuffer(self, node: S.DeclBuffer) -> Stmt:
        body = self(node.body)
        return body if is_no_op(body) else node.replace(source=self(node.source), body=body)

    def rewrite_AttrStmt(self, node: S.AttrStmt) -> Stmt:
        body = self(node.body)
        if is_no_op(body):
            return body
        return self.descend(node.replace(body=no_op())).replace(body=body)

    def rewrite_BufferStore(self, node: S.BufferStore) -> Stmt:
        new = self.descend(node)
        return no_op() if is_const_int(new.predicate, 0) else new

    # ------------------------------------------------------------------------------ expressions

    def rewrite_Select(self, node: E.Select) -> Expr:
        condition = self(node.condition)
        taken = self._decide(condition)
        if taken is not None:
            return self(node.true_value if taken else node.false_value)
        return E.Select(condition, self(node.true_value), self(node.false_value))

    def rewrite_Call(self, node: Call) -> Expr:
        if node.op == "likely":
            return self(node.args[0])
        if node.op != "if_then_else":
            return self.descend(node)
        condition, yes, no = node.args
        condition = self(condition)
        taken = self._decide(condition)
        if taken is not None:
            return self(yes if taken else no)
        if condition.dtype.lanes > 1:
            return node.replace(args=(condition, self(yes), self(no)))
        with self.analyzer.assume(condition):
            yes = self(yes)
        with self.analyzer.assume(logical_not(condition)):
            no = self(no)
        return node.replace(args=(condition, yes, no))


def _same(value: int, like: Expr) -> Expr:
    return IntImm(value, like.dtype)
