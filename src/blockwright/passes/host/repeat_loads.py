"""RepeatLoads: read sizes from tensors directly before the casts that bind them.

Before::

    @R.function
    def main(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")):
        n = T.int64()
        m = T.int64()
        j = T.int64()
        count = R.add(k, k)
        loaded = R.item(count)
        first = R.match_cast(loaded, R.Prim(value=m))
        y = R.slice(x, axis=0, begin=0, end=m)
        second = R.match_cast(loaded, R.Prim(value=j))
        z = R.slice(y, axis=0, begin=0, end=j)
        return z

After::

    @R.function
    def main(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")):
        n = T.int64()
        m = T.int64()
        j = T.int64()
        count = R.add(k, k)
        loaded = R.item(count)
        first = R.match_cast(loaded, R.Prim(value=m))
        y = R.slice(x, axis=0, begin=0, end=m)
        second_loaded = R.item(count)
        second = R.match_cast(second_loaded, R.Prim(value=j))
        z = R.slice(y, axis=0, begin=0, end=j)
        return z

A host program reads the tensor at the cast. Between the load and a cast, another value may take
the memory of the tensor, or an update overwrite it, unless the live range of the tensor reaches to
the cast.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.graph.loads import is_load
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import flat_function, map_graph_functions


@graph_pass
def repeat_loads(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Put a load directly before each cast of a loaded value."""

    def change(_name: str, function: ir.GraphFunction) -> ir.GraphFunction:
        values = (getattr(b, "value", None) for b in function.bindings)
        if not any(isinstance(v, ir.GraphExpr) and is_load(v) for v in values):
            return function
        return flat_function(function, _repeated(function))

    return map_graph_functions(module, change)


def _repeated(function: ir.GraphFunction) -> list[ir.Binding]:
    loads: dict[ir.GraphExpr, ir.GraphExpr] = {}
    result: list[ir.Binding] = []
    for binding in function.bindings:
        if isinstance(binding, ir.VarBinding):
            if is_load(binding.value):
                loads[binding.var] = binding.value
            elif binding.value in loads:
                loads[binding.var] = loads[binding.value]
        elif isinstance(binding, ir.MatchCast) and binding.value in loads:
            load = loads[binding.value]
            last = result[-1]
            if not isinstance(last, ir.VarBinding) or last.var is not binding.value:
                var = ir.GraphVar(f"{binding.var.name}_loaded", True, info=load.info)
                result.append(ir.VarBinding(var, load))
                binding = binding.replace(value=var)
        result.append(binding)
    return result
