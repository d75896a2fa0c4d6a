"""Operators by element."""

from __future__ import annotations

import numpy as np

from fuzzing.onnx_graphs.drawer import FLOATS, INTEGERS, SIGNED, Drawer, Value
from fuzzing.onnx_graphs.operators import draws

_SMOOTH = (
    "Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh",
    "Tanh", "Asinh", "Acosh", "Atanh", "Sigmoid", "Erf", "Softplus", "Softsign", "Elu", "Selu",
    "Celu", "HardSigmoid", "HardSwish", "Mish", "Gelu",
)  # fmt: skip
_EXACT = ("Neg", "Abs", "Relu", "Identity")
_JUMPING = ("Floor", "Ceil", "Round", "Sign")
_TYPES = (*FLOATS, *INTEGERS, "bool")


@draws(6)
def smooth(d: Drawer) -> Value | None:
    x = d.pick_float()
    op = d.chance.choice(_SMOOTH)
    if op in ("HardSwish", "Erf") and x and x.dtype == "float64":
        return None  # ONNX Runtime rounds 1/6, and the error function, to float32
    alpha = d.chance.choice((None, 0.5, 1.5)) if op in ("Elu", "Celu", "HardSigmoid") else None
    return x and d.add(
        op, [x], alpha=alpha, approximate="tanh" if op == "Gelu" and d.maybe(0.5) else None
    )


@draws(3)
def exact_unary(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.dtype != "bool" and v.dtype not in ("uint8", "uint16", "uint32"))
    return x and d.add(d.chance.choice(_EXACT), [x], exact=True)


@draws(2)
def jumping(d: Drawer) -> Value | None:
    x = d.pick_float(exact=True)
    return x and d.add(d.chance.choice(_JUMPING), [x], exact=True)


@draws(2)
def leaky(d: Drawer) -> Value | None:
    x = d.pick_float()
    op = d.chance.choice(("LeakyRelu", "ThresholdedRelu", "Shrink", "PRelu"))
    if x is None or (op in ("ThresholdedRelu", "Shrink") and not x.exact):
        return None
    if op == "PRelu":
        fixed = x.rank > 0 and x.is_fixed(-1)
        slope = d.numbers_like(x, [-1] if fixed else [])
        return d.add(op, [x, slope], exact=True)
    if op == "Shrink":
        return d.add(op, [x], exact=True, lambd=d.chance.choice((0.5, 1.0)), bias=0.25)
    return d.add(op, [x], exact=True, alpha=d.chance.choice((None, 0.25, 0.5)))


@draws(10)
def binary(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.dtype != "bool", empty=True)
    other = x and _partner(d, x)
    op = d.chance.choice(("Add", "Sub", "Mul", "Add", "Sub", "Mul", "Div", "Min", "Max"))
    if x is None or other is None or (op == "Div" and not _divides(other)):
        return None
    operands = [x, other] if d.maybe(0.7) or op == "Div" else [other, x]
    return d.add(op, operands, exact=op != "Div")


def _divides(value: Value) -> bool:
    """Whether a divisor is far from zero, and not -1, by which the smallest integer overflows."""
    if value.is_float:
        return all(float(np.abs(a).min(initial=9)) > 0.1 for a in value.arrays)
    return all(bool(((a > 0) | (a + 1 < 0)).all()) for a in value.arrays)


def _partner(d: Drawer, x: Value) -> Value | None:
    """A tensor or a constant of the same type to combine with."""
    if d.maybe(0.35):
        fixed = x.rank > 0 and x.is_fixed(-1) and d.maybe(0.6)
        return d.numbers_like(x, [-1] if fixed else [])
    return d.pick(lambda v: v.dtype == x.dtype and _may_broadcast(x, v), empty=True)


def _may_broadcast(x: Value, y: Value) -> bool:
    pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


@draws(2)
def several(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.dtype in ("float32", "float64"))
    others = [_partner(d, x) for _ in range(d.chance.randint(0, 2))] if x else []
    if x is None or None in others:
        return None
    op = d.chance.choice(("Sum", "Min", "Max", "Mean"))
    return d.add(op, [x, *others], exact=op != "Mean")


@draws(2)
def modulo(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.exact and v.dtype != "bool")
    y = x and _partner(d, x)
    if x is None or y is None or not y.exact or not _divides(y):
        return None
    wide = x.dtype.endswith("64")  # ONNX Runtime converts integers to float64 for fmod
    fmod = 1 if x.is_float or (d.maybe(0.5) and not wide) else None
    return d.add("Mod", [x, y], exact=True, fmod=fmod)


@draws(1)
def power(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.dtype in ("float32", "float64", "int32", "int64"))
    if x is None:
        return None
    exponents = (2, 3, 1) if x.dtype in SIGNED else (2, 0.5, -1, 3, 1.5)
    number = d.chance.choice(exponents)
    dtype = d.chance.choice(("int32", "int64", "float32")) if number == 2 else x.dtype
    return d.add("Pow", [x, d.constant(number, dtype)])


@draws(3)
def comparison(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.exact)
    y = x and _partner(d, x)
    if x is None or y is None or not y.exact:
        return None
    op = d.chance.choice(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"))
    return d.add(op, [x, y], exact=True)


@draws(2)
def logical(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.dtype == "bool")
    y = x and _partner(d, x)
    if x is None or y is None or d.maybe(0.2):
        return x and d.add("Not", [x], exact=True)
    return d.add(d.chance.choice(("And", "Or", "Xor")), [x, y], exact=True)


@draws(2)
def bitwise(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.dtype in INTEGERS)
    if x is None:
        return None
    if d.maybe(0.2):
        return d.add("BitwiseNot", [x], exact=True)
    if d.maybe(0.3):
        by = d.constant(d.chance.randrange(0, 8), x.dtype)
        direction = d.chance.choice(("LEFT", "RIGHT"))
        return d.add("BitShift", [x, by], exact=True, direction=direction)
    y = _partner(d, x)
    op = d.chance.choice(("BitwiseAnd", "BitwiseOr", "BitwiseXor"))
    return y and d.add(op, [x, y], exact=True)


@draws(3)
def where(d: Drawer) -> Value | None:
    condition = d.pick(lambda v: v.dtype == "bool")
    x = condition and d.pick(lambda v: _may_broadcast(condition, v))
    y = x and _partner(d, x)
    if condition is None or x is None or y is None:
        return None
    return d.add("Where", [condition, x, y], exact=True)


@draws(2)
def clip(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.dtype != "bool")
    if x is None:
        return None
    low, high = (d.constant(n, x.dtype) if d.maybe(0.7) else None for n in (1, 3))
    return d.add("Clip", [x, low, high], exact=True)


@draws(4)
def cast(d: Drawer) -> Value | None:
    x, dtype = d.pick(), d.chance.choice(_TYPES)
    if x is None or (dtype not in FLOATS and not x.exact) or not _fits(x, dtype):
        return None
    if d.maybe(0.2):
        like = d.pick(lambda v: v.dtype == dtype)
        return like and d.add("CastLike", [x, like], exact=True)
    return d.add("Cast", [x], exact=True, to=d.kind(dtype))


def _fits(x: Value, dtype: str) -> bool:
    """Whether a conversion of floats to integers is defined."""
    if dtype in FLOATS or dtype == "bool" or not x.is_float:
        return True
    info = np.iinfo(dtype)
    wide = (a.astype("float64") if a.dtype.kind == "f" else a for a in x.arrays)
    return all(bool(((a > info.min - 1) & (a < info.max)).all()) for a in wide)


@draws(1)
def classification(d: Drawer) -> Value | None:
    x = d.pick_float()
    return x and d.add(d.chance.choice(("IsNaN", "IsInf")), [x], exact=True)
