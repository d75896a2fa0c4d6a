"""Preserve overflow semantics when a step substitutes index expressions for values or vice versa.

Value arithmetic wraps around; index arithmetic does not. A step that replaces one by the other
marks the inserted expression (`as_value`, `as_index`), and drops the mark where both kinds of
arithmetic have the same result (`Unmarked`)::

    T.reinterpret("int32", vi) + 2147483647 > vi    # stays
    T.reinterpret("int32", vi) + 1 > vi             # vi + 1 > vi, if vi + 1 fits into its type
    A[T.as_index(x[vi]) * 65536 % 7]                # stays
    A[T.as_index(x[vi])]                            # A[x[vi]]
"""

from __future__ import annotations

from itertools import product
from typing import Any, cast

from blockwright import ir
from blockwright.analysis import facts_of_initial
from blockwright.arith import Analyzer
from blockwright.schedule.engine.state import StepState

Ends = tuple[int, int]

_LONGEST = 1 << 48
"""Bound for 64-bit iterators without known bounds: more iterations than a loop can run."""
_TRANSPARENT = frozenset({"if_then_else", "shift_left", "shift_right", "bitwise_and", "likely"})


def as_value(expr: ir.Expr, sorts: ir.Sorts) -> ir.Expr:
    """Mark an expression as a value: wrap an index in a `reinterpret` to its own type."""
    if expr.dtype.is_int and sorts.is_index(expr):
        return ir.Call("reinterpret", (expr,), expr.dtype)
    return expr


def as_index(expr: ir.Expr, sorts: ir.Sorts) -> ir.Expr:
    """Mark an expression as an index: wrap a 32- or 64-bit value in `as_index`."""
    wide = expr.dtype.kind == "int" and expr.dtype.bits >= 32
    if wide and not sorts.is_index(expr):
        return ir.Call("as_index", (expr,), expr.dtype)
    return expr


def inside(state: StepState, realize: ir.BlockRealize) -> Analyzer:
    """The facts inside a block, valid also in its initial value: context and iterator domains."""
    analyzer = state.analyzer(realize)
    for it in realize.block.iter_vars:
        if not analyzer.knows(it.var):
            analyzer.bind(it.var, it.dom)
    return facts_of_initial(analyzer, realize)


def _is_mark(node: Any) -> bool:
    if not isinstance(node, ir.Call) or not node.dtype.is_int:
        return False
    same = node.op == "reinterpret" and node.args[0].dtype is node.dtype
    return same or node.op == "as_index"


class Unmarked(ir.Mutator):
    """Drops marks where no index operator, with or without marks, can overflow its type."""

    def __init__(self, sorts: ir.Sorts, analyzer: Analyzer) -> None:
        super().__init__()
        self.sorts, self.analyzer = sorts, analyzer

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_Let(self, node: ir.Let) -> ir.Expr:
        return node.replace(body=self(node.body))  # a let-bound value stays a value

    def rewrite_LetStmt(self, node: ir.LetStmt) -> ir.Stmt:
        return node.replace(body=self(node.body))

    def __call__(self, node: Any) -> Any:
        if not isinstance(node, ir.Expr) or not node.dtype.is_int:
            return super().__call__(node)
        if not any(map(_is_mark, ir.walk(node))):
            return node
        plain, fits = self._plain(node)
        return plain if fits else node

    def _plain(self, node: ir.Expr) -> tuple[ir.Expr, bool]:
        """The expression without marks, and whether it is equivalent."""
        if _is_mark(node):
            return self._plain(cast(ir.Call, node).args[0])
        if not _is_operator(node):
            return super().__call__(node), True
        fits = True

        def operand(child: Any) -> Any:
            nonlocal fits
            if not isinstance(child, ir.Expr) or not child.dtype.is_int:
                return self(child)
            plain, inside = self._plain(child)
            fits = fits and inside
            return plain

        plain = node.map_children(operand)
        if fits and (self.sorts.is_index(node) or self.sorts.is_index(plain)):
            fits = self.fits(plain)
        return plain, fits

    def fits(self, node: ir.Expr) -> bool:
        """Whether the exact value of an integer expression is representable in its type."""
        ends = self._ends(node)
        type_ = node.dtype.element
        return ends is not None and type_.min_value <= ends[0] and ends[1] <= type_.max_value

    def _ends(self, node: ir.Expr) -> Ends | None:
        """Minimum and maximum of an integer expression; None if unknown."""
        if isinstance(node, (ir.Cast, ir.Broadcast)):
            return self._ends(node.value)
        combine = _CORNERS.get(type(node))
        if combine is not None and isinstance(node, ir.BinaryOp):
            a, b = self._ends(node.a), self._ends(node.b)
            if a is None or b is None:
                return None
            corners = [combine(x, y) for x, y in product(a, b)]
            return min(corners), max(corners)
        low, high = self.analyzer.const_bounds(node) if node.dtype.lanes == 1 else (None, None)
        if low is not None and high is not None:
            return low, high
        if isinstance(node, ir.Var) and node.dtype.bits == 64:
            return -_LONGEST, _LONGEST
        return None


def _is_operator(node: ir.Expr) -> bool:
    if isinstance(node, ir.Cast):
        return node.value.dtype.is_int
    if isinstance(node, ir.Call):
        return node.op in _TRANSPARENT
    return isinstance(node, (ir.BinaryOp, ir.Select, ir.Ramp, ir.Broadcast))


_CORNERS: dict[type[Any], Any] = {
    ir.Add: int.__add__, ir.Sub: int.__sub__, ir.Mul: int.__mul__, ir.Min: min, ir.Max: max,
}  # fmt: skip
