"""Structure of a model's arguments and results, as `runtime.results` and `runtime.inputs` take it.

PyTorch describes a structure by a spec: a class, what the class needs besides its parts (its
context), and the specs of the parts.

    ModelOutput(logits, past_key_values=DynamicCache)
→   {"dict": {"logits": 0, "past_key_values": {"tuple": […], "class": …, "context": […]}}}
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from blockwright.runtime.inputs import InputTree
from blockwright.runtime.results import remember_class
from blockwright.support import ImporterError


class Constant(msgspec.Struct, frozen=True):
    """An argument that is not a tensor, as text: its value is part of the program."""

    text: str


def output_tree(spec: Any, leaves: Sequence[int | None]) -> Any:
    """The structure of results. Raises: ImporterError BW506 for one that cannot be written down."""
    return _tree(spec, iter(leaves))


def input_tree(
    spec: Any, signature: Any, leaves: Sequence[int | Constant]
) -> dict[str, Any] | None:
    """The structure of arguments, for calls by position and by name.

    None if all arguments are single tensors, or if it cannot be written down.

    Args:
        spec: of the positional arguments, and of those by name.
        signature: has the names of the model's arguments.
    """
    try:
        positional, by_name = _tree(spec, iter(leaves))["tuple"]
        args, named = positional["tuple"], by_name["dict"]
    except (KeyError, TypeError, ValueError, StopIteration, ImporterError):
        return None
    names = tuple(getattr(signature, "forward_arg_names", None) or ())
    rest = names[len(args) :]
    if len(names) != len(args) + len(named) or set(rest) != set(named):
        return None
    tree = InputTree(names, len(args), (*args, *(named[name] for name in rest)))
    return None if tree.is_flat else msgspec.to_builtins(tree)


def _tree(spec: Any, leaves: Iterator[Any]) -> Any:
    if spec.is_leaf():
        return _leaf(next(leaves))
    parts = [_tree(part, leaves) for part in spec.children()]
    kind: Any = spec.type
    context = spec.context
    if kind in (list, tuple):
        return {kind.__name__: parts}
    if kind is collections.namedtuple:
        named: Any = context
        return {"tuple": parts, "class": remember_class(named)}
    own: Any = kind
    if issubclass(kind, tuple):
        return {"tuple": parts, "class": remember_class(own)}
    if issubclass(kind, dict):
        keys = context[1] if own is collections.defaultdict else context
        return _named(own, keys, parts)
    if hasattr(kind, "__dataclass_fields__"):
        return _fields(kind, parts, context)
    return _registered(kind, parts, context)


def _leaf(value: Any) -> Any:
    if isinstance(value, Constant):
        return None if value.text == "None" else {"constant": value.text}
    return value


def _named(kind: type[Any], keys: Any, parts: list[Any]) -> dict[str, Any]:
    """A dictionary, or an object of a subclass such as `ModelOutput`."""
    names: list[Any] = list(keys)
    if not all(isinstance(name, str) for name in names):
        raise _unknown("a dict with keys that are not strings")
    tree = {"dict": dict(zip(names, parts, strict=True))}
    return tree if kind is dict else {**tree, "class": remember_class(kind)}


class _Part(msgspec.Struct, frozen=True):
    """A part of a dataclass, in place of its value."""

    tree: Any


def _fields(kind: type[Any], parts: list[Any], context: Any) -> dict[str, Any]:
    made = _node(kind).unflatten_fn([_Part(part) for part in parts], context)
    values = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}
    fields = {n: v.tree if isinstance(v, _Part) else _plain(v, n) for n, v in values.items()}
    return {"dict": fields, "class": remember_class(kind)}


def _plain(value: Any, name: str) -> None:
    if value is not None:
        raise _unknown(f"a dataclass whose field {name} is neither a tensor nor None")


def _registered(kind: type[Any], parts: list[Any], context: Any) -> dict[str, Any]:
    """An object of a class that is registered with PyTorch, such as a cache of `transformers`."""
    try:
        kept = json.loads(json.dumps(context))
    except (TypeError, ValueError) as error:
        raise _unknown(kind.__name__) from error
    return {"tuple": parts, "class": remember_class(kind), "context": kept}


def _node(kind: type[Any]) -> Any:
    import torch.utils._pytree as pytree

    return pytree.SUPPORTED_NODES[kind]


def _unknown(name: str) -> ImporterError:
    return ImporterError(
        f"output structure {name} is not supported",
        code="BW506",
        help="return tensors, tuples, lists, dicts, named tuples or dataclasses",
    )
