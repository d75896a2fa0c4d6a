"""Less common activations; the common ones are in `elementwise_unary`."""

# Rows are tables of short lambdas over scalar expressions; `unary` declares their types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import reference
from blockwright.ops.elementwise_unary import unary
from blockwright.ops.row import OpRow, Sample
from blockwright.ops.samples import floats, special

# Constants that preserve mean 0 and variance 1 from layer to layer.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _number(value: float, like: Any) -> Any:
    return ir.const(value, like.dtype)


def _exponential(x: Any, slope: float, alpha: float) -> Any:
    """alpha · (exp(slope · x) - 1) where x is negative, else x."""
    below = ir.call("expm1", x * _number(slope, x)) * _number(alpha, x)
    return ir.select(x < _number(0, x), below, x)


def _log_sigmoid(x: Any) -> Any:
    """min(x, 0) - log(1 + exp(-|x|)), in which the exponential cannot overflow."""
    tail = ir.call("log1p", ir.call("exp", -ir.call("abs", x)))
    return ir.minimum(x, _number(0, x)) - tail


_PLAIN = (
    Sample((floats(7, 3),)),
    Sample((floats(17, dtype="float64"),)),
    Sample((special(),)),
    Sample((floats(3, dtype="float16"),)),
)

ROWS: tuple[OpRow, ...] = (
    unary(
        "selu",
        lambda x: _exponential(x, 1.0, _SELU_ALPHA) * _number(_SELU_SCALE, x),
        reference(lambda x: _SELU_SCALE * np.where(x < 0, _SELU_ALPHA * np.expm1(x), x)),
        onnx=("Selu",),
        samples=_PLAIN,
        doc="1.7581 · (exp(x) - 1) where x is negative, else 1.0507 · x.",
    ),
    unary(
        "celu",
        lambda x, alpha: _exponential(x, 1.0 / alpha, alpha),
        reference(lambda x, alpha: np.where(x < 0, alpha * np.expm1(x / alpha), x)),
        attrs={"alpha": 1.0},
        kinds={"alpha": "not zero"},
        onnx=("Celu",),
        samples=(*_PLAIN, Sample((floats(3, 5),), {"alpha": 0.5})),
        doc="alpha · (exp(x / alpha) - 1) where x is negative, else x.",
    ),
    unary(
        "log_sigmoid",
        _log_sigmoid,
        reference(lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))),
        samples=(*_PLAIN, Sample((floats(9, low=-120, high=120),))),
        doc="log(sigmoid(x)).",
    ),
)
