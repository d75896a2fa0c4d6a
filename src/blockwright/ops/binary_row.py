"""Row of an elementwise binary operator, one of whose operands may be a scalar attribute.

Every row accepts `scalar` (a number or an index expression) in place of one tensor, on the side
given by `scalar_side`: `R.subtract(x, scalar=1.0, scalar_side="left")` is 1 - x. The scalar is
converted to the tensor's element type, so it never widens a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    BOOL,
    accumulator,
    broadcast_info,
    lower_elementwise,
    require_kind,
    same_dtype,
    scalar_constant,
    tensors,
    wide,
    widen,
)
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, TorchCall, known_dtype

Body = Callable[[Any, Any], Any]
SCALAR_ATTRS: dict[str, Any] = {"scalar": None, "scalar_side": "right"}


def check_scalar(ctx: OpContext, attrs: Attrs) -> int:
    """Number of tensor operands: 2, or 1 if one operand is a scalar attribute."""
    if attrs["scalar_side"] not in ("left", "right"):
        raise ctx.error(f"scalar_side is {attrs['scalar_side']!r}", 'it is "left" or "right"')
    return 2 if attrs["scalar"] is None else 1


def with_scalar(ctx: OpContext, attrs: Attrs, dtype: ir.DType, body: Body) -> Callable[..., Any]:
    """`body` as a function of the tensor operands only."""
    if attrs["scalar"] is None:
        return body
    other = scalar_constant(ctx, attrs["scalar"], dtype)
    left = attrs["scalar_side"] == "left"

    def apply(x: Any) -> Any:
        return body(other, x) if left else body(x, other)

    return apply


def scalar_oracle(fn: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    """NumPy oracle of a binary row; the scalar becomes an array of the tensor's type."""

    def oracle(*arrays: Array, scalar: Any, scalar_side: str) -> Array:
        if scalar is None:
            return np.asarray(fn(*arrays))
        other = np.asarray(scalar).astype(arrays[0].dtype)
        left, right = (other, arrays[0]) if scalar_side == "left" else (arrays[0], other)
        return np.asarray(fn(left, right))

    return oracle


def rounded(fn: Callable[[Any, Any], Any]) -> Callable[[Array, Array], Array]:
    """`fn` in float64 (integers unchanged), rounded once to the operands' type."""
    return lambda a, b: np.asarray(fn(wide(a), wide(b))).astype(a.dtype)


def binary(
    name: str,
    body: Body,
    oracle: Callable[[Any, Any], Any],
    *,
    kind: str = "number",
    to_bool: bool = False,
    torch: tuple[str, ...] | None = None,
    onnx: tuple[str, ...] = (),
    samples: tuple[Sample, ...] = (),
    doc: str = "",
    special_body: Callable[[Any, Any], Body | None] | None = None,
    keeps_divisor: bool = False,
    widens: bool = True,
) -> OpRow:
    """A row for `out[i…] = body(a[i…], b[i…])` with broadcasting.

    Args:
        special_body: may return a cheaper body for a scalar right operand, given (scalar, dtype).
        keeps_divisor: as in `TorchCall`.
        widens: whether small floats are computed in float32; if not, in their own type.
    """

    def deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
        count = check_scalar(ctx, attrs)
        result = tensors(ctx, infos, count, count)
        dtype = same_dtype(ctx, result)
        require_kind(ctx, dtype, kind)
        if attrs["scalar"] is not None and dtype is not None:
            scalar_constant(ctx, attrs["scalar"], dtype)
        return broadcast_info(ctx, result, BOOL if to_bool else dtype)

    def lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
        dtype = known_dtype(ctx, infos[0], 0)
        chosen = body
        if special_body is not None and attrs["scalar_side"] == "right":
            chosen = special_body(attrs["scalar"], dtype) or body
        apply = with_scalar(ctx, attrs, accumulator(dtype) if widens else dtype, chosen)
        return lower_elementwise(
            ctx,
            infos,
            BOOL if to_bool else dtype,
            lambda *xs: apply(*(widen(x) if widens else x for x in xs)),
        )

    return OpRow(
        name,
        ("a", "b?"),
        deduce,
        lower,
        scalar_oracle(oracle),
        dict(SCALAR_ATTRS),
        torch if torch is not None else (f"aten.{name}.Tensor", f"aten.{name}.Scalar"),
        onnx,
        samples,
        doc,
        TorchCall(
            types="float" if kind == "float" else "promoted",
            bools=kind in ("any", "bits"),
            keeps_divisor=keeps_divisor,
        ),
        layout="elementwise",
    )
