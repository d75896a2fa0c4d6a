"""Typed helpers for Python values of a script, and facts keyed by node identity.

Script values have type `Any`. Narrowing one with `isinstance(x, tuple)` leaves its elements
unknown to the type checker, so these helpers return a list of `Any`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Generic, TypeVar, cast

from blockwright.ir import Node

FactT = TypeVar("FactT")


class NodeFacts(Generic[FactT]):
    """A weak dictionary keyed by node identity.

    A `WeakKeyDictionary` would compare its keys with `==`, which raises for expressions.
    """

    def __init__(self) -> None:
        self._facts: dict[int, tuple[weakref.ref[Node], FactT]] = {}

    def __setitem__(self, node: Node, fact: FactT) -> None:
        key, facts = id(node), self._facts
        facts[key] = (weakref.ref(node, lambda _: facts.pop(key, None)), fact)

    def get(self, node: Any) -> FactT | None:
        result = self._facts.get(id(node))
        return result[1] if result is not None and result[0]() is node else None

    def __len__(self) -> int:
        return len(self._facts)


def sequence_of(value: Any) -> list[Any] | None:
    """The items of a list or tuple; None for anything else."""
    return list(cast("Iterable[Any]", value)) if isinstance(value, (list, tuple)) else None


def items_of(value: Any) -> list[Any]:
    """The items of a list or tuple; any other value as the only item."""
    result = sequence_of(value)
    return [value] if result is None else result


def iterable_of(value: Any) -> list[Any] | None:
    """The items of any iterable except strings; None for anything else."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return None
    return list(cast("Iterable[Any]", value))
