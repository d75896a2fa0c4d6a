"""Injectivity and ranges of index maps, by iterator-map analysis or enumeration of all points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.arith import Analyzer, detect_iter_map, eval_set

Array = np.ndarray[Any, Any]

MOST_COUNTED = 1 << 22
"""Maximum number of points for enumeration of a map with constant ranges."""


def why_not_injective(
    indices: tuple[ir.Expr, ...],
    domains: Mapping[ir.Var, ir.Range],
    analyzer: Analyzer,
    limit: int = 1 << 16,
) -> str:
    """Why two points may have the same indices; empty if the map is provably injective.

    If iterator-map analysis fails, all points are enumerated if there are at most `limit`.
    """
    result = detect_iter_map(indices, domains, None, analyzer, "bijective", pad=True)
    counted = None if result.ok else all_places(indices, domains, limit)
    if counted is not None:
        places = np.stack([np.broadcast_to(c, counted[0].shape).ravel() for c in counted], axis=1)
        if len(np.unique(places, axis=0)) == len(places):
            return ""
    return "; ".join(result.errors)


def spans(
    indices: tuple[ir.Expr, ...], domains: Mapping[ir.Var, ir.Range], analyzer: Analyzer
) -> list[tuple[ir.Expr, ir.Expr] | None]:
    """The minimum and maximum of each index; None if unknown."""
    counted = None
    result: list[tuple[ir.Expr, ir.Expr] | None] = []
    for position, index in enumerate(indices):
        own = {v: dom for v, dom in domains.items() if ir.uses_var(index, v)}
        ends = eval_set(index, own, analyzer)  # only the domains in use: others may be empty
        if ends.min is not None and ends.max is not None:
            result.append((ends.min, ends.max))
            continue
        counted = counted or all_places(indices, domains, MOST_COUNTED)
        if counted is None:
            result.append(None)
        else:
            low, high = int(counted[position].min()), int(counted[position].max())
            result.append((ir.const(low, index.dtype), ir.const(high, index.dtype)))
    return result


def all_places(
    indices: tuple[ir.Expr, ...], domains: Mapping[ir.Var, ir.Range], limit: int
) -> list[Array] | None:
    """The indices of every point; None for symbolic ranges or unsupported operations."""
    ranges = [(v, ir.const_int(r.min), ir.const_int(r.extent)) for v, r in domains.items()]
    sizes = [n for _, _, n in ranges if n is not None]
    if len(sizes) < len(ranges) or not sizes or math.prod(sizes) > limit:
        return None
    grids = np.meshgrid(*(np.arange(n) for n in sizes), indexing="ij")
    values = {v: grid + (low or 0) for (v, low, _), grid in zip(ranges, grids, strict=True)}
    if any(low is None for _, low, _ in ranges) or any(n == 0 for n in sizes):
        return None
    result = [_value(index, values) for index in indices]
    known = [np.asarray(f) for f in result if f is not None]
    if len(known) < len(result):
        return None
    return [np.broadcast_to(k, grids[0].shape) for k in known]


def _value(expr: ir.Expr, values: Mapping[ir.Var, Array]) -> Any:
    """Evaluate an integer expression on all points at once; None if unsupported."""
    if isinstance(expr, ir.IntImm):
        return expr.value
    if isinstance(expr, ir.Var):
        return values.get(expr)
    if isinstance(expr, ir.Cast) and expr.dtype.is_int:
        return _value(expr.value, values)
    operands: tuple[ir.Expr, ...] = ()
    name: Any = type(expr)
    if isinstance(expr, ir.Call):
        operands, name = expr.args, expr.op
    elif isinstance(expr, ir.BinaryOp):
        operands = (expr.a, expr.b)
    function = _FUNCTIONS.get(name)
    result = [_value(e, values) for e in operands]
    if function is None or len(result) != 2 or any(f is None for f in result):
        return None
    if name in (ir.FloorDiv, ir.FloorMod) and np.any(np.equal(result[1], 0)):
        return None
    return function(*result)


_FUNCTIONS: dict[Any, Any] = {
    ir.Add: np.add, ir.Sub: np.subtract, ir.Mul: np.multiply, ir.FloorDiv: np.floor_divide,
    ir.FloorMod: np.mod, ir.Min: np.minimum, ir.Max: np.maximum, "bitwise_xor": np.bitwise_xor,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "shift_left": np.left_shift,
    "shift_right": np.right_shift,
}  # fmt: skip
