"""Converters of operators whose results have sizes known only at run time.

The exporter gives these sizes symbols of their own, such as u0. The importer casts a value to them
(`run_time_sizes`), which binds u0 to the size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blockwright import ir
from blockwright.frontend.torch.operands import Registry, cast_to, dims_of, result_type
from blockwright.graph import constant, shape_value
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
_INT64 = ir.dtype_of("int64")


@TABLE.row("nonzero")
def _nonzero(imp: Importer, node: Any, x: Any) -> Any:
    """PyTorch has a row for each position."""
    found = nonzero(imp, x, node.meta["val"].shape[0])
    return imp.builder.op("permute_dims", found, axes=(1, 0))


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
    """As PyTorch on CPUs, with places and counts in any case."""
    return _distinct(imp, x, dim, return_inverse=True, return_counts=True)


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
    """An integer, as the exporter's symbol; a bool, as its comparison of a symbol with 1."""
    if x.tensor_info.dtype.is_bool:
        holds = imp.symbols.condition(node.meta["val"])
        symbols = list(dict.fromkeys(ir.free_vars(holds)))
        if len(symbols) == 1:
            _load(imp, cast_to(imp, x, _INT64), symbols[0])
            return holds
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


@TABLE.overload("aten.one_hot.default")
def _one_hot(imp: Importer, node: Any, x: Any, num_classes: Any = -1) -> Any:
    """1 at the place that each element names, along a new last axis; 0 elsewhere."""
    op = imp.builder.op
    count = imp.symbols.dim(node.meta["val"].shape[-1])
    flat = op("reshape", x, shape_value((-1,)))
    _require_not_negative(imp, flat, "indices of one_hot")
    if isinstance(num_classes, int) and num_classes < 0:
        largest = op("max", flat, axes=(0,), keepdims=False)
        _load(imp, op("add", largest, scalar=1, scalar_side="right"), count)
    else:
        limit = op("full", shape=(1,), fill_value=count, dtype="int64")
        beyond = op("astype", op("greater_equal", flat, limit), dtype="int64")
        message = "BW719: an index of one_hot is not less than num_classes\nhelp: pass a larger one"
        _load(imp, op("sum", beyond, axes=(0,), keepdims=False), ir.const(0, _INT64), message)
    places = op("expand_dims", x, axis=len(dims_of(x)))
    numbers = op("arange", begin=0, end=count, step=1, dtype="int64")
    return op("astype", op("equal", places, numbers), dtype="int64")


@TABLE.overload("aten._assert_async.default", "aten._assert_async.msg")
def _assert(imp: Importer, node: Any, condition: Any, message: str = "an assertion") -> None:
    """Check an element when the model runs."""
    op, dtype = imp.builder.op, condition.tensor_info.dtype
    fails = condition
    if not dtype.is_bool:
        fails = op("not_equal", condition, scalar=0, scalar_side="right")
    fails = op("astype", op("logical_not", fails), dtype="int64")
    _load(
        imp,
        op("reshape", fails, shape_value(())),
        ir.const(0, _INT64),
        f"BW719: {message} failed\nhelp: pass data that the model accepts",
    )


@TABLE.overload("aten.unique_consecutive.default")
def _unique_consecutive(
    imp: Importer,
    node: Any,
    x: Any,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The elements, or slices along `dim`, that differ from the one before.

    Places and counts are empty unless they are asked for or there is a `dim`.
    """
    op = imp.builder.op
    shape = dims_of(x)
    if dim is None:
        values, axis = op("reshape", x, shape_value((-1,))), 0
    else:
        values, axis = x, dim % max(len(shape), 1)
    size = dims_of(values)[axis]
    after, before = (
        op("slice", values, axis=axis, begin=begin, end=end, step=1)
        for begin, end in ((1, size), (0, ir.maximum(size - 1, ir.const(0, _INT64))))
    )
    changes = op("not_equal", after, before)
    others = tuple(k for k in range(len(dims_of(values))) if k != axis)
    if others:
        changes = op("any", changes, axes=others, keepdims=False)
    first = op(
        "full", shape=(ir.minimum(size, ir.const(1, _INT64)),), fill_value=True, dtype="bool"
    )
    starts = op("concat", first, changes, axis=0)
    places = op("squeeze", op("nonzero", starts), axis=0)
    found = [op("take", values, places, axis=axis)]
    empty = op("zeros", shape=(0,), dtype="int64")
    numbers = op("cumsum", op("astype", starts, dtype="int64"), axis=0)
    inverse = op("subtract", numbers, scalar=1, scalar_side="right")
    inverse = op("reshape", inverse, shape_value(shape)) if dim is None else inverse
    found.append(inverse if return_inverse or dim is not None else empty)
    if not return_counts and dim is None:
        return [*found, empty]
    places = imp.sizes.cast(node.meta["val"][2], places)  # binds the exporter's symbol
    ends = op("full", shape=(1,), fill_value=size, dtype="int64")
    bounds = op("concat", places, ends, axis=0)
    total = dims_of(bounds)[0]
    upper = op("slice", bounds, axis=0, begin=1, end=total, step=1)
    return [*found, op("subtract", upper, places)]


@TABLE.overload("aten.nonzero_static.default")
def _nonzero_static(imp: Importer, node: Any, x: Any, *, size: int, fill_value: int = -1) -> Any:
    """The first `size` positions, with rows of `fill_value` behind them."""
    op = imp.builder.op
    found = op("permute_dims", op("nonzero", x), axes=(1, 0))
    shape = (size, len(dims_of(x)))
    more = op("full", shape=shape, fill_value=fill_value, dtype="int64")
    return op("slice", op("concat", found, more, axis=0), axis=0, begin=0, end=size, step=1)


def nonzero(imp: Importer, x: Any, count: Any = None) -> Any:
    """A column for each position of a nonzero element.

    Arguments: `count` is their number as the exporter knows it. A later pass names the size by its
        symbol, and so knows its range, such as that there is an element that the model reads.
    """
    found = imp.builder.op("nonzero", x)
    size = None if count is None else imp.symbols.dim(count)
    if not isinstance(size, ir.Var):
        return found
    imp.sizes.declare([size])
    rank = ir.const(len(dims_of(x)), _INT64)
    return imp.builder.match_cast(found, ir.TensorInfo((rank, size), _INT64), "nonzero")


def positions(imp: Importer, index: Any, count: Any = None) -> list[Any]:
    """An index tensor for each axis that an index selects: those of the True elements of a mask.

    Arguments: `count` is the number of these elements, if the exporter has a symbol for it.
    """
    if index is None or not index.tensor_info.dtype.is_bool:
        return [index]
    places = nonzero(imp, index, count)
    return [
        imp.builder.op(
            "squeeze",
            imp.builder.op("slice", places, axis=0, begin=axis, end=axis + 1),
            axis=0,
        )
        for axis in range(len(dims_of(index)))
    ]
