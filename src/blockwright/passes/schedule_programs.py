"""TensorProgramOptim: every tensor program gets a schedule from the rules of its target.

Before:  natural loop nests, one per block
After:   tiled, packed, vectorised, parallel loops; the trace of each is kept in the context

The first rule that takes a program wins; the fallback takes what no other wants and says so. A
program knows by its attribute `tir.constant_params` which parameters are constants at every call:
what only packs them costs nothing, because `lift_packing` moves it to compile time.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.passes.context import PassContext
from blockwright.passes.rewrite import constant_positions
from blockwright.rules import CONSTANT_PARAMS, apply_rules


def schedule_programs(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Schedule all tensor programs that are not scheduled yet and are not pure views."""
    functions = dict(module.functions)
    constant = constant_positions(module)
    pending = [
        (n, f)
        for n, f in module.functions.items()
        if isinstance(f, ir.PrimFunc)
        and not f.attrs.get("tir.view")
        and not f.attrs.get("tir.is_scheduled")
    ]
    for done, (name, func) in enumerate(pending):
        if constant.get(name):
            known = {CONSTANT_PARAMS: tuple(sorted(constant[name]))}
            func = func.replace(attrs={**func.attrs, **known})
        result = apply_rules(func, ctx.target, disabled=ctx.options.get("disabled_rules", ()))
        attrs = {k: v for k, v in result.func.attrs.items() if k != CONSTANT_PARAMS}
        attrs |= {"tir.is_scheduled": True, "schedule_rule": result.rule}
        functions[name] = result.func.replace(attrs=attrs)
        ctx.traces[name] = result.trace
        if result.note:
            ctx.notes.append(f"{name}: {result.note}")
        ctx.progress("schedule", done + 1, len(pending))
    return module.replace(functions=functions)
