"""Check that no value is used after `call_tir_inplace` has overwritten it.

    new = R.call_tir_inplace(cls.append, (cache, x), inplace_indices=[0], …)
    y = R.exp(cache)       # BW263: the memory of `cache` holds `new` now

Other names of the value count as well: aliases, casts, tuples that hold it, and local functions
that capture it.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def update_problems(function: ir.GraphFunction) -> list[Diagnostic]:
    """Uses of values that have been overwritten."""
    checker = _Updates()
    checker.sequence(function.body)
    return checker.problems


class _Updates:
    def __init__(self) -> None:
        self.memories: dict[ir.GraphVar, tuple[ir.GraphVar, ...]] = {}
        self.overwritten: dict[ir.GraphVar, str] = {}
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
            self.memories[var] = self._of(_free(value))
            self.sequence(value.body)
        else:
            self._use(value, binding)
            named = isinstance(value, (ir.GraphVar, ir.TupleExpr, ir.TupleGetItem))
            if named:
                self.memories[var] = self._of(ir.collect(value, ir.GraphVar))
            for index in overwritten_arguments(value).values():
                self._overwrite(value, index, var.name)

    def _overwrite(self, value: ir.GraphExpr, index: int, name: str) -> None:
        assert isinstance(value, ir.GraphCall)
        packed = value.args[1] if len(value.args) > 1 else None
        if isinstance(packed, ir.TupleExpr) and index < len(packed.fields):
            fields = ir.collect(packed.fields[index], ir.GraphVar)
            self.overwritten.update(dict.fromkeys(self._of(fields), name))

    def _branches(self, value: ir.If) -> None:
        self._use(value.condition, value)
        before, after = dict(self.overwritten), dict(self.overwritten)
        for branch in (value.then_branch, value.else_branch):
            self.overwritten = dict(before)
            self.sequence(branch)
            after |= self.overwritten
        self.overwritten = after

    def _of(self, variables: Iterable[ir.GraphVar]) -> tuple[ir.GraphVar, ...]:
        """The values whose memory variables name."""
        return tuple(m for var in variables for m in self.memories.get(var, (var,)))

    def _use(self, value: ir.GraphExpr, where: ir.Node) -> None:
        for var in dict.fromkeys(ir.collect(value, ir.GraphVar)):
            by = next((self.overwritten[m] for m in self._of([var]) if m in self.overwritten), None)
            if by is not None:
                message = f"{var.name} is used after {by} has overwritten it"
                help = f"use {by}, or copy {var.name} before"
                self.problems.append(Diagnostic("BW263", message, where.span, help))


def _free(function: ir.GraphFunction) -> list[ir.GraphVar]:
    """Variables of enclosing functions that a local function uses."""
    bound: set[ir.GraphVar] = set(function.params)
    for block in ir.collect(function.body, ir.BindingBlock):
        bound.update(b.var for b in block.bindings if isinstance(b, (ir.VarBinding, ir.MatchCast)))
    return [v for v in dict.fromkeys(ir.collect(function.body, ir.GraphVar)) if v not in bound]
