"""Converters of operators whose results have sizes known only at run time.

The exporter gives these sizes symbols of their own, such as u0. The importer casts a value to them
(`run_time_sizes`), which binds u0 to the size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blockwright import ir
from blockwright.frontend.torch.operands import Registry, cast_to, dims_of, result_type
from blockwright.graph import constant
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
_INT64 = ir.dtype_of("int64")


@TABLE.row("nonzero")
def _nonzero(imp: Importer, node: Any, x: Any) -> Any:
    """PyTorch has a row for each position."""
    return imp.builder.op("permute_dims", imp.builder.op("nonzero", x), axes=(1, 0))


@TABLE.row("masked_select")
def _masked_select(imp: Importer, node: Any, x: Any, mask: Any) -> Any:
    return imp.builder.op("masked_select", x, mask)


@TABLE.row("unique")
def _unique(
    imp: Importer,
    node: Any,
    x: Any,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    """The distinct elements, then places and counts, which are empty unless they are asked for."""
    return _distinct(imp, x, None, return_inverse, return_counts)


@TABLE.overload("aten.unique_dim.default")
def _unique_slices(
    imp: Importer,
    node: Any,
    x: Any,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    return _distinct(imp, x, dim, return_inverse, return_counts)


def _distinct(
    imp: Importer, x: Any, axis: int | None, return_inverse: bool, return_counts: bool
) -> list[Any]:
    found = imp.builder.op(
        "unique",
        x,
        axis=axis,
        equal_nan=False,
        return_inverse=return_inverse,
        return_counts=return_counts,
    )
    infos = found.info.fields if isinstance(found.info, ir.TupleInfo) else ()
    parts = [
        imp.builder.emit(ir.TupleGetItem(found, k, info=info), "distinct")
        for k, info in enumerate(infos)
    ]
    parts = parts or [found]
    rest = iter(parts[1:])
    empty = imp.builder.op("zeros", shape=(0,), dtype="int64")
    asked = (return_inverse, return_counts)
    return [parts[0], *(next(rest) if flag else empty for flag in asked)]


@TABLE.overload("aten._local_scalar_dense.default", "aten.item.default")
def _item(imp: Importer, node: Any, x: Any) -> Any:
    """An integer, as the exporter's symbol."""
    if not x.tensor_info.dtype.is_int:
        raise ImporterError(
            f"item() of {x.tensor_info.dtype}: only integers can be numbers of a model",
            code="BW507",
            help="compute with the tensor itself, or convert it to an integer type first",
        )
    symbol = imp.symbols.dim(node.meta["val"])
    if isinstance(symbol, ir.Var):
        _load(imp, x, symbol)
    return symbol


def _load(imp: Importer, x: Any, size: ir.Expr, message: str = "") -> None:
    """Bind a symbol to the integer in a tensor, or check that it is a size."""
    if isinstance(size, ir.Var):
        imp.sizes.declare([size])
    loaded = imp.builder.emit(ir.GraphCall(ir.OpRef("item"), (x,)), "loaded")
    imp.builder.match_cast(loaded, ir.PrimInfo(size.dtype, size), "size", message)


def _require_not_negative(imp: Importer, x: Any, what: str) -> None:
    """Check the elements of a vector of integers when the model runs."""
    op = imp.builder.op
    below = op("sum", op("subtract", op("abs", x), x), axes=(0,), keepdims=False)
    message = f"BW719: {what} are negative\nhelp: pass numbers of at least 0"
    _load(imp, below, ir.const(0, _INT64), message)


@TABLE.overload("aten.repeat_interleave.Tensor")
def _repeat_interleave(
    imp: Importer, node: Any, repeats: Any, output_size: int | None = None
) -> Any:
    """Each position as often as its element says: [2, 0, 1] → [0, 0, 2]."""
    op = imp.builder.op
    counts = cast_to(imp, repeats, _INT64)
    _require_not_negative(imp, counts, "repeats of repeat_interleave")
    (size,) = (imp.symbols.dim(s) for s in node.meta["val"].shape)
    total = op("sum", counts, axes=(0,), keepdims=False)
    said = "BW719: the sum of repeats is not output_size\nhelp: pass the sum, or leave it out"
    _load(imp, total, size, "" if isinstance(size, ir.Var) else said)
    numbers = op("arange", begin=0, end=size, step=1, dtype="int64")
    found = op("searchsorted", op("cumsum", counts, axis=0), numbers, right=True)
    return cast_to(imp, found, result_type(node))


@TABLE.overload("aten.bincount.default")
def _bincount(imp: Importer, node: Any, x: Any, weights: Any = None, minlength: int = 0) -> Any:
    """How often each number occurs, or the sum of its weights."""
    op = imp.builder.op
    (size,) = (imp.symbols.dim(s) for s in node.meta["val"].shape)
    numbers = cast_to(imp, x, _INT64)
    _require_not_negative(imp, numbers, "numbers that bincount counts")
    least = constant(np.array([minlength - 1]))
    largest = op("max", op("concat", numbers, least, axis=0), axes=(0,), keepdims=False)
    _load(imp, op("add", largest, scalar=1, scalar_side="right"), size)
    dtype = result_type(node)
    zeros = op("full", shape=(size,), fill_value=0, dtype=dtype)
    given = (
        op("full", shape=dims_of(numbers), fill_value=1, dtype=dtype)
        if weights is None
        else cast_to(imp, weights, dtype)
    )
    return op("scatter_elements", zeros, numbers, given, axis=0, reduction="add")


def positions(imp: Importer, index: Any) -> list[Any]:
    """An index tensor for each axis that an index selects: those of the True elements of a mask."""
    if index is None or not index.tensor_info.dtype.is_bool:
        return [index]
    places = imp.builder.op("nonzero", index)
    return [
        imp.builder.op(
            "squeeze",
            imp.builder.op("slice", places, axis=0, begin=axis, end=axis + 1),
            axis=0,
        )
        for axis in range(len(dims_of(index)))
    ]
