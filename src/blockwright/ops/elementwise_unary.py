"""Elementwise operators of one tensor: mathematical functions, rounding, activations.

To add one, add a row to the list at the end: name, body over a scalar expression, NumPy oracle.
"""

# Rows are tables of short lambdas over scalar expressions; `unary` declares their types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    BOOL,
    broadcast_info,
    lower_elementwise,
    reference,
    require_kind,
    scalar_constant,
    tensors,
    widen,
)
from blockwright.ops.row import Attrs, Kind, OpContext, OpRow, Sample, TorchCall, known_dtype
from blockwright.ops.samples import floats, ints, special, values

Body = Callable[..., Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def unary(
    name: str,
    body: Body,
    oracle: Callable[..., Any],
    *,
    kind: str = "float",
    to_bool: bool = False,
    attrs: dict[str, Any] | None = None,
    torch: tuple[str, ...] | None = None,
    onnx: tuple[str, ...] = (),
    samples: tuple[Sample, ...] = (),
    doc: str = "",
    torch_attrs: dict[str, str] | None = None,
    torch_types: Literal["promoted", "result"] = "promoted",
    kinds: dict[str, Kind] | None = None,
) -> OpRow:
    """A row for `out[i…] = body(x[i…], **attrs)`; integers pass through rounding operators."""

    def deduce(ctx: OpContext, infos: Sequence[ir.Info], attributes: Attrs) -> ir.Info:
        (x,) = result = tensors(ctx, infos, 1, 1)
        require_kind(ctx, x.dtype, kind)
        return broadcast_info(ctx, result, BOOL if to_bool else x.dtype)

    def lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attributes: Attrs) -> ir.PrimFunc:
        dtype = known_dtype(ctx, infos[0], 0)
        given = {key: attributes[key] for key in (attrs or {})}
        return lower_elementwise(
            ctx, infos, BOOL if to_bool else dtype, lambda x: body(widen(x), **given)
        )

    return OpRow(
        name,
        ("x",),
        deduce,
        lower,
        oracle,
        attrs or {},
        (f"aten.{name}.default",) if torch is None else torch,
        onnx,
        samples,
        doc,
        TorchCall(
            torch_attrs or {},
            "float" if kind == "float" else torch_types,
            bools=kind in ("any", "bits"),
        ),
        layout="elementwise",
        kinds=kinds or {},
    )


def math_row(
    name: str,
    oracle: Callable[..., Any],
    *,
    low: float = -3.0,
    high: float = 3.0,
    torch: tuple[str, ...] | None = None,
    onnx: tuple[str, ...] = (),
    specials: bool = True,
) -> OpRow:
    """A row for a builtin function of floats."""
    samples = [
        Sample((floats(7, 3, low=low, high=high),)),
        Sample((floats(17, low=low, high=high, dtype="float64"),)),
        Sample((floats(1, 3, 1, low=low, high=high, dtype="float16"),)),
        Sample((floats(5, low=low, high=high, dtype="bfloat16"),)),
    ]
    if specials:
        samples.append(Sample((special(),)))
    return unary(
        name,
        lambda x: ir.call(name, x),
        reference(oracle),
        torch=torch,
        onnx=onnx,
        samples=tuple(samples),
        doc=f"`{name}` of each element.",
    )


def _rounding(name: str, oracle: Callable[..., Any], onnx: tuple[str, ...]) -> OpRow:
    def body(x: Any) -> Any:
        return ir.call(name, x) if x.dtype.is_float else x

    samples = (
        Sample((floats(3, 17),), tolerance=0.0),
        Sample((special(),), tolerance=0.0),
        Sample((values(0.5, 1.5, 2.5, -0.5, -1.5),), tolerance=0.0),
        Sample((ints(5),)),
    )
    return unary(
        name,
        body,
        reference(oracle),
        kind="number",
        onnx=onnx,
        samples=samples,
        doc=f"`{name}` of each element; integers are unchanged.",
    )


def _number(value: float, like: Any) -> Any:
    return ir.const(value, like.dtype)


def _abs(x: Any) -> Any:
    if x.dtype.is_float:
        return ir.call("abs", x)
    return x if x.dtype.kind == "uint" else ir.select(x < 0, -x, x)


def _sign(x: Any) -> Any:
    one, zero = _number(1, x), _number(0, x)
    below = zero if x.dtype.kind == "uint" else ir.select(x < zero, -one, zero)
    return ir.select(x > zero, one, below)


def _gelu(x: Any, approximate: str) -> Any:
    half, one = _number(0.5, x), _number(1.0, x)
    if approximate == "tanh":
        inner = (x + _number(0.044715, x) * (x * x * x)) * _number(math.sqrt(2.0 / math.pi), x)
        return half * x * (one + ir.call("tanh", inner))
    return half * x * (one + ir.call("erf", x * _number(math.sqrt(0.5), x)))


def _gelu_oracle(x: Any, approximate: str) -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))


def _softplus(x: Any, beta: float, threshold: float) -> Any:
    scaled = x * _number(beta, x)
    soft = ir.call("log1p", ir.call("exp", scaled)) / _number(beta, x)
    return ir.select(scaled > _number(threshold, x), x, soft)


def _complement(x: Any) -> Any:
    return ir.logical_not(x) if x.dtype.is_bool else ir.call("bitwise_not", x)


def _clip(x: Any, min: Any, max: Any) -> Any:
    ctx = OpContext("clip")
    if min is not None:
        x = ir.maximum(x, scalar_constant(ctx, min, x.dtype))
    return x if max is None else ir.minimum(x, scalar_constant(ctx, max, x.dtype))


def _clip_oracle(x: Any, min: Any, max: Any) -> Any:
    low = x if min is None else np.maximum(x, np.asarray(min, x.dtype))
    return low if max is None else np.minimum(low, np.asarray(max, x.dtype))


def _tanh_like(x: Any) -> Any:
    return x * ir.call("tanh", ir.call("log1p", ir.call("exp", x)))


def _hardsigmoid(x: Any) -> Any:
    shifted = ir.minimum(ir.maximum(x + _number(3, x), _number(0, x)), _number(6, x))
    return shifted / _number(6, x)


_NEAR_ZERO = "1 + f(x) cancels for negative x: the error is that of 1, scaled by x"
_GELU = (
    Sample((floats(7, 17, low=-6, high=6),), absolute=2e-6, why=_NEAR_ZERO),
    Sample(
        (floats(3, 1, 5, low=-6, high=6),), {"approximate": "tanh"}, absolute=2e-6, why=_NEAR_ZERO
    ),
    Sample((floats(9, dtype="float16"),), absolute=2e-6, why=_NEAR_ZERO),
    Sample((values(float("nan"), float("inf"), 0.0, -0.0, 1e-30, 20.0),)),
)
_PLAIN = (
    Sample((floats(7, 3),)),
    Sample((floats(17, dtype="float64"),)),
    Sample((special(),)),
    Sample((floats(3, dtype="float16"),)),
)
_NUMBERS = (*_PLAIN, Sample((ints(3, 5),)), Sample((ints(4, dtype="uint8", low=0, high=200),)))

ROWS: tuple[OpRow, ...] = (
    math_row("exp", np.exp, onnx=("Exp",)),
    math_row("exp2", np.exp2),
    math_row("expm1", np.expm1),
    math_row("log", np.log, low=0.1, high=9.0, onnx=("Log",)),
    math_row("log2", np.log2, low=0.1, high=9.0),
    math_row("log10", np.log10, low=0.1, high=9.0),
    math_row("log1p", np.log1p, low=-0.9),
    math_row("sqrt", np.sqrt, low=0.0, onnx=("Sqrt",)),
    math_row("rsqrt", lambda x: 1 / np.sqrt(x), low=0.1),
    math_row("sin", np.sin, onnx=("Sin",), specials=False),
    math_row("cos", np.cos, onnx=("Cos",), specials=False),
    math_row("tan", np.tan, low=-1.4, high=1.4, onnx=("Tan",), specials=False),
    math_row("asin", np.arcsin, low=-1, high=1, onnx=("Asin",)),
    math_row("acos", np.arccos, low=-1, high=1, onnx=("Acos",)),
    math_row("atan", np.arctan, onnx=("Atan",)),
    math_row("sinh", np.sinh, onnx=("Sinh",)),
    math_row("cosh", np.cosh, onnx=("Cosh",)),
    math_row("tanh", np.tanh, onnx=("Tanh",)),
    math_row("asinh", np.arcsinh, onnx=("Asinh",)),
    math_row("acosh", np.arccosh, low=1.0, high=9.0, onnx=("Acosh",)),
    math_row("atanh", np.arctanh, low=-0.9, high=0.9, onnx=("Atanh",)),
    math_row("erf", _erf, torch=("aten.erf.default", "aten.special_erf.default"), onnx=("Erf",)),
    math_row("sigmoid", lambda x: 1 / (1 + np.exp(-x)), onnx=("Sigmoid",)),
    _rounding("floor", np.floor, ("Floor",)),
    _rounding("ceil", np.ceil, ("Ceil",)),
    _rounding("round", np.rint, ("Round",)),
    _rounding("trunc", np.trunc, ()),
    unary(
        "abs",
        _abs,
        reference(np.abs),
        kind="number",
        onnx=("Abs",),
        samples=_NUMBERS,
        doc="Absolute value.",
    ),
    unary(
        "negative",
        lambda x: -x,
        reference(np.negative),
        kind="number",
        onnx=("Neg",),
        torch=("aten.neg.default",),
        samples=_NUMBERS,
        doc="Negated elements; unsigned integers wrap around.",
    ),
    unary(
        "sign",
        _sign,
        reference(lambda x: (x > 0) * 1.0 - (x < 0)),
        kind="number",
        torch=("aten.sign.default", "aten.sgn.default"),
        samples=_NUMBERS,
        doc="-1, 0 or 1; 0 for NaN.",
    ),
    unary(
        "square",
        lambda x: x * x,
        reference(np.square),
        kind="number",
        samples=_NUMBERS,
        doc="x · x.",
    ),
    unary(
        "reciprocal",
        lambda x: _number(1.0, x) / x,
        reference(lambda x: 1 / x),
        onnx=("Reciprocal",),
        samples=_PLAIN,
        doc="1 / x.",
    ),
    unary(
        "relu",
        lambda x: ir.maximum(x, _number(0, x)),
        reference(lambda x: np.maximum(x, 0)),
        kind="number",
        onnx=("Relu",),
        samples=_NUMBERS,
        doc="max(x, 0).",
    ),
    unary(
        "relu6",
        lambda x: _clip(x, 0, 6),
        reference(lambda x: np.clip(x, 0, 6)),
        kind="number",
        samples=_NUMBERS,
        doc="x clamped to [0, 6].",
    ),
    unary(
        "leaky_relu",
        lambda x, alpha: ir.select(x > 0, x, x * _number(alpha, x)),
        reference(lambda x, alpha: np.where(x > 0, x, x * alpha)),
        attrs={"alpha": 0.01},
        torch_attrs={"negative_slope": "alpha"},
        onnx=("LeakyRelu",),
        samples=(*_PLAIN, Sample((floats(3, 5),), {"alpha": 0.3})),
        doc="x if positive, else alpha · x.",
    ),
    unary(
        "elu",
        lambda x, alpha: ir.select(x < 0, ir.call("expm1", x) * _number(alpha, x), x),
        reference(lambda x, alpha: np.where(x < 0, np.expm1(x) * alpha, x)),
        attrs={"alpha": 1.0},
        onnx=("Elu",),
        samples=(
            *_PLAIN,
            Sample((floats(3, 5),), {"alpha": 0.3}),
            Sample((special(),), {"alpha": float("nan")}),
        ),
        doc="alpha · (exp(x) - 1) if x is negative, else x.",
    ),
    unary(
        "gelu",
        _gelu,
        reference(_gelu_oracle),
        attrs={"approximate": "none"},
        onnx=("Gelu",),
        samples=_GELU,
        doc="x · Φ(x), exact or with the tanh approximation.",
    ),
    unary(
        "silu",
        lambda x: x / (_number(1.0, x) + ir.call("exp", -x)),
        reference(lambda x: x / (1 + np.exp(-x))),
        samples=_PLAIN,
        doc="x · sigmoid(x).",
    ),
    unary(
        "mish",
        _tanh_like,
        reference(lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        onnx=("Mish",),
        samples=(Sample((floats(7, 3),)),),
        doc="x · tanh(softplus(x)).",
    ),
    unary(
        "softplus",
        _softplus,
        reference(
            lambda x, beta, threshold: np.where(
                x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta
            )
        ),
        attrs={"beta": 1.0, "threshold": 20.0},
        onnx=("Softplus",),
        samples=(Sample((floats(7, 3, low=-30, high=30),)), Sample((floats(5),), {"beta": 2.0})),
        doc="log(1 + exp(beta · x)) / beta; x above the threshold.",
    ),
    unary(
        "hardsigmoid",
        _hardsigmoid,
        reference(lambda x: np.clip(x + 3, 0, 6) / 6),
        samples=_PLAIN,
        doc="(x + 3) / 6 clamped to [0, 1].",
    ),
    unary(
        "hardswish",
        lambda x: x * _hardsigmoid(x),
        reference(lambda x: x * (np.clip(x + 3, 0, 6) / 6)),
        onnx=("HardSwish",),
        samples=(Sample((floats(7, 3, low=-5, high=5),)),),
        doc="x · hardsigmoid(x).",
    ),
    unary(
        "clip",
        _clip,
        _clip_oracle,
        kind="number",
        attrs={"min": None, "max": None},
        torch=(
            "aten.clamp.default",
            "aten.clip.default",
            "aten.clamp_min.default",
            "aten.clamp_max.default",
            "aten.hardtanh.default",
        ),
        torch_attrs={"min_val": "min", "max_val": "max"},
        torch_types="result",
        onnx=("Clip",),
        samples=(
            Sample((floats(7, 3),), {"min": -1.0, "max": 0.5}, 0.0),
            Sample((special(),), {"min": 1e-9}, 0.0),
            Sample((special(),), {"min": float("nan")}, 0.0),
            Sample((special(dtype="float16"),), {"max": float("nan")}, 0.0),
            Sample((ints(5),), {"max": 2}, 0.0),
            Sample((floats(3),), {}, 0.0),
        ),
        doc="x clamped to [min, max]; either bound may be absent. NaN is kept.",
    ),
    unary(
        "isnan",
        lambda x: ir.call("isnan", x),
        np.isnan,
        to_bool=True,
        onnx=("IsNaN",),
        samples=_PLAIN,
        doc="Whether the element is NaN.",
    ),
    unary(
        "isinf",
        lambda x: ir.call("isinf", x),
        np.isinf,
        to_bool=True,
        onnx=("IsInf",),
        samples=_PLAIN,
        doc="Whether the element is an infinity.",
    ),
    unary(
        "isfinite",
        lambda x: ir.call("isfinite", x),
        np.isfinite,
        to_bool=True,
        samples=_PLAIN,
        doc="Whether the element is neither NaN nor infinite.",
    ),
    unary(
        "bitwise_not",
        _complement,
        np.invert,
        kind="bits",
        onnx=("BitwiseNot",),
        samples=(Sample((ints(5),)), Sample((values(True, False, dtype="bool"),))),
        doc="Bitwise complement; logical not for bool.",
    ),
    unary(
        "logical_not",
        lambda x: ir.logical_not(ir.cast_to(x, BOOL)),
        np.logical_not,
        kind="any",
        to_bool=True,
        onnx=("Not",),
        samples=(
            Sample((ints(5, low=-1, high=2),)),
            Sample((special(),)),
            Sample((values(True, False, dtype="bool"),)),
        ),
        doc="Whether the element is zero.",
    ),
)
