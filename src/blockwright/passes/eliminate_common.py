"""EliminateCommon: merge equal calls of operators without effects.

Before::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        a = R.exp(x)
        b = R.exp(x)
        c = R.add(a, b)
        return c

After::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        a = R.exp(x)
        c = R.add(a, a)
        return c

A value that a call_tir_inplace overwrites keeps a call of its own: equal values are still needed.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.graph.updates import overwritten_at
from blockwright.passes.context import PassContext, function_pass
from blockwright.passes.rewrite import Replace, flat_function, is_pure


@function_pass
def eliminate_common(function: ir.GraphFunction, ctx: PassContext) -> ir.GraphFunction:
    """Merge equal pure calls of every graph function."""
    overwritten = overwritten_at(function)
    values: dict[ir.Node, ir.Node] = {}  # dropped variable → the equal one
    replace = Replace(values)
    seen: dict[int, list[ir.VarBinding]] = {}
    kept: list[ir.Binding] = []
    for binding in function.bindings:
        if isinstance(binding, ir.VarBinding) and is_pure(binding.value):
            value = replace(binding.value)
            own = binding.var in overwritten
            known = None if own else _find(seen, value)
            if known is not None:
                values[binding.var] = known.var
                continue
            binding = ir.VarBinding(binding.var, value)
            if not own:
                seen.setdefault(_key(value), []).append(binding)
        elif isinstance(binding, ir.VarBinding):
            binding = ir.VarBinding(binding.var, replace(binding.value))
        elif isinstance(binding, ir.MatchCast):
            binding = binding.replace(value=replace(binding.value))
        kept.append(binding)
    if not values:
        return function
    return flat_function(function, kept, replace(function.body.body))


def _key(value: ir.GraphExpr) -> int:
    """Hash of a call by operator, operand identities and attributes."""
    if isinstance(value, ir.GraphCall):
        operands = tuple(
            ir.structural_hash(a) if isinstance(a, ir.ShapeExpr) else id(a) for a in value.args
        )
        return hash((getattr(value.op, "name", ""), operands, repr(sorted(value.attrs.items()))))
    return id(value)


def _find(seen: dict[int, list[ir.VarBinding]], value: ir.GraphExpr) -> ir.VarBinding | None:
    for candidate in seen.get(_key(value), []):
        if ir.structural_equal(candidate.value, value):
            return candidate
    return None
