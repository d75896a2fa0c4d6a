"""Elementwise math functions as polynomial approximations on vectors of any length.

LLVM's own intrinsics for these become one library call per lane; the functions here stay in vector
registers. NaN and infinities follow IEEE 754 and C. Denormal results are preserved, except by
exp_ftz. Error bounds in units in the last place against the exact result, over all inputs:

    f32  exp, exp2, log 1 · tanh 2.6 · sigmoid 2.5 · erf 1.2 · sin, cos 0.6 · tan 1.4 · pow, exp10,
         expm1, log1p, log2, log10, sinh, cosh 0.51 · sqrt 0.5 · rsqrt 1.5
         exp_ftz 2.3 from -2 to 2, 5.5 elsewhere
    f64  exp 1 · log 2 · sigmoid 2.5 · sqrt 0.5 · rsqrt 1.5

Special functions (`mathlib_special`) have 0.6 in f32, a few in f64.

rsqrt is 1 / sqrt x, with both operations rounded.

All other functions are calls of the C library, lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from blockwright.codegen.llvm import mathlib_double as double
from blockwright.codegen.llvm import mathlib_special as special
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.real import (
    Real,
    fma,
    has_scale_by,
    nearest,
    nearest_power,
    polynomial,
    scale,
    scale_by,
)
from blockwright.codegen.llvm.values import Value, element_of, lanes_of

_LN2_HI, _LN2_LO = 0.693359375, -2.12194440e-4
_ZERO = -88.0  # nearest to -127 ln 2; 2^-127 is flushed to 0
# e^r = 1 + r + r² q(r) on |r| <= ln 2 / 2; relative error 3.2e-9
_EXP = (
    0.4999999403953552,
    0.1666651964187622,
    0.04166824370622635,
    0.00836884044110775,
    0.001382300048135221,
)
# As _EXP with one term fewer; relative error 1.1e-7
_EXP_SHORT = (0.4999922811985016, 0.16667115688323975, 0.04189055413007736, 0.008312476798892021)
# 2^f = 1 + f p(f) on |f| <= 1/2; relative error 4e-9
_EXP2 = (
    0.6931471824645996,
    0.24022643268108368,
    0.05550358444452286,
    0.009618998505175114,
    0.0013391519896686077,
    0.00015198792971204966,
)
# log(1 + f) = f - f²/2 + f³ p(f) on [sqrt(1/2) - 1, sqrt 2 - 1]; relative error 8e-10
_LOG = (
    0.3333331346511841,
    -0.25000011920928955,
    0.20002073049545288,
    -0.1666785478591919,
    0.14220233261585236,
    -0.12408196926116943,
    0.11886204034090042,
    -0.11660660058259964,
    0.06733009219169617,
)
# erf x = x + x p(x²) up to 0.92; log(1 - erf t) = t p(t) beyond; both below 1e-9 of erf
_ERF_NEAR = (
    0.12837916612625122,
    -0.37612631916999817,
    0.11283676326274872,
    -0.026858532801270485,
    0.00519914785400033,
    -0.0008123186999000609,
    8.293012797366828e-05,
)
_ERF_FAR = (
    -1.128645658493042,
    -0.6351628303527832,
    -0.10621781647205353,
    0.02374562993645668,
    -0.0036346823908388615,
    0.00032088931766338646,
    -1.103979411709588e-05,
)


def exp(x: Real) -> Real:
    """e^x."""
    x = _below(x, 89.0).at_least(-104.5)
    n, scaled = _nearest(x, 1.0 / math.log(2.0))
    r = fma(n, -_LN2_LO, fma(n, -_LN2_HI, x))
    return scaled(fma(r, fma(r, polynomial(r, _EXP), 1.0), 1.0))


def exp_ftz(x: Real) -> Real:
    """e^x; results below the least normal number may be 0, those above 2^127 infinite.

    Sufficient for softmax, whose exponentials are relative to a maximum of 1.
    """
    return _exp_flushed(x.at_most(89.0), _EXP_SHORT)


def _exp_flushed(x: Real, coefficients: tuple[float, ...]) -> Real:
    """`exp_ftz` for x up to 89. The multiple n of ln 2 is subtracted in one step, which leaves an
    error of 2e-9 n."""
    x = x.at_least(-104.5 if has_scale_by(x) else _ZERO)
    n, scaled = _nearest(x, 1.0 / math.log(2.0), flushed=True)
    r = fma(n, -math.log(2.0), x)
    return scaled(fma(r, fma(r, polynomial(r, coefficients), 1.0), 1.0))


def exp2(x: Real) -> Real:
    """2^x."""
    x = _below(x, 129.0).at_least(-151.0)
    n, scaled = _nearest(x)
    f = x - n
    return scaled(fma(f, polynomial(f, _EXP2), 1.0))


def _below(x: Real, limit: float) -> Real:
    """Clamp x to the limit from which results overflow.

    Unnecessary with scaling by floats (`scale_by`): far beyond the limit the reduced argument is
    wrong, infinite or NaN, but the polynomial is then positive or NaN, and scaling by such a large
    power or by infinity still makes the result infinite.
    """
    return x if has_scale_by(x) else x.at_most(limit)


def _nearest(
    x: Real, factor: float = 1.0, *, flushed: bool = False
) -> tuple[Real, Callable[[Real], Real]]:
    """The integer n nearest to x * factor, and a function that multiplies by 2^n.

    With `flushed`, the product may be 0 where 2^n is below the least normal number; n must be at
    least -127.
    """
    if has_scale_by(x):
        n = (x if factor == 1.0 else x * factor).unary("rint")
        return n, lambda y: scale_by(y, n)
    if flushed:
        n, power = nearest_power(x, factor)
        return n, power.__mul__
    n, whole = nearest(x, factor)
    return n, lambda y: scale(y, n, whole)


def log(x: Real) -> Real:
    """Natural logarithm."""
    tiny = x.test("olt", 2.0**-126)
    bits = (x * 2.0**23).where(tiny, x).bits()
    k = (bits - 0x3F3504F3) >> 23
    f = (bits - (k << 23)).as_real(x) - 1.0
    exponent = k.to_real(x)
    exponent = (exponent - 23.0).where(tiny, exponent)
    square = f * f
    y = fma(exponent, _LN2_LO, square * f * polynomial(f, _LOG))
    y = fma(square, -0.5, y)
    return double.special_log(x, fma(exponent, _LN2_HI, f + y))


def _expm1_negative(x: Real) -> Real:
    """e^x - 1 for x <= 0, where neither overflow nor denormals can occur."""
    x = x.at_least(-30.0)
    n, s = nearest_power(x, 1.0 / math.log(2.0))
    r = fma(n, -math.log(2.0), x)
    q = fma(r * r, polynomial(r, _EXP), r)
    return fma(s, q, s - 1.0)


def tanh(x: Real) -> Real:
    """-m / (m + 2) with m = e^(-2|x|) - 1, which has no cancellation."""
    m = _expm1_negative(abs(x) * -2.0)
    return (-m / (m + 2.0)).with_sign_of(x)


def sigmoid(x: Real) -> Real:
    """1 / (1 + e^-x), computed with e^-|x| so that small results keep their precision."""
    decay = double.exp(-abs(x)) if x.is_double else exp(-abs(x))
    return x.const(1.0).where(x.test("oge", 0.0), decay) / (decay + 1.0)


def erf(x: Real) -> Real:
    """x + x p(x²) near zero, 1 - e^(t p(t)) beyond."""
    t = abs(x)
    near = fma(x, polynomial(x * x, _ERF_NEAR), x)
    t = t.at_most(3.95)
    far = (1.0 - _exp_flushed(t * polynomial(t, _ERF_FAR), _EXP)).with_sign_of(x)
    return near.where(abs(x).test("olt", 0.92), far)


def rsqrt(x: Real) -> Real:
    return 1.0 / x.unary("sqrt")


def _through_double(function: Callable[..., Real]) -> Callable[..., Real]:
    """Compute a single-precision function in double precision."""

    def apply(*args: Real) -> Real:
        return function(*(a.convert("double") for a in args)).convert("float")

    return apply


def _circular(which: str) -> Callable[[Real], Real]:
    def apply(x: Real) -> Real:
        sine, cosine = double.sin_cos(x)
        return {"sin": sine, "cos": cosine, "tan": sine / cosine}[which]

    core = _through_double(apply)

    def guarded(x: Real) -> Real:
        # Above this limit, reduction by pi in two parts is not accurate enough.
        small = abs(x).test("ult", 2.0**38)
        e, lanes = x.e, lanes_of(x.v.type)
        every = small if lanes == 1 else e.intrinsic(f"vector.reduce.and.v{lanes}i1", "i1", small)
        return Real(e, e.choose(every, lambda: core(x).v, lambda: library(e, which, [x.v])))

    return guarded


def _exp10(x: Real) -> Real:
    # log2(10) in two parts; the product of the first with a single-precision number is exact
    high = float.fromhex("0x1.A934F08p1")
    n, whole = nearest(x.at_most(400.0).at_least(-400.0) * high)
    x = x.at_most(400.0).at_least(-400.0)
    rest = fma(x, math.log2(10.0) - high, fma(x, high, -n))
    return scale(double.exp2(rest), n, whole)


def _log10(x: Real) -> Real:
    return double.log(x) * (1.0 / math.log(10.0))


def _clamped(function: Callable[[Real], Real]) -> Callable[[Real], Real]:
    return lambda x: function(x.at_most(700.0).at_least(-700.0))


_SPECIAL: dict[str, Callable[..., Real]] = {
    "erfcx": special.erfcx, "digamma": special.digamma, "i0": special.i0, "i0e": special.i0e,
    "i1": special.i1, "i1e": special.i1e,
}  # fmt: skip
_SINGLE: dict[str, Callable[..., Real]] = {
    "exp": exp, "exp_ftz": exp_ftz, "exp2": exp2, "log": log, "tanh": tanh, "sigmoid": sigmoid,
    "erf": erf, "rsqrt": rsqrt, "sin": _circular("sin"), "cos": _circular("cos"),
    "tan": _circular("tan"),
    "exp10": _through_double(_exp10), "expm1": _through_double(double.expm1),
    "log1p": _through_double(double.log1p), "log2": _through_double(double.log2),
    "log10": _through_double(_log10), "sinh": _through_double(_clamped(double.sinh)),
    "cosh": _through_double(_clamped(double.cosh)), "pow": _through_double(double.power),
    "erfc": _through_double(special.erfc), "erfinv": _through_double(special.erfinv_single),
    "lgamma": _through_double(special.lgamma_single),
    **{name: _through_double(function) for name, function in _SPECIAL.items()},
}  # fmt: skip
_DOUBLE: dict[str, Callable[..., Real]] = {
    "exp": double.exp, "exp_ftz": double.exp, "log": double.log, "sigmoid": sigmoid, "rsqrt": rsqrt,
    "erfinv": special.erfinv, **_SPECIAL,
}  # fmt: skip
_INTRINSICS = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "nearbyint": "nearbyint",
    "round": "roundeven", "abs": "fabs", "copysign": "copysign",
}  # fmt: skip
_LIBRARY = frozenset(
    "exp2 exp10 expm1 log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc lgamma pow atan2 fmod hypot".split()
)
NAMES = frozenset({*_SINGLE, *_INTRINSICS, *_LIBRARY})


def library(e: FunctionEmitter, name: str, args: list[Value]) -> Value:
    """Call the C library's function lane by lane."""
    element = element_of(args[0].type)
    symbol = name + ("f" if element == "float" else "")
    return e.per_lane(lambda *lanes: e.call(element, symbol, *lanes), *args)


def apply(e: FunctionEmitter, name: str, args: list[Value]) -> Value:
    """Apply the function `name` (from `NAMES`) to float or double values of equal type."""
    element = element_of(args[0].type)
    assert element in ("float", "double")
    if name in _INTRINSICS:
        return e.overloaded(_INTRINSICS[name], *args)
    values = [Real(e, a) for a in args]
    own = (_SINGLE if element == "float" else _DOUBLE).get(name)
    return own(*values).v if own is not None else library(e, name, args)
