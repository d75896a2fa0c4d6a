"""Check that the fields of nodes hold values of their declared types.

Construction does not check this: it takes a microsecond per node, and programs have many nodes.

    ir.TupleGetItem(x, "a")     # TupleGetItem.index is a str, not an int
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, cast

import numpy as np

from blockwright import ir
from blockwright.ir.node import Node
from blockwright.support import Diagnostic, Span
from blockwright.support.kinds import is_huge

_Test = Callable[[Any], bool]
_WIDER: dict[Any, tuple[type, ...]] = {
    int: (int, np.integer),
    float: (float, int, np.floating, np.integer),
    bool: (bool, np.bool_),
}
_MOST = 20  # maximum number of problems reported per program


def field_problems(root: Node) -> list[Diagnostic]:
    """Fields of all reachable nodes whose value does not match the annotation (BW259).

    A node without a span is reported at the nearest enclosing node that has one.
    """
    result: list[Diagnostic] = []
    seen: set[int] = set()
    queue: list[tuple[Any, Span | None]] = [(root, None)]
    while queue and len(result) < _MOST:
        value, span = queue.pop()
        if isinstance(value, Node):
            if id(value) not in seen:
                seen.add(id(value))
                span = value.span if isinstance(value.span, Span) else span
                result += _of_node(value, span)
                fields = [getattr(value, name) for name in reversed(value.__struct_fields__)]
                queue += [(field, span) for field in fields]
        elif isinstance(value, (tuple, list)):
            queue += [(item, span) for item in reversed(cast("list[Any]", value))]
        elif isinstance(value, Mapping):
            items = list(cast("Mapping[Any, Any]", value).values())
            queue += [(item, span) for item in reversed(items)]
    return result


def _of_node(node: Node, span: Span | None) -> list[Diagnostic]:
    kind = type(node).__name__
    result: list[Diagnostic] = []
    for name, (holds, expected) in _tests(type(node)).items():
        value = getattr(node, name)
        if not holds(value):
            text = f"{kind}.{name} holds {_shown(value)}, not {expected}"
            result.append(Diagnostic("BW259", text, span))
        elif (fault := _unusable(value)) is not None:
            result.append(Diagnostic("BW259", f"{kind}.{name} holds {fault}", span))
    if isinstance(node, ir.IRModule) and not result:
        for name, function in node.functions.items():
            if not isinstance(function, (ir.PrimFunc, ir.GraphFunction)):
                what = f"{name!r} of the module is {_shown(function)}, which is not a function"
                result.append(Diagnostic("BW259", what, span))
    return result


def _unusable(value: Any) -> str | None:
    """Why compiled code cannot hold a field, apart from nested nodes: a text that is not a C string
    in UTF-8, or an integer beyond the range of float64."""
    if isinstance(value, str):
        if "\0" in value:
            return f"the text {value[:60]!a} with a NUL character"
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            return f"the text {value[:60]!a} with half of a surrogate pair"
        return None
    if is_huge(value):
        return f"an integer of {value.bit_length()} bits, which fits no type"
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        value = [*items.keys(), *items.values()]
    if not isinstance(value, (tuple, list)):
        return None
    faults = map(_unusable, cast("Iterable[Any]", value))
    return next((fault for fault in faults if fault is not None), None)


def _shown(value: Any) -> str:
    """Short description of a value: its repr for scalars, otherwise its class and item classes."""
    if is_huge(value):
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)[:60]
    if isinstance(value, (tuple, list)):
        kinds = dict.fromkeys(type(item).__name__ for item in cast("Iterable[Any]", value))
        return f"a {type(cast('Any', value)).__name__} of {', '.join(kinds) or 'nothing'}"
    return f"an object of class {type(value).__name__}"


@cache
def _tests(kind: type[Node]) -> dict[str, tuple[_Test, str]]:
    """Per field of a node class: a predicate on its value, and a description of what it expects."""
    hints = typing.get_type_hints(kind, localns={**vars(ir), "np": np, "Any": Any})
    return {
        name: (_test(hints[name]), _words(hints[name]))
        for name in kind.__struct_fields__
        if hints[name] is not Any
    }


def _test(annotation: Any) -> _Test:
    if annotation is Any:
        return lambda value: True
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        tests = [_test(arg) for arg in args]
        return lambda value: any(test(value) for test in tests)
    if origin is tuple and args[-1] is Ellipsis:
        each = _test(args[0])
        return lambda value: (
            isinstance(value, (tuple, list)) and all(map(each, cast("Iterable[Any]", value)))
        )
    if origin is tuple:
        parts = [_test(arg) for arg in args]
        return lambda value: (
            isinstance(value, (tuple, list))
            and len(cast("list[Any]", value)) == len(parts)
            and all(test(v) for test, v in zip(parts, cast("list[Any]", value), strict=True))
        )
    if origin is dict:
        key, item = map(_test, args)
        return lambda value: (
            isinstance(value, Mapping)
            and all(key(k) and item(v) for k, v in cast("Mapping[Any, Any]", value).items())
        )
    kind = _WIDER.get(annotation, origin or annotation)
    return lambda value: isinstance(value, kind)


def _words(annotation: Any) -> str:
    """Description of a type annotation: "a tuple of Expr", "Var or None"."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_words, args))
    if origin is tuple and args[-1] is Ellipsis:
        return f"a tuple of {_words(args[0])}"
    if origin is tuple:
        return f"a pair of {' and '.join(map(_words, args))}"
    if origin is dict:
        return f"a dict with {_words(args[0])} as keys and {_words(args[1])} as values"
    name = "None" if annotation is types.NoneType else (origin or annotation).__name__
    return "anything" if annotation is Any else name
