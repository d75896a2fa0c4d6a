"""Format size expressions as the text stored in artefacts (`runtime.sizes` evaluates it)."""

from __future__ import annotations

from blockwright import ir
from blockwright.support import GraphError

_INFIX: dict[type[ir.Expr], str] = {
    ir.Add: "+",
    ir.Sub: "-",
    ir.Mul: "*",
    ir.FloorDiv: "//",
    ir.FloorMod: "%",
}
_CALLS: dict[type[ir.Expr], str] = {ir.Min: "min", ir.Max: "max"}


def size_text(size: ir.Expr) -> int | str:
    """Format a size: an int for a constant, else Python integer arithmetic over symbol names."""
    return size.value if isinstance(size, ir.IntImm) else _text(size)


def _text(node: ir.Expr) -> str:
    if isinstance(node, ir.IntImm):
        return str(node.value)
    if isinstance(node, ir.Var):
        return node.name
    if isinstance(node, ir.Cast):
        return _text(node.value)
    if isinstance(node, ir.BinaryOp) and type(node) in _INFIX:
        return f"({_text(node.a)} {_INFIX[type(node)]} {_text(node.b)})"
    if isinstance(node, ir.BinaryOp) and type(node) in _CALLS:
        return f"{_CALLS[type(node)]}({_text(node.a)}, {_text(node.b)})"
    raise GraphError(f"size {node!r} cannot be written into an artefact", code="BW411")
