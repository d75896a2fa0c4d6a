"""Structure of results: nesting as in the model, and writing into memory of the caller.

A tree describes how results nest. It is the index of a result, null, {"tuple": […]}, {"list": […]}
or {"dict": {…}}. Containers of a user-defined class have an additional key "class", and those that
PyTorch takes apart a key "context": what it needs to put them together.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from blockwright.support import ArgumentError
from blockwright.support.kinds import is_huge

_WORK = 100_000  # limit of NumPy's search for an overlap of two strided arrays, in candidates


_CLASSES: dict[str, type[Any]] = {}  # container classes by their names in trees


def remember_class(kind: type[Any]) -> str:
    """Register a result container (named tuple, dataclass or mapping); return its tree name."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    _CLASSES[name] = kind
    return name


def _class_of(name: str) -> type[Any] | None:
    """The class of that name; None when this process has not imported it.

    A tree may come from a file, which must not trigger imports.
    """
    result = _CLASSES.get(name)
    if result is not None:
        return result
    module, _, path = name.partition(":")
    value: Any = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, part, None)
    return cast("type[Any]", value) if isinstance(value, type) else None


def unflatten(tree: Any, results: Any) -> Any:
    """Nest results as in `tree`; containers of unloaded classes become dicts and tuples."""
    flat = cast("Sequence[Any]", results if isinstance(results, (list, tuple)) else [results])
    if tree is None:
        return None
    if isinstance(tree, int):
        return flat[tree]
    kind, content = next(iter(tree.items()))
    result = _class_of(tree["class"]) if "class" in tree else None
    if kind == "dict":
        named = {key: unflatten(item, flat) for key, item in content.items()}
        return named if result is None else result(**named)
    items = [unflatten(item, flat) for item in content]
    if "context" in tree:
        node = _registered(result)
        return tuple(items) if node is None else node.unflatten_fn(items, tree["context"])
    if result is not None:
        return result(*items) if hasattr(result, "_fields") else result(items)
    return tuple(items) if kind == "tuple" else items


def _registered(kind: type[Any] | None) -> Any:
    """How PyTorch takes objects of a class apart and puts them together; None if it does not."""
    pytree: Any = sys.modules.get("torch.utils._pytree")
    return None if pytree is None else pytree.SUPPORTED_NODES.get(kind)


def flatten(tree: Any, given: Any, count: int) -> list[Any]:
    """The arrays of `given`, which has the structure of `tree`, in the order of the results.

    Lists and tuples are interchangeable.
    Raises: ArgumentError: BW701 parts that are missing or too many, BW702 parts of another kind.
    """
    result: list[Any] = [None] * count
    collect(tree, given, "out", result, _OF_RESULTS)
    return result


class Words(NamedTuple):
    """Parts of messages about a value whose structure does not match a tree: the subject, and the
    remedies for a wrong constant, a wrong kind of container and a wrong number of parts."""

    model: str
    constant: str
    container: str
    parts: str


_OF_RESULTS = Words(
    "the model gives", "pass None there",
    "pass the structure that a call returns, with your arrays for the results",
    "pass memory for all results, or for none",
)  # fmt: skip


def collect(tree: Any, given: Any, path: str, found: list[Any], words: Words) -> None:
    """Store the arrays of `given`, structured like `tree`, at their indices in `found`."""
    if isinstance(tree, int):
        found[tree] = given
        return
    if tree is None or "constant" in tree:
        expected = "None" if tree is None else tree["constant"]
        plain = isinstance(given, (bool, int, float, str)) and not is_huge(given)
        if is_huge(given) or repr(given) != expected:
            raise ArgumentError(
                f"{path} is {repr(given) if plain else describe(given)}, where "
                f"{words.model} {expected}",
                code="BW702",
                help=words.constant,
            )
        return
    kind, content = next(iter(tree.items()))
    own: Any = given.__class__
    node = _registered(own) if "context" in tree else None
    if node is not None:
        parts, context = node.flatten_fn(given)
        if context != tree["context"]:
            raise ArgumentError(
                f"{path} is {describe(given)} made with {context!r}, where {words.model} one made "
                f"with {tree['context']!r}",
                code="BW702",
                help=words.container,
            )
        given = parts
    if dataclasses.is_dataclass(given) and not isinstance(given, (type, Mapping)):
        given = vars(given)
    if not isinstance(given, Mapping if kind == "dict" else (list, tuple)):
        raise ArgumentError(
            f"{path} is {describe(given)}, where {words.model} a {kind}",
            code="BW702",
            help=words.container,
        )
    parts, names = _parts(given), _parts(content)
    if set(parts) != set(names):
        listed = ", ".join(map(repr, names)) if kind == "dict" else f"{len(names)} parts"
        got = ", ".join(map(repr, parts)) if kind == "dict" else str(len(parts))
        raise ArgumentError(
            f"{path} must have {listed or 'no parts'}, got {got or 'none'}",
            code="BW701",
            help=words.parts,
        )
    for name, item in names.items():
        collect(item, parts[name], f"{path}[{name!r}]", found, words)


def _parts(value: Any) -> dict[Any, Any]:
    """The parts of a container, by key or position."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    return dict(enumerate(cast("Sequence[Any]", value)))


def describe(value: Any) -> str:
    """The type of a value with its article, for messages."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def require_apart(memory: Iterable[tuple[int, np.ndarray]], label: Callable[[int], str]) -> None:
    """Check that no two written elements share memory. When copies are written back after the call,
    compiled code cannot detect such overlaps.

    Raises: ArgumentError (BW706), naming the arrays by `label`.
    """
    earlier: list[tuple[int, np.ndarray]] = []
    for index, array in memory:
        require_distinct(array, label(index))
        for other, before in earlier:
            if _meet(array, before):
                raise ArgumentError(
                    f"{label(index)}: it is written and overlaps {label(other)}",
                    code="BW706",
                    help="pass a copy of one of them",
                )
        earlier.append((index, array))


def require_unshared(
    written: Iterable[tuple[int, np.ndarray]],
    others: Iterable[tuple[int, np.ndarray]],
    label: Callable[[int], str],
) -> None:
    """Check that no written array shares memory with another argument.

    Raises: ArgumentError (BW706), naming the arrays by `label`.
    """
    known = list(others)
    for index, array in written:
        for other, before in known:
            if other != index and _meet(array, before):
                raise ArgumentError(
                    f"{label(index)} is updated in place and overlaps {label(other)}",
                    code="BW706",
                    help="pass a copy of one of them",
                )


def require_distinct(array: np.ndarray, label: str) -> None:
    """Check that no two elements of a written array share memory.

    Raises: ArgumentError (BW706).
    """
    if has_shared_elements(array):
        raise ArgumentError(
            f"{label}: its own elements share memory",
            code="BW706",
            help="pass an array that is not broadcast",
        )


def has_shared_elements(array: np.ndarray) -> bool:
    """Whether any two elements of an array share memory."""
    axes = [(abs(step), size) for step, size in zip(array.strides, array.shape, strict=True)]
    axes = sorted(axis for axis in axes if axis[1] > 1)
    if array.size < 2 or array.flags.c_contiguous:
        return False
    reach = array.itemsize  # bytes from the first element of the inner axes to the end of the last
    for step, size in axes:
        if step < reach:
            return _meets_itself(axes, array.itemsize)
        reach += (size - 1) * step
    return False


def _meets_itself(axes: list[tuple[int, int]], itemsize: int) -> bool:
    """Whether elements overlap, decided from the address of every element."""
    if not axes[0][0]:
        return True
    places = np.zeros(1, np.int64)
    for step, size in axes:
        places = np.add.outer(places, np.arange(size, dtype=np.int64) * step).reshape(-1)
    places.sort()
    return bool((np.diff(places) < itemsize).any())


def _meet(a: np.ndarray, b: np.ndarray) -> bool:
    try:
        return np.shares_memory(a, b, max_work=cast("Any", _WORK))
    except np.exceptions.TooHardError:
        return True
