"""Replacements that mutated code calls instead of the original expressions."""

from __future__ import annotations

from typing import Any, cast

from blockwright import ir
from blockwright.arith import IndexMap


def plus(value: Any, step: int) -> Any:
    """A number or expression, off by `step`."""
    return ir.add(value, step) if isinstance(value, ir.Expr) else value + step


def swapped(values: Any, a: int, b: int) -> Any:
    """Swap two bindings if both exist and have the same type."""
    result = list(values)
    if max(a, b) < len(result) and result[a].dtype is result[b].dtype:
        result[a], result[b] = result[b], result[a]
    return tuple(result)


def always(condition: Any) -> Any:
    """True instead of a condition."""
    del condition
    return ir.const(True, "bool")


def nothing(value: Any) -> None:
    """No initial value."""
    del value


def off(found: Any) -> Any:
    """An inverse whose first result is off by one."""
    if isinstance(found, ir.Expr):
        return ir.add(found, 1)
    if isinstance(found, IndexMap):
        return IndexMap(found.initial, off(found.final), found.separators)
    if isinstance(found, dict):
        entries = cast("dict[Any, Any]", found)
        first = next(iter(entries), None)
        return {key: off(value) if key is first else value for key, value in entries.items()}
    if isinstance(found, (tuple, list)):
        items = cast("list[Any]", found)
        return type(items)(off(part) if k == 0 else part for k, part in enumerate(items))
    return found
