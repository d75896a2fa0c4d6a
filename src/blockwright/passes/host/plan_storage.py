"""DynShapeAwareMemoryPlanning: plan the memory of the values of every graph function.

Before::

    @R.function
    def main(x: R.Tensor((2, "n"), "float32")):
        n = T.int64()
        lv0 = R.call_tir(cls.exp, (x,), R.Tensor((2, n), "float32"))
        lv1 = R.call_tir(cls.transpose, (lv0,), R.Tensor((n, 2), "float32"))
        lv2 = R.call_tir(cls.transpose1, (lv1,), R.Tensor((2, n), "float32"))
        return lv2

    @T.prim_func(private=True)
    def exp(x: T.Buffer((2, "n"), "float32"), y: T.Buffer((2, "n"), "float32")):
        n = T.int64()
        for i, j in T.grid(2, n):
            with T.block("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = T.exp(x[vi, vj])

    @T.prim_func(private=True)
    def transpose(x: T.Buffer((2, "n"), "float32"), y: T.Buffer(("n", 2), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 2):
            with T.block("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vj, vi]

    @T.prim_func(private=True)
    def transpose1(x: T.Buffer(("n", 2), "float32"), y: T.Buffer((2, "n"), "float32")):
        n = T.int64()
        for i, j in T.grid(2, n):
            with T.block("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vj, vi]

After::

    @R.function
    def main(x: R.Tensor((2, "n"), "float32")):
        R.func_attr({"memory_plan": [
            "allocate (n * 8) bytes for s0: result lv2",
            "allocate (n * 8) bytes for s1: at 0 of the arena",
            "instantiate lv0: (2, n) float32 from s0",
            "instantiate lv1: (n, 2) float32 from s1",
            "instantiate lv2: (2, n) float32 from s0",
        ]})
        n = T.int64()
        lv0 = R.call_tir(cls.exp, (x,), R.Tensor((2, n), "float32"))
        lv1 = R.call_tir(cls.transpose, (lv0,), R.Tensor((n, 2), "float32"))
        lv2 = R.call_tir(cls.transpose1, (lv1,), R.Tensor((2, n), "float32"))
        return lv2

The attribute is for readers: `PassContext.memory_plans` holds the plan, and `lower_host` follows it
if the function and the programs that it calls are still those that were planned. Otherwise it plans
the function anew.
"""

from __future__ import annotations

from typing import Any

import msgspec

from blockwright import ir
from blockwright.graph import function_analyzer
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.host.plan_memory import ArenaPlan, Place, plan_memory
from blockwright.passes.host.size_order import exact_bytes
from blockwright.passes.host.size_text import size_text
from blockwright.passes.rewrite import graph_functions, tir_callee

MEMORY_PLAN = "memory_plan"
"""Function attribute: the memory plan as lines of text."""


class StoragePlan(msgspec.Struct, frozen=True, eq=False):
    """A memory plan and what it was made for: the body of a function, and the programs it calls."""

    plan: ArenaPlan
    body: ir.SeqExpr
    programs: dict[str, ir.Node]


@graph_pass
def plan_storage(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Plan the memory of all graph functions; list the plan as an attribute of each."""
    functions = dict(module.functions)
    for name, function in graph_functions(module):
        plan = plan_memory(function, module)
        ctx.memory_plans[name] = StoragePlan(plan, function.body, _programs(function, module))
        lines = listing(function, plan)
        if lines:
            functions[name] = function.replace(attrs={**function.attrs, MEMORY_PLAN: lines})
    return module.replace(functions=functions)


def current_plan(function: ir.GraphFunction, module: ir.IRModule, known: Any) -> ArenaPlan:
    """The plan of a function: the `StoragePlan` that is known, unless it was made for another."""
    if isinstance(known, StoragePlan) and known.body is function.body:
        programs = _programs(function, module)
        if all(known.programs.get(name) is program for name, program in programs.items()):
            return known.plan
    return plan_memory(function, module)


def _programs(function: ir.GraphFunction, module: ir.IRModule) -> dict[str, ir.Node]:
    names = (tir_callee(b.value) for b in function.bindings if isinstance(b, ir.VarBinding))
    return {name: module[name] for name in names if name is not None}


def listing(function: ir.GraphFunction, plan: ArenaPlan) -> list[str]:
    """The storages of a plan, and the tensors that are instantiated from each."""
    analyzer, zero = function_analyzer(function), ir.const(0, "int64")
    storages: dict[tuple[ir.GraphVar | None, int, int | str], list[ir.Expr]] = {}
    tensors: list[str] = []
    for value in plan.first:
        info = value.info
        if not isinstance(info, ir.TensorInfo) or info.shape is None:
            continue
        place = plan.place.get(value) or Place(zero, value)
        key = (place.result, place.level, size_text(analyzer.simplify(place.offset)))
        sizes = storages.setdefault(key, [])
        size = exact_bytes(info)  # a result gets its size, other values at most their largest
        most = None if value in plan.results else plan.sizes.largest(size)
        size = analyzer.simplify(size if most is None else most)
        if not any(ir.structural_equal(size, other) for other in sizes):
            sizes.append(size)
        shape = ", ".join(str(size_text(dim)) for dim in info.shape)
        number = list(storages).index(key)
        tensors.append(f"instantiate {value.name}: ({shape}) {info.dtype} from s{number}")
    allocated = [
        f"allocate {_largest(sizes)} bytes for s{number}: {_where(*key)}"
        for number, (key, sizes) in enumerate(storages.items())
    ]
    return [*allocated, *tensors]


def _largest(sizes: list[ir.Expr]) -> int | str:
    texts = [str(size_text(size)) for size in sizes]
    return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"


def _where(result: ir.GraphVar | None, level: int, offset: int | str) -> str:
    if result is None:
        return f"at {offset} of the arena" + (f" after load {level}" if level else "")
    return f"result {result.name}" if offset == 0 else f"at {offset} of result {result.name}"
