"""TensorProgramOptim: every tensor program gets a schedule from the rules of its target.

Before:  natural loop nests, one per block
After:   tiled, packed, vectorised, parallel loops; the trace of each is kept in the context

The first rule that takes a program wins; the fallback takes what no other wants and says so. Where
sizes decide which schedule is best, a rule makes several, and calls choose (`rules.entry`). A
program knows by its attribute `tir.constant_params` which parameters are constants at every call:
what only packs them costs nothing, because `lift_packing` moves it to compile time. Where one call
of the module reads more constants than the last cache holds, `tir.cold_params` says that they come
from memory every time.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.passes.cold_weights import constants_are_cold
from blockwright.passes.context import PassContext
from blockwright.passes.rewrite import constant_positions
from blockwright.rules import COLD_PARAMS, CONSTANT_PARAMS, RuleResult, apply_rules


def schedule_programs(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Schedule all tensor programs that are not scheduled yet and are not pure views."""
    functions = dict(module.functions)
    constant = constant_positions(module)
    cold = constants_are_cold(module, ctx.target)
    pending = [
        (n, f)
        for n, f in module.functions.items()
        if isinstance(f, ir.PrimFunc)
        and not f.attrs.get("tir.view")
        and not f.attrs.get("tir.is_scheduled")
    ]
    for done, (name, func) in enumerate(pending):
        if constant.get(name):
            positions = tuple(sorted(constant[name]))
            known = {CONSTANT_PARAMS: positions, COLD_PARAMS: positions if cold else ()}
            func = func.replace(attrs={**func.attrs, **known})
        result = _scheduled(func, ctx)
        hints = (CONSTANT_PARAMS, COLD_PARAMS)
        attrs = {k: v for k, v in result.func.attrs.items() if k not in hints}
        attrs |= {"tir.is_scheduled": True, "schedule_rule": result.rule}
        functions[name] = result.func.replace(attrs=attrs)
        ctx.traces[name] = result.trace
        ctx.refusals[name] = result.refusals
        if result.variants:
            ctx.variants[name] = result.variants
        if result.note:
            ctx.notes.append(f"{name}: {result.note}")
        ctx.progress("schedule", done + 1, len(pending))
    return module.replace(functions=functions)


def _scheduled(func: ir.PrimFunc, ctx: PassContext) -> RuleResult:
    """What the rules make of a program, or made of it when it was last compiled."""
    disabled = tuple(ctx.options.get("disabled_rules", ()))
    if ctx.remembered is None:
        return apply_rules(func, ctx.target, disabled)
    result = ctx.remembered.find("rules", func, ctx.target, disabled)
    if result is None:
        result = apply_rules(func, ctx.target, disabled)
        ctx.remembered.keep("rules", func, ctx.target, disabled, result)
    return result
