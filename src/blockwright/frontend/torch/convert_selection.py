"""Converters of operators that sort, and of those that write at computed positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch.calls import require_elements
from blockwright.frontend.torch.convert_run_time_sizes import positions
from blockwright.frontend.torch.operands import (
    Registry,
    axis_of,
    cast_to,
    dims_of,
    element_of,
    node_shape,
    reshape,
    size_of,
)
from blockwright.graph import shape_value
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
_ONE = ir.const(1, "int64")
_REDUCTIONS = {
    "sum": "add", "add": "add", "prod": "mul", "multiply": "mul",
    "amax": "max", "amin": "min", "mean": "mean",
}  # fmt: skip


# ------------------------------------------------------------------------------------- sorting
def _ordered(imp: Importer, x: Any, dim: int, descending: bool) -> Any:
    """The stable order of lines."""
    return imp.builder.op("argsort", x, axis=dim, descending=descending)


def _taken(imp: Importer, x: Any, order: Any, dim: int) -> Any:
    return imp.builder.op("gather", x, order, axis=dim) if dims_of(x) else x


@TABLE.overload("aten.sort.default")
def _sort(imp: Importer, node: Any, x: Any, dim: int = -1, descending: bool = False) -> Any:
    order = _ordered(imp, x, dim, descending)
    return [_taken(imp, x, order, dim), order]


@TABLE.overload("aten.sort.stable")
def _stable_sort(
    imp: Importer,
    node: Any,
    x: Any,
    *,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
) -> Any:
    return _sort(imp, node, x, dim, descending)


@TABLE.overload("aten.argsort.default")
def _argsort(imp: Importer, node: Any, x: Any, dim: int = -1, descending: bool = False) -> Any:
    return _ordered(imp, x, dim, descending)


@TABLE.overload("aten.argsort.stable")
def _stable_argsort(
    imp: Importer, node: Any, x: Any, *, stable: bool, dim: int = -1, descending: bool = False
) -> Any:
    return _ordered(imp, x, dim, descending)


@TABLE.overload("aten.topk.default")
def _topk(
    imp: Importer,
    node: Any,
    x: Any,
    k: Any,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # results are always sorted
) -> Any:
    if not dims_of(x):  # k is 0 or 1; a scalar has no axis to shorten
        zero = imp.builder.op("zeros", shape_value(()), dtype="int64")
        return [x, zero]
    found = imp.builder.op("topk", x, k=k, axis=dim, largest=largest)
    return _fields(imp, found)


def _fields(imp: Importer, value: ir.GraphExpr) -> list[Any]:
    """The parts of a tuple."""
    infos = value.info.fields if isinstance(value.info, ir.TupleInfo) else ()
    return [imp.builder.emit(ir.TupleGetItem(value, k, info=i)) for k, i in enumerate(infos)]


@TABLE.overload("aten.cummax.default", "aten.cummin.default")
def _running_extreme(imp: Importer, node: Any, x: Any, dim: int) -> Any:
    name = "cummax" if "cummax" in str(node.target) else "cummin"
    found = imp.builder.op(name, x, axis=axis_of(dim, len(dims_of(x))))
    return _fields(imp, found)


@TABLE.overload("aten.kthvalue.default")
def _kth_value(
    imp: Importer, node: Any, x: Any, k: Any, dim: int = -1, keepdim: bool = False
) -> Any:
    return _at_rank(imp, x, ir.sub(size_of(imp, k), _ONE), dim, keepdim)


def _at_rank(imp: Importer, x: Any, rank: ir.Expr, dim: int, keepdim: bool) -> list[Any]:
    """The element at a place of each sorted line, and its position."""
    if not dims_of(x):
        return [x, imp.builder.op("zeros", shape_value(()), dtype="int64")]
    axis = axis_of(dim, len(dims_of(x)))
    order = _ordered(imp, x, axis, False)
    end, size = ir.add(rank, _ONE), dims_of(x)[axis]
    prove, zero = imp.builder.analyzer.prove, ir.const(0, "int64")
    if prove(ir.compare(ir.GE, rank, zero)) and prove(ir.compare(ir.LE, end, size)):
        position = imp.builder.op("slice", order, axis=axis, begin=rank, end=end)
    else:  # a call checks that there is such an element
        place = imp.builder.op("arange", begin=rank, end=end, step=1, dtype="int64")
        position = imp.builder.op("take", order, place, axis=axis, from_end=False)
    value = _taken(imp, x, position, axis)
    if keepdim:
        return [value, position]
    return [imp.builder.op("squeeze", v, axis=(axis,)) for v in (value, position)]


@TABLE.overload("aten.median.dim")
def _median_along(imp: Importer, node: Any, x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower median; the first NaN if a line holds one."""
    if not dims_of(x):
        return _at_rank(imp, x, ir.const(0, "int64"), dim, keepdim)
    axis = axis_of(dim, len(dims_of(x)))
    size = dims_of(x)[axis]
    middle = _at_rank(imp, x, ir.floordiv(ir.sub(size, _ONE), ir.const(2, "int64")), axis, keepdim)
    if not x.tensor_info.dtype.is_float:
        return middle
    largest = [
        imp.builder.op("max", x, axes=(axis,), keepdims=keepdim),
        imp.builder.op("argmax", x, axis=axis, keepdims=keepdim),
    ]
    missing = imp.builder.op("isnan", largest[0])
    return [
        imp.builder.op("where", missing, nan, value)
        for nan, value in zip(largest, middle, strict=True)
    ]


@TABLE.overload("aten.median.default")
def _median(imp: Importer, node: Any, x: Any) -> Any:
    flat = imp.builder.op("reshape", x, shape=(-1,))
    require_elements(imp, "median", flat, 0)
    return _median_along(imp, node, flat, 0)[0]


# ------------------------------------------------------------------------------------- scattering
def _scattered(
    imp: Importer, x: Any, dim: int, index: Any, updates: Any, reduction: str, self_too: bool = True
) -> Any:
    """Scatter along an axis; tensors of rank 0 count as vectors of one element."""
    shape = dims_of(x)
    if any(ir.is_const_int(d, 0) for d in dims_of(index)):
        return x
    rank = max(1, len(shape))
    parts = [v if dims_of(v) else reshape(imp, v, (_ONE,) * rank) for v in (x, index, updates)]
    out = imp.builder.op(
        "scatter_elements",
        *parts,
        axis=axis_of(dim, rank),
        reduction=reduction,
        include_self=self_too,
        from_end=False,
    )
    return out if shape else reshape(imp, out, ())


@TABLE.overload("aten.scatter.src", "aten.scatter_add.default")
def _scatter(imp: Importer, node: Any, x: Any, dim: int, index: Any, src: Any) -> Any:
    reduction = "add" if "scatter_add" in str(node.target) else "update"
    return _scattered(imp, x, dim, index, src, reduction)


@TABLE.overload("aten.scatter.reduce")
def _scatter_reduced(
    imp: Importer, node: Any, x: Any, dim: int, index: Any, src: Any, *, reduce: str
) -> Any:
    return _scattered(imp, x, dim, index, src, _REDUCTIONS[reduce])


@TABLE.overload("aten.scatter.value")
def _scatter_number(
    imp: Importer, node: Any, x: Any, dim: int, index: Any, value: Any, *, reduce: str = ""
) -> Any:
    number = element_of(imp, value, x.tensor_info.dtype)
    updates = imp.builder.op("broadcast_to", number, shape_value(dims_of(index)))
    return _scattered(imp, x, dim, index, updates, _REDUCTIONS[reduce] if reduce else "update")


TABLE.overload("aten.scatter.value_reduce")(_scatter_number)


@TABLE.overload("aten.scatter_reduce.two")
def _scatter_reduce(
    imp: Importer,
    node: Any,
    x: Any,
    dim: int,
    index: Any,
    src: Any,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    return _scattered(imp, x, dim, index, src, _REDUCTIONS[reduce], include_self)


@TABLE.overload("aten.index_put.default", "aten._unsafe_index_put.default")
def _index_put(
    imp: Importer, node: Any, x: Any, indices: list[Any], value: Any, accumulate: bool = False
) -> Any:
    """Assign elements at positions, or one number through a mask."""
    given = [i for i in indices if i is not None]
    new = cast_to(imp, value, x.tensor_info.dtype)
    if any(i.tensor_info.dtype.is_bool for i in given):
        return _assigned_through_mask(imp, x, indices, new, accumulate)
    rank = len(dims_of(x))
    axes = tuple(axis for axis, index in enumerate(indices) if index is not None)
    if axes == tuple(range(axes[0], axes[-1] + 1)):
        first = axes[0] or None
        return imp.builder.op("index_put", x, new, *given, axis=first, accumulate=accumulate)
    # Indexed axes that are not adjacent come first in the shape of the values.
    order = (*axes, *(axis for axis in range(rank) if axis not in axes))
    moved = imp.builder.op("permute_dims", x, axes=order)
    out = imp.builder.op("index_put", moved, new, *given, accumulate=accumulate)
    return imp.builder.op("permute_dims", out, axes=tuple(order.index(a) for a in range(rank)))


def _assigned_through_mask(
    imp: Importer, x: Any, indices: list[Any], new: Any, accumulate: bool
) -> Any:
    """Assign values to the elements under a mask of the first axes.

    There is one value for all of them, or as many as the mask has True elements.
    """
    mask, *others = indices
    if others:
        raise ImporterError(
            "assignment through a mask and other indices is not supported",
            code="BW507",
            help="index with mask.nonzero() instead of the mask",
        )
    rest = len(dims_of(x)) - len(dims_of(mask))
    shape = dims_of(new)
    if len(shape) > rest and not ir.is_const_int(shape[-rest - 1], 1):
        places = positions(imp, mask)
        length = ir.TensorInfo((shape[-rest - 1],), ir.dtype_of("int64"))
        message, values = _OTHER_COUNT, (shape[-rest - 1],)
        places = [imp.builder.match_cast(p, length, "place", message, values) for p in places]
        return imp.builder.op("index_put", x, new, *places, accumulate=accumulate)
    mask = reshape(imp, mask, (*dims_of(mask), *[_ONE] * rest)) if rest else mask
    new = reshape(imp, new, shape[len(shape) - rest :]) if len(shape) > rest else new
    if accumulate:
        new = imp.builder.op("add", x, new)
    return imp.builder.op("where", mask, new, x)


_OTHER_COUNT = (
    "BW708: %d values are assigned through a mask with another number of True elements\n"
    "help: pass a value for each True element, or a single one"
)


@TABLE.overload("aten.masked_scatter.default")
def _masked_scatter(imp: Importer, node: Any, x: Any, mask: Any, source: Any) -> Any:
    shape = node_shape(imp, node)
    whole = [imp.builder.op("broadcast_to", v, shape_value(shape)) for v in (x, mask)]
    given = source if dims_of(source) else reshape(imp, source, (_ONE,))
    return imp.builder.op("masked_scatter", *whole, given)
