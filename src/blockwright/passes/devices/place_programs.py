"""PlacePrograms: name the target of each program whose values are on a device of the module.

Before::

    I.module_global_infos({"vdevice": [I.vdevice("llvm"), I.vdevice("x86-64-v2")]})

    @R.function
    def main(x: R.Tensor((4,), "float32", device="cpu:1")):
        y = R.call_tir(cls.twice, (x,), R.Tensor((4,), "float32", device="cpu:1"))
        return y

    @T.prim_func(private=True)
    def twice(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.block("y"):
                v = T.axis.spatial(4, i)
                y[v] = x[v] + x[v]

After::

    I.module_global_infos({"vdevice": [I.vdevice("llvm"), I.vdevice("x86-64-v2")]})

    @R.function
    def main(x: R.Tensor((4,), "float32", device="cpu:1")):
        y = R.call_tir(cls.twice_x86_64_v2, (x,), R.Tensor((4,), "float32", device="cpu:1"))
        return y

    @T.prim_func(private=True)
    def twice_x86_64_v2(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        T.func_attr({"target": "x86-64-v2"})
        for i in range(4):
            with T.block("y"):
                v = T.axis.spatial(4, i)
                y[v] = x[v] + x[v]

A program that several devices use is copied for each target. Fusion joins programs of one target
only.
"""

from __future__ import annotations

import re

from blockwright import ir
from blockwright.graph.devices import ANY_CPU, declared_devices
from blockwright.ir.attributes import TARGET
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.devices.realize_devices import device_of
from blockwright.passes.fusion.fuse_tir import drop_unused
from blockwright.passes.legalize import ProgramTable
from blockwright.passes.rewrite import graph_functions, map_calls
from blockwright.support import BuildError


@graph_pass
def place_programs(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Give the programs of each device the target that the module declares for it.

    Raises: BuildError BW602 for a device whose target is no CPU.
    """
    devices = declared_devices(module)
    if not devices:
        return module
    table = ProgramTable(module)

    def one(operator: str, name: str, call: ir.GraphCall) -> ir.GraphCall:
        device = device_of(call) or device_of(call.args[1])
        declared = devices.get(device)
        if declared is None or declared.target in ANY_CPU:
            return call
        if declared.kind != "cpu":
            raise BuildError(
                f"{name} is on {device}, and no code can be generated for {declared.target} yet",
                code="BW602",
                help="run the module with bw.interpret, or place the value on a CPU",
            )
        callee = call.args[0]
        assert isinstance(callee, ir.GlobalVar)
        program: ir.PrimFunc = module[callee.name]
        placed = program.replace(attrs={**program.attrs, TARGET: declared.target})
        suffix = re.sub(r"\W+", "_", declared.target)
        placed_name = table.add(f"{callee.name}_{suffix}", placed)
        return call.replace(args=(ir.GlobalVar(placed_name), *call.args[1:]))

    result = map_calls(module, ("call_tir", "call_tir_inplace"), one)
    if result is module:
        return module
    functions = {**table.functions, **dict(graph_functions(result))}
    return module.replace(functions=drop_unused(functions))
