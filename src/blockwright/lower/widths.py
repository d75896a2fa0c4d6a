"""Widen indices that may exceed 32 bits to 64.

Before::

    for k in range(n * m):                     # int32 sizes
        if k * 3 < n * m: B[k % 8] = A[k // m * 4 // n]

After::

    for k in range(int64(n) * int64(m)):
        if k * 3 < int64(n) * int64(m): B[k % 8] = A[k // int64(m) * 4 // int64(n)]

An index is a mathematical integer, whatever its declared width (docs/semantics.md). An index that
provably fits its type stays unchanged. Where an index is combined with a value, or is stored, it is
first computed and then taken modulo 2**32. The pass runs late, because other passes create indices.
"""

from __future__ import annotations

from typing import Any

from blockwright.ir import (
    INDEX_CALLS,
    Buffer,
    Call,
    Expr,
    For,
    Mutator,
    PrimFunc,
    Stmt,
    Var,
    binary,
    cast_to,
    compare,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.ir.dtype import INT32, INT64
from blockwright.lower.context import LowerContext, lowering_pass
from blockwright.lower.intervals import Intervals
from blockwright.lower.rewrite import Renamed


@lowering_pass
def choose_widths(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Widen the indices of the function that may not fit 32 bits."""
    body = _Choose(func)(func.body)
    return func if body is func.body else func.replace(body=body)


class _Choose(Mutator):
    """Rewrites indices in two contexts: as plain values, truncated to their declared type, or
    `exact`, in accesses, comparisons and loop bounds, which use the 64-bit index itself."""

    def __init__(self, func: PrimFunc) -> None:
        super().__init__()
        self.intervals = Intervals(func)
        self.is_index = self.intervals.sorts.is_index
        self.wide: dict[Var, Var] = {}
        self._unsafe: dict[Expr, bool] = {}

    def rewrite_Buffer(self, node: Buffer) -> Buffer:
        return node

    # ---------------------------------------------------------------------------- decisions
    def unsafe(self, expr: Expr) -> bool:
        """Whether computing an index in its declared types may overflow."""
        result = self._unsafe.get(expr)
        if result is None:
            parts = [n for n in expr.children() if isinstance(n, Expr) and _is_narrow(n)]
            inside = any(self.unsafe(n) for n in parts if self.is_index(n))
            result = inside or expr in self.wide or self.intervals.leaves(expr)
            self._unsafe[expr] = result
        return result

    def exact(self, expr: Expr) -> Expr:
        """The exact index: in 64 bits where 32 may not hold it."""
        return self._widened(expr) if self._is_unsafe_index(expr) else self(expr)

    def __call__(self, node: Any) -> Any:
        result = self._memo.get(node)
        if result is None and isinstance(node, Expr) and self._is_unsafe_index(node):
            result = self._memo[node] = E.Cast(node.dtype, self._widened(node))
        return super().__call__(node) if result is None else result

    def _is_unsafe_index(self, expr: Expr) -> bool:
        return _is_narrow(expr) and self.is_index(expr) and self.unsafe(expr)

    def _widened(self, expr: Expr) -> Expr:
        """A 32-bit index computed in 64 bits."""
        if isinstance(expr, Var) and expr in self.wide:
            return self.wide[expr]
        if not self._is_unsafe_index(expr):
            return cast_to(self(expr), INT64.with_lanes(expr.dtype.lanes))
        match expr:
            case E.BinaryOp():
                return binary(type(expr), self._widened(expr.a), self._widened(expr.b))
            case E.Cast():
                return self._widened(expr.value)
            case E.Ramp():
                return E.Ramp(self._widened(expr.base), self._widened(expr.stride), expr.lanes)
            case E.Broadcast():
                return E.Broadcast(self._widened(expr.value), expr.lanes)
            case E.Select():
                yes, no = self._widened(expr.true_value), self._widened(expr.false_value)
                return E.Select(self(expr.condition), yes, no)
            case Call(op="if_then_else"):
                yes, no = map(self._widened, expr.args[1:])
                return expr.replace(args=(self(expr.args[0]), yes, no), type=yes.dtype)
            case Call(op="likely"):
                return self._widened(expr.args[0])
            case Call(op="as_index"):
                return cast_to(self(expr.args[0]), INT64.with_lanes(expr.dtype.lanes))
            case Call() if expr.op in INDEX_CALLS:
                args = tuple(map(self._widened, expr.args))
                return expr.replace(args=args, type=INT64.with_lanes(expr.dtype.lanes))
            case E.Let():
                var, value = self._named(expr.var, expr.value)
                return E.Let(var, value, self._widened(expr.body))
            case _:
                return cast_to(self(expr), INT64.with_lanes(expr.dtype.lanes))

    # -------------------------------------------------------------------------- expressions
    def rewrite_Cast(self, node: E.Cast) -> Expr:
        wide = node.dtype.is_int and node.dtype.bits == 64 and self._is_unsafe_index(node.value)
        return cast_to(self._widened(node.value), node.type) if wide else self.descend(node)

    def rewrite_Call(self, node: Call) -> Expr:
        """Drop `as_index`, which only marks its operand; the sorts are already known here."""
        return self(node.args[0]) if node.op == "as_index" else self.descend(node)

    def _compare(self, node: E.CompareOp) -> Expr:
        if not (self.is_index(node.a) and self.is_index(node.b)):
            return self.descend(node)
        a, b = self.exact(node.a), self.exact(node.b)
        return node if a is node.a and b is node.b else compare(type(node), a, b)

    rewrite_EQ = rewrite_NE = rewrite_LT = rewrite_LE = rewrite_GT = rewrite_GE = _compare

    def _access(self, node: Any) -> Any:
        new = self.descend(node)
        indices = tuple(map(self.exact, node.indices))
        same = all(a is b for a, b in zip(indices, new.indices, strict=True))
        return new if same else new.replace(indices=indices)

    rewrite_BufferLoad = rewrite_BufferStore = _access

    def rewrite_Let(self, node: E.Let) -> Expr:
        var, value = self._named(node.var, node.value)
        body = self(node.body)
        same = var is node.var and value is node.value and body is node.body
        return node if same else E.Let(var, value, body)

    def _named(self, var: Var, value: Expr) -> tuple[Var, Expr]:
        """The let variable and value of an index, in 64 bits where 32 may not hold it."""
        if not (_is_narrow(var) and self.is_index(value)):
            return var, self(value)
        self.intervals.known[var] = self.intervals.of(value)
        if not self.intervals.leaves(value):
            return var, self(value)
        return self._renamed(var), self._widened(value)

    def _renamed(self, var: Var) -> Var:
        self.wide[var] = Var(var.name, INT64)
        return self.wide[var]

    # --------------------------------------------------------------------------- statements
    def rewrite_LetStmt(self, node: S.LetStmt) -> Stmt:
        var, value = self._named(node.var, node.value)
        body = self(node.body)
        same = var is node.var and value is node.value and body is node.body
        return node if same else node.replace(var=var, value=value, body=body)

    def rewrite_For(self, node: For) -> Stmt:
        low, count = self.intervals.of(node.min), self.intervals.of(node.extent)
        end = low[1] + max(count[1], 1)
        self.intervals.known[node.loop_var] = low[0], end - 1
        if not _is_narrow(node.loop_var) or (INT32.min_value <= low[0] and end <= INT32.max_value):
            return self.descend(node)
        var = self._renamed(node.loop_var)
        start, extent = self._widened(node.min), self._widened(node.extent)
        return node.replace(loop_var=var, min=start, extent=extent, body=self(node.body))

    def rewrite_Allocate(self, node: S.Allocate) -> Stmt:
        shape = tuple(map(self.exact, node.buffer.shape))
        body = self(node.body)
        if all(a is b for a, b in zip(shape, node.buffer.shape, strict=True)):
            return node if body is node.body else node.replace(body=body)
        buffer = node.buffer.replace(shape=shape)
        return node.replace(buffer=buffer, body=Renamed(node.buffer, buffer)(body))


def _is_narrow(expr: Expr) -> bool:
    return expr.dtype.element is INT32
