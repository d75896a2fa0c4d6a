"""Comparisons, logical operators, and elementwise selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.binary_row import SCALAR_ATTRS, binary, check_scalar
from blockwright.ops.common import (
    BOOL,
    broadcast_info,
    lower_elementwise,
    same_dtype,
    scalar_constant,
    tensors,
)
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, known_dtype
from blockwright.ops.samples import bools, floats, ints, special, values

_SAMPLES = (
    Sample((ints(7, 3, low=0, high=3), ints(7, 3, low=0, high=3))),
    Sample((ints(3, 1, 5, dtype="int64", low=0, high=3), ints(4, 1, dtype="int64", low=0, high=3))),
    Sample((special(), special())),
    Sample((special(),), {"scalar": 0.0}),
    Sample((ints(5, dtype="int64", low=-1, high=2),), {"scalar": 0, "scalar_side": "left"}),
    Sample((bools(5), bools(5))),
    Sample((floats(3, dtype="float16"), floats(3, dtype="float16"))),
)
_LOGIC = (
    Sample((bools(1, 1, 7, 1), bools(3, 1, 1, 7))),
    Sample((bools(), bools(3, 5)), why="a rank-0 operand broadcasts"),
    Sample((ints(4, low=0, high=2), ints(4, low=0, high=2))),
    Sample((values(0.0, float("nan"), 2.0), values(1.0, 1.0, 0.0))),
)


def _comparison(name: str, short: str, node: type[Any], fn: Callable[..., Any]) -> OpRow:
    def body(a: Any, b: Any) -> Any:
        if a.dtype.is_bool:  # an ordered comparison of single bits would interpret 1 as -1
            a, b = ir.cast_to(a, "int32"), ir.cast_to(b, "int32")
        return ir.compare(node, a, b)

    onnx = {
        "eq": ("Equal",),
        "lt": ("Less",),
        "gt": ("Greater",),
        "le": ("LessOrEqual",),
        "ge": ("GreaterOrEqual",),
    }.get(short, ())
    return binary(
        name,
        body,
        fn,
        kind="any",
        to_bool=True,
        onnx=onnx,
        samples=_SAMPLES,
        torch=(f"aten.{short}.Tensor", f"aten.{short}.Scalar"),
        doc=f"Whether a {node.symbol} b; false with NaN, except for !=.",
    )


def _logic(
    name: str, combine: Callable[[Any, Any], Any], fn: Callable[..., Any], onnx: str
) -> OpRow:
    def body(a: Any, b: Any) -> Any:
        return combine(ir.cast_to(a, BOOL), ir.cast_to(b, BOOL))

    return binary(
        name,
        body,
        fn,
        kind="any",
        to_bool=True,
        torch=(f"aten.{name}.default",),
        onnx=(onnx,),
        samples=_LOGIC,
        doc="Logical operator; nonzero elements are true.",
    )


def _deduce_where(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    count = 1 + check_scalar(ctx, attrs)
    result = tensors(ctx, infos, count, count)
    return broadcast_info(ctx, result, same_dtype(ctx, result[1:]))


def _lower_where(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = known_dtype(ctx, infos[1], 1)
    scalar = None if attrs["scalar"] is None else scalar_constant(ctx, attrs["scalar"], dtype)

    def body(condition: Any, *sides: Any) -> Any:
        if scalar is not None:
            sides = (scalar, *sides) if attrs["scalar_side"] == "left" else (*sides, scalar)
        return ir.select(ir.cast_to(condition, BOOL), *sides)

    return lower_elementwise(ctx, infos, dtype, body)


def _where(condition: Array, *sides: Array, scalar: Any, scalar_side: str) -> Array:
    if scalar is not None:
        other = np.asarray(scalar).astype(sides[0].dtype)
        sides = (other, sides[0]) if scalar_side == "left" else (sides[0], other)
    return np.where(condition.astype(np.bool_), *sides)


ROWS: tuple[OpRow, ...] = (
    _comparison("equal", "eq", ir.EQ, np.equal),
    _comparison("not_equal", "ne", ir.NE, np.not_equal),
    _comparison("less", "lt", ir.LT, np.less),
    _comparison("less_equal", "le", ir.LE, np.less_equal),
    _comparison("greater", "gt", ir.GT, np.greater),
    _comparison("greater_equal", "ge", ir.GE, np.greater_equal),
    _logic("logical_and", ir.logical_and, np.logical_and, "And"),
    _logic("logical_or", ir.logical_or, np.logical_or, "Or"),
    _logic("logical_xor", lambda a, b: ir.NE(a, b), np.logical_xor, "Xor"),
    OpRow(
        "where",
        ("condition", "x", "y?"),
        _deduce_where,
        _lower_where,
        _where,
        dict(SCALAR_ATTRS),
        ("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar"),
        ("Where",),
        (
            Sample((bools(7, 3), floats(7, 3), floats(7, 3)), tolerance=0.0),
            Sample((bools(3, 1, 5), floats(4, 1), floats(5)), tolerance=0.0),
            Sample((bools(13), special(), special()), tolerance=0.0),
            Sample((bools(3, 5), floats(3, 5)), {"scalar": float("-inf")}, 0.0),
            Sample((bools(3, 5), floats(5)), {"scalar": 0.0, "scalar_side": "left"}, 0.0),
            Sample((ints(4, low=0, high=2), ints(4, dtype="int64"), ints(4, dtype="int64"))),
        ),
        "x where the condition holds, else y; either may be a scalar.",
        layout="elementwise",
    ),
)
