"""Format size expressions as the text stored in artefacts (`runtime.sizes` evaluates it)."""

from __future__ import annotations

from blockwright import ir
from blockwright.support import GraphError

_INFIX: dict[type[ir.Expr], str] = {
    ir.Add: "+", ir.Sub: "-", ir.Mul: "*", ir.FloorDiv: "//", ir.FloorMod: "%", ir.And: "and",
    ir.Or: "or", ir.EQ: "==", ir.NE: "!=", ir.LT: "<", ir.LE: "<=", ir.GT: ">", ir.GE: ">=",
}  # fmt: skip
_INFIX_CALLS = {
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "shift_left": "<<",
    "shift_right": ">>", "pow": "**",
}  # fmt: skip
_CALLS: dict[type[ir.Expr], str] = {ir.Min: "min", ir.Max: "max"}


def size_text(size: ir.Expr) -> int | str:
    """Format a size: an int for a constant, else Python integer arithmetic over symbol names."""
    return size.value if isinstance(size, ir.IntImm) else _text(size)


def _text(node: ir.Expr) -> str:
    match node:
        case ir.IntImm(value=value):
            return str(value)
        case ir.FloatImm(value=value):
            return repr(value)
        case ir.Var(name=name):
            return name
        case ir.Cast(value=value):
            return _converted(node, value)
        case ir.Div(a=a, b=b):
            if node.dtype.is_float:
                return f"({_text(a)} / {_text(b)})"
            return f"truncdiv({_text(a)}, {_text(b)})"
        case ir.BinaryOp(a=a, b=b) | ir.CompareOp(a=a, b=b) if type(node) in _INFIX:
            return f"({_text(a)} {_INFIX[type(node)]} {_text(b)})"
        case ir.BinaryOp(a=a, b=b) if type(node) in _CALLS:
            return f"{_CALLS[type(node)]}({_text(a)}, {_text(b)})"
        case ir.And(a=a, b=b) | ir.Or(a=a, b=b):
            return f"({_text(a)} {_INFIX[type(node)]} {_text(b)})"
        case ir.Not(a=a):
            return f"(not {_text(a)})"
        case ir.Call(op=op, args=(a, b)) if op in _INFIX_CALLS:
            return f"({_text(a)} {_INFIX_CALLS[op]} {_text(b)})"
        case ir.Call(op="sqrt", args=(a,)):
            return f"sqrt({_text(a)})"
        case ir.Call(op="if_then_else", args=(condition, a, b)):
            return f"({_text(a)} if {_text(condition)} else {_text(b)})"
        case ir.Select(condition=condition, true_value=a, false_value=b):
            return f"({_text(a)} if {_text(condition)} else {_text(b)})"
        case _:
            raise GraphError(f"size {node!r} cannot be written into an artefact", code="BW411")


def _converted(cast: ir.Expr, value: ir.Expr) -> str:
    """A conversion between integers and floats; among integers, sizes keep their values."""
    if cast.dtype.is_float is value.dtype.is_float:
        return _text(value)
    return f"{'float' if cast.dtype.is_float else 'int'}({_text(value)})"
