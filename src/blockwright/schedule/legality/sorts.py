"""Scalar parameters remain indices or values: no step changes what is computed from them.

Index arithmetic is exact, arithmetic on values wraps (`docs/semantics.md`). A scalar parameter is
an index if a domain or a shape uses it, so a step that removes a domain, or adds one, could change
other statements::

    for i in range(T.min(k, 8)): …      # removed by a step: k is a value then,
    D[0] = A[(k << 7) % 12]             # and the shift wraps
"""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.ir.attributes import INDEX_PARAMS
from blockwright.schedule.engine.state import StepResult, StepState


def keep_sorts(state: StepState, step: StepResult) -> StepResult:
    """Note which scalar parameters are indices if the step has removed all domains that use one.

    Fails if it adds the first domain that uses one, and arithmetic on the parameter may wrap.
    """
    if step.func is state.func:
        return step
    before = _indices(state.func)
    after = _indices(_without_note(step.func))
    gained = [name for name in after if name not in before and _computes(state.func, name)]
    if gained:
        state.fail(
            f"{gained[0]} would be a size, whose arithmetic is exact; the program computes with "
            "it, and its value may wrap",
            code="BW304",
            help="use a number, or a parameter that is a size already",
        )
    if before <= after:
        return step
    names = tuple(p.name for p in step.func.params if p.name in before | after)
    func = step.func.replace(attrs={**step.func.attrs, INDEX_PARAMS: names})
    return msgspec.structs.replace(step, func=func)


def _without_note(func: ir.PrimFunc) -> ir.PrimFunc:
    if INDEX_PARAMS not in func.attrs:
        return func
    return func.replace(attrs={k: v for k, v in func.attrs.items() if k != INDEX_PARAMS})


def _indices(func: ir.PrimFunc) -> set[str]:
    """Names of the scalar parameters that are indices."""
    handles = {handle for handle, _ in func.buffer_map}
    scalars = [p for p in func.params if p not in handles and p.dtype.is_int]
    if not scalars:
        return set()
    values = ir.value_variables(func)
    return {p.name for p in scalars if p not in values}


def _computes(func: ir.PrimFunc, name: str) -> bool:
    """Whether an operation of the program has the parameter as an operand."""
    return any(
        isinstance(operand, ir.Var) and operand.name == name
        for node in ir.walk(func.body)
        if isinstance(node, (ir.BinaryOp, ir.Call, ir.Cast)) and not isinstance(node, ir.CompareOp)
        for operand in node.children()
    )
