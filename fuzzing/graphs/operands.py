"""Table of the operators to draw, and what they share: shapes and choices of operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzzing.graphs.drawer import Drawer
from fuzzing.graphs.program import Value

Draw = Callable[[Drawer], None]
OPERATORS: dict[str, tuple[Draw, int]] = {}
"""Name of an operator → function that draws a binding (or nothing), and its weight."""


def draws(weight: int = 1) -> Callable[[Draw], Draw]:
    def register(function: Draw) -> Draw:
        OPERATORS[function.__name__] = function, weight
        return function

    return register


def joint(a: Sequence[str] | None, b: Sequence[str] | None) -> tuple[str, ...] | None:
    """The broadcast shape; None if two dimensions are not the same expression."""
    if a is None or b is None:
        return None
    count = max(len(a), len(b))
    a, b = (("1",) * (count - len(d)) + tuple(d) for d in (a, b))
    if any(x != y and "1" not in (x, y) for x, y in zip(a, b, strict=True)):
        return None
    return tuple(y if x == "1" else x for x, y in zip(a, b, strict=True))


def scaled(dim: str, factor: int) -> str:
    return str(int(dim) * factor) if dim.isdigit() else f"({dim}) * {factor}"


def added(dim: str, more: int) -> str:
    return str(int(dim) + more) if dim.isdigit() else f"({dim}) + {more}"


def replaced(value: Value, axis: int, dim: str) -> list[str]:
    return [dim if k == axis else d for k, d in enumerate(value.dims)]


def with_axes(d: Drawer, holds: Callable[[Value], bool] = lambda v: True) -> Value | None:
    return d.pick(lambda v: bool(v.dims) and holds(v))
