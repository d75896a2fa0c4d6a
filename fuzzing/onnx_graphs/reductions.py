"""Operators along axes: reductions, positions, running sums, softmax."""

from __future__ import annotations

from typing import Any

from fuzzing.onnx_graphs.drawer import Drawer, Value
from fuzzing.onnx_graphs.operators import draws

_ROUNDED = ("ReduceMean", "ReduceL2", "ReduceLogSumExp", "ReduceLogSum", "ReduceProd")
_EXACT = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare")


@draws(6)
def reduction(d: Drawer) -> Value | None:
    op = d.chance.choice(_EXACT + _ROUNDED)
    x = d.pick(lambda v: v.dtype in ("float32", "float64", "int32", "int64"))
    different = ("ReduceLog", "ReduceL1", "ReduceProd")
    if x is None or (op.startswith(different) and not x.is_float):
        return None  # logarithms and overflows of integers differ between kernels
    keepdims = d.chance.choice((None, 0, 0, 1))
    axes = None if d.maybe(0.15) else d.axes(x) or None
    exact = op in _EXACT
    if d.opset >= 18 or (op == "ReduceSum" and d.opset >= 13):
        given = None if axes is None else d.constant(axes)
        keep = 1 if axes is None and d.maybe(0.4) else None
        inputs = [x, given]
        return d.add(op, inputs, exact=exact, keepdims=keepdims, noop_with_empty_axes=keep)
    return d.add(op, [x], exact=exact, keepdims=keepdims, axes=axes)


@draws(2)
def position(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.exact and v.rank >= 1 and v.dtype != "bool")
    if x is None:
        return None
    op = d.chance.choice(("ArgMax", "ArgMin"))
    last = d.chance.choice((None, 0, 1))
    keepdims = d.chance.choice((None, 0, 1))
    return d.add(op, [x], exact=True, axis=d.axis(x), keepdims=keepdims, select_last_index=last)


@draws(2)
def largest(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.exact and v.rank >= 1 and v.dtype != "bool")
    if x is None:
        return None
    axis = d.axis(x)
    count = d.constant([d.chance.randint(1, x.smallest[axis])])
    attrs: dict[str, Any] = {"axis": axis, "largest": d.chance.choice((None, 0, 1))}
    return d.add("TopK", [x, count], [True, d.maybe(0.7)], exact=True, **attrs)


@draws(2)
def running_sum(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1 and v.dtype in ("float32", "float64", "int32", "int64"))
    if x is None:
        return None
    flags: dict[str, Any] = {key: d.chance.choice((None, 0, 1)) for key in ("exclusive", "reverse")}
    return d.add("CumSum", [x, d.constant(d.axis(x))], exact=True, **flags)


@draws(3)
def softmax(d: Drawer) -> Value | None:
    x = d.pick_float(1)
    op = d.chance.choice(("Softmax", "LogSoftmax", "Softmax", "Hardmax"))
    if x is None or (op == "Hardmax" and not x.exact):
        return None
    return d.add(op, [x], axis=d.chance.choice((None, d.axis(x))))


@draws(2)
def norm(d: Drawer) -> Value | None:
    x = d.pick_float(2)
    op = d.chance.choice(("LayerNormalization", "RMSNormalization", "LpNormalization"))
    if x is None or not x.is_fixed(-1):
        return None
    if op == "LpNormalization":
        axis, p = d.axis(x), d.chance.choice((1, 2))
        return d.add(op, [x], axis=axis, p=p)
    if op == "RMSNormalization":
        return d.add(op, [x, d.numbers_like(x, [-1])], epsilon=1e-2)
    bias = d.numbers_like(x, [-1]) if d.maybe(0.6) else None
    return d.add(op, [x, d.numbers_like(x, [-1]), bias], axis=-1, epsilon=1e-2)
