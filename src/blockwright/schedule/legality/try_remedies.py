"""Validate remedies: execute suggested steps on the program before an error message names them.

A suggestion that is itself rejected is worse than none. An error that has a concrete remedy
executes it here first and names it only if every step is legal. The text of the help message itself
is executed, so that text and trial cannot differ.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from blockwright import ir
from blockwright.schedule.engine.handle import BlockRV, Handle, LoopRV
from blockwright.schedule.engine.record import Primitive, make
from blockwright.schedule.engine.state import StepState, Target
from blockwright.support import ScheduleError

THEN = ", then "
"""Separates the steps of one remedy."""


def legal(state: StepState, ways: Iterable[str]) -> list[str]:
    """The remedies all of whose steps are legal on the current program.

    A remedy is a chain such as ``a, b = split(i, [None, 4]), then parallel(a)``: methods of a
    schedule, loops by the names of their variables, blocks by their names in quotes. If the error
    is about the tentative result of a step, no remedy is tried, because the user has the program
    before the step. Trials therefore never nest.
    """
    if not state.taken:
        return []
    result: list[str] = []
    for way in ways:
        try:
            _Trial(state).follow(way)
        except ScheduleError:
            continue
        result.append(way)
    return result


def first_legal(state: StepState, ways: Iterable[str]) -> str:
    """The first legal remedy; empty if there is none."""
    for way in ways:
        if legal(state, [way]):
            return way
    return ""


def called(state: StepState, loop: ir.For) -> str:
    """A loop as argument of a call: its name, or `get_loops(...)[n]` if the name is ambiguous."""
    name = loop.loop_var.name
    if sum(v.name == name for v in state.tree.loops) == 1:
        return name
    for block in state.tree.child_blocks(loop):
        above = state.tree.loops_above(block)
        if loop in above and block.name:
            return f'get_loops("{block.name}")[{above.index(loop)}]'
    return name


def calls(state: StepState, loops: Iterable[ir.For]) -> str:
    """Loops as arguments of a call."""
    return ", ".join(called(state, f) for f in loops)


def quoted(blocks: Iterable[ir.Block]) -> str:
    """Blocks as arguments of a call."""
    return ", ".join(f'"{b.name}"' for b in blocks)


class _Trial:
    """Executes a remedy on a program: name bindings, handle targets, current state."""

    def __init__(self, state: StepState) -> None:
        self._now = state
        self._targets: list[Target] = []
        self._names: dict[str, Any] = {
            v.name: LoopRV(self._keep(v)) for v in reversed(state.tree.loops)
        }

    def follow(self, way: str) -> None:
        """Apply the steps in order. Raises ScheduleError if one is rejected."""
        for step in way.split(THEN):
            (node,) = ast.parse(step).body
            if isinstance(node, ast.Assign):
                (left,) = node.targets
                result = self._value(node.value)
                if isinstance(left, ast.Tuple):
                    names = [n.id for n in left.elts if isinstance(n, ast.Name)]
                    self._names.update(zip(names, result, strict=True))
                elif isinstance(left, ast.Name):
                    self._names[left.id] = result
            elif isinstance(node, ast.Expr):
                self._value(node.value)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self._names[node.id]
        if isinstance(node, ast.List):
            return [self._value(e) for e in node.elts]
        if isinstance(node, ast.Subscript):
            return self._value(node.value)[ast.literal_eval(node.slice)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            args = [self._value(a) for a in node.args]
            named = {k.arg: self._value(k.value) for k in node.keywords if k.arg}
            return self._call(node.func.id, args, named)
        return ast.literal_eval(node)

    def _call(self, step: str, args: list[Any], named: dict[str, Any]) -> Any:
        record = _records()[step]
        filled = make(record, args, named, self._block)
        result = filled.apply(StepState(self._now.func, self._resolve, step, self._now.memo))
        self._now = StepState(result.func, self._resolve, step, self._now.memo)
        self._forward(result.forward)
        kinds = [BlockRV if isinstance(t, ir.Block) else LoopRV for t in result.results]
        handles = [kind(self._keep(t)) for kind, t in zip(kinds, result.results, strict=True)]
        return handles[0] if record.returns in ("block", "loop") else handles

    def _block(self, name: str) -> BlockRV:
        result = [b for b in self._now.tree.blocks if b.name == name]
        if len(result) != 1:
            raise ScheduleError(
                f"{len(result)} blocks have the name {name}", code="BW303", help="name one block"
            )
        return BlockRV(self._keep(result[0]))

    def _forward(self, forward: dict[ir.Block, ir.Block]) -> None:
        """Update the targets of replaced blocks."""
        for place, target in enumerate(self._targets):
            while isinstance(target, ir.Block) and target in forward:
                target = self._targets[place] = forward[target]

    def _keep(self, target: Target) -> int:
        self._targets.append(target)
        return len(self._targets) - 1

    def _resolve(self, handle: Handle) -> Target:
        assert isinstance(handle, (BlockRV, LoopRV))
        result = self._targets[handle.id]
        if isinstance(result, ir.Var) and result not in self._now.tree.loops:
            raise ScheduleError(
                f"loop {result.name} is gone", code="BW301", help="use the loops that it returned"
            )
        return result


def _records() -> dict[str, type[Primitive]]:
    return {record.method: record for record in Primitive.__subclasses__() if not record.namespace}
