"""What an expression evaluated at another time gives: regions are evaluated when a block begins."""

from __future__ import annotations

from typing import TypeVar

from blockwright import ir

NodeT = TypeVar("NodeT", bound=ir.Node)


def is_steady(node: ir.Node) -> bool:
    """Whether variables alone decide a value: it loads no memory and is pure."""
    return is_pure(node) and not any(isinstance(n, ir.BufferLoad) for n in ir.walk(node))


def is_pure(node: ir.Node) -> bool:
    """Whether an expression evaluated twice in a row has no effect and the same value."""
    return not any(ir.op_has_effect(c.op) or c.op == "undef" for c in ir.collect(node, ir.Call))


def without_lets(node: NodeT) -> NodeT:
    """A node with the values of `Let` expressions in the places of their names."""
    if not any(isinstance(n, ir.Let) for n in ir.walk(node)):
        return node

    def plain(n: ir.Node) -> ir.Node | None:
        return ir.substitute(n.body, {n.var: n.value}) if isinstance(n, ir.Let) else None

    return ir.rewrite_bottom_up(node, plain)


def reduced_over(block: ir.Block) -> set[ir.Var]:
    """The iterators of a block along which it reduces: its initial values are for the first."""
    return {
        it.var
        for it in block.iter_vars
        if it.iter_type is ir.IterType.REDUCE and not ir.is_const_int(it.dom.extent, 1)
    }


def written_buffers(block: ir.Stmt) -> set[ir.Buffer]:
    """All that a statement, such as a block, may write, or one inside of it."""
    result = {s.buffer for s in ir.collect(block, ir.BufferStore)}
    for call in ir.collect(block, ir.Call):
        place = ir.atomic_place(call) if ir.is_atomic(call) else None
        if place is not None:
            result.add(place.buffer)
        elif ir.op_has_effect(call.op):
            result |= {load.buffer for load in ir.collect(call, ir.BufferLoad)}
    return result
