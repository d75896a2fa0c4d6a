"""Converters of operators that gather elements of images: pools, and sampling at places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockwright.frontend.torch.operands import (
    Converter,
    Registry,
    as_exported,
    batched,
    only_first,
    per_axis,
)

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()

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


def _without_positions(convert: Converter) -> Converter:
    """The overload that also returns the indices of the maxima, which must not be used."""

    def first(imp: Importer, node: Any, *args: Any) -> Any:
        only_first(node)
        return [convert(imp, _Part(node, 0), *args), None]

    return first


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


def _tables() -> None:
    """Register the pools for each number of spatial axes."""
    for rank in (1, 2, 3):
        TABLE.row(f"nn.max_pool{rank}d")(_max_pool(rank))
        TABLE.overload(f"aten.max_pool{rank}d_with_indices.default")(_with_positions(rank))
        TABLE.row(f"nn.avg_pool{rank}d")(_avg_pool(rank))
        TABLE.row(f"nn.adaptive_avg_pool{rank}d")(_adaptive_pool("avg", rank))
        largest = _without_positions(_adaptive_pool("max", rank))
        TABLE.row(f"nn.adaptive_max_pool{rank}d")(largest)


_tables()
