"""EliminateDead: drop values that are not used, unless computing them has effects.

Before::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        a = R.exp(x)
        b = R.negative(a)
        return a

After::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        a = R.exp(x)
        return a
"""

from __future__ import annotations

from blockwright import ir
from blockwright.passes.context import PassContext, function_pass
from blockwright.passes.rewrite import flat_function, is_pure, used_vars


@function_pass
def eliminate_dead(function: ir.GraphFunction, ctx: PassContext) -> ir.GraphFunction:
    """Drop pure bindings whose values are unused."""
    needed = set(used_vars(function.body.body))
    kept: list[ir.Binding] = []
    for binding in reversed(function.bindings):
        if isinstance(binding, ir.VarBinding):
            if binding.var not in needed and is_pure(binding.value):
                continue
            needed.update(used_vars(binding.value))
        elif isinstance(binding, ir.MatchCast):
            needed.update(used_vars(binding.value))
        kept.append(binding)
    unchanged = len(kept) == len(function.bindings)
    return function if unchanged else flat_function(function, reversed(kept))
