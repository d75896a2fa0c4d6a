"""ShareMemory: use a value itself where a copy of it on another CPU is wanted.

Before::

    @R.function
    def main(x: R.Tensor((4,), "float32", device="cpu")):
        y = R.to_vdevice(x, dst_vdevice="cpu:1")
        z = R.call_tir(cls.twice, (y,), R.Tensor((4,), "float32", device="cpu:1"))
        return z

    @T.prim_func(private=True)
    def twice(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.block("y"):
                v = T.axis.spatial(4, i)
                y[v] = x[v] + x[v]

After::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        z = R.call_tir(cls.twice, (x,), R.Tensor((4,), "float32"))
        return z

All CPUs of a module are the processor that runs it, by different targets, and share its memory, so
annotations need no devices any more. The copies are there until the programs are fused: no program
computes on two devices. In a function that overwrites values, they become programs that copy.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.graph.updates import overwritten_arguments
from blockwright.ops.device import TO_DEVICE
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.copies import copy_call
from blockwright.passes.devices.realize_devices import mentions_device
from blockwright.passes.legalize import ProgramTable
from blockwright.passes.rewrite import called_operator, flat_function, graph_functions


@graph_pass
def share_memory(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Replace copies by the values, in the functions that mention a device."""
    placed = [(n, f) for n, f in graph_functions(module) if mentions_device(f)]
    if not placed:
        return module
    table = ProgramTable(module)
    for name, function in placed:
        table.functions[name] = _shared(function, table)
    return module.replace(functions=table.functions)


class _OnHost(ir.Mutator):
    """Takes the devices out of annotations; variables may be given other values."""

    def rewrite_TensorInfo(self, node: ir.TensorInfo) -> ir.TensorInfo:
        return node.replace(device="") if node.device else node

    def rewrite_Constant(self, node: ir.Constant) -> ir.Constant:
        return node

    def define(self, var: ir.GraphVar, value: ir.GraphExpr) -> None:
        """Use a value in place of a variable."""
        self._memo[var] = value


def _shared(function: ir.GraphFunction, table: ProgramTable) -> ir.GraphFunction:
    updates = any(overwritten_arguments(b.value) for b in _bound(function))
    on_host = _OnHost()
    params = tuple(map(on_host, function.params))
    kept: list[ir.Binding] = []
    for binding in function.bindings:
        value = binding.value if isinstance(binding, ir.VarBinding) else None
        if isinstance(binding, ir.VarBinding) and called_operator(value) == TO_DEVICE:
            assert isinstance(value, ir.GraphCall)
            source = on_host(value.args[0])
            if not updates:
                on_host.define(binding.var, source)
                continue
            var = on_host(binding.var)
            kept.append(ir.VarBinding(var, copy_call(source, var.tensor_info, table.add)))
        else:
            kept.append(on_host(binding))
    result = on_host(function.body.body)
    ret_info = None if function.ret_info is None else on_host(function.ret_info)
    return flat_function(function, kept, result).replace(params=params, ret_info=ret_info)


def _bound(function: ir.GraphFunction) -> list[ir.VarBinding]:
    return [b for b in function.bindings if isinstance(b, ir.VarBinding)]
