"""TensorProgramOptim: schedule every tensor program with the strategies of its target.

Before::

    @T.prim_func
    def main(x: T.Buffer((64, 64), "float32"), y: T.Buffer((64, 64), "float32")):
        for i, j in T.grid(64, 64):
            with T.block("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = T.exp(x[vi, vj])

After::

    @T.prim_func
    def main(x: T.Buffer((64, 64), "float32"), y: T.Buffer((64, 64), "float32")):
        T.func_attr({"tir.is_scheduled": True, "schedule_strategy": "elementwise"})
        for outer in T.parallel(2):
            for middle in range(256):
                for lane in T.vectorized(8):
                    with T.block("y"):
                        vi = T.axis.spatial(64, outer * 32 + middle // 8)
                        vj = T.axis.spatial(64, middle % 8 * 8 + lane)
                        y[vi, vj] = T.exp(x[vi, vj])

The first strategy that matches a program schedules it; the fallback takes the rest and adds a note.
If a strategy raises an internal error, it is skipped with a warning: the program still compiles,
and the defect can be reported. If the best schedule depends on sizes, a strategy creates several
versions, and each call selects one (`strategies.multiversion`).

Strategies read three attributes. `tir.constant_params` lists the parameters that are constants in
every call: packing them is free, because `hoist_weight_prepack` moves it to compile time. Constants
are not in the private caches at entry (`tir.outside_private_cache_params`) if one call of the
module reads more of them than the second-level cache holds, and in no cache at all
(`tir.uncached_params`) if it reads more than the last-level cache holds.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.build.steps import each
from blockwright.ir.attributes import IS_SCHEDULED, IS_VIEW
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import constant_positions
from blockwright.passes.select.weight_residency import caches_without_constants
from blockwright.strategies import (
    CONSTANT_PARAMS,
    OUTSIDE_PRIVATE_CACHE_PARAMS,
    UNCACHED_PARAMS,
    NoDecision,
    StrategyResult,
    apply_strategies,
    extended,
)

_HINTS = (CONSTANT_PARAMS, OUTSIDE_PRIVATE_CACHE_PARAMS, UNCACHED_PARAMS)


@graph_pass
def schedule_programs(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Schedule all tensor programs except pure views and those already scheduled."""
    functions = dict(module.functions)
    constant = constant_positions(module)
    without, own = caches_without_constants(module, ctx.target), ctx.target.private_caches
    pending: dict[str, ir.PrimFunc] = {}
    for name, func in module.functions.items():
        if not isinstance(func, ir.PrimFunc) or func.attrs.get(IS_VIEW):
            continue
        if func.attrs.get(IS_SCHEDULED):
            continue
        if constant.get(name):
            positions = tuple(sorted(constant[name]))
            hints: dict[str, object] = {CONSTANT_PARAMS: positions}
            hints[OUTSIDE_PRIVATE_CACHE_PARAMS] = positions if without >= own else ()
            hints[UNCACHED_PARAMS] = positions if without >= max(1, len(ctx.target.caches)) else ()
            func = func.replace(attrs={**func.attrs, **hints})
        pending[name] = func
    for name, result in _scheduled(pending, ctx).items():
        attrs = {k: v for k, v in result.func.attrs.items() if k not in _HINTS}
        attrs |= {IS_SCHEDULED: True, "schedule_strategy": result.strategy}
        functions[name] = result.func.replace(attrs=attrs)
        ctx.traces[name] = result.trace
        ctx.refusals[name] = result.refusals
        if result.plan not in (None, NoDecision()):
            ctx.plans[name] = result.plan
        if result.variants:
            ctx.variants[name] = result.variants
        if result.note:
            ctx.notes.append(f"{name}: {result.note}")
        for strategy, fault in result.faults:
            created = {"unscheduled": "no strategy", strategy: "the same strategy"}.get(
                result.strategy, f"strategy {result.strategy}"
            )
            failed = f"strategy {strategy} for {name}"
            ctx.report_fault(failed, fault, f"it was scheduled by {created}")
    return module.replace(functions=functions)


def _scheduled(programs: dict[str, ir.PrimFunc], ctx: PassContext) -> dict[str, StrategyResult]:
    """Apply the strategies to the programs, or reuse the results of an earlier compilation."""
    disabled = tuple(ctx.options.get("disabled_strategies", ()))
    done = 0

    def progress() -> None:
        nonlocal done
        done += 1
        ctx.progress("schedule", done, len(programs))

    if ctx.compile_cache is not None and not extended():
        return each(apply_strategies, programs, ctx.target, disabled, ctx.compile_cache, progress)
    result: dict[str, StrategyResult] = {}
    for name, func in programs.items():
        result[name] = apply_strategies(func, ctx.target, disabled)
        progress()
    return result
