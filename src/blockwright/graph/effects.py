"""Which graph expressions have effects, and so keep their order and number."""

from __future__ import annotations

from blockwright import ir

EFFECTS = frozenset({"call_packed", "call_tir_inplace", "invoke_closure"})
"""Operators that may change memory that other values read, or the world outside."""


def nested_bodies(value: ir.GraphExpr) -> tuple[ir.SeqExpr, ...]:
    """The branches of an `If`, or the body of a local function."""
    if isinstance(value, ir.If):
        return value.then_branch, value.else_branch
    return (value.body,) if isinstance(value, ir.GraphFunction) else ()


def has_effect(value: ir.GraphExpr, module: ir.IRModule | None = None) -> bool:
    """Whether evaluating an expression may do more than compute its value.

    A call of another function has effects unless the function is known to be pure; a branch has
    those of its bindings. A library call writes to its own result only.
    """
    if isinstance(value, ir.If):
        bindings = [
            b for body in nested_bodies(value) for part in body.blocks for b in part.bindings
        ]
        return any(isinstance(b, ir.VarBinding) and has_effect(b.value, module) for b in bindings)
    if not isinstance(value, ir.GraphCall):
        return False
    op = value.op
    if isinstance(op, ir.OpRef):
        return op.name in EFFECTS
    if isinstance(op, ir.GlobalVar) and module is not None and op.name in module:
        callee = module[op.name]
        return not (isinstance(callee, ir.GraphFunction) and callee.pure)
    return not (isinstance(op.info, ir.CallableInfo) and op.info.pure)
