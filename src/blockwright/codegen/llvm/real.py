"""Floating-point values with operators, so that numerical code here reads as formulas.

`fma(a, b, c)` is the only operation that may round a product and a sum once. `+` and `*` are never
reassociated or contracted; the error bounds of the math functions depend on that.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.values import (
    Value,
    element_of,
    float_const,
    int_const,
    lanes_of,
    suffix,
    vector,
)

Number = int | float


class Whole(msgspec.Struct, frozen=True):
    """An integer vector with the same number of lanes as its float vector."""

    e: FunctionEmitter
    v: Value

    def _other(self, x: Whole | int) -> Value:
        return x.v if isinstance(x, Whole) else int_const(x, self.v.type)

    def _op(self, op: str, x: Whole | int) -> Whole:
        return Whole(self.e, self.e.binary(op, self.v, self._other(x)))

    def __add__(self, x: Whole | int) -> Whole:
        return self._op("add", x)

    def __sub__(self, x: Whole | int) -> Whole:
        return self._op("sub", x)

    def __and__(self, x: Whole | int) -> Whole:
        return self._op("and", x)

    def __or__(self, x: Whole | int) -> Whole:
        return self._op("or", x)

    def __xor__(self, x: Whole | int) -> Whole:
        return self._op("xor", x)

    def __lshift__(self, x: int) -> Whole:
        return self._op("shl", x)

    def __rshift__(self, x: int) -> Whole:
        return self._op("ashr", x)

    def logical_right(self, x: int) -> Whole:
        return self._op("lshr", x)

    def equals(self, x: Whole | int) -> Value:
        return self.e.compare("eq", self.v, self._other(x))

    def to_real(self, like: Real) -> Real:
        """Convert the numbers to floats."""
        return Real(self.e, self.e.convert("sitofp", self.v, like.v.type))

    def as_real(self, like: Real) -> Real:
        """Reinterpret the bits as floats."""
        return Real(self.e, self.e.bitcast(self.v, like.v.type))


class Real(msgspec.Struct, frozen=True):
    """A float or double, scalar or vector."""

    e: FunctionEmitter
    v: Value

    @property
    def is_double(self) -> bool:
        return element_of(self.v.type) == "double"

    def const(self, x: Number) -> Real:
        return Real(self.e, float_const(float(x), self.v.type))

    def operand(self, x: Real | Number) -> Value:
        return x.v if isinstance(x, Real) else float_const(float(x), self.v.type)

    def _op(self, op: str, x: Real | Number) -> Real:
        return Real(self.e, self.e.binary(op, self.v, self.operand(x)))

    def __add__(self, x: Real | Number) -> Real:
        return self._op("fadd", x)

    def __sub__(self, x: Real | Number) -> Real:
        return self._op("fsub", x)

    def __mul__(self, x: Real | Number) -> Real:
        return self._op("fmul", x)

    def __truediv__(self, x: Real | Number) -> Real:
        return self._op("fdiv", x)

    def __rsub__(self, x: Number) -> Real:
        return self.const(x) - self

    def __rtruediv__(self, x: Number) -> Real:
        return self.const(x) / self

    def __neg__(self) -> Real:
        return Real(self.e, self.e.fneg(self.v))

    def __abs__(self) -> Real:
        return self.unary("fabs")

    def unary(self, name: str) -> Real:
        """An intrinsic that is one instruction on every target: fabs, sqrt, floor, rint, …"""
        return Real(self.e, self.e.overloaded(name, self.v))

    def with_sign_of(self, x: Real) -> Real:
        return Real(self.e, self.e.overloaded("copysign", self.v, x.v))

    def test(self, predicate: str, x: Real | Number) -> Value:
        """A comparison: olt, oeq, uno, …"""
        return self.e.compare(predicate, self.v, self.operand(x))

    def where(self, condition: Value, otherwise: Real | Number) -> Real:
        """This value where the condition holds, else the other value."""
        return Real(self.e, self.e.select(condition, self.v, self.operand(otherwise)))

    def at_most(self, limit: float) -> Real:
        """The minimum of this value and the limit; NaN stays NaN."""
        bound = self.const(limit)
        return bound.where(bound.test("olt", self), self)

    def at_least(self, limit: float) -> Real:
        bound = self.const(limit)
        return bound.where(bound.test("ogt", self), self)

    def pick(self, lanes: Sequence[int]) -> Real:
        """A vector of the given lanes."""
        return Real(self.e, self.e.shuffle(self.v, self.v, lanes))

    def bits(self) -> Whole:
        width = "i64" if self.is_double else "i32"
        return Whole(self.e, self.e.bitcast(self.v, vector(width, lanes_of(self.v.type))))

    def convert(self, element: str) -> Real:
        """Convert the numbers to `float` or `double`."""
        if element_of(self.v.type) == element:
            return self
        op = "fpext" if element == "double" else "fptrunc"
        type_ = vector(element, lanes_of(self.v.type))
        return Real(self.e, self.e.convert(op, self.v, type_))


def fma(a: Real, b: Real | Number, c: Real | Number) -> Real:
    """a * b + c, rounded once if the target has the instruction."""
    values = (a.v, a.operand(b), a.operand(c))
    return Real(a.e, a.e.overloaded("fmuladd", *values))


def polynomial(x: Real, coefficients: tuple[float, ...]) -> Real:
    """c0 + c1 x + c2 x² + … by Horner's rule."""
    result = x.const(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, c)
    return result


def nearest(x: Real, factor: float = 1.0) -> tuple[Real, Whole]:
    """The integer nearest to x * factor, as a float and as an integer, for results below 2^21
    (double: 2^50).

    Adding 1.5 * 2^mantissa rounds the fraction off and leaves the integer in the low bits. This
    avoids conversion instructions, which are undefined for NaN.
    """
    magic = x.const(1.5 * 2.0 ** (52 if x.is_double else 23))
    shifted = x + magic if factor == 1.0 else fma(x, factor, magic)
    return shifted - magic, shifted.bits() - magic.bits()


def nearest_power(x: Real, factor: float) -> tuple[Real, Real]:
    """The integer n nearest to x * factor, at least -127, and 2^n, which is 0 for -127.

    The added number includes the exponent bias, so that the low bits of the sum are the exponent
    field of 2^n.
    """
    bias, shift = _exponent(x)
    magic = x.const(1.5 * 2.0**shift + bias)
    shifted = fma(x, factor, magic)
    return shifted - magic, (shifted.bits() << shift).as_real(x)


def scale(x: Real, n: Real, whole: Whole) -> Real:
    """x * 2^n with n from `nearest`; results may overflow or be denormal.

    One instruction, or two multiplications, the first of which stays in the normal range."""
    if _has_scaling(x):
        name = f"ldexp.{suffix(x.v.type)}.{suffix(whole.v.type)}"
        return Real(x.e, x.e.intrinsic(name, x.v.type, x.v, whole.v))
    away, (bias, shift) = (512 if x.is_double else 64), _exponent(x)
    low = x.e.compare("slt", n.bits().v, int_const(0, whole.v.type))  # the sign bit of n
    added = x.e.select(low, *(int_const(bias + by, whole.v.type) for by in (away, -away)))
    rest = x.const(2.0**-away).where(low, 2.0**away)
    return x * ((whole + Whole(x.e, added)) << shift).as_real(x) * rest


_SCALED_LANES = (4, 8, 16)
"""Lanes of single-precision vectors with an AVX-512 instruction that scales by a float exponent."""

_CURRENT_ROUNDING = 4  # instruction operand: use the current rounding mode


def has_scale_by(x: Real) -> bool:
    """Whether `scale_by` is one instruction per register of `x`."""
    lanes = lanes_of(x.v.type)
    fits = lanes in _SCALED_LANES or lanes % _SCALED_LANES[-1] == 0
    return _has_scaling(x) and lanes > 1 and fits


def scale_by(x: Real, n: Real) -> Real:
    """`scale` by an integer in float format; requires `has_scale_by`.

    LLVM has only a target-specific intrinsic for it, which takes one register.
    """
    lanes, largest = lanes_of(x.v.type), _SCALED_LANES[-1]
    if lanes > largest:
        front, back = range(lanes - largest), range(lanes - largest, lanes)
        low, high = (scale_by(x.pick(part), n.pick(part)) for part in (front, back))
        wide = high.pick([*range(largest), *[0] * (lanes - 2 * largest)])  # pad to equal lengths
        return Real(x.e, x.e.shuffle(low.v, wide.v, range(lanes)))
    every = int_const((1 << lanes) - 1, f"i{max(lanes, 8)}")
    rounding = (int_const(_CURRENT_ROUNDING, "i32"),) if lanes == largest else ()
    name = f"x86.avx512.mask.scalef.ps.{32 * lanes}"
    return Real(x.e, x.e.intrinsic(name, x.v.type, x.v, n.v, x.v, every, *rounding))


def _has_scaling(x: Real) -> bool:
    return not x.is_double and x.e.module.target.has("avx512f", "avx512vl")


def _exponent(like: Real) -> tuple[int, int]:
    """The exponent bias, and the position of the exponent field."""
    return (1023, 52) if like.is_double else (127, 23)
