"""Bind the results of operations with effects to names, so that no expression has an effect.

Before::

    B[n[0]] = A[0] + T.atomic_add(A[0], 1)
    if T.atomic_add(n[0], 1) < 8: ...

After::

    old: T.int32 = A[0]
    result: T.int32 = T.atomic_add(A[0], 1)
    B[n[0]] = old + result
    result_1: T.int32 = T.atomic_add(n[0], 1)
    if result_1 < 8: ...

Later passes repeat, move and drop expressions: conditions that always hold, operands of checks. So
an effect remains only as a statement, or as the value of a name. Operands are evaluated in order,
the value of a store or an atomic update before the indices; those that load memory in front of an
effect are named too. A choice whose branches have effects becomes an `if`::

    B[i] = T.if_then_else(i < n,                ->      chosen = T.allocate((1,))
                          T.atomic_add(A[0], 1), 0)     if i < n: chosen[0] = <the call>
                                                        else: chosen[0] = 0
                                                        B[i] = chosen[0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blockwright.ir import (
    Allocate,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Expr,
    IfThenElse,
    LetStmt,
    PrimFunc,
    Stmt,
    Var,
    collect,
    const,
    is_atomic,
    logical_not,
    op_has_effect,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.lower.contents import Contents
from blockwright.lower.context import LowerContext, lowering_pass
from blockwright.lower.rewrite import Statements, reads_memory, sequence


@lowering_pass
def name_effects(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Move operations with effects out of the expressions of the function."""
    if not any(op_has_effect(call.op) for call in collect(func.body, Call)):
        return func
    return func.replace(body=_NameEffects(Contents())(func.body))


class _NameEffects(Statements):
    def __init__(self, contents: Contents) -> None:
        super().__init__()
        self.contents = contents

    def _inside(self, *roots: Expr | None) -> bool:
        return any(root is not None and self.contents.has_effect(root) for root in roots)

    def rewrite_BufferStore(self, node: BufferStore) -> Stmt:
        if not self._inside(node.value, node.predicate, *node.indices):
            return node
        before = _Before(self.contents)
        if not any(map(reads_memory, node.indices)) and node.predicate is None:
            return before.around(node.replace(value=before.root(node.value)))
        mask = () if node.predicate is None else (node.predicate,)
        value, *others = before.operands((node.value, *mask, *node.indices))
        predicate = others.pop(0) if mask else None
        new = node.replace(value=value, predicate=predicate, indices=tuple(others))
        return before.around(new)

    def rewrite_Evaluate(self, node: S.Evaluate) -> Stmt:
        before = _Before(self.contents)
        return before.around(node.replace(value=before.root(node.value)))

    def rewrite_LetStmt(self, node: LetStmt) -> Stmt:
        before = _Before(self.contents)
        value = before.root(node.value)
        body = self(node.body)
        if value is node.value and body is node.body:
            return node
        return before.around(node.replace(value=value, body=body))

    def rewrite_IfThenElse(self, node: IfThenElse) -> Stmt:
        before = _Before(self.contents)
        (condition,) = before.operands((node.condition,))
        then_case = self(node.then_case)
        else_case = None if node.else_case is None else self(node.else_case)
        new = node.replace(condition=condition, then_case=then_case, else_case=else_case)
        return before.around(new)

    def rewrite_AssertStmt(self, node: S.AssertStmt) -> Stmt:
        before = _Before(self.contents)
        (condition,) = before.operands((node.condition,))
        return before.around(node.replace(condition=condition))

    def rewrite_While(self, node: S.While) -> Stmt:
        body = self(node.body)
        if not self._inside(node.condition):
            return node.replace(body=body)
        before = _Before(self.contents)
        (condition,) = before.operands((node.condition,))
        leave = S.Evaluate(Call("break", (), E.DType("int", 32)))
        left = IfThenElse(logical_not(condition), leave)
        return S.While(const(True, "bool"), before.around(sequence([left, body])))


class _Before:
    """What runs before a statement to evaluate its expressions, in order."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self._steps: list[Callable[[Stmt], Stmt]] = []

    def around(self, stmt: Stmt) -> Stmt:
        """The statement after all that has been evaluated."""
        for step in reversed(self._steps):
            stmt = step(stmt)
        return stmt

    def root(self, value: Expr) -> Expr:
        """A value that may itself be an operation with an effect, but contains no other."""
        if isinstance(value, Call) and op_has_effect(value.op):
            return self._call(value)
        return self._value(value)

    def operands(self, exprs: Sequence[Expr]) -> list[Expr]:
        """The operands, evaluated in order up to the last one with an effect."""
        last = max((k for k, e in enumerate(exprs) if self.contents.has_effect(e)), default=-1)
        return [
            e if k > last else self._value(e) if k == last else self._settled(e)
            for k, e in enumerate(exprs)
        ]

    def _settled(self, expr: Expr) -> Expr:
        """An operand that later effects do not change."""
        if expr.dtype.is_handle:
            return self._value(self._place(expr))
        value = self._value(expr)
        return self._named(value, "old") if reads_memory(value) else value

    def _place(self, expr: Expr) -> Expr:
        """An element or an address that is not loaded here; the loads of its indices are."""
        if isinstance(expr, Call) and expr.op in ("address_of", "tensor"):
            return expr.replace(args=tuple(map(self._place, expr.args)))
        if isinstance(expr, BufferLoad):
            return expr.replace(indices=tuple(map(self._settled, expr.indices)))
        return expr

    def _named(self, value: Expr, name: str) -> Var:
        var = Var(name, value.dtype)
        self._steps.append(lambda body: LetStmt(var, value, body))
        return var

    def _value(self, expr: Expr) -> Expr:
        """The value of an expression, without effects."""
        if not self.contents.has_effect(expr):
            return expr
        if isinstance(expr, Call) and op_has_effect(expr.op):
            return self._named(self._call(expr), "result")
        sides = _sides(expr)
        if sides is not None and any(map(self.contents.has_effect, sides[1:])):
            return self._choice(expr, *sides)
        if isinstance(expr, E.Let):
            var, value = expr.var, self.root(expr.value)
            self._steps.append(lambda body: LetStmt(var, value, body))
            return self._value(expr.body)
        parts = iter(self.operands([c for c in expr.children() if isinstance(c, Expr)]))
        return expr.map_children(lambda child: next(parts) if isinstance(child, Expr) else child)

    def _call(self, node: Call) -> Call:
        """An operation whose operands have no effects."""
        if not any(map(self.contents.has_effect, node.args)):
            return node
        if not is_atomic(node):
            return node.replace(args=tuple(self.operands(node.args)))
        place, operand = node.args  # the operand comes first, like a stored value
        parts = place.indices if isinstance(place, BufferLoad) else (place,)
        operand, *where = self.operands((operand, *parts))
        if isinstance(place, BufferLoad):
            return node.replace(args=(place.replace(indices=tuple(where)), operand))
        return node.replace(args=(*where, operand))

    def _choice(self, node: Expr, condition: Expr, yes: Expr, no: Expr) -> Expr:
        """A choice of which one side is evaluated."""
        if node.dtype.is_handle or node.dtype.lanes > 1:
            return node  # nothing stores pointers, and no operation with effects is of lanes
        (condition,) = self.operands((condition,))
        zero = const(0, "int32")
        buffer = Buffer("chosen", node.dtype, (const(1, "int32"),), scope="local")
        sides: list[Stmt] = []
        for side in (yes, no):
            inside = _Before(self.contents)
            (value,) = inside.operands((side,))
            sides.append(inside.around(BufferStore(buffer, value, (zero,))))
        branch = IfThenElse(condition, *sides)
        self._steps.append(lambda body: Allocate(buffer, sequence([branch, body])))
        return self._named(BufferLoad(buffer, (zero,)), "chosen")


def _sides(node: Expr) -> tuple[Expr, Expr, Expr] | None:
    """The condition of an expression of which one side is evaluated, and its sides."""
    if isinstance(node, Call) and node.op == "if_then_else":
        condition, yes, no = node.args
        return condition, yes, no
    if isinstance(node, E.And):
        return node.a, node.b, const(False, "bool")
    return (node.a, const(True, "bool"), node.b) if isinstance(node, E.Or) else None
