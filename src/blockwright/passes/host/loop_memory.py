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
        result = last_memory[0]
        return result

Steps alternately read the first set and write the second, and the reverse. The memory plan treats
the second set, and the condition of a `while_loop`, as further results that no one reads.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.graph.loops import is_loop, loop_parts, memory_infos
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import (
    called_operator,
    flat_function,
    map_graph_functions,
    used_vars,
)


@graph_pass
def loop_memory(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Add further results to the loops of all graph functions."""
    return map_graph_functions(module, lambda _, function: _with_memory(function))


def _with_memory(function: ir.GraphFunction) -> ir.GraphFunction:
    loops = [b.value for b in function.bindings if isinstance(b, ir.VarBinding)]
    if not any(map(is_loop, loops)):
        return function
    whole_uses = {*used_vars(function.body.body)}
    for value in loops:
        whole_uses.update(() if isinstance(value, ir.TupleGetItem) else used_vars(value))
    wholes: dict[ir.GraphExpr, ir.GraphVar] = {}
    bindings: list[ir.Binding] = []
    for binding in function.bindings:
        value = binding.value if isinstance(binding, ir.VarBinding) else None
        if isinstance(binding, ir.VarBinding) and is_loop(value):
            loop, fields = _expanded(binding)
            wholes[binding.var] = loop.var
            bindings += [loop, *(fields if binding.var in whole_uses else [])]
        elif isinstance(value, ir.TupleGetItem) and value.tuple_value in wholes:
            field = value.replace(tuple_value=wholes[value.tuple_value])
            bindings.append(binding.replace(value=field))
        else:
            bindings.append(binding)
    return flat_function(function, bindings)


def _expanded(binding: ir.VarBinding) -> tuple[ir.VarBinding, list[ir.VarBinding]]:
    """A loop with all its results, and its value made of those that are used."""
    call, info = binding.value, binding.var.info
    assert isinstance(call, ir.GraphCall)
    assert isinstance(info, ir.TupleInfo)
    parts, var = loop_parts(call), binding.var
    more = memory_infos(called_operator(call), [x.tensor_info for x in parts.carried])
    every = ir.TupleInfo((*info.fields, *more))
    whole = ir.GraphVar(f"{var.name}_memory", var.dataflow, info=every)
    fields = [
        ir.VarBinding(
            ir.GraphVar(f"{var.name}_{k}", var.dataflow, info=field),
            ir.TupleGetItem(whole, k, info=field),
        )
        for k, field in enumerate(info.fields)
    ]
    used = ir.TupleExpr(tuple(field.var for field in fields), info=info)
    attrs = {**call.attrs, "memory": True}
    return (
        ir.VarBinding(whole, call.replace(attrs=attrs, info=every)),
        [*fields, ir.VarBinding(var, used)],
    )
