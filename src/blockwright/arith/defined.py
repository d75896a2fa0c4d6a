"""Rewrite expressions so that they can be speculated, that is evaluated outside their guard.

Sizes may be 0, and a division by such a size must not be evaluated then.
"""

from __future__ import annotations

from typing import Any

from blockwright.arith.analyzer import Analyzer
from blockwright.ir import Expr, IntImm, Mutator, const
from blockwright.ir import expr as E


def defined(root: Expr, analyzer: Analyzer) -> Expr | None:
    """Make an expression safe to evaluate anywhere: divisors that may be 0 become `max(d, 1)`.

    The result equals the original wherever no divisor is 0. None if a divisor may be both negative
    and 0.
    """
    totals = _Defined(analyzer)
    result = totals(root)
    return None if totals.failed else result


class _Defined(Mutator):
    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self.analyzer, self.failed = analyzer, False

    def __call__(self, node: Any) -> Any:
        node = super().__call__(node)
        if not isinstance(node, (E.Div, E.Mod, E.FloorDiv, E.FloorMod)) or not node.dtype.is_int:
            return node
        divisor, zero = node.b, const(0, node.b.dtype)
        if isinstance(divisor, IntImm) or self.analyzer.is_nonzero(divisor):
            return node
        self.failed |= not self.analyzer.prove(E.GE(divisor, zero))
        return node.replace(b=E.Max(divisor, const(1, divisor.dtype)))
