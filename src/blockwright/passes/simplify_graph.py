"""Common-subexpression and dead-code elimination on graph functions.

Before:  lv0 = R.exp(x); lv1 = R.exp(x); lv2 = R.add(lv0, lv1); lv3 = R.neg(x); return lv2
After:   lv0 = R.exp(x); lv2 = R.add(lv0, lv0); return lv2
"""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import flat_function, map_graph_functions, used_vars

_EFFECTS = frozenset({"call_packed", "call_dps_library", "call_tir_inplace"})


def _pure(value: ir.GraphExpr) -> bool:
    if isinstance(value, ir.GraphCall):
        return isinstance(value.op, ir.OpRef) and value.op.name not in _EFFECTS
    return not isinstance(value, ir.If)


class _Replace(ir.Mutator):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[ir.Node, ir.Node] = {}

    def __call__(self, node: Any) -> Any:
        if node in self.values:
            return self.values[node]
        if isinstance(node, (ir.GraphVar, ir.Constant, ir.Info)):
            return node
        return node.map_children(self)


def _eliminate_common(name: str, function: ir.GraphFunction) -> ir.GraphFunction:
    replace = _Replace()
    seen: dict[int, list[ir.VarBinding]] = {}
    kept: list[ir.Binding] = []
    for binding in function.bindings:
        if isinstance(binding, ir.VarBinding) and _pure(binding.value):
            value = replace(binding.value)
            known = _find(seen, value)
            if known is not None:
                replace.values[binding.var] = known.var
                continue
            binding = ir.VarBinding(binding.var, value)
            seen.setdefault(_key(value), []).append(binding)
        elif isinstance(binding, ir.VarBinding):
            binding = ir.VarBinding(binding.var, replace(binding.value))
        elif isinstance(binding, ir.MatchCast):
            binding = binding.replace(value=replace(binding.value))
        kept.append(binding)
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


def _eliminate_dead(name: str, function: ir.GraphFunction) -> ir.GraphFunction:
    needed = set(used_vars(function.body.body))
    kept: list[ir.Binding] = []
    for binding in reversed(function.bindings):
        if isinstance(binding, ir.VarBinding):
            if binding.var not in needed and _pure(binding.value):
                continue
            needed.update(used_vars(binding.value))
        elif isinstance(binding, ir.MatchCast):
            needed.update(used_vars(binding.value))
        kept.append(binding)
    return flat_function(function, reversed(kept))


@graph_pass
def eliminate_common(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Merge equal pure calls of every graph function."""
    return map_graph_functions(module, _eliminate_common)


@graph_pass
def eliminate_dead(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Drop pure bindings whose values are unused."""
    return map_graph_functions(module, _eliminate_dead)
