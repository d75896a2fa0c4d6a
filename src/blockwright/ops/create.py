"""Tensors created from a shape: full, zeros, ones, arange, and the `_like` variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    I64,
    ZERO,
    as_dim,
    require_kind,
    require_shape,
    result,
    scalar_constant,
    shape_operand,
    tensors,
    unknown,
)
from blockwright.ops.row import (
    REQUIRED,
    Array,
    Attrs,
    OpContext,
    OpRow,
    Sample,
    dims_text,
    known_dtype,
    known_shape,
)
from blockwright.ops.samples import floats, ints
from blockwright.script.compute import Program


def _fill(ctx: OpContext, value: Any, dtype: ir.DType) -> ir.Expr:
    """The fill element; for a bool tensor, any number is converted by `!= 0`."""
    if dtype.is_bool and not isinstance(value, ir.Expr):
        return ir.const(bool(value), dtype)
    return scalar_constant(ctx, value, dtype)


def _filled(ctx: OpContext, shape: Sequence[ir.Expr], value: Any, dtype: ir.DType) -> ir.PrimFunc:
    program = Program(ctx.name)
    element = _fill(ctx, value, dtype)
    return program.finish([program.compute("out", shape, lambda *i: element, dtype)])


def _value(attrs: Attrs, name: str) -> Any:
    return {"zeros": 0, "ones": 1}.get(name.removesuffix("_like"), attrs.get("fill_value"))


def _deduce_full(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    matches, wanted, rank = shape_operand(ctx, infos, attrs)
    tensors(ctx, matches, 0, 0)
    dtype = ir.dtype_of(attrs["dtype"])
    _fill(ctx, _value(attrs, ctx.name), dtype)
    return unknown([], dtype, rank) if wanted is None else result([], wanted, dtype)


def _lower_full(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    _, wanted, _ = shape_operand(ctx, infos, attrs)
    dtype = ir.dtype_of(attrs["dtype"])
    return _filled(ctx, require_shape(ctx, wanted), _value(attrs, ctx.name), dtype)


def _like_type(attrs: Attrs, x: ir.TensorInfo) -> ir.DType | None:
    return x.dtype if attrs["dtype"] is None else ir.dtype_of(attrs["dtype"])


def _deduce_like(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    dtype = _like_type(attrs, x)
    if dtype is not None:
        _fill(ctx, _value(attrs, ctx.name), dtype)
    return unknown(matches, dtype, x.rank) if x.shape is None else result(matches, x.shape, dtype)


def _lower_like(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    """Lower a `_like` operator; the argument stays a parameter, although only its shape is used."""
    program = Program(ctx.name)
    x = infos[0]
    dtype = _like_type(attrs, x)
    given = known_dtype(ctx, x, 0)
    dtype = dtype or given
    shape = known_shape(ctx, x, 0)
    program.param("A", shape, given)
    element = _fill(ctx, _value(attrs, ctx.name), dtype)
    return program.finish([program.compute("out", shape, lambda *i: element, dtype)])


def _number(value: Any, name: str, ctx: OpContext) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, ir.IntImm):
        return float(value.value)
    raise ctx.error(f"{name} of a floating-point arange must be a number", "symbols are integers")


def _arange_length(ctx: OpContext, attrs: Attrs) -> ir.Expr:
    begin, end, step = attrs["begin"], attrs["end"], attrs["step"]
    if isinstance(step, ir.IntImm):
        step = step.value
    if isinstance(step, ir.Expr):
        return _length_by_size(ctx, begin, end, step)
    if not isinstance(step, (int, float)) or step == 0:
        raise ctx.error(f"step {step!r} is not a number other than 0")
    if any(isinstance(v, float) for v in (begin, end, step)):
        span = _number(end, "end", ctx) - _number(begin, "begin", ctx)
        return as_dim(max(0, int(np.ceil(span / step))))
    low, high = (as_dim(begin), as_dim(end)) if step > 0 else (as_dim(end), as_dim(begin))
    return _steps(ctx, low, high, as_dim(abs(step)))


def _length_by_size(ctx: OpContext, begin: Any, end: Any, step: ir.Expr) -> ir.Expr:
    """The length for a step that is a size, which must be known to be positive."""
    if any(isinstance(v, float) for v in (begin, end)):
        raise ctx.error(f"step {dims_text(step)} of a floating-point arange must be a number")
    if not ctx.analyzer.prove(ir.compare(ir.GT, step, ZERO)):
        raise ctx.error(
            f"step {dims_text(step)} may be 0", "declare a lower bound of 1 for the size"
        )
    return _steps(ctx, as_dim(begin), as_dim(end), step)


def _steps(ctx: OpContext, low: ir.Expr, high: ir.Expr, step: ir.Expr) -> ir.Expr:
    """Number of steps from `low` to below `high`."""
    span = ctx.analyzer.simplify(ir.sub(high, low))
    if not ctx.analyzer.prove(ir.compare(ir.GE, span, ZERO)):
        span = ir.maximum(span, ZERO)
    return ctx.analyzer.simplify(ir.ceildiv(span, step))


def _deduce_arange(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    tensors(ctx, infos, 0, 0)
    dtype = ir.dtype_of(attrs["dtype"])
    require_kind(ctx, dtype, "number")
    return result([], (_arange_length(ctx, attrs),), dtype)


def _lower_arange(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = ir.dtype_of(attrs["dtype"])
    whole = not any(isinstance(attrs[k], float) for k in ("begin", "end", "step"))
    inner = I64 if whole else ir.dtype_of("float64")
    begin = scalar_constant(ctx, attrs["begin"], inner)
    step = scalar_constant(ctx, attrs["step"], inner)

    def element(i: Any) -> Any:
        return ir.cast_to(ir.add(ir.mul(ir.cast_to(i, inner), step), begin), dtype)

    program = Program(ctx.name)
    out = program.compute("out", (_arange_length(ctx, attrs),), element, dtype)
    return program.finish([out])


def _arange(begin: Any, end: Any, step: Any, dtype: Any) -> Array:
    return np.asarray(np.arange(begin, end, step), ir.dtype_of(dtype).numpy())


def _made(name: str, value: Any, torch: tuple[str, ...]) -> tuple[OpRow, OpRow]:
    """The rows `name` (from a shape) and `name_like` (from a tensor)."""
    filling = {"fill_value": REQUIRED} if value is None else {}
    sample: dict[str, Any] = {"fill_value": 2.5} if value is None else {}
    whole: dict[str, Any] = {"fill_value": 3} if value is None else {}

    def full(shape: Any, dtype: Any, fill_value: Any = value) -> Array:
        return np.full(shape, fill_value, ir.dtype_of(dtype).numpy())

    def like(x: Array, dtype: Any, fill_value: Any = value) -> Array:
        return np.full(
            x.shape, fill_value, x.dtype if dtype is None else ir.dtype_of(dtype).numpy()
        )

    created = OpRow(
        name,
        ("shape?",),
        _deduce_full,
        _lower_full,
        full,
        {"shape": None, "dtype": "float32", **filling},
        torch,
        ("ConstantOfShape",) if value is None else (),
        (
            Sample((), {"shape": (3, 5), **sample}, 0.0),
            Sample((), {"shape": (), **sample}, 0.0),
            Sample((), {"shape": (7,), "dtype": "int64", **whole}, 0.0),
            Sample((), {"shape": (0, 3), **sample}, 0.0),
            Sample((), {"shape": (2,), "dtype": "bool", **whole}, 0.0),
        ),
        "A tensor filled with one element.",
    )
    alike = OpRow(
        f"{name}_like",
        ("x",),
        _deduce_like,
        _lower_like,
        like,
        {"dtype": None, **filling},
        tuple(t.replace(f"aten.{name}.", f"aten.{name}_like.") for t in torch),
        (),
        (
            Sample((floats(3, 5),), sample, 0.0),
            Sample((ints(1, 7),), {"dtype": "float32", **sample}, 0.0),
        ),
        "A tensor filled with one element, with the shape of another tensor.",
    )
    return created, alike


_ARANGE: dict[str, Any] = {"begin": 0, "end": REQUIRED, "step": 1, "dtype": "int64"}
_RANGES: tuple[dict[str, Any], ...] = (
    {"end": 7},
    {"begin": 3, "end": 17, "step": 5, "dtype": "int32"},
    {"begin": 5, "end": -3, "step": -2},
    {"end": 5, "dtype": "float32"},
    {"begin": 0.5, "end": 2.0, "step": 0.25, "dtype": "float32"},
    {"begin": 3, "end": 1},
)

ROWS: tuple[OpRow, ...] = (
    *_made("full", None, ("aten.full.default",)),
    *_made("zeros", 0, ("aten.zeros.default",)),
    *_made("ones", 1, ("aten.ones.default",)),
    OpRow(
        "arange",
        (),
        _deduce_arange,
        _lower_arange,
        _arange,
        dict(_ARANGE),
        ("aten.arange.default", "aten.arange.start", "aten.arange.start_step"),
        ("Range",),
        tuple(Sample((), attrs, 0.0) for attrs in _RANGES),
        "begin, begin + step, … while below end (above end for a negative step).",
        kinds={"begin": "scalar", "end": "scalar", "step": "scalar"},
    ),
)
