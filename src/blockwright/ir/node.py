"""Base class of all nodes: immutable, compared by identity, with generated child access.

Which fields hold children is derived from the field annotations once per class. `map_children`
returns the node itself when nothing changes, so an identity pass allocates nothing and memo tables
keyed by node stay valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import msgspec

from blockwright.support import Span

if TYPE_CHECKING:
    from enum import Enum

    import numpy as np

    from blockwright.ir.dtype import DType

NodeT = TypeVar("NodeT", bound="Node")
_Leaf: TypeAlias = "np.ndarray[Any, Any] | DType | Enum | str | int | float | None"
Held: TypeAlias = "Node | tuple[Held, ...] | list[Held] | dict[Any, Held] | _Leaf"
"""Type of a field of a node, or of an item in such a field."""


class Node(msgspec.Struct, frozen=True, eq=False, weakref=True, kw_only=True):
    """Immutable tree node, compared by identity; use `structural_equal` to compare programs."""

    span: Span | None = None

    def __repr__(self) -> str:
        return show(self)

    def children(self) -> Sequence[Node]:
        """All direct child nodes in field order, including those in tuples and mapping values."""
        cls = type(self)
        result = _children_of.get(cls)
        if result is None:
            result = _children_of[cls] = _reader(cls)
        return result(self)

    def map_children(self, fn: Callable[[Node], Node]) -> Self:
        """A copy with `fn` applied to each child; `self` if no child changed."""
        changes: dict[str, Any] | None = None
        for name, how in _shape(type(self)):
            old = getattr(self, name)
            if how == _ONE:
                new = fn(old)
            elif old is None:
                continue
            elif how == _MAYBE:
                new = fn(old)
            elif how == _MANY:
                new = _map_nodes(old, fn)
            else:
                new = _map_value(old, fn)
            if new is not old:
                changes = {} if changes is None else changes
                changes[name] = new
        return self if changes is None else msgspec.structs.replace(self, **changes)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields replaced."""
        return msgspec.structs.replace(self, **changes)


_LEAF_ANNOTATIONS = ("str", "int", "float", "bool", "DType", "Span", "ForKind", "IterType")
_fields_cache: dict[type, tuple[str, ...]] = {}


def child_fields(cls: type[Node]) -> tuple[str, ...]:
    """Names of the fields of `cls` that may hold nodes; derived from the annotations once."""
    result = _fields_cache.get(cls)
    if result is None:
        names: list[str] = []
        for base in reversed(cls.__mro__):
            for name, annotation in getattr(base, "__annotations__", {}).items():
                text = str(annotation).replace(" | None", "").strip()
                if "ClassVar" in text or text in _LEAF_ANNOTATIONS:
                    continue
                if text in ("tuple[str, ...]", "tuple[int, ...]", "tuple[tuple[int, ...], ...]"):
                    continue
                if name not in names:
                    names.append(name)
        result = tuple(n for n in cls.__struct_fields__ if n in names)
        _fields_cache[cls] = result
    return result


# Kinds of child fields: a node, an optional node, a tuple of nodes, anything else.
_ONE, _MAYBE, _MANY, _OTHER = range(4)
_shapes: dict[type, tuple[tuple[str, int], ...]] = {}
_children_of: dict[type, Callable[[Any], Sequence[Node]]] = {}


def _shape(cls: type[Node]) -> tuple[tuple[str, int], ...]:
    """The fields that may hold nodes, with their kind; computed once per class."""
    result = _shapes.get(cls)
    if result is None:
        annotations: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            for name, annotation in getattr(base, "__annotations__", {}).items():
                annotations[name] = str(annotation)
        nodes = {c.__name__ for c in _subclasses(Node)}
        result = tuple((n, _holds(annotations[n], nodes)) for n in child_fields(cls))
        _shapes[cls] = result
    return result


def _holds(annotation: str, nodes: set[str]) -> int:
    if annotation in nodes:
        return _ONE
    if annotation.removesuffix(" | None") in nodes:
        return _MAYBE
    if annotation.removeprefix("tuple[").removesuffix(", ...]") in nodes:
        return _MANY
    return _OTHER


def _subclasses(cls: type[Node]) -> Iterator[type[Node]]:
    yield cls
    for below in cls.__subclasses__():
        yield from _subclasses(below)


def _reader(cls: type[Node]) -> Callable[[Any], Sequence[Node]]:
    """A specialized `children` function for the class, because tree walks are hot."""
    shape = _shape(cls)
    names = [name for name, _ in shape]
    kinds = [how for _, how in shape]
    if not shape:
        return lambda _: ()
    if kinds == [_ONE]:
        one = attrgetter(names[0])
        return lambda node: (one(node),)
    if kinds == [_MANY] or all(how == _ONE for how in kinds):
        return attrgetter(*names)  # one field: its tuple; several: the tuple of the fields

    def read(node: Any) -> Sequence[Node]:
        result: list[Node] = []
        for name, how in shape:
            value = getattr(node, name)
            if how == _ONE:
                result.append(value)
            elif how == _MANY:
                result += value
            elif how == _MAYBE:
                if value is not None:
                    result.append(value)
            else:
                result += _walk_value(value)
        return result

    return read


def _map_nodes(values: tuple[Node, ...], fn: Callable[[Node], Node]) -> tuple[Node, ...]:
    mapped = tuple([fn(item) for item in values])
    for new, old in zip(mapped, values, strict=True):
        if new is not old:
            return mapped
    return values


def _walk_value(value: Held) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _walk_value(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _walk_value(item)


def _map_value(value: Held, fn: Callable[[Node], Node]) -> Held:
    if isinstance(value, Node):
        return fn(value)
    if isinstance(value, tuple):
        mapped = tuple(_map_value(item, fn) for item in value)
        same = all(new is old for new, old in zip(mapped, value, strict=True))
        return value if same else mapped
    if isinstance(value, dict):
        items = {key: _map_value(item, fn) for key, item in value.items()}
        same = all(items[key] is value[key] for key in items)
        return value if same else items
    return value


_printer_slot: list[Callable[[Node], str]] = []


def set_printer(printer: Callable[[Node], str]) -> None:
    """Install the printer that `repr` and errors use: first a lazy one, then `ir.printer`."""
    _printer_slot[:] = [printer]


def show(node: Node) -> str:
    """Script text of a node, or its class name when no printer is installed."""
    if _printer_slot:
        return _printer_slot[0](node)
    return f"<{type(node).__name__}>"
