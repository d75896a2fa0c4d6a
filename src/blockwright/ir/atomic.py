"""Atomic updates: `T.atomic_add(B[i], x)` replaces `B[i]` by `B[i] + x` in one indivisible step.

The location is an element, given as `B[i]` or `T.address_of(B[i])`; the call returns the old value
of the element. Concurrent updates of one element are all applied, in unspecified order. Atomics
do not order accesses to other elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from blockwright.ir import build
from blockwright.ir import expr as E
from blockwright.ir.expr import BufferLoad, Call, Expr
from blockwright.ir.node import Node

Combiner = type[E.Add | E.Mul | E.Min | E.Max | E.And | E.Or]

_COMBINERS: dict[str, Combiner] = {
    "atomic_add": E.Add, "atomic_mul": E.Mul, "atomic_min": E.Min, "atomic_max": E.Max,
    "atomic_and": E.And, "atomic_or": E.Or,
}  # fmt: skip
_BITWISE: dict[str, str] = {"atomic_and": "bitwise_and", "atomic_or": "bitwise_or"}


def is_atomic(node: Node) -> TypeGuard[Call]:
    """Whether a node is an atomic update."""
    return isinstance(node, Call) and node.op in _COMBINERS


def atomic_place(call: Call) -> BufferLoad | None:
    """The element that an atomic call updates; None for a pointer of unknown origin."""
    place = call.args[0]
    if isinstance(place, Call) and place.op == "address_of":
        place = place.args[0]
    return place if isinstance(place, BufferLoad) else None


def atomic_value(call: Call, old: Expr) -> Expr:
    """The new value of the element, given the old one; integer `and` and `or` are bitwise."""
    value = call.args[1]
    if call.op in _BITWISE and not value.dtype.is_bool:
        return build.call(_BITWISE[call.op], old, value)
    make: Callable[[Expr, Expr], Expr] = _COMBINERS[call.op]
    return make(old, value)


def atomic_name(combiner: type[Expr]) -> str | None:
    """The atomic operation whose combiner is this expression class; None if there is none."""
    return next((name for name, cls in _COMBINERS.items() if cls is combiner), None)
