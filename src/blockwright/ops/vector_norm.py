"""Vector norms over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import accumulator, inputs, require_kind, tensors, wide, widen
from blockwright.ops.reduction_axes import AXES, IN_ORDER, deduce_axes, numpy_axis, reduction_of
from blockwright.ops.row import (
    Array,
    Attrs,
    OpContext,
    OpRow,
    Sample,
    TorchCall,
    known_dtype,
    known_shape,
)
from blockwright.ops.samples import floats, values
from blockwright.script.compute import Program


def _deduce_norm(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = tensors(ctx, infos, 1, 1)
    require_kind(ctx, x.dtype, "float")
    return deduce_axes(ctx, x, attrs, x.dtype)


def _norm_parts(order: float) -> tuple[str, Callable[[Any], Any], Callable[[Any], Any]]:
    """Combiner, contribution of an element, and final function of the combined value."""

    def number(value: float, like: Any) -> Any:
        return ir.const(value, like.dtype)

    if order == 2:
        return "sum", lambda x: x * x, lambda s: ir.call("sqrt", s)
    if order == 1:
        return "sum", lambda x: ir.call("abs", x), lambda s: s
    if order == 0:

        def counted(x: Any) -> Any:
            return ir.select(ir.EQ(x, number(0, x)), number(0, x), number(1, x))

        return "sum", counted, lambda s: s
    if order in (float("inf"), float("-inf")):
        return "max" if order > 0 else "min", lambda x: ir.call("abs", x), lambda s: s
    return (
        "sum",
        lambda x: ir.call("pow", ir.call("abs", x), number(order, x)),
        lambda s: ir.call("pow", s, number(1 / order, s)),
    )


def _lower_norm(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = known_dtype(ctx, infos[0], 0)
    known_shape(ctx, infos[0], 0)
    program = Program(ctx.name)
    (x,) = inputs(ctx, program, infos)
    what = reduction_of(ctx, x, attrs)
    order = float(attrs["ord"])
    if order and all(ir.const_int(extent) == 1 for extent in what.over):
        order = 1.0  # the norm of one element is |x|; a power of it might overflow
    combiner, element, finish = _norm_parts(order)
    total = what.run(
        program, "total", combiner, lambda *i: element(widen(x[i])), accumulator(dtype)
    )
    out = program.compute("out", what.shape, lambda *i: finish(total[i]), dtype)
    return program.finish([out])


def _norm_oracle(x: Array, *, ord: float, axes: Any, keepdims: bool) -> Array:
    axis = numpy_axis(axes)
    size = np.abs(wide(x))
    if ord == 0:
        value = np.sum(size != 0, axis=axis, keepdims=keepdims)
    elif ord in (float("inf"), float("-inf")):
        value = (np.max if ord > 0 else np.min)(size, axis=axis, keepdims=keepdims)
    else:
        value = np.sum(size**ord, axis=axis, keepdims=keepdims) ** (1 / ord)
    return np.asarray(value).astype(x.dtype)


_NORMS = tuple(
    Sample((floats(3, 17),), {"ord": order, "axes": 1, "keepdims": keep}, 20.0, why=IN_ORDER)
    for order, keep in (
        (2, True),
        (1, False),
        (float("inf"), True),
        (float("-inf"), False),
        (0, True),
        (3, False),
    )
)
_ONE_EACH = Sample((values(3e38, 1e-30, -float("inf"), 0.0, shape=(4, 1)),), {"axes": 1})

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "vector_norm",
        ("x",),
        _deduce_norm,
        _lower_norm,
        _norm_oracle,
        {"ord": 2.0, **AXES},
        ("aten.linalg_vector_norm.default",),
        ("ReduceL2",),
        (
            *_NORMS,
            _ONE_EACH,
            Sample((floats(5, dtype="float16"),)),
            Sample((floats(3, 0),), {"axes": 1}),
        ),
        "(Σ |x|^ord)^(1/ord) over axes; the largest or smallest |x| for infinite orders.",
        TorchCall(types="result"),
        layout="axes reduced",
    ),
)
