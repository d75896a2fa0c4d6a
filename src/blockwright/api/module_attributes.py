"""Check the module attributes that describe layout and nesting of arguments and results.

Importers write these attributes and compiled models rely on them: `input_orders` and
`output_orders` are orders of stored axes, `input_pairs` and `output_pairs` list the names and
numbers of complex tensors, `output_names` are the names of results, `inputs_tree` and
`outputs_tree` describe nested containers, `constants` maps names to arrays. For `state` see
`api.state`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from blockwright import ir
from blockwright.api.several import ENTRIES, entry_attributes
from blockwright.api.state import variables
from blockwright.runtime.inputs import InputTree
from blockwright.support import ValidationError


def check_module_attributes(module: ir.IRModule, counts: Mapping[str, int] | None = None) -> None:
    """Raise ValidationError BW252 for an attribute that does not fit its function.

    The attributes describe the function "main"; `entries` holds those of other functions, by name.

    Arguments: `counts` are the numbers of results of functions where they are known.
    """
    constants: Any = module.attrs.get("constants", {})
    arrays = isinstance(constants, Mapping) and all(
        isinstance(a, np.ndarray) for a in cast("Mapping[Any, Any]", constants).values()
    )
    _require(arrays, "constants", "must map names to arrays")
    entries: Any = module.attrs.get(ENTRIES, {})
    named = isinstance(entries, Mapping) and all(
        isinstance(attrs, Mapping) for attrs in cast("Mapping[Any, Any]", entries).values()
    )
    _require(named, ENTRIES, "must map functions to their attributes")
    variables(module)
    for name, function in module.functions.items():
        if isinstance(function, ir.GraphFunction):
            _check_entry(entry_attributes(module, name), function, (counts or {}).get(name))


def _check_entry(attrs: Mapping[str, Any], function: ir.GraphFunction, count: int | None) -> None:
    _require(isinstance(attrs.get("framework", ""), str), "framework", "must be a name")
    ranks = {p.name: p.info.rank for p in function.params if isinstance(p.info, ir.TensorInfo)}
    orders: Any = attrs.get("input_orders", {})
    fits = isinstance(orders, Mapping) and all(
        _is_order(order, ranks.get(name, -1))
        for name, order in cast("Mapping[Any, Any]", orders).items()
    )
    _require(fits, "input_orders", "must map parameters to orders of their axes")
    results = attrs.get("output_orders", ())
    fits = isinstance(results, (list, tuple))
    listed = cast("Sequence[Any]", results) if fits else ()
    fits = fits and all(map(_is_order, listed))
    if "output_orders" in attrs and count is not None:
        fits = fits and len(listed) == count
    _require(fits, "output_orders", "must list the order of axes of each result")
    paired = {p.name for p in function.params if _is_paired(p.info)}
    listed = attrs.get("input_pairs", ())
    fits = isinstance(listed, (list, tuple)) and all(
        type(name) is str and name in paired for name in cast("Sequence[Any]", listed)
    )
    _require(fits, "input_pairs", "must list parameters whose last axis has two elements")
    listed = attrs.get("output_pairs", ())
    fits = isinstance(listed, (list, tuple)) and all(
        type(k) is int and k >= 0 and (count is None or k < count)
        for k in cast("Sequence[Any]", listed)
    )
    _require(fits, "output_pairs", "must list numbers of results")
    names: Any = attrs.get("output_names", ())
    fits = isinstance(names, (list, tuple)) and all(
        isinstance(name, str) for name in cast("Sequence[Any]", names)
    )
    if "output_names" in attrs and count is not None:
        fits = fits and len(cast("Sequence[Any]", names)) == count
    _require(fits, "output_names", "must list the name of each result")
    _require(
        _is_tree(attrs.get("outputs_tree"), count),
        "outputs_tree",
        "must be a tree of result numbers",
    )
    if attrs.get("inputs_tree") is not None:
        try:
            msgspec.convert(attrs["inputs_tree"], InputTree)
        except msgspec.ValidationError as error:
            _require(False, "inputs_tree", f"must be a tree of parameters: {error}")


def _is_paired(info: ir.Info | None) -> bool:
    """Whether a tensor can hold pairs of floats along its last axis."""
    if not isinstance(info, ir.TensorInfo) or info.dtype is None or not info.shape:
        return False
    return info.dtype.name in ("float32", "float64") and ir.is_const_int(info.shape[-1], 2)


def _require(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise ValidationError(
            f"the module attribute {name} {what}",
            code="BW252",
            help="omit it: importers set it",
        )


def _is_order(order: Any, rank: int = -1) -> bool:
    """Whether `order` is empty or a permutation of the axes; `rank` < 0 means unknown rank."""
    if not isinstance(order, (list, tuple)):
        return False
    axes = cast("Sequence[Any]", order)
    numbers = all(type(axis) is int for axis in axes)
    known = not axes or rank < 0 or len(axes) == rank
    return numbers and known and sorted(axes) == list(range(len(axes)))


def _is_tree(tree: Any, count: int | None) -> bool:
    if tree is None or type(tree) is int:
        return tree is None or (tree >= 0 and (count is None or tree < count))
    if not isinstance(tree, Mapping) or not tree:
        return False
    kind, content = next(iter(cast("Mapping[Any, Any]", tree).items()))
    if kind == "dict" and isinstance(content, Mapping):
        items = tuple(cast("Mapping[Any, Any]", content).values())
    elif kind in ("tuple", "list") and isinstance(content, (list, tuple)):
        items = tuple(cast("Sequence[Any]", content))
    else:
        return False
    return all(_is_tree(item, count) for item in items)
