"""Reductions over axes: sums, products, extremes, logic, argmax and argmin, vector norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    BOOL,
    I32,
    I64,
    ONE,
    accumulator,
    as_dim,
    axes_of,
    fold,
    inputs,
    require_kind,
    result,
    tensors,
    unknown,
    wide,
    widen,
)
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
from blockwright.ops.samples import bools, floats, ints, special, values
from blockwright.script.compute import Program, Tensor

AXES: dict[str, Any] = {"axes": None, "keepdims": False}
AXIS: dict[str, Any] = {"axis": None, "keepdims": False}


def given_axes(attrs: Attrs) -> Any:
    """The reduced axes: `axes`, or `axis` for operators with a single axis."""
    return attrs["axes"] if "axes" in attrs else attrs["axis"]


def kept_shape(shape: Sequence[ir.Expr], axes: Sequence[int], keepdims: bool) -> list[ir.Expr]:
    """The shape without the reduced axes, or with 1 in their places."""
    return [ONE if i in axes else d for i, d in enumerate(shape) if keepdims or i not in axes]


def deduce_axes(
    ctx: OpContext, x: ir.TensorInfo, attrs: Attrs, dtype: ir.DType | None
) -> ir.TensorInfo:
    """Annotation of a reduction over the axes in `attrs`."""
    axis, keep = given_axes(attrs), attrs["keepdims"]
    if x.shape is not None:
        return result([x], kept_shape(x.shape, axes_of(ctx, axis, x.rank), keep), dtype)
    if keep or x.rank >= 0:
        reduced = 0 if keep else len(axes_of(ctx, axis, x.rank))
        return unknown([x], dtype, x.rank if keep else x.rank - reduced)
    return result([x], (), dtype) if axis is None else unknown([x], dtype, -1)


class ReductionAxes:
    """Index mapping of one reduction between result indices, reduced indices and the input."""

    def __init__(self, shape: Sequence[ir.Expr], axes: Sequence[int], keepdims: bool) -> None:
        self.axes = tuple(axes)
        self.rank = len(shape)
        self.keepdims = keepdims
        self.shape = kept_shape(shape, axes, keepdims)
        self.over = [shape[axis] for axis in axes]

    def full_index(self, indices: Sequence[Any]) -> tuple[Any, ...]:
        """Index into the input from the result indices followed by the reduced ones."""
        spatial = list(indices[: len(self.shape)])
        reduced = list(indices[len(self.shape) :])
        out: list[Any] = []
        for axis in range(self.rank):
            if axis in self.axes:
                out.append(reduced.pop(0))
                if self.keepdims:
                    spatial.pop(0)
            else:
                out.append(spatial.pop(0))
        return tuple(out)

    def count(self, dtype: ir.DType) -> ir.Expr:
        """Number of reduced elements, in the given type."""
        total: ir.Expr = ONE
        for extent in self.over:
            total = ir.mul(total, extent)
        return ir.cast_to(total, dtype)

    def run(
        self, program: Program, name: str, combiner: str, body: Callable[..., Any], dtype: ir.DType
    ) -> Tensor:
        """The reduction block; a copy if there are no axes. `body` receives an input index."""
        if not self.axes:
            return program.compute(name, self.shape, lambda *i: body(*i), dtype)
        return fold(
            program,
            name,
            self.shape,
            self.over,
            lambda *i: body(*self.full_index(i)),
            combiner,
            dtype,
        )


def reduction_of(ctx: OpContext, x: Tensor, attrs: Attrs) -> ReductionAxes:
    """The reduction described by axes and keepdims attributes."""
    return ReductionAxes(x.shape, axes_of(ctx, given_axes(attrs), len(x.shape)), attrs["keepdims"])


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


def _numpy_axis(axis: Any) -> Any:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)


def _oracle(fn: Callable[..., Any]) -> Callable[..., Array]:
    """An oracle computed in float64, or for integers in the result type, with wraparound."""

    def oracle(x: Array, *, axes: Any, keepdims: bool, dtype: Any = None) -> Array:
        target = x.dtype if dtype is None else ir.dtype_of(dtype).numpy()
        source = wide(x) if ir.dtype_of(target).is_float else x.astype(target)
        extra = {} if ir.dtype_of(target).is_float else {"dtype": target}
        value = fn(source, axis=_numpy_axis(axes), keepdims=keepdims, **extra)
        return np.asarray(value).astype(target)

    return oracle


def _average(x: Array, axis: Any, keepdims: bool) -> Any:
    count = (
        x.size if axis is None else np.prod([x.shape[a] for a in np.atleast_1d(axis).astype(int)])
    )
    return np.sum(x, axis=axis, keepdims=keepdims) / count


def _plain(fn: Callable[..., Any]) -> Callable[..., Array]:
    def oracle(x: Array, *, axes: Any, keepdims: bool) -> Array:
        return np.asarray(fn(x, axis=_numpy_axis(axes), keepdims=keepdims))

    return oracle


def _deduce_position(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = tensors(ctx, infos, 1, 1)
    require_kind(ctx, x.dtype, "number")
    if attrs["axis"] is not None and not isinstance(attrs["axis"], int):
        raise ctx.error("takes one axis or None")
    return deduce_axes(ctx, x, attrs, I64)


def _position_type(ctx: OpContext, over: Sequence[ir.Expr]) -> ir.DType:
    """The narrowest type for positions: int32 if all provably fit, for more vector lanes.

    The position over an empty domain is the largest int64, so the domain must also be nonempty.
    """
    total: ir.Expr = ONE
    for extent in over:
        total = ir.mul(total, extent)
    fits = ir.compare(ir.LE, total, ir.const(I32.max_value, I64))
    some = ir.compare(ir.GE, total, ONE)
    return I32 if ctx.analyzer.prove(fits) and ctx.analyzer.prove(some) else I64


def _position(name: str, combiner: str, fn: Callable[..., Any], onnx: str) -> OpRow:
    """A row for the first position of an extreme: one reduction of (element, position) pairs.

    NaN counts as the extreme, as in NumPy. Over an empty domain the position is the largest
    integer.
    """

    def lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
        dtype = known_dtype(ctx, infos[0], 0)
        program = Program(ctx.name)
        (x,) = inputs(ctx, program, infos)
        what = reduction_of(ctx, x, attrs)
        if not what.axes or any(ir.is_const_int(extent, 0) for extent in what.over):
            only = as_dim(0) if not what.axes else ir.const(I64.max_value, I64)
            return program.finish([program.compute("out", what.shape, lambda *_: only, I64)])

        kind = _position_type(ctx, what.over)

        def pair(*indices: Any) -> tuple[ir.Expr, ir.Expr]:
            index = what.full_index(indices)
            here: Any = as_dim(0)
            for axis in what.axes:
                here = here * x.shape[axis] + index[axis]
            return x[index], ir.cast_to(here, kind)

        names = ("best", "out" if kind is I64 else "where")
        _, out = program.reduce_tuple(names, what.shape, what.over, pair, combiner, (dtype, kind))
        if kind is I64:
            return program.finish([out])
        where = out
        return program.finish([program.compute("out", what.shape, lambda *i: where[i], I64)])

    def oracle(x: Array, *, axis: Any, keepdims: bool) -> Array:
        return np.asarray(fn(wide(x), axis=axis, keepdims=keepdims), np.int64)

    return OpRow(
        name,
        ("x",),
        _deduce_position,
        lower,
        oracle,
        dict(AXIS),
        (f"aten.{name}.default",),
        (onnx,),
        (
            Sample((floats(3, 17),), {"axis": -1}),
            Sample((ints(4, 5, low=0, high=3),), {"axis": 0}),
            Sample((ints(4, 5, low=0, high=3),), {"axis": 0, "keepdims": True}),
            Sample((floats(3, 5),)),
            Sample((values(1.0, float("nan"), 9.0),), {"axis": 0}),
        ),
        "Position of the first extreme along an axis, or in the flattened tensor.",
        TorchCall(needs_elements=True),
        layout="axis reduced",
        kinds={"axis": "int"},
    )


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
    axis = _numpy_axis(axes)
    size = np.abs(wide(x))
    if ord == 0:
        value = np.sum(size != 0, axis=axis, keepdims=keepdims)
    elif ord in (float("inf"), float("-inf")):
        value = (np.max if ord > 0 else np.min)(size, axis=axis, keepdims=keepdims)
    else:
        value = np.sum(size**ord, axis=axis, keepdims=keepdims) ** (1 / ord)
    return np.asarray(value).astype(x.dtype)


_IN_ORDER = "n additions in order round n times; the terms bound the sum's size"
_SUMS = (
    Sample((floats(3, 17),), {"axes": 1}, 17.0, 4e-6, _IN_ORDER),
    Sample((floats(3, 1, 7),), {"axes": (0, -1), "keepdims": True}, 21.0, 4e-6, _IN_ORDER),
    Sample((floats(3, 5),), {}, 15.0, 4e-6, _IN_ORDER),
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
)
_LOGIC = (
    Sample((bools(3, 5),), {"axes": 1}),
    Sample((bools(1, 3),), {}),
    Sample((ints(3, 2, low=0, high=2),), {"axes": 0}),
    Sample((bools(3, 0),), {"axes": 1, "keepdims": True}),
    Sample((special(),), {}),
)
_ONE_EACH = Sample((values(3e38, 1e-30, -float("inf"), 0.0, shape=(4, 1)),), {"axes": 1})
_NORMS = tuple(
    Sample((floats(3, 17),), {"ord": order, "axes": 1, "keepdims": keep}, 20.0, why=_IN_ORDER)
    for order, keep in (
        (2, True),
        (1, False),
        (float("inf"), True),
        (float("-inf"), False),
        (0, True),
        (3, False),
    )
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
        samples=(Sample((floats(3, 7),), {"axes": 1}, 8.0, why=_IN_ORDER), *_WHOLE),
        doc="Product over axes.",
    ),
    reduction(
        "max",
        "max",
        _plain(np.max),
        kind="any",
        onnx=("ReduceMax",),
        torch=("aten.amax.default", "aten.max.default"),
        samples=_EXTREMES,
        doc="Maximum over axes; NaN if any element is NaN.",
    ),
    reduction(
        "min",
        "min",
        _plain(np.min),
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
        torch=("aten.any.default", "aten.any.dim", "aten.any.dims"),
        doc="Whether some element is not zero.",
    ),
    reduction(
        "all",
        "all",
        _plain(np.all),
        kind="any",
        to_bool=True,
        samples=_LOGIC,
        torch=("aten.all.default", "aten.all.dim", "aten.all.dims"),
        doc="Whether no element is zero.",
    ),
    _position("argmax", "argmax", np.argmax, "ArgMax"),
    _position("argmin", "argmin", np.argmin, "ArgMin"),
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
