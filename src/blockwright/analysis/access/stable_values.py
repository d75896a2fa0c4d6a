"""Whether expressions can be evaluated early: regions are evaluated when a block starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from blockwright import ir
from blockwright.analysis.canonical.pointers import memories
from blockwright.ir.attributes import NOALIAS

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


def written_buffers(stmt: ir.Stmt) -> set[ir.Buffer]:
    """All buffers that a statement may write, including by statements inside.

    A buffer and the views of it that the statement declares are written together.
    """
    result = {s.buffer for s in ir.collect(stmt, ir.BufferStore)}
    for call in ir.collect(stmt, ir.Call):
        place = ir.atomic_place(call) if ir.is_atomic(call) else None
        if place is not None:
            result.add(place.buffer)
        elif ir.op_has_effect(call.op):
            result |= {load.buffer for load in ir.collect(call, ir.BufferLoad)}
    views = _views(stmt)
    while more := {b for view in views if not result.isdisjoint(view) for b in view} - result:
        result |= more
    return result


def changes_in(func: ir.PrimFunc) -> Callable[[ir.Node], bool]:
    """The test whether the value of an expression may change while a function runs although its
    variables do not: whether the function may write, under any name, what the expression reads."""
    changing: set[ir.Buffer] = set()

    def changes(value: ir.Node) -> bool:
        if isinstance(value, (ir.IntImm, ir.Var)):
            return False
        loaded = {load.buffer for load in ir.collect(value, ir.BufferLoad)}
        if loaded and not changing:
            changing.update(_changing_in(func))
        return not loaded.isdisjoint(changing) or not is_pure(value)

    return changes


def _changing_in(func: ir.PrimFunc) -> set[ir.Buffer]:
    result = written_buffers(func.body)
    for call in ir.collect(func.body, ir.Call):
        if call.op in ("address_of", "tensor"):  # code outside may write through the pointer
            result |= {load.buffer for load in call.args if isinstance(load, ir.BufferLoad)}
    if func.attrs.get(NOALIAS, True) is False and not result.isdisjoint(func.buffers):
        result.update(func.buffers)
    return result


def _views(stmt: ir.Stmt) -> list[set[ir.Buffer]]:
    """Each view that a statement declares, with the buffers whose memory it may alias."""
    result = [{v.buffer, v.source.buffer} for v in ir.collect(stmt, ir.MatchBufferRegion)]
    declared = ir.collect(stmt, ir.DeclBuffer)
    named = {n.var: n.value for n in ir.collect(stmt, ir.LetStmt)} if declared else {}
    for view in declared:
        behind = (m for m in memories(view.source, named) if isinstance(m, ir.Buffer))
        result.append({view.buffer, *behind})
    return result


def with_loads_named(
    nodes: Sequence[ir.Expr], moving: Collection[ir.Var], around: ir.Stmt
) -> list[ir.Expr]:
    """Expressions in which variables stand for the parts that load memory, but stay the same.

    These neither use the variables `moving` nor load from memory that the statement `around` may
    change; equal parts are the same variable. A part is as large as possible, unless an earlier one
    is inside it.
    """
    if all(map(is_steady, nodes)):
        return list(nodes)
    names = _Names(moving, written_buffers(around))
    return [names(node) for node in nodes]


class _Names(ir.Mutator):
    def __init__(self, moving: Collection[ir.Var], changing: set[ir.Buffer]) -> None:
        super().__init__()
        self.moving, self.changing = set(moving), changing
        self.known: list[tuple[ir.Expr, ir.Var]] = []

    def __call__(self, node: Any) -> Any:
        if not self._stays(node):
            return super().__call__(node)
        for known, name in self.known:
            if ir.structural_equal(known, node):
                return name
        if any(self._is_known(part) for part in ir.walk(node)):
            return super().__call__(node)
        name = ir.Var(f"loaded{len(self.known)}", node.dtype)
        self.known.append((node, name))
        return name

    def _is_known(self, part: ir.Node) -> bool:
        return any(ir.structural_equal(known, part) for known, _ in self.known)

    def _stays(self, node: ir.Node) -> bool:
        if not isinstance(node, ir.Expr) or ir.uses_var(node, self.moving) or not is_pure(node):
            return False
        loaded = {load.buffer for load in ir.collect(node, ir.BufferLoad)}
        return bool(loaded) and loaded.isdisjoint(self.changing)
