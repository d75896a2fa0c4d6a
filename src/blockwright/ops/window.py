"""Sliding windows over spatial axes, shared by convolutions and pools: layouts, sizes, padding.

A layout is a string with one letter per axis: `N` batch, `C` channels, `D`, `H`, `W` space; kernels
have `O` and `I` for output and input channels. Any order of the letters is a layout. A `Window`
describes one spatial axis; everything here works for any number of spatial axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from blockwright import ir
from blockwright.ops.common import ONE, ZERO, as_dim, bordered
from blockwright.ops.row import Array, Attrs, OpContext, dims_text
from blockwright.script.compute import Program, Tensor

Border = tuple[ir.Expr, ir.Expr]


class Window(msgspec.Struct, frozen=True):
    """A window along one spatial axis: `size` taps spaced by `dilation`, moved by `stride`.

    The axis is padded with `before` and `after` elements.
    """

    size: ir.Expr
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def reach(self) -> ir.Expr:
        """Number of elements from the first to the last tap, inclusive."""
        return ir.add(ir.mul(ir.sub(self.size, ONE), as_dim(self.dilation)), ONE)

    def steps(self, ctx: OpContext, extent: ir.Expr, ceil_mode: bool = False) -> ir.Expr:
        """Number of window positions on an axis of `extent` elements.

        With `ceil_mode` the last window may extend beyond the end if it starts inside the axis or
        in the padding before it.
        """
        begin = ir.add(extent, as_dim(self.before))
        room = ctx.analyzer.simplify(ir.sub(ir.add(begin, as_dim(self.after)), self.reach))
        smallest = 1 - self.stride if ceil_mode else 0  # the last window may extend beyond the end
        sizes = f"{dims_text(self.reach)} elements do not fit into {dims_text(extent)}"
        ctx.require(
            ir.compare(ir.GE, room, ir.const(smallest, room.dtype)),
            f"windows of {sizes} with {self.before} + {self.after} of padding",
        )
        stride = as_dim(self.stride)
        if not ceil_mode:
            return ctx.analyzer.simplify(ir.add(ir.floordiv(room, stride), ONE))
        hanging = ctx.analyzer.simplify(ir.ceildiv(room, stride))
        last_start = ctx.analyzer.simplify(ir.floordiv(ir.sub(begin, ONE), stride))
        if ctx.analyzer.prove(ir.compare(ir.LE, hanging, last_start)):
            return ctx.analyzer.simplify(ir.add(hanging, ONE))
        return ctx.analyzer.simplify(ir.add(ir.minimum(hanging, last_start), ONE))

    def border(self, ctx: OpContext, extent: ir.Expr, ceil_mode: bool = False) -> Border:
        """Padding before and after the axis such that all windows stay inside."""
        after = as_dim(self.after)
        if ceil_mode:
            moved = ir.mul(ir.sub(self.steps(ctx, extent, True), ONE), as_dim(self.stride))
            end = ir.add(moved, self.reach)
            over = ctx.analyzer.simplify(ir.sub(ir.sub(end, extent), as_dim(self.before)))
            if not ctx.analyzer.prove(ir.compare(ir.LE, over, after)):
                after = ctx.analyzer.simplify(ir.maximum(after, over))
        return as_dim(self.before), after

    def at(self, step: Any, tap: Any) -> Any:
        """Position of a tap on the padded axis."""
        return ir.add(ir.mul(step, as_dim(self.stride)), ir.mul(tap, as_dim(self.dilation)))


# ------------------------------------------------------------------------------ layouts, attributes
def letters_of(rank: int) -> str:
    """Letters of 1, 2 or 3 spatial axes."""
    return "DHW"[3 - rank :]


def checked_layout(ctx: OpContext, text: Any, letters: str) -> str:
    """Check that a layout attribute has each of `letters` exactly once."""
    if not isinstance(text, str) or sorted(text) != sorted(letters):
        raise ctx.error(
            f"layout {text!r} is not a permutation of the letters {letters}",
            f"give each axis one letter, as in {letters!r}",
        )
    return text


def by_letter(layout: str, items: Sequence[Any]) -> dict[str, Any]:
    """Map each letter to its item; items are in the order of `layout`."""
    return dict(zip(layout, items, strict=True))


def in_order(layout: str, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values in the order of `layout`."""
    return tuple(values[letter] for letter in layout)


def numbers(
    ctx: OpContext, name: str, value: Any, rank: int, minimum_value: int
) -> tuple[int, ...]:
    """An attribute with one number per spatial axis; a single number applies to all axes."""
    given = (value,) if isinstance(value, int) else tuple(cast("Sequence[Any]", value))
    if len(given) == 1:
        given *= rank
    if len(given) != rank or not all(isinstance(v, int) and v >= minimum_value for v in given):
        raise ctx.error(f"{name}={value!r} must be {rank} numbers of at least {minimum_value}")
    return given


def padding_of(ctx: OpContext, value: Any, rank: int) -> list[tuple[int, int]]:
    """Padding before and after each axis.

    The attribute is one number for all sides, one per axis for both sides, or all before numbers
    followed by all after numbers.
    """
    given = (value,) if isinstance(value, int) else tuple(cast("Sequence[Any]", value))
    if len(given) != 2 * rank or rank == 0:
        each = numbers(ctx, "padding", given, rank, 0)
        return list(zip(each, each, strict=True))
    return list(
        zip(
            numbers(ctx, "padding", given[:rank], rank, 0),
            numbers(ctx, "padding", given[rank:], rank, 0),
            strict=True,
        )
    )


def windows_of(
    ctx: OpContext, attrs: Attrs, sizes: Sequence[ir.Expr], strides: Any
) -> dict[str, Window]:
    """One window per spatial letter, from the given strides, `padding` and `dilation`."""
    rank = len(sizes)
    steps = numbers(ctx, "strides", strides, rank, 1)
    gaps = numbers(ctx, "dilation", attrs["dilation"], rank, 1)
    pads = padding_of(ctx, attrs["padding"], rank)
    along = zip(letters_of(rank), sizes, steps, gaps, pads, strict=True)
    return {letter: Window(size, step, gap, *pad) for letter, size, step, gap, pad in along}


# ------------------------------------------------------------------------------------------ blocks
def with_border(
    ctx: OpContext,
    program: Program,
    x: Tensor,
    layout: str,
    border: Mapping[str, Border],
    value: ir.Expr,
) -> Tensor:
    """`x` padded with `value` along the named axes; `x` itself if all padding is 0."""
    width = [border.get(letter, (ZERO, ZERO)) for letter in layout]
    if all(ir.is_const_int(v, 0) for pair in width for v in pair):
        return x
    shape = [
        ctx.analyzer.simplify(ir.add(ir.add(d, low), high))
        for d, (low, high) in zip(x.shape, width, strict=True)
    ]
    axes = [letter.lower() for letter in layout]
    return program.compute("padded", shape, lambda *i: bordered(x, i, width, value), axes=axes)


def numpy_windows(x: Array, sizes: Sequence[int], strides: Any, dilation: Any) -> Array:
    """All windows over the trailing axes: (…, positions…) + (taps…), for the oracles."""
    rank = len(sizes)
    strides, dilation = np.broadcast_to(strides, rank), np.broadcast_to(dilation, rank)
    reach = [(k - 1) * d + 1 for k, d in zip(sizes, dilation, strict=True)]
    axes = tuple(range(x.ndim - rank, x.ndim))
    views = np.lib.stride_tricks.sliding_window_view(x, reach, axis=axes)
    steps = tuple(slice(None, None, s) for s in strides)
    taps = tuple(slice(None, None, d) for d in dilation)
    return views[(..., *steps, *taps)]
