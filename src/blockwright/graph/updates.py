"""Check that no value is used after `call_tir_inplace` has overwritten it.

    new = R.call_tir_inplace(cls.append, (cache, x), inplace_indices=[0], …)
    y = R.exp(cache)       # BW263: the memory of `cache` holds `new` now

Other names of the value count as well: aliases, casts, tuples that hold it, and local functions
that capture it. The other fields of such a tuple may be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from blockwright import ir
from blockwright.support import Diagnostic


def overwritten_arguments(value: ir.GraphExpr) -> dict[int, int]:
    """Results of a call_tir_inplace that overwrite an argument: result → position of the argument.

    Empty for other expressions and for invalid indices.
    """
    if not isinstance(value, ir.GraphCall) or not isinstance(value.op, ir.OpRef):
        return {}
    if value.op.name != "call_tir_inplace":
        return {}
    given: Any = value.attrs.get("inplace_indices", ())
    listed = isinstance(given, (list, tuple))
    indices = tuple(cast("Iterable[Any]", given)) if listed else (given,)
    return {k: index for k, index in enumerate(indices) if type(index) is int and index >= 0}


def overwritten_at(function: ir.GraphFunction) -> dict[ir.GraphVar, int]:
    """Values that are overwritten → position of the first binding that does so.

    A pass must not move a read of such a value behind that binding. Other names of it count.
    """
    names: dict[ir.GraphVar, ir.GraphVar] = {}
    first: dict[ir.GraphVar, int] = {}
    for position, binding in enumerate(function.bindings):
        if not isinstance(binding, (ir.VarBinding, ir.MatchCast)):
            continue
        value = binding.value
        if isinstance(value, ir.GraphVar):
            names[binding.var] = names.get(value, value)
        for index in overwritten_arguments(value).values():
            assert isinstance(value, ir.GraphCall)
            packed = value.args[1]
            target = packed.fields[index] if isinstance(packed, ir.TupleExpr) else None
            if isinstance(target, ir.GraphVar):
                first.setdefault(names.get(target, target), position)
    return first | {name: first[value] for name, value in names.items() if value in first}


def update_problems(function: ir.GraphFunction) -> list[Diagnostic]:
    """Uses of values that have been overwritten."""
    checker = _Updates()
    checker.sequence(function.body)
    return checker.problems


class _Memory:
    """What a value holds: memory of its own and that of its fields, as far as they were asked for.

    `closed` marks an expression of which no field is known to be one of its parts.
    """

    def __init__(self, parts: Sequence[_Memory] = (), closed: bool = False) -> None:
        self.parts, self.closed = dict(enumerate(parts)), closed

    def field(self, index: int) -> _Memory:
        return self if self.closed else self.parts.setdefault(index, _Memory())


class Memories:
    """The memory that the values of a function hold, under all their names."""

    def __init__(self) -> None:
        self._known: dict[ir.GraphVar, _Memory] = {}

    def bind(self, var: ir.GraphVar, value: ir.GraphExpr) -> None:
        """Note what a variable holds, unless it is a new value."""
        if isinstance(value, ir.GraphFunction):
            self._known[var] = self._all(_free(value))
        elif isinstance(value, (ir.GraphVar, ir.TupleExpr, ir.TupleGetItem)):
            self._known[var] = self._of(value)

    def parts(self, value: ir.GraphExpr) -> list[_Memory]:
        """What a value holds and all its parts, each once."""
        return _parts([self._of(value)])

    def _of(self, value: ir.GraphExpr) -> _Memory:
        if isinstance(value, ir.GraphVar):
            return self._known.setdefault(value, _Memory())
        if isinstance(value, ir.TupleGetItem):
            return self._of(value.tuple_value).field(value.index)
        if isinstance(value, ir.TupleExpr):
            return _Memory([self._of(field) for field in value.fields])
        return self._all(ir.collect(value, ir.GraphVar))

    def _all(self, variables: Iterable[ir.GraphVar]) -> _Memory:
        return _Memory([self._of(var) for var in variables], closed=True)


class _Updates:
    def __init__(self) -> None:
        self.memories = Memories()
        self.overwritten: dict[_Memory, str] = {}
        self.problems: list[Diagnostic] = []

    def sequence(self, body: ir.SeqExpr) -> None:
        for block in body.blocks:
            for binding in block.bindings:
                if isinstance(binding, (ir.VarBinding, ir.MatchCast)):
                    self._binding(binding)
        self._use(body.body, body)

    def _binding(self, binding: ir.VarBinding | ir.MatchCast) -> None:
        value, var = binding.value, binding.var
        if isinstance(value, ir.If):
            self._branches(value)
        elif isinstance(value, ir.GraphFunction):
            self.memories.bind(var, value)
            self.sequence(value.body)
        else:
            self._use(value, binding)
            self.memories.bind(var, value)
            for index in overwritten_arguments(value).values():
                self._overwrite(value, index, var.name)

    def _overwrite(self, value: ir.GraphExpr, index: int, name: str) -> None:
        assert isinstance(value, ir.GraphCall)
        packed = value.args[1] if len(value.args) > 1 else None
        if isinstance(packed, ir.TupleExpr) and index < len(packed.fields):
            parts = self.memories.parts(packed.fields[index])
            self.overwritten.update(dict.fromkeys(parts, name))

    def _branches(self, value: ir.If) -> None:
        self._use(value.condition, value)
        before, after = dict(self.overwritten), dict(self.overwritten)
        for branch in (value.then_branch, value.else_branch):
            self.overwritten = dict(before)
            self.sequence(branch)
            after |= self.overwritten
        self.overwritten = after

    def _use(self, value: ir.GraphExpr, where: ir.Node) -> None:
        for read in reads(value):
            parts = self.memories.parts(read)
            by = next((self.overwritten[m] for m in parts if m in self.overwritten), None)
            if by is not None:
                name = ir.collect(read, ir.GraphVar)[0].name
                message = f"{name} is used after {by} has overwritten it"
                help = f"use {by}, or copy {name} before"
                self.problems.append(Diagnostic("BW263", message, where.span, help))


def _parts(waiting: list[_Memory]) -> list[_Memory]:
    """What values hold and all their parts, each once."""
    seen: dict[_Memory, None] = {}
    while waiting:
        memory = waiting.pop()
        if memory not in seen:
            seen[memory] = None
            waiting += memory.parts.values()
    return list(seen)


def reads(value: ir.Node) -> list[ir.GraphVar | ir.TupleGetItem]:
    """Variables, and fields of them, that an expression reads, each once."""
    found: dict[ir.GraphVar | ir.TupleGetItem, None] = {}
    waiting: list[ir.Node] = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ir.GraphVar, ir.TupleGetItem)):
            found[node] = None
        else:
            waiting += reversed(node.children())
    return list(found)


def _free(function: ir.GraphFunction) -> list[ir.GraphVar]:
    """Variables of enclosing functions that a local function uses."""
    bound: set[ir.GraphVar] = set(function.params)
    for block in ir.collect(function.body, ir.BindingBlock):
        bound.update(b.var for b in block.bindings if isinstance(b, (ir.VarBinding, ir.MatchCast)))
    return [v for v in dict.fromkeys(ir.collect(function.body, ir.GraphVar)) if v not in bound]
