"""Whether expressions can be evaluated early: regions are evaluated when a block starts."""

from __future__ import annotations

from typing import TypeVar

from blockwright import ir

NodeT = TypeVar("NodeT", bound=ir.Node)


def is_steady(node: ir.Node) -> bool:
    """Whether a value depends on variables only: it is pure and loads no memory."""
    return is_pure(node) and not any(isinstance(n, ir.BufferLoad) for n in ir.walk(node))


def is_pure(node: ir.Node) -> bool:
    """Whether evaluating an expression twice in a row has no effect and gives the same value."""
    return not any(ir.op_has_effect(c.op) or c.op == "undef" for c in ir.collect(node, ir.Call))


def without_lets(node: NodeT) -> NodeT:
    """A node with `Let` expressions expanded."""
    if not any(isinstance(n, ir.Let) for n in ir.walk(node)):
        return node

    def plain(n: ir.Node) -> ir.Node | None:
        return ir.substitute(n.body, {n.var: n.value}) if isinstance(n, ir.Let) else None

    return ir.rewrite_bottom_up(node, plain)


def reduced_over(block: ir.Block) -> set[ir.Var]:
    """The reduction iterators of a block with more than one value; init runs only for the first."""
    return {
        it.var
        for it in block.iter_vars
        if it.iter_type is ir.IterType.REDUCE and not ir.is_const_int(it.dom.extent, 1)
    }


def written_buffers(block: ir.Stmt) -> set[ir.Buffer]:
    """All buffers that a statement may write, including by statements inside."""
    result = {s.buffer for s in ir.collect(block, ir.BufferStore)}
    for call in ir.collect(block, ir.Call):
        place = ir.atomic_place(call) if ir.is_atomic(call) else None
        if place is not None:
            result.add(place.buffer)
        elif ir.op_has_effect(call.op):
            result |= {load.buffer for load in ir.collect(call, ir.BufferLoad)}
    return result
