"""Index expressions that a step puts in the place of a load.

A load is a value and wraps around; the index expression that was stored does not. The step marks
the expression as a value (`marked`), and drops the marks again where index arithmetic gives the
same number (`Unmarked`)::

    T.reinterpret("int32", vi) + 2147483647 > vi    # stays
    T.reinterpret("int32", vi) + 1 > vi             # vi + 1 > vi, if vi + 1 fits into its type
"""

from __future__ import annotations

from itertools import product
from typing import Any, cast

from blockwright import ir
from blockwright.analysis import facts_of_initial
from blockwright.arith import Analyzer
from blockwright.schedule.state import State

Ends = tuple[int, int]

_LONGEST = 1 << 48
"""More iterations than a loop can run: iterators of 64 bits without known bounds stay below."""
_TRANSPARENT = frozenset({"if_then_else", "shift_left", "shift_right", "bitwise_and", "likely"})


def marked(expr: ir.Expr, sorts: ir.Sorts) -> ir.Expr:
    """The expression as a value: an index is wrapped in a `reinterpret` to its own type."""
    if expr.dtype.is_int and sorts.is_index(expr):
        return ir.Call("reinterpret", (expr,), expr.dtype)
    return expr


def inside(state: State, realize: ir.BlockRealize) -> Analyzer:
    """What is known inside a block, also in its initial value: where it stands, and the domains of
    its iterators."""
    analyzer = state.analyzer(realize)
    for it in realize.block.iter_vars:
        if not analyzer.knows(it.var):
            analyzer.bind(it.var, it.dom)
    return facts_of_initial(analyzer, realize)


def _is_mark(node: Any) -> bool:
    return isinstance(node, ir.Call) and node.op == "reinterpret" and (
        node.args[0].dtype is node.dtype and node.dtype.is_int)  # fmt: skip


class Unmarked(ir.Mutator):
    """Drops marks where the index arithmetic without them stays within its type."""

    def __init__(self, sorts: ir.Sorts, analyzer: Analyzer) -> None:
        super().__init__()
        self.sorts, self.analyzer = sorts, analyzer

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_Let(self, node: ir.Let) -> ir.Expr:
        return node.replace(body=self(node.body))  # a name for a value stays one

    def rewrite_LetStmt(self, node: ir.LetStmt) -> ir.Stmt:
        return node.replace(body=self(node.body))

    def __call__(self, node: Any) -> Any:
        if not isinstance(node, ir.Expr) or not node.dtype.is_int:
            return super().__call__(node)
        if not any(map(_is_mark, ir.walk(node))):
            return node
        plain = self._plain(node)
        return plain if self._fits(plain) else node

    def _plain(self, node: ir.Expr) -> ir.Expr:
        """The integer operators of an expression without marks."""
        if _is_mark(node):
            return self._plain(cast(ir.Call, node).args[0])
        if not _is_operator(node):
            return super().__call__(node)

        def operand(child: Any) -> Any:
            whole = isinstance(child, ir.Expr) and child.dtype.is_int
            return self._plain(child) if whole else self(child)

        return node.map_children(operand)

    def _fits(self, node: ir.Expr) -> bool:
        """Whether every index in the expression has a number of its type."""
        if not _is_operator(node):
            return True
        parts = [c for c in node.children() if isinstance(c, ir.Expr) and c.dtype.is_int]
        if not all(map(self._fits, parts)):
            return False
        if not self.sorts.is_index(node):
            return True
        ends = self._ends(node)
        type_ = node.dtype.element
        return ends is not None and type_.min_value <= ends[0] and ends[1] <= type_.max_value

    def _ends(self, node: ir.Expr) -> Ends | None:
        """Least and greatest number of an index; None where they are not known."""
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
