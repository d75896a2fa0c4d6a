"""LoopMemory: give loops memory for a second set of the values that they carry.

Before::

    @R.function
    def main(h: R.Tensor((4,), "float32"), xs: R.Tensor(("n", 4), "float32")):
        n = T.int64()
        last = R.scan(cls.step, h, xs, carried=1, over=1)
        result = last[0]
        return result

    @R.function(private=True)
    def step(h: R.Tensor((4,), "float32"), x: R.Tensor((4,), "float32")):
        y: R.Tensor((4,), "float32") = R.call_tir(cls.add, (h, x), R.Tensor((4,), "float32"))
        return y

    @T.prim_func(private=True)
    def add(
        a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")
    ):
        for i in range(4):
            with T.block("y"):
                v = T.axis.spatial(4, i)
                y[v] = a[v] + b[v]

After::

    @R.function
    def main(h: R.Tensor((4,), "float32"), xs: R.Tensor(("n", 4), "float32")):
        n = T.int64()
        last_memory: R.Tuple(
            R.Tensor((4,), "float32"), R.Tensor((4,), "float32")
        ) = R.scan(cls.step, h, xs, carried=1, memory=True, over=1)
        last_0 = last_memory[0]
        last = (last_0,)
        result = last[0]
        return result

    @R.function(private=True)
    def step(h: R.Tensor((4,), "float32"), x: R.Tensor((4,), "float32")):
        y: R.Tensor((4,), "float32") = R.call_tir(cls.add, (h, x), R.Tensor((4,), "float32"))
        return y

    @T.prim_func(private=True)
    def add(
        a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")
    ):
        for i in range(4):
            with T.block("y"):
                v = T.axis.spatial(4, i)
                y[v] = a[v] + b[v]

Steps alternately read the first set and write the second, and the reverse. The memory plan treats
the second set, and the condition of a `while_loop`, as further results that no one reads.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.graph.loops import is_loop, loop_parts, memory_infos
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import called_operator, flat_function, map_graph_functions


@graph_pass
def loop_memory(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Add further results to the loops of all graph functions."""
    return map_graph_functions(module, lambda _, function: _with_memory(function))


def _with_memory(function: ir.GraphFunction) -> ir.GraphFunction:
    if not any(is_loop(getattr(b, "value", None)) for b in function.bindings):
        return function
    bindings: list[ir.Binding] = []
    for binding in function.bindings:
        if isinstance(binding, ir.VarBinding) and is_loop(binding.value):
            bindings += _expanded(binding)
        else:
            bindings.append(binding)
    return flat_function(function, bindings)


def _expanded(binding: ir.VarBinding) -> list[ir.Binding]:
    """A loop with all its results, and its value made of those that are used."""
    call, info = binding.value, binding.var.info
    assert isinstance(call, ir.GraphCall)
    assert isinstance(info, ir.TupleInfo)
    parts, name = loop_parts(call), binding.var.name
    more = memory_infos(called_operator(call), [x.tensor_info for x in parts.carried])
    every = ir.TupleInfo((*info.fields, *more))
    whole = ir.GraphVar(f"{name}_memory", binding.var.dataflow, info=every)
    fields = [
        ir.GraphVar(f"{name}_{k}", binding.var.dataflow, info=field)
        for k, field in enumerate(info.fields)
    ]
    return [
        ir.VarBinding(whole, call.replace(attrs={**call.attrs, "memory": True}, info=every)),
        *(
            ir.VarBinding(field, ir.TupleGetItem(whole, k, info=field.info))
            for k, field in enumerate(fields)
        ),
        ir.VarBinding(binding.var, ir.TupleExpr(tuple(fields), info=info)),
    ]
