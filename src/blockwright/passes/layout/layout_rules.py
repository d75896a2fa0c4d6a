"""Rules for running operators on tensors whose axes are stored in another order.

An order lists axes as they are stored: for a tensor (N, C, H, W), order (0, 2, 3, 1) stores
(N, H, W, C). `reordered(call, order)` returns which operands a call then reads in that order, the
attributes with which it computes the same elements, and the order of its result:

Before:  R.softmax(x, axis=1)
After:   R.softmax(x stored as (0, 2, 3, 1), axis=3), the result stored as (0, 2, 3, 1)

The row of an operator names its rule (`OpRow.layout`). Operators without a rule use the default
order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from blockwright import ir
from blockwright.ops.row import Attrs, LayoutRule
from blockwright.ops.table import OPERATORS

Order = tuple[int, ...]
MIN_RANK, MAX_RANK = 3, 5  # batch, channels, one to three spatial axes


class Reordered(msgspec.Struct, frozen=True):
    """An operator call on operands stored in another order.

    Attributes:
        attrs: attributes adapted to the stored axes.
        result: the order in which the result is stored.
        operands: number of leading operands stored in the order; None for all of them, which then
            broadcast against each other.
        weight: permutation of the axes of the second operand, if it is a constant.
        weight_attrs: attributes that apply once the weight is permuted.
        profits: whether the operator itself gains from the order, not only its neighbors.
    """

    attrs: dict[str, Any]
    result: Order
    operands: int | None = 1
    weight: Order | None = None
    weight_attrs: dict[str, Any] = {}
    profits: bool = False


def channels_last(rank: int) -> Order:
    """The order that stores axis 1 last."""
    return (0, *range(2, rank), 1)


def inverse(order: Order) -> Order:
    """The inverse permutation."""
    return tuple(order.index(axis) for axis in range(len(order)))


def is_usual(order: Order) -> bool:
    return order == tuple(range(len(order)))


def keeps_elements_in_place(shape: tuple[ir.Expr, ...], order: Order) -> bool:
    """Whether storing in `order` moves only axes of size one, so that memory is unchanged."""
    long = [axis for axis in order if not ir.is_const_int(shape[axis], 1)]
    return long == sorted(long)


def attributes(call: ir.GraphCall) -> dict[str, Any]:
    """All attributes of an operator call, defaults included."""
    assert isinstance(call.op, ir.OpRef)
    return {**OPERATORS[call.op.name].attrs, **call.attrs}


def reordered(call: ir.GraphCall, order: Order) -> Reordered | None:
    """How a call runs on operands stored in `order`; None if it cannot."""
    row = OPERATORS.get(call.op.name) if isinstance(call.op, ir.OpRef) else None
    if row is None or not row.layout:
        return None
    return _RULES[row.layout](call, attributes(call), order)


Rule = Callable[[ir.GraphCall, Attrs, Order], Reordered | None]


# ------------------------------------------------------------------------------- element by element
def _elementwise(call: ir.GraphCall, attrs: Attrs, order: Order) -> Reordered | None:
    """Operands broadcast; the result has the rank of the largest."""
    if call.tensor_info.rank != len(order):
        return None
    return Reordered(dict(call.attrs), order, operands=None)


# ---------------------------------------------------------------------------------- one axis named
def _axis(name: str) -> Rule:
    """Rule for operators whose attribute `name` holds the axis or axes; the rank is unchanged."""

    def rule(call: ir.GraphCall, attrs: Attrs, order: Order) -> Reordered | None:
        axis = attrs[name]
        if axis is None:
            return None
        given = (axis,) if isinstance(axis, int) else tuple(axis)
        moved = tuple(order.index(a % len(order)) for a in given)
        return Reordered({**call.attrs, name: moved[0] if isinstance(axis, int) else moved}, order)

    return rule


def _concat(call: ir.GraphCall, attrs: Attrs, order: Order) -> Reordered | None:
    axis = order.index(attrs["axis"] % len(order))
    return Reordered({**call.attrs, "axis": axis}, order, operands=None)


def _pad(call: ir.GraphCall, attrs: Attrs, order: Order) -> Reordered | None:
    width = tuple(attrs["pad_width"][axis] for axis in order)
    return Reordered({**call.attrs, "pad_width": width}, order)


def _broadcast_to(call: ir.GraphCall, attrs: Attrs, order: Order) -> Reordered | None:
    """The target shape, an attribute or an argument, is permuted too."""
    if call.tensor_info.rank != len(order):
        return None
    shape = attrs["shape"]
    now = {} if shape is None else {"shape": tuple(shape[axis] for axis in order)}
    return Reordered({**call.attrs, **now}, order)


# --------------------------------------------------------------------------------------- reductions
def _reduction(name: str) -> Rule:
    """Rule for reductions over the axes in attribute `name`; keeps or drops these axes."""

    def rule(call: ir.GraphCall, attrs: Attrs, order: Order) -> Reordered | None:
        rank, given = len(order), attrs[name]
        if given is None:
            # argmax positions count elements in the default order; sums and extrema ignore order.
            return None if name == "axis" else Reordered(dict(call.attrs), call_order(call))
        axes = {a % rank for a in ((given,) if isinstance(given, int) else given)}
        moved = tuple(sorted(order.index(a) for a in axes))
        attrs_now = {**call.attrs, name: moved[0] if isinstance(given, int) else moved}
        if attrs["keepdims"]:
            return Reordered(attrs_now, order)
        left = [a for a in order if a not in axes]
        stands = tuple(sorted(left).index(a) for a in left)
        if is_usual(stands) or stands == channels_last(len(stands)):
            return Reordered(attrs_now, stands)
        return None

    return rule


def call_order(call: ir.GraphCall) -> Order:
    """The default order of a call's result."""
    return tuple(range(call.tensor_info.rank))


# -------------------------------------------------------------------------- channels: norms, PReLU
def _group_norm(call: ir.GraphCall, attrs: Attrs, order: Order) -> Reordered | None:
    rank = len(order)
    channel, axes = attrs["channel_axis"] % rank, attrs["axes"]
    if axes is None:
        axes = tuple(a for a in range(1, rank) if a != channel)
    given = (axes,) if isinstance(axes, int) else axes
    moved = tuple(sorted(order.index(a % rank) for a in given))
    now = {**call.attrs, "channel_axis": order.index(channel), "axes": moved}
    return Reordered(now, order)


# ------------------------------------------------------------------- windows: operators that profit
def _stored(layout: str, order: Order) -> str:
    return "".join(layout[axis] for axis in order)


def _window_layout(attrs: Attrs, name: str, order: Order) -> str | None:
    """The layout attribute for the stored axes; None if the layout is not channels-first."""
    layout: str = attrs[name]
    if layout[:2] != "NC" or attrs["out_layout"] not in (None, layout):
        return None
    return _stored(layout, order)


def _convolution(call: ir.GraphCall, attrs: Attrs, order: Order) -> Reordered | None:
    layout = _window_layout(attrs, "data_layout", order)
    if layout is None:
        return None
    now = {k: v for k, v in call.attrs.items() if k != "out_layout"}
    kernel: str = attrs["kernel_layout"]
    space = [letter for letter in layout if letter not in "NC"]
    wanted = "".join((*space, "I", "O"))  # depthwise kernels then vectorize along channels
    return Reordered(
        {**now, "data_layout": layout},
        order,
        weight=tuple(kernel.index(letter) for letter in wanted),
        weight_attrs={"kernel_layout": wanted},
        profits=True,
    )


def _pool(call: ir.GraphCall, attrs: Attrs, order: Order) -> Reordered | None:
    layout = _window_layout(attrs, "layout", order)
    if layout is None:
        return None
    now = {k: v for k, v in call.attrs.items() if k != "out_layout"}
    return Reordered({**now, "layout": layout}, order, profits=True)


_RULES: dict[LayoutRule, Rule] = {
    "elementwise": _elementwise,
    "axis": _axis("axis"),
    "axes reduced": _reduction("axes"),
    "axis reduced": _reduction("axis"),
    "concat": _concat,
    "pad": _pad,
    "broadcast_to": _broadcast_to,
    "channel norm": _group_norm,
    "convolution": _convolution,
    "pool": _pool,
}
