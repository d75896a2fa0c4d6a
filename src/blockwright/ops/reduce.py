"""Reductions over axes: sums, products, extremes, logic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import BOOL, accumulator, inputs, require_kind, tensors, wide
from blockwright.ops.reduction_axes import AXES, IN_ORDER, deduce_axes, numpy_axis, reduction_of
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, TorchCall, known_dtype
from blockwright.ops.samples import bools, floats, ints, special, values
from blockwright.script.compute import Program


def _result_type(attrs: Attrs, dtype: ir.DType | None) -> ir.DType | None:
    return dtype if attrs.get("dtype") is None else ir.dtype_of(attrs["dtype"])


_LOGICAL = {"max": "any", "min": "all"}  # extremes of bools, which are not ordered


def reduction(
    name: str,
    combiner: str,
    oracle: Callable[..., Any],
    *,
    kind: str = "number",
    mean: bool = False,
    to_bool: bool = False,
    typed: bool = False,
    torch: tuple[str, ...] = (),
    onnx: tuple[str, ...] = (),
    samples: tuple[Sample, ...] = (),
    doc: str = "",
) -> OpRow:
    """A row for one combiner; `typed` rows accept the element type of the sum as `dtype`."""

    def deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
        (x,) = tensors(ctx, infos, 1, 1)
        dtype = _result_type(attrs, x.dtype)
        if not typed or attrs["dtype"] is None:
            require_kind(ctx, x.dtype, kind)
        require_kind(ctx, dtype, kind)
        return deduce_axes(ctx, x, attrs, BOOL if to_bool else dtype)

    def lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
        given = known_dtype(ctx, infos[0], 0)
        dtype = BOOL if to_bool else _result_type(attrs, given) or given
        inner = accumulator(dtype)
        program = Program(ctx.name)
        (x,) = inputs(ctx, program, infos)
        what = reduction_of(ctx, x, attrs)
        chosen = _LOGICAL.get(combiner, combiner) if dtype.is_bool else combiner
        last = not mean and inner is dtype
        out = what.run(
            program,
            "out" if last else f"{name}_sum" if mean else f"{name}_wide",
            chosen,
            lambda *i: ir.cast_to(x[i], inner),
            inner,
        )
        if not last:
            divisor = what.count(inner)
            wide_result = out
            out = program.compute(
                "out",
                what.shape,
                lambda *i: ir.truediv(wide_result[i], divisor) if mean else wide_result[i],
                dtype,
            )
        return program.finish([out])

    attrs = {**AXES, "dtype": None} if typed else dict(AXES)
    types = "result" if typed or mean else "own"
    call = TorchCall(types=types, empty_axes=to_bool, needs_elements=combiner in ("max", "min"))
    return OpRow(
        name,
        ("x",),
        deduce,
        lower,
        oracle,
        attrs,
        torch,
        onnx,
        samples,
        doc,
        call,
        layout="axes reduced",
    )


def _oracle(fn: Callable[..., Any]) -> Callable[..., Array]:
    """An oracle computed in float64, or for integers in the result type, with wraparound."""

    def oracle(x: Array, *, axes: Any, keepdims: bool, dtype: Any = None) -> Array:
        target = x.dtype if dtype is None else ir.dtype_of(dtype).numpy()
        source = wide(x) if ir.dtype_of(target).is_float else x.astype(target)
        extra = {} if ir.dtype_of(target).is_float else {"dtype": target}
        value = fn(source, axis=numpy_axis(axes), keepdims=keepdims, **extra)
        return np.asarray(value).astype(target)

    return oracle


def _average(x: Array, axis: Any, keepdims: bool) -> Any:
    count = (
        x.size if axis is None else np.prod([x.shape[a] for a in np.atleast_1d(axis).astype(int)])
    )
    return np.sum(x, axis=axis, keepdims=keepdims) / count


def _plain(fn: Callable[..., Any]) -> Callable[..., Array]:
    def oracle(x: Array, *, axes: Any, keepdims: bool) -> Array:
        return np.asarray(fn(x, axis=numpy_axis(axes), keepdims=keepdims))

    return oracle


def _extreme(fn: Callable[..., Any], sign: int) -> Callable[..., Array]:
    """Of no elements, the value that every element replaces."""

    def oracle(x: Array, *, axes: Any, keepdims: bool) -> Array:
        dtype = ir.dtype_of(x.dtype)
        initial: Any = dtype.min_value if sign > 0 else dtype.max_value
        if dtype.is_float:
            initial = x.dtype.type(-sign * np.inf)
        return np.asarray(fn(x, axis=numpy_axis(axes), keepdims=keepdims, initial=initial))

    return oracle


_SUMS = (
    Sample((floats(3, 17),), {"axes": 1}, 17.0, 4e-6, IN_ORDER),
    Sample((floats(3, 1, 7),), {"axes": (0, -1), "keepdims": True}, 21.0, 4e-6, IN_ORDER),
    Sample((floats(3, 5),), {}, 15.0, 4e-6, IN_ORDER),
    Sample((floats(3, 5),), {"axes": ()}),
    Sample((floats(3, 0, 5),), {"axes": 1}),
    Sample((floats(),), {}),
    Sample((floats(64, dtype="float16"),), {"axes": 0}, 4.0, 4e-3, "terms near 3 cancel"),
    Sample(
        (values(1.0, float("nan"), 2.0, float("inf"), 1.0, float("-inf"), shape=(3, 2)),),
        {"axes": 1},
    ),
)
_WHOLE = (Sample((ints(3, 5),), {"axes": 0}), Sample((ints(3, 5, dtype="int64"),)))
_EXTREMES = (
    Sample((floats(3, 17),), {"axes": 1}, 0.0),
    Sample((floats(3, 1, 7),), {"axes": (0, -1), "keepdims": True}, 0.0),
    Sample((ints(3, 5),), {}, 0.0),
    Sample((ints(7, dtype="uint8", low=3, high=200),), {}, 0.0),
    Sample((special(),), {}, 0.0),
    Sample((floats(5, dtype="float16"),), {"axes": -1}, 0.0),
    Sample((bools(3, 5),), {"axes": 1}),
    Sample((floats(3, 0, 5),), {"axes": 1}),
    Sample((ints(0, 2, dtype="int16"),), {"axes": 0}),
)
_LOGIC = (
    Sample((bools(3, 5),), {"axes": 1}),
    Sample((bools(1, 3),), {}),
    Sample((ints(3, 2, low=0, high=2),), {"axes": 0}),
    Sample((bools(3, 0),), {"axes": 1, "keepdims": True}),
    Sample((special(),), {}),
)
ROWS: tuple[OpRow, ...] = (
    reduction(
        "sum",
        "sum",
        _oracle(np.sum),
        typed=True,
        onnx=("ReduceSum",),
        torch=("aten.sum.default", "aten.sum.dim_IntList"),
        samples=(*_SUMS, *_WHOLE, Sample((bools(3, 5),), {"axes": 1, "dtype": "int64"})),
        doc="Sum over axes; `dtype` gives the result type for bools and small integers.",
    ),
    reduction(
        "mean",
        "sum",
        _oracle(_average),
        kind="float",
        mean=True,
        onnx=("ReduceMean",),
        torch=("aten.mean.default", "aten.mean.dim"),
        samples=_SUMS,
        doc="Mean over axes.",
    ),
    reduction(
        "prod",
        "prod",
        _oracle(np.prod),
        typed=True,
        onnx=("ReduceProd",),
        torch=("aten.prod.default", "aten.prod.dim_int"),
        samples=(Sample((floats(3, 7),), {"axes": 1}, 8.0, why=IN_ORDER), *_WHOLE),
        doc="Product over axes.",
    ),
    reduction(
        "max",
        "max",
        _extreme(np.max, 1),
        kind="any",
        onnx=("ReduceMax",),
        torch=("aten.amax.default", "aten.max.default"),
        samples=_EXTREMES,
        doc="Maximum over axes; NaN if any element is NaN.",
    ),
    reduction(
        "min",
        "min",
        _extreme(np.min, -1),
        kind="any",
        onnx=("ReduceMin",),
        torch=("aten.amin.default", "aten.min.default"),
        samples=_EXTREMES,
        doc="Minimum over axes; NaN if any element is NaN.",
    ),
    reduction(
        "any",
        "any",
        _plain(np.any),
        kind="any",
        to_bool=True,
        samples=_LOGIC,
        torch=("aten.any.default", "aten.any.dim", "aten.any.dims", "aten._is_any_true.default"),
        doc="Whether some element is not zero.",
    ),
    reduction(
        "all",
        "all",
        _plain(np.all),
        kind="any",
        to_bool=True,
        samples=_LOGIC,
        torch=("aten.all.default", "aten.all.dim", "aten.all.dims", "aten._is_all_true.default"),
        doc="Whether no element is zero.",
    ),
)
