"""Atomic updates of elements, by one instance or by many lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright.interp.access import AccessCompiler, note
from blockwright.interp.lanes import Env, Fn, compress
from blockwright.interp.memory import Array
from blockwright.ir import (
    BufferLoad,
    BufferStore,
    Call,
    Expr,
    Var,
    atomic_place,
    atomic_value,
    collect,
    op_has_effect,
)
from blockwright.support import InterpretError


class AtomicCompiler(AccessCompiler):
    """Adds atomic updates.

    Attributes:
        evaluated: the expression of the statement being compiled, if its result is unused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.evaluated: Expr | None = None

    def atomic(self, expr: Call) -> Fn:
        """Update an element and return its old value; races with non-atomic accesses."""
        place = atomic_place(expr)
        if place is None:
            raise InterpretError(
                f"{expr.op} takes the address of a buffer element", code="BW757", span=expr.span
            )
        slot, site, name = self._known(place.buffer), self.site(expr), place.buffer.name
        if place.dtype.lanes > 1:
            raise InterpretError(f"{expr.op} of a vector", code="BW757", span=expr.span)
        place, named = self._named_indices(place)
        at = self.position(place.buffer, place.indices, site)
        operand = Var("operand", expr.args[1].dtype)
        value, held = self.value(expr.args[1]), self.define(operand, is_value=True)
        new = atomic_value(expr.replace(args=(expr.args[0], operand)), place)
        update = BufferStore(place.buffer, new, place.indices, span=expr.span)
        if self.sharers(place.buffer.scope) and expr is not self.evaluated:
            raise InterpretError(
                f"the result of this {expr.op} is used by threads that do not execute it",
                code="BW757",
                span=expr.span,
                help="bind loops around it to all axes of the kernel",
            )
        watched, launch = self.watched(place.buffer), self.launch
        self.launch = None  # the read and the write within the update are not tracked separately
        read, write = self._load(place), self.store(update)
        self.launch = launch

        def update_one(env: Env) -> Any:
            levels, env[1].levels = env[1].levels, []
            try:
                old = read(env)
                write(env)
            finally:
                env[1].levels = levels
            return old

        def apply(env: Env) -> Any:
            env[held] = value(env)
            for index, found in named:
                env[index] = found(env)
            where = at(env)
            if env[1].levels:
                note(env, site, name, env[slot], where, "atomic")
            if watched:
                env[1].team.touch(env, site, name, env[slot], where, "atomic")
            if env[0] is None:
                return update_one(env)
            return one_by_one(env, np.broadcast_to(where, env[0]), update_one)

        return apply

    def _named_indices(self, place: BufferLoad) -> tuple[BufferLoad, list[tuple[int, Fn]]]:
        """The element with indices that have effects as names, whose values are computed once."""
        if not any(op_has_effect(call.op) for i in place.indices for call in collect(i, Call)):
            return place, []
        names = tuple(Var("index", index.dtype) for index in place.indices)
        found = [self.value(index) for index in place.indices]
        slots = [self.define(name, is_value=True) for name in names]
        return place.replace(indices=names), list(zip(slots, found, strict=True))


def one_by_one(env: Env, where: Array, update: Fn) -> Any:
    """Run updates by all lanes, serialized per element; return the result of each lane."""
    order = np.argsort(where, kind="stable")
    again = np.arange(len(where)) - np.searchsorted(where[order], where[order])
    turn: Array = np.empty(len(where), np.int64)
    turn[order] = again
    rounds = int(turn.max(initial=0)) + 1
    if rounds == 1:
        return update(env)
    result: Any = None
    for number in range(rounds):
        mask = turn == number
        old = update(compress(env, mask))
        if result is None:
            result = np.empty(len(where), np.asarray(old).dtype)
        result[mask] = old
    return result
