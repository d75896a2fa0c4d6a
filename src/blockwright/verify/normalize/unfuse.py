"""Split fused loops that are used only through `//` and `%` by constants.

    for f in range(n * 7):                      for f_0 in range(n):
        A[f // 7, f % 7] = …            →           for f_1 in range(7):
                                                        A[f_0, f_1] = …

Both forms run the same iterations in the same order. isl could handle the divisions, but their cost
recurs in every relation derived from the loop. Loops fused from symbolic sizes are handled by
`digit_split`.
"""

from __future__ import annotations

from typing import Any

from blockwright import ir

_KINDS = (ir.ForKind.SERIAL, ir.ForKind.UNROLLED, ir.ForKind.PARALLEL)


def unfused(stmt: ir.Stmt) -> ir.Stmt:
    """Split the loops in a statement that are used only through their digits."""
    return _Unfused()(stmt)


class _Unfused(ir.Mutator):
    def __call__(self, node: Any) -> Any:
        """Visit statements only: expressions contain no loops."""
        return super().__call__(node) if isinstance(node, ir.Stmt) else node

    def rewrite_For(self, node: ir.For) -> ir.Stmt:
        result = self.descend(node)
        while (apart := _apart(result)) is not None:
            result = apart
        return result


def _apart(node: ir.For) -> ir.For | None:
    """Split off the lowest digit as an inner loop; None if not applicable."""
    if node.kind not in _KINDS or not ir.is_const_int(node.min, 0):
        return None
    uses = _Uses(node.loop_var)
    uses(node.body)
    base = min(uses.divisors, default=1)
    high = _quotient(node.extent, base)
    apart = base > 1 and not uses.others and not any(d % base for d in uses.divisors)
    if not apart or high is None or ir.is_const_int(high, 1):
        return None
    names = [ir.Var(f"{node.loop_var.name}_{k}", node.loop_var.type) for k in range(2)]
    body = _Digits(node.loop_var, names[0], names[1], base)(node.body)
    count = ir.const(base, node.extent.dtype)
    inner = ir.For(names[1], node.min, count, node.kind, body)
    return node.replace(loop_var=names[0], extent=high, body=inner)


def _quotient(extent: ir.Expr, base: int) -> ir.Expr | None:
    """Divide an extent by a number; None if no explicit factor shows that it is divisible."""
    number = ir.const_int(extent)
    if number is not None:
        return None if number % base else ir.const(number // base, extent.dtype)
    if isinstance(extent, ir.Mul):
        for part, other in ((extent.a, extent.b), (extent.b, extent.a)):
            result = _quotient(part, base)
            if result is not None:
                return other if ir.is_const_int(result, 1) else ir.Mul(result, other)
    return None


def _divisor(node: ir.FloorDiv | ir.FloorMod, var: ir.Var) -> int:
    """The number that divides the variable; 0 if the node is no such division."""
    number = ir.const_int(node.b) if node.a is var else None
    return 0 if number is None else max(number, 0)


class _Uses(ir.Mutator):
    """Collect the uses of a variable.

    Attributes:
        divisors: the constants it is divided by.
        others: whether it has any other use.
    """

    def __init__(self, var: ir.Var) -> None:
        super().__init__()
        self.var = var
        self.divisors: set[int] = set()
        self.others = False

    def rewrite_FloorDiv(self, node: ir.FloorDiv | ir.FloorMod) -> ir.Expr:
        divisor = _divisor(node, self.var)
        if not divisor:
            return self.descend(node)
        self.divisors.add(divisor)
        return node

    rewrite_FloorMod = rewrite_FloorDiv

    def rewrite_Var(self, node: ir.Var) -> ir.Expr:
        self.others = self.others or node is self.var
        return node


class _Digits(ir.Mutator):
    """Replace `var // base` and `var % base` by two variables."""

    def __init__(self, var: ir.Var, high: ir.Var, low: ir.Var, base: int) -> None:
        super().__init__()
        self.var, self.high, self.low, self.base = var, high, low, base

    def rewrite_FloorDiv(self, node: ir.FloorDiv) -> ir.Expr:
        divisor = _divisor(node, self.var)
        if not divisor:
            return self.descend(node)
        return self.high if divisor == self.base else ir.FloorDiv(self.high, self._count(divisor))

    def rewrite_FloorMod(self, node: ir.FloorMod) -> ir.Expr:
        divisor = _divisor(node, self.var)
        if not divisor:
            return self.descend(node)
        if divisor == self.base:
            return self.low
        above = ir.FloorMod(self.high, self._count(divisor))
        return ir.Add(ir.Mul(above, ir.const(self.base, self.high.type)), self.low)

    def _count(self, divisor: int) -> ir.Expr:
        return ir.const(divisor // self.base, self.high.type)
