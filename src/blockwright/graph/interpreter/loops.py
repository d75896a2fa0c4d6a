"""Run `R.scan` and `R.while_loop` on arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright.graph.interpreter.values import Array, is_tuple
from blockwright.graph.loops import MAX_STEPS, Loop
from blockwright.support import InterpretError

Apply = Callable[[Any, list[Any]], Any]
"""Calls a function value with arguments."""


def run_scan(
    parts: Loop, values: Sequence[Any], apply: Apply, empty: Callable[[], list[Array]]
) -> tuple[Any, ...]:
    """The carried values after a loop over the first axis, and the stacked ones.

    Arguments: `values` are the arguments of the call; `empty` makes the stacked results of a loop
        without elements.
    """
    function, carried, over, others = _split(parts, values, 1)
    order = range(len(over[0]))
    rows: list[list[Any]] = []
    for at in reversed(order) if parts.reverse else order:
        fields = _fields(apply(function[0], [*carried, *(x[at, ...] for x in over), *others]))
        carried, row = fields[: len(carried)], fields[len(carried) :]
        rows.append(row)
    rows = rows[::-1] if parts.reverse else rows
    stacked = [np.stack(column) for column in zip(*rows, strict=True)] if rows else empty()
    return (*carried, *stacked, *(carried if parts.memory else ()))


def run_while_loop(parts: Loop, values: Sequence[Any], apply: Apply) -> tuple[Any, ...]:
    """The carried values at the end."""
    (holds, step), carried, _, others = _split(parts, values, 2)
    steps = 0
    while bool(apply(holds, [*carried, *others])) != parts.until:
        if steps >= MAX_STEPS:
            code, _, message = parts.endless.partition(": ")
            raise InterpretError(message, code=code, help="make sure that the recursion ends")
        carried, steps = _fields(apply(step, [*carried, *others])), steps + 1
    return (*carried, *carried, np.zeros((), bool)) if parts.memory else tuple(carried)


def _split(
    parts: Loop, values: Sequence[Any], functions: int
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    rest = list(values[functions:])
    first, last = len(parts.carried), len(parts.carried) + len(parts.over)
    return list(values[:functions]), rest[:first], rest[first:last], rest[last:]


def _fields(result: Any) -> list[Any]:
    return list(result) if is_tuple(result) else [result]
