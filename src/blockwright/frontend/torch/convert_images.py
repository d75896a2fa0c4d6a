"""Converters of operators that gather elements of images: pools, and sampling at places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blockwright import ir
from blockwright.frontend.torch.operands import (
    Converter,
    Registry,
    as_exported,
    batched,
    dims_of,
    per_axis,
)
from blockwright.graph import shape_value
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()

_Array = np.ndarray[Any, Any]
_METHODS = ("bilinear", "nearest", "bicubic")
_PADDING_MODES = ("zeros", "border", "reflection")


@TABLE.row("image.grid_sample")
def _grid_sample(
    imp: Importer, node: Any, x: Any, grid: Any, method: int, padding: int, align_corners: bool
) -> Any:
    return imp.builder.op(
        "image.grid_sample",
        x,
        grid,
        method=_METHODS[method],
        padding_mode=_PADDING_MODES[padding],
        align_corners=align_corners,
    )


# ------------------------------------------------------------------------------------------- pools
def _pool(
    imp: Importer,
    node: Any,
    kind: str,
    rank: int,
    x: Any,
    size: Any,
    stride: Any,
    padding: Any,
    suffix: str = "",
    **attrs: Any,
) -> Any:
    out = imp.builder.op(
        f"nn.{kind}_pool{rank}d{suffix}",
        batched(imp, x, rank),
        pool_size=per_axis(size, rank),
        strides=per_axis(stride, rank) if stride else None,
        padding=per_axis(padding, rank),
        **attrs,
    )
    return as_exported(imp, node, out)


def _max_pool(rank: int, suffix: str = "") -> Converter:
    def convert(
        imp: Importer,
        node: Any,
        x: Any,
        size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        return _pool(
            imp,
            node,
            "max",
            rank,
            x,
            size,
            stride,
            padding,
            suffix,
            dilation=per_axis(dilation, rank),
            ceil_mode=bool(ceil_mode),
        )

    return convert


def _with_positions(rank: int) -> Converter:
    """Maxima, and their positions in the plane or volume of a channel if they are used."""
    convert, positions = _max_pool(rank), _max_pool(rank, "_positions")

    def both(imp: Importer, node: Any, *args: Any) -> Any:
        used = any(user.args[1] == 1 and user.users for user in node.users)
        first = convert(imp, _Part(node, 0), *args)
        return [first, positions(imp, _Part(node, 1), *args) if used else None]

    return both


class _Part:
    """Presents a node with several results as the node of one of them."""

    def __init__(self, node: Any, position: int) -> None:
        self.meta = {"val": node.meta["val"][position]}


def _avg_pool(rank: int) -> Converter:
    def convert(
        imp: Importer,
        node: Any,
        x: Any,
        size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: Any = None,
    ) -> Any:
        return _pool(
            imp,
            node,
            "avg",
            rank,
            x,
            size,
            stride,
            padding,
            ceil_mode=bool(ceil_mode),
            count_include_pad=bool(count_include_pad),
            divisor=divisor,
        )

    return convert


def _adaptive_pool(kind: str, rank: int) -> Converter:
    def convert(imp: Importer, node: Any, x: Any, size: Any) -> Any:
        out = imp.builder.op(
            f"nn.adaptive_{kind}_pool{rank}d",
            batched(imp, x, rank),
            output_size=per_axis(size, rank),
        )
        return as_exported(imp, node, out)

    return convert


def _adaptive_max_pool(rank: int) -> Converter:
    """Maxima, and their positions in the plane or volume of a channel if they are used."""
    convert = _adaptive_pool("max", rank)

    def both(imp: Importer, node: Any, x: Any, size: Any) -> Any:
        used = any(user.args[1] == 1 and user.users for user in node.users)
        first = convert(imp, _Part(node, 0), x, size)
        if not used:
            return [first, None]
        places = _adaptive_positions(imp, batched(imp, x, rank), per_axis(size, rank))
        return [first, as_exported(imp, _Part(node, 1), places)]

    return both


def _adaptive_positions(imp: Importer, x: Any, wanted: tuple[Any, ...]) -> Any:
    """The position of the first maximum in each window, or of the last NaN if there is one."""
    op, outer, spatial = imp.builder.op, dims_of(x)[:2], dims_of(x)[2:]

    def reshaped(value: ir.GraphExpr, *shape: int) -> ir.GraphExpr:
        return op("reshape", value, shape_value((*outer, *shape)))

    sizes = [ir.const_int(size) for size in spatial]
    if None in sizes:
        raise ImporterError(
            "positions in adaptive windows of images of symbolic sizes",
            code="BW507",
            help="export the model for one size of images",
        )
    steps, places = _adaptive_windows([n for n in sizes if n is not None], wanted)
    count, length = places.shape
    windows = reshaped(op("take", reshaped(x, -1), places.reshape(-1), axis=2), count, length)
    best = op("argmax", windows, axis=3, keepdims=False)
    if x.tensor_info.dtype.is_float:
        nan = op("isnan", windows)
        back = op("argmax", op("astype", op("flip", nan, axis=3), dtype="int32"), axis=3)
        last = op("subtract", back, scalar=length - 1, scalar_side="left")
        best = op("where", op("any", nan, axes=(3,), keepdims=False), last, best)
    best = op("add", best, np.array(range(0, count * length, length), np.int64))
    return reshaped(op("take", places.reshape(-1), best, axis=0), *steps)


def _adaptive_windows(
    sizes: Sequence[int], wanted: Sequence[int | None]
) -> tuple[list[int], _Array]:
    """The number of windows per axis, and the flat positions in each window.

    Shorter windows repeat their last position.
    """
    steps = [size if w is None else w for size, w in zip(sizes, wanted, strict=True)]
    places: _Array = np.zeros((1, 1), np.int64)
    for size, step in zip(sizes, steps, strict=True):
        index: _Array = np.arange(step)
        begin, end = index * size // step, -(-(index + 1) * size // step)
        length = int((end - begin).max(initial=1))
        own: _Array = np.minimum(begin[:, None] + np.arange(length), end[:, None] - 1)
        both = places[:, None, :, None] * size + own[None, :, None, :]
        places = both.reshape(len(places) * step, -1)
    return steps, places


def _tables() -> None:
    """Register the pools for each number of spatial axes."""
    for rank in (1, 2, 3):
        TABLE.row(f"nn.max_pool{rank}d")(_max_pool(rank))
        TABLE.overload(f"aten.max_pool{rank}d_with_indices.default")(_with_positions(rank))
        TABLE.row(f"nn.avg_pool{rank}d")(_avg_pool(rank))
        TABLE.row(f"nn.adaptive_avg_pool{rank}d")(_adaptive_pool("avg", rank))
        TABLE.row(f"nn.adaptive_max_pool{rank}d")(_adaptive_max_pool(rank))


_tables()
