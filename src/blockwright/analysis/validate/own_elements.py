"""Check that the declared strides of an allocated buffer give each element memory of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from blockwright import ir
from blockwright.analysis.access.layout import span
from blockwright.arith import Analyzer
from blockwright.ir.printer import script

Axis = tuple[ir.Expr, ir.Expr]  # extent, stride

_LISTED = 1 << 20
"""Elements of a buffer of constant shape whose positions are listed and compared."""

_SIZES = (2, 5, 64)
"""Values of symbols for which strides are put in order."""


def layout_problem(buffer: ir.Buffer, analyzer: Analyzer) -> str | None:
    """Why two elements of an allocated buffer may share memory, or lie before its start; None if
    its strides keep them apart.

    Every dependence question compares indices, so that elements of different indices must be
    different memory. A view may overlap itself: it is replaced by the underlying buffer.
    """
    if len(buffer.strides) != buffer.ndim or any(ir.is_const_int(n, 0) for n in buffer.shape):
        return None
    for stride in buffer.strides:
        known = ir.const_int(stride)
        if known is not None and known < 0:
            return f"stride {known} of buffer {buffer.name} is negative"
    axes = [
        (n, s)
        for n, s in zip(buffer.shape, buffer.strides, strict=True)
        if not ir.is_const_int(n, 1)
    ]
    orders = {tuple(_by_stride(axes, analyzer, size)): None for size in _SIZES}
    if any(_nested(order, analyzer) for order in orders) or _distinct(axes):
        return None
    strides = ", ".join(script(s) for s in buffer.strides)
    return f"elements of buffer {buffer.name} may share memory: its strides are ({strides})"


def _by_stride(axes: Sequence[Axis], analyzer: Analyzer, size: int) -> list[Axis]:
    """The axes in order of stride where every symbol is `size`, or its nearest possible value.

    Of equal strides and unknown ones, the last axis comes first. The order need not hold for other
    sizes: `_nested` proves that it does.
    """

    def value(axis: Axis) -> float:
        stride = axis[1]
        sizes: dict[ir.Var, ir.Expr] = {}
        for var in ir.free_vars(stride):
            low, high = analyzer.const_bounds(var)
            near = max(size if high is None else min(size, high), size if low is None else low)
            sizes[var] = ir.const(near, var.dtype)
        known = ir.const_int(analyzer.simplify(ir.substitute(stride, sizes)))
        return math.inf if known is None else known

    last_first = axes[::-1]  # sorting is stable
    return sorted(last_first, key=value)


def _nested(order: Sequence[Axis], analyzer: Analyzer) -> bool:
    """Whether each stride steps over all elements of the axes before it, innermost axis first."""
    for k, (_, stride) in enumerate(order):
        inner = order[:k]
        reach = span([n for n, _ in inner], [s for _, s in inner])
        if not analyzer.prove(ir.GE(*ir.match_types(stride, reach))):
            return False
    return True


def _distinct(axes: Sequence[Axis]) -> bool:
    """Whether the positions of all elements are known and different."""
    known = [(ir.const_int(n), ir.const_int(s)) for n, s in axes]
    sizes = [n for n, _ in known if n is not None]
    if len(sizes) < len(axes) or math.prod(sizes) > _LISTED:
        return False
    places = np.zeros(1, np.int64)
    for size, stride in known:
        if size is None or stride is None or stride * size >= 1 << 62:
            return False
        places = np.add.outer(places, np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return len(np.unique(places)) == places.size
