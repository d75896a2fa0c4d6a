"""Converters of functions with a threshold: logit, softshrink, smooth_l1_loss, huber_loss.

PyTorch's decompositions compute half precision in float32, but some of its kernels do not. These
converters reproduce the kernels' rounding, of the threshold or of every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blockwright import ir
from blockwright.frontend.torch.calls import apply
from blockwright.frontend.torch.operands import (
    Registry,
    cast_to,
    element_of,
    is_half,
    is_tensor,
    result_type,
)
from blockwright.frontend.torch.promotion import number_in

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
_FLOAT32 = ir.dtype_of("float32")
_ROUNDED = frozenset({("smooth_l1_loss", "float16"), ("huber_loss", "bfloat16")})
"""Losses and half types whose kernels round the threshold and the result of every step."""
_REDUCTIONS = (None, "mean", "sum")


@TABLE.overload("aten.logit.default")
def _logit(imp: Importer, node: Any, x: Any, eps: float | None = None) -> Any:
    """log(x / (1 - x)) of x clamped to [eps, 1 - eps]; every step is rounded."""
    dtype = result_type(node)
    x = cast_to(imp, x, dtype)
    if eps is not None and eps >= 0:
        low = float(np.asarray(number_in(eps, dtype)).astype(dtype.numpy()))
        high = number_in(1 - low, dtype)
        limited = _choose(imp, apply(imp, "greater", x, high), high, x, dtype)
        x = _choose(imp, apply(imp, "less", x, low), low, limited, dtype)
    odds = apply(imp, "divide", x, apply(imp, "subtract", 1, x))
    return imp.builder.op("log", odds)


@TABLE.overload("aten.softshrink.default")
def _softshrink(imp: Importer, node: Any, x: Any, lambd: Any = 0.5) -> Any:
    """x moved by lambd toward 0, and 0 if |x| <= lambd; only the result is rounded."""
    dtype = result_type(node)
    wide = _FLOAT32 if is_half(dtype) else dtype
    x = cast_to(imp, x, wide)
    rest = _choose(
        imp,
        apply(imp, "less", x, -lambd),
        apply(imp, "add", x, lambd),
        apply(imp, "multiply", x, 0),
        wide,
    )
    above = apply(imp, "greater", x, lambd)
    return cast_to(imp, _choose(imp, above, apply(imp, "subtract", x, lambd), rest, wide), dtype)


@TABLE.overload("aten.smooth_l1_loss.default", "aten.huber_loss.default")
def _robust_loss(
    imp: Importer, node: Any, x: Any, target: Any, reduction: int = 1, threshold: Any = 1.0
) -> Any:
    """Loss that is quadratic in the distance below the threshold, linear above."""
    name, dtype = str(node.target).split(".")[1], result_type(node)
    rounded = not is_half(dtype) or (name, dtype.name) in _ROUNDED
    kind = dtype if rounded else _FLOAT32
    bound = number_in(threshold, kind)
    away = imp.builder.op(
        "abs", apply(imp, "subtract", cast_to(imp, x, kind), cast_to(imp, target, kind))
    )
    square = apply(imp, "multiply", apply(imp, "multiply", away, 0.5), away)
    half_bound = number_in(0.5 * bound, kind)
    line = apply(imp, "subtract", away, half_bound)
    if name == "huber_loss":
        near = apply(imp, "less_equal", away, bound)
        line = apply(imp, "multiply", line, bound)
    else:
        near = apply(imp, "less", away, bound)
        square = apply(imp, "divide", square, bound)
    loss = cast_to(imp, _choose(imp, near, square, line, kind), dtype)
    how = _REDUCTIONS[reduction]
    return loss if how is None else imp.builder.op(how, loss, axes=None)


def _choose(imp: Importer, condition: Any, a: Any, b: Any, dtype: ir.DType) -> Any:
    """Select `a` where a condition holds, else `b`; one of them may be a number."""
    sides = [value if is_tensor(value) else element_of(imp, value, dtype) for value in (a, b)]
    return imp.builder.op("where", condition, *sides)
