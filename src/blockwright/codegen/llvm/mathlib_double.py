"""Double-precision kernels: exp, log, log2, and the kernels that single precision shares.

Errors: exp and log stay below 2 ulp of a double. Single-precision functions that are computed in
double precision and rounded once are accurate to 0.51 ulp.
"""

from __future__ import annotations

import math

from blockwright.codegen.llvm.real import Real, fma, nearest, polynomial, scale

_LN2_HI, _LN2_LO = float.fromhex("0x1.62E42FEFA3800p-1"), float.fromhex("0x1.EF35793C76730p-45")
_EXP_TAYLOR = tuple(1.0 / math.factorial(k) for k in range(14))
# log m = 2 atanh s, s = (m - 1) / (m + 1), |s| < 0.172
_ATANH = tuple(2.0 / (2 * k + 3) for k in range(11))
_SIN_TAYLOR = tuple((-1.0) ** (k + 1) / math.factorial(2 * k + 3) for k in range(6))
_COS_TAYLOR = tuple((-1.0) ** k / math.factorial(2 * k) for k in range(8))
_HALF_PI = (float.fromhex("0x1.921FB54442D18p0"), float.fromhex("0x1.1A62633145C07p-54"))


def exp(x: Real) -> Real:
    """e^x: with x = n ln 2 + r and |r| <= ln 2 / 2, the Taylor series of e^r to r^13."""
    x = x.at_most(710.0).at_least(-746.0)
    n, whole = nearest(x, 1.0 / math.log(2.0))
    r = fma(n, -_LN2_LO, fma(n, -_LN2_HI, x))
    return scale(polynomial(r, _EXP_TAYLOR), n, whole)


def exp2(x: Real) -> Real:
    """2^x; the fraction is exact, so only its product with ln 2 is rounded."""
    x = x.at_most(1025.0).at_least(-1076.0)
    n, whole = nearest(x)
    return scale(polynomial((x - n) * math.log(2.0), _EXP_TAYLOR), n, whole)


def _split(x: Real) -> tuple[Real, Real]:
    """Exponent k and s = (m-1)/(m+1), where x = 2^k m and m is in [sqrt 1/2, sqrt 2); x > 0."""
    tiny = x.test("olt", 2.0**-1022)
    bits = (x * 2.0**54).where(tiny, x).bits()
    k = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = (bits - (k << 52)).as_real(x)
    exponent = k.to_real(x)
    return (exponent - 54.0).where(tiny, exponent), (m - 1.0) / (m + 1.0)


def special_log(x: Real, result: Real) -> Real:
    """Set the result to -inf at 0 and NaN below; propagate infinity and NaN."""
    inside = x.e.binary("and", x.test("ogt", 0.0), x.test("olt", math.inf))
    edge = x.const(math.nan).where(x.test("olt", 0.0), x)
    edge = x.const(-math.inf).where(x.test("oeq", 0.0), edge)
    return result.where(inside, edge)


def log(x: Real) -> Real:
    """Natural logarithm."""
    k, s = _split(x)
    s2 = s * s
    tail = fma(s * s2, polynomial(s2, _ATANH), k * _LN2_LO)
    return special_log(x, fma(k, _LN2_HI, tail + s * 2.0))


def log2(x: Real) -> Real:
    """Binary logarithm; exact for powers of two."""
    k, s = _split(x)
    s2 = s * s
    natural = fma(s * s2, polynomial(s2, _ATANH), s * 2.0)
    return special_log(x, fma(natural, 1.0 / math.log(2.0), k))


def log1p(x: Real) -> Real:
    """log(1 + x), with a first-order correction of the rounding error of 1 + x."""
    u = x + 1.0
    lost = (x - (u - 1.0)) / u
    result = log(u) + lost
    result = result.where(x.test("ogt", -1.0), log(u))
    return x.where(x.test("oeq", math.inf), result).with_sign_of(x)


def expm1(x: Real) -> Real:
    """e^x - 1, accurate to single precision: a short series avoids cancellation near 0."""
    near = abs(x).test("olt", 2.0**-18)
    return fma(x * x, 0.5, x).where(near, exp(x) - 1.0).with_sign_of(x)


def sinh(x: Real) -> Real:
    """(e^x - e^-x) / 2, accurate to single precision."""
    grown = exp(x)
    near = abs(x).test("olt", 2.0**-9)
    return fma(x * x * x, 1.0 / 6.0, x).where(near, (grown - 1.0 / grown) * 0.5)


def cosh(x: Real) -> Real:
    grown = exp(x)
    return (grown + 1.0 / grown) * 0.5


def sin_cos(x: Real) -> tuple[Real, Real]:
    """Sine and cosine, accurate to single precision for |x| < 2^40; pi/2 is in two parts."""
    n, quadrant = nearest(x, 2.0 / math.pi)
    r = fma(n, -_HALF_PI[1], fma(n, -_HALF_PI[0], x))
    r2 = r * r
    s = x.where(x.test("oeq", 0.0), fma(r * r2, polynomial(r2, _SIN_TAYLOR), r))  # keeps -0
    c = polynomial(r2, _COS_TAYLOR)
    swap = (quadrant & 1).equals(1)
    sine, cosine = c.where(swap, s), s.where(swap, c)
    flip_sine = (quadrant & 2) << 62
    flip_cosine = ((quadrant + 1) & 2) << 62
    return (
        (sine.bits() ^ flip_sine).as_real(x),
        (cosine.bits() ^ flip_cosine).as_real(x),
    )


def power(x: Real, y: Real) -> Real:
    """x^y for operands from single precision, with the special values of IEEE 754."""
    e, magnitude = x.e, abs(x)
    result = exp2(y * log2(magnitude))
    whole = y.test("oeq", y.unary("trunc"))
    half = y * 0.5
    odd = e.binary("and", whole, half.test("une", half.unary("trunc")))
    negative = (x.bits().logical_right(63)).equals(1)
    result = (-result).where(e.binary("and", negative, odd), result)
    finite_negative = e.binary("and", x.test("olt", 0.0), x.test("ogt", -math.inf))
    fraction = y.test("one", y.unary("trunc"))
    result = x.const(math.nan).where(e.binary("and", finite_negative, fraction), result)
    unit_and_infinite = e.binary("and", magnitude.test("oeq", 1.0), abs(y).test("oeq", math.inf))
    result = x.const(1.0).where(unit_and_infinite, result)
    one = e.binary("or", x.test("oeq", 1.0), y.test("oeq", 0.0))
    return x.const(1.0).where(one, result)
