"""Converters of operators whose results have sizes known only at run time.

The exporter gives these sizes symbols of their own, such as u0. The importer casts a value to them
(`run_time_sizes`), which binds u0 to the size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch.operands import Registry, dims_of
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()


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
    if not isinstance(symbol, ir.Var):
        return symbol
    imp.sizes.declare([symbol])
    loaded = imp.builder.emit(ir.GraphCall(ir.OpRef("item"), (x,)), "loaded")
    imp.builder.match_cast(loaded, ir.PrimInfo(symbol.dtype, symbol), symbol.name)
    return symbol


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
