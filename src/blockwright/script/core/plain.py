"""Python values of a script, with types that a checker can follow.

Script values are `Any` by nature; narrowing such a value with `isinstance(x, tuple)` leaves its
elements unknown, so these helpers give it back as a list of `Any`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast


def sequence_of(value: Any) -> list[Any] | None:
    """The items of a list or tuple; None for anything else."""
    return list(cast("Iterable[Any]", value)) if isinstance(value, (list, tuple)) else None


def items_of(value: Any) -> list[Any]:
    """The items of a list or tuple; anything else is one item."""
    found = sequence_of(value)
    return [value] if found is None else found


def iterable_of(value: Any) -> list[Any] | None:
    """The items of anything that Python can iterate, except text."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return None
    return list(cast("Iterable[Any]", value))
