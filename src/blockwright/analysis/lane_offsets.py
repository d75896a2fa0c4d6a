"""Vector indices whose lanes lie at constant distances from a scalar.

base + lane // 4, 16 lanes  →  base, (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)

Such a vector is part of one contiguous load, with its elements rearranged: the words of packed
numbers, a scale for each group of elements, a repeated row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

from blockwright.ir import DType, Expr, IntImm, build, cast_to
from blockwright.ir import expr as E


class LaneOffsets(NamedTuple):
    """A vector index: a scalar plus a constant for each lane; `base` is None for constants."""

    base: Expr | None
    offsets: tuple[int, ...]


_FOLDED: dict[type[Expr], Callable[[int, int], int]] = {
    E.Add: operator.add,
    E.Sub: operator.sub,
    E.Mul: operator.mul,
    E.FloorDiv: int.__floordiv__,
    E.FloorMod: operator.mod,
}


def lane_offsets(index: Expr) -> LaneOffsets | None:
    """The scalar and the constants of a vector index; None if it has another form.

    Also None for indices of fewer than 32 bits, which may wrap around between lanes.
    """
    if index.dtype.bits < 32:
        return None
    if isinstance(index, E.Ramp) and isinstance(index.stride, IntImm):
        steps = tuple(lane * index.stride.value for lane in range(index.lanes))
        return _scalar(index.base, steps)
    if isinstance(index, E.Broadcast):
        return _scalar(index.value, (0,) * index.lanes)
    if (
        isinstance(index, E.Cast)
        and index.type.is_int
        and index.type.bits >= index.value.dtype.bits
    ):
        inner = lane_offsets(index.value)
        if inner is None or inner.base is None:
            return inner
        return LaneOffsets(cast_to(inner.base, DType("int", index.type.bits)), inner.offsets)
    if isinstance(index, E.BinaryOp):
        a, b = lane_offsets(index.a), lane_offsets(index.b)
        return None if a is None or b is None else _combined(index, a, b)
    return None


def _scalar(base: Expr, steps: tuple[int, ...]) -> LaneOffsets:
    if isinstance(base, IntImm):
        return LaneOffsets(None, tuple(base.value + step for step in steps))
    return LaneOffsets(base, steps)


def _combined(node: E.BinaryOp, a: LaneOffsets, b: LaneOffsets) -> LaneOffsets | None:
    fold = _FOLDED.get(type(node))
    divides = isinstance(node, (E.FloorDiv, E.FloorMod))
    if fold is None or (divides and 0 in b.offsets):
        return None
    if isinstance(node, E.Mul) and a.base is not None:
        return _scaled(a, b)
    if (a.base is not None or b.base is not None) and not isinstance(node, (E.Add, E.Sub)):
        return None
    base = a.base
    if b.base is not None:
        zero = build.const(0, b.base.dtype)
        combine = build.add if isinstance(node, E.Add) else build.sub
        base = combine(zero if base is None else base, b.base)
    return LaneOffsets(base, tuple(map(fold, a.offsets, b.offsets)))


def _scaled(a: LaneOffsets, b: LaneOffsets) -> LaneOffsets | None:
    """The product of `a`, which has a scalar, and `b`, if that is one constant."""
    assert a.base is not None
    if b.base is not None or len(set(b.offsets)) != 1:
        return None
    factor = b.offsets[0]
    base = build.mul(a.base, build.const(factor, a.base.dtype))
    return LaneOffsets(base, tuple(offset * factor for offset in a.offsets))
