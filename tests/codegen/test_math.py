"""Mathematical functions against NumPy in higher precision, with bounds in last places."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockwright import ir

SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, -3.5, 2.0, -2.0, 10.0, math.inf,
    -math.inf, math.nan, 1e-45, -1e-45,
    1e-38, 3.4e38, -3.4e38, 88.7, -103.9, -87.4, 127.9, 128.0, -149.0, -150.0,
]  # fmt: skip
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _expit(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


REFERENCE: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: 10.0**x, "expm1": np.expm1, "log": np.log,
    "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "erf": _erf,
    "sigmoid": _expit, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "nearbyint": np.rint, "round": np.rint,
    "abs": np.abs,
}  # fmt: skip
# Bounds in units in the last place; the C library's own functions get 2.
ULP = {
    "exp": 1.0, "exp2": 1.0, "log": 1.0, "tanh": 2.6, "sigmoid": 2.5, "erf": 1.2, "rsqrt": 1.5,
    "tan": 1.4, "sin": 0.6, "cos": 0.6, "exp10": 0.51, "expm1": 0.51, "log1p": 0.51, "log2": 0.51,
    "log10": 0.51, "sinh": 0.51, "cosh": 0.51, "sqrt": 0.5, "abs": 0.0, "floor": 0.0, "ceil": 0.0,
    "trunc": 0.0, "nearbyint": 0.0, "round": 0.0, "pow": 0.51,
}  # fmt: skip


def samples(count: int) -> np.ndarray:
    """Special values, every magnitude, and where models live."""
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = (rng.standard_normal(count) * 3).astype(np.float32)
    wide = (rng.standard_normal(count) * 40).astype(np.float32)
    one = (1 + rng.standard_normal(count) * 1e-3).astype(np.float32)
    x = np.concatenate([np.array(SPECIAL, np.float32), bits, near, wide, one])
    return x[: len(x) // 16 * 16]


def assert_close(name: str, got: np.ndarray, exact: np.ndarray, bound: float) -> None:
    """`got` is within `bound` units of its last place of `exact`; NaN and infinities agree."""
    rounded = exact.astype(got.dtype)
    assert np.array_equal(np.isnan(got), np.isnan(rounded)), name
    assert np.array_equal(np.isinf(got), np.isinf(rounded)), name
    ordered = ~np.isnan(rounded)
    assert np.array_equal(np.signbit(got[ordered]), np.signbit(rounded[ordered])), name
    finite = np.isfinite(rounded)
    unit = np.spacing(np.abs(rounded[finite])).astype(exact.dtype)
    error = np.abs(got[finite].astype(exact.dtype) - exact[finite]) / unit
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{name}: {error[worst]} ulp for result {rounded[finite][worst]}"


@pytest.mark.parametrize("lanes", [1, 16])
def test_single_precision(lanes: int, evaluate: Callable[..., np.ndarray]) -> None:
    x = samples(1 << (12 if lanes == 1 else 15))
    names = list(REFERENCE)
    got = evaluate([lambda a, n=n: ir.call(n, a) for n in names], [x], "float32", lanes)
    for name, row in zip(names, got, strict=True):
        assert_close(name, row, REFERENCE[name](x.astype(np.float64)), ULP.get(name, 2.0))


@pytest.mark.parametrize("lanes", [1, 8])
def test_double_precision(lanes: int, evaluate: Callable[..., np.ndarray]) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([SPECIAL, rng.standard_normal(4000) * 3, rng.standard_normal(4000) * 300])
    x = x[: len(x) // 8 * 8]
    names = [n for n in REFERENCE if n != "erf"]
    got = evaluate([lambda a, n=n: ir.call(n, a) for n in names], [x], "float64", lanes)
    for name, row in zip(names, got, strict=True):
        assert_close(name, row, REFERENCE[name](x.astype(np.longdouble)), 2.5)


@pytest.mark.parametrize("name", ["sin", "cos", "tan", "exp", "tanh", "erf"])
def test_few_lanes(name: str, evaluate: Callable[..., np.ndarray]) -> None:
    """Vector lengths that are no power of two, or longer than a register."""
    x = samples(1 << 8)[:960]
    for lanes in (3, 4, 5, 8, 32, 48):
        got = evaluate([lambda a: ir.call(name, a)], [x], "float32", lanes)
        assert_close(name, got[0], REFERENCE[name](x.astype(np.float64)), ULP[name])


@pytest.mark.parametrize("lanes", [1, 3, 8, 16, 48])
def test_exponentials_flushed_to_zero(lanes: int, evaluate: Callable[..., np.ndarray]) -> None:
    """Right to two units of the last place around 1, and to five anywhere; what is less than the
    least normal number may be 0, what is more than 2^127 infinite."""
    x = samples(1 << 12)
    x = x[: len(x) // 48 * 48]
    (got,) = evaluate([lambda a: ir.call("exp_ftz", a)], [x], "float32", lanes)
    exact = np.exp(x.astype(np.float64))
    least, most = float(np.finfo(np.float32).tiny), 2.0**127
    assert np.all((got[exact < least] >= 0) & (got[exact < least] <= np.float32(least)))
    assert np.all(got[exact > most] > most / 2)
    assert np.all(got[x == -np.inf] == 0)
    assert np.all(got[x == np.inf] == np.inf)
    assert np.array_equal(np.isnan(got), np.isnan(x))
    for away, bound in ((2.0, 2.3), (87.0, 5.5)):
        near = abs(x) < away
        assert_close("exp_ftz", got[near], exact[near], bound)
    assert got[x == 0].tolist() == [1.0] * int(np.sum(x == 0))


def test_power(evaluate: Callable[..., np.ndarray]) -> None:
    grid = np.array([(a, b) for a in SPECIAL for b in SPECIAL], np.float32)
    rng = np.random.default_rng(1)
    base = np.concatenate([grid[:, 0], samples(1 << 12)])
    exponent = np.round(rng.standard_normal(len(base)) * 5) / rng.choice([1, 1, 3], len(base))
    exponent = exponent.astype(np.float32)
    exponent[: len(grid)] = grid[:, 1]
    count = len(base) // 16 * 16
    base, exponent = base[:count], exponent[:count]
    got = evaluate([lambda a, b: ir.call("pow", a, b)], [base, exponent], "float32", 16)
    exact = np.power(base.astype(np.float64), exponent.astype(np.float64))
    assert_close("pow", got[0], exact, ULP["pow"])


@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_small_constant_power(exponent: float, evaluate: Callable[..., np.ndarray]) -> None:
    x = samples(256)
    y = ir.const(exponent, "float32x16")
    got = evaluate([lambda a: ir.call("pow", a, y)], [x], "float32", 16)
    assert_close("pow", got[0], x.astype(np.float64) ** exponent, 1.5)


BINARY: dict[str, Any] = {
    "atan2": np.arctan2, "fmod": np.fmod, "hypot": np.hypot, "copysign": np.copysign,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_operands(dtype: str, evaluate: Callable[..., np.ndarray]) -> None:
    grid = np.array([(a, b) for a in SPECIAL for b in SPECIAL], dtype)
    x, y = grid[:, 0].copy(), grid[:, 1].copy()
    names = list(BINARY)
    got = evaluate([lambda a, b, n=n: ir.call(n, a, b) for n in names], [x, y], dtype, 8)
    for name, row in zip(names, got, strict=True):
        exact = BINARY[name](x.astype(np.longdouble), y.astype(np.longdouble))
        assert_close(name, row, np.asarray(exact), 1.0)


def every(dtype: str) -> np.ndarray:
    """All numbers of a type of at most 16 bits."""
    type_ = ir.dtype_of(dtype)
    return np.arange(1 << type_.bits, dtype=f"u{type_.numpy().itemsize}").view(type_.numpy())


NARROW = [
    "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn",
]  # fmt: skip


@pytest.mark.parametrize("dtype", [*NARROW, "float32", "float64"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_neighbors(dtype: str, lanes: int, evaluate: Callable[..., np.ndarray]) -> None:
    """The neighbor is one of the type itself, for every number of the narrow types."""
    numpy_type = ir.dtype_of(dtype).numpy()
    ends = [0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan, 1e-40, -6e-8, 448.0, -6.0]
    with np.errstate(all="ignore"):
        ends = np.array(ends).astype(numpy_type)
    if dtype in NARROW:
        numbers = every(dtype)
        ends = np.concatenate([ends, numbers[[0, 1, -1, 3, 8]]]) if lanes == 1 else ends
    else:
        info = np.finfo(dtype)
        near = [info.max, info.tiny, info.smallest_subnormal, 1.0, 3.25]
        numbers = np.concatenate([ends, np.array(near, dtype), -np.array(near, dtype)])
        numbers = numbers[: len(numbers) // 4 * 4]
    x, y = np.tile(numbers, len(ends)), np.repeat(ends, len(numbers))
    got = evaluate([lambda a, b: ir.call("nextafter", a, b)], [x, y], dtype, lanes)[0]
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    unordered = np.isnan(wide_x) | np.isnan(wide_y)
    with np.errstate(all="ignore"):
        # C returns the second of equal operands, also if they are zeros of different signs
        want = np.where(wide_x == wide_y, y, np.nextafter(x, y)).astype(numpy_type)
    assert np.array_equal(np.isnan(got.astype(np.float64)), unordered)
    bits = f"u{numpy_type.itemsize}"
    assert np.array_equal(got.view(bits)[~unordered], want.view(bits)[~unordered])


def test_tests_for_special_values(evaluate: Callable[..., np.ndarray]) -> None:
    x = samples(64)
    names = ["isnan", "isinf", "isfinite"]
    got = evaluate([lambda a, n=n: ir.call(n, a) for n in names], [x], "bool", 16)
    for name, row in zip(names, got, strict=True):
        assert np.array_equal(row, getattr(np, name)(x)), name
