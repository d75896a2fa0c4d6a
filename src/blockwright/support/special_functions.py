"""Special functions of Python floats, slow and accurate: the references of compiled functions.

They follow other formulas than compiled code does: continued fractions, series summed exactly, and
Halley's method with the C library's erf.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

_ROOT_PI = math.sqrt(math.pi)
_TERMS = 200  # of a continued fraction
_FAR = 30.0  # where Bessel functions' asymptotic series are accurate
_LARGEST = 1400.0  # beyond, exponentials are infinite also in two steps


def erfcx(x: float) -> float:
    """e^(x²) erfc(x)."""
    if x < -27:
        return math.inf
    if x < 2:
        square = x * x
        lost = float(Fraction(x) ** 2 - Fraction(square))
        half = math.exp(square / 2)
        return half * math.erfc(x) * half * (1 + lost)
    rest = x
    for k in range(_TERMS, 0, -1):
        rest = x + (k / 2) / rest
    return 1 / (rest * _ROOT_PI)


def erfinv(y: float) -> float:
    """The inverse of erf; NaN outside of [-1, 1]."""
    if not abs(y) < 1 or y == 0:
        return y if y == 0 else math.copysign(math.inf, y) if abs(y) == 1 else math.nan
    size, tail = abs(y), 1 - abs(y)
    log = math.log(tail * (1 + size))
    middle = 2 / (math.pi * 0.147) + log / 2
    z = math.sqrt(math.sqrt(middle * middle - log / 0.147) - middle)
    for _ in range(5):
        away = math.erfc(z) - tail if size > 0.5 else size - math.erf(z)
        step = away * _ROOT_PI / 2 * math.exp(z * z)
        z += step / (1 - z * step)
    return math.copysign(z, y)


def lgamma(x: float) -> float:
    """log |gamma(x)|; infinite at 0 and negative integers."""
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):
        return math.inf


def digamma(x: float) -> float:
    """The derivative of log gamma(x); NaN at negative integers, infinite at 0."""
    if x == 0:
        return -math.copysign(math.inf, x)
    if x < 0:
        if math.isinf(x) or x == math.floor(x):
            return math.nan
        return digamma(1 - x) - math.pi / math.tan(math.pi * (x - round(x)))
    if not x < math.inf:
        return x
    steps = max(0, math.ceil(20 - x))
    z = x + steps
    # B_2k / 2k of the asymptotic series
    series = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760)
    terms = [-c * (1 / z) ** (2 * k + 2) for k, c in enumerate(series)]
    return math.fsum([math.log(z), -0.5 / z, *terms, *(-1 / (x + k) for k in range(steps))])


def bessel_i(order: int, x: float, *, scaled: bool) -> float:
    """The modified Bessel function of order 0 or 1, times e^-|x| if it is `scaled`."""
    a = abs(x)
    if not a < math.inf:
        return x if a != a else _at_infinity(order, x, scaled)
    if a <= _FAR:
        factors = [(a / 2) ** 2 / (k * (k + order)) for k in range(1, 80)]
        size, rest = _series((a / 2) ** order, factors), -a if scaled else 0.0
    else:
        odd = [4 * order * order - (2 * k - 1) ** 2 for k in range(1, 40)]
        factors = [-number / (8 * k * a) for k, number in enumerate(odd, 1)]
        size, rest = _series(1 / math.sqrt(2 * math.pi * a), factors), 0.0 if scaled else a
    half = math.exp(min(rest, _LARGEST) / 2)
    return math.copysign(size * half * half, x if order else 1.0)


def _series(first: float, factors: Sequence[float]) -> float:
    """The sum of terms, each of which is a factor times the one before."""
    return math.fsum(accumulate(factors, operator.mul, initial=first))


def _at_infinity(order: int, x: float, scaled: bool) -> float:
    return math.copysign(0.0 if scaled else math.inf, x if order else 1.0)
