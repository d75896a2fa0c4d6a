"""BFDOT in exact rational numbers: an oracle that shares nothing with `intrin.round_to_odd`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

SMALLEST = Fraction(2) ** -126


def rounded(exact: Fraction) -> float:
    """A number that is not 0, as a float32: truncated, the last bit set if that lost anything."""
    sign, size = (-1.0 if exact < 0 else 1.0), abs(exact)
    if size < SMALLEST:
        return math.copysign(0.0, sign)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    if exponent > 127:
        return sign * math.inf
    unit = Fraction(2) ** (exponent - 23)
    digits = size // unit
    return sign * float((digits | (digits * unit != size)) * unit)


def flushed(x: float) -> float:
    return math.copysign(0.0, x) if abs(x) < float(SMALLEST) else x


def added(x: float, y: float) -> float:
    finite = math.isfinite(x) and math.isfinite(y)
    exact = Fraction(x) + Fraction(y) if finite else 0
    return rounded(exact) if exact else x + y


def multiplied(x: float, y: float) -> float:
    x, y = flushed(x), flushed(y)
    finite = math.isfinite(x) and math.isfinite(y)
    exact = Fraction(x) * Fraction(y) if finite else 0
    return rounded(exact) if exact else x * y


def dot(total: float, a: Any, b: Any) -> float:
    """The accumulator after each pair of products."""
    for k in range(0, len(a), 2):
        pair = (multiplied(float(a[i]), float(b[i])) for i in (k, k + 1))
        total = added(flushed(total), added(*pair))
    return total


def operands(seed: int, wide: int, lanes: int) -> tuple[Any, Any, Any]:
    """Random bit patterns; most seeds draw exponents near each other, near 0 or near infinity."""
    rng = np.random.default_rng(seed)
    ranges = [(0, 256), (120, 130), (60, 68), (186, 194), (100, 150)]
    low, high = ranges[seed % len(ranges)]
    a, b = (_numbers(rng, wide, low, high, 7).astype(np.uint16) for _ in range(2))
    ends = {60: (0, 6), 186: (246, 256)}.get(low, (low, high))
    c = _numbers(rng, lanes, *ends, 23)
    return a.view(ml_dtypes.bfloat16), b.view(ml_dtypes.bfloat16), c.view(np.float32)


def _numbers(rng: np.random.Generator, count: int, low: int, high: int, digits: int) -> Any:
    fraction = rng.integers(0, 1 << digits, count, dtype=np.uint32)
    sign = rng.integers(0, 2, count, dtype=np.uint32) << (digits + 8)
    return sign | rng.integers(low, high, count, dtype=np.uint32) << digits | fraction


def assert_same_bits(got: Any, want: Any) -> None:
    """Equal bit by bit; any NaN equals any other."""
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    np.testing.assert_array_equal(got[~same], want[~same])
    assert same.all()
