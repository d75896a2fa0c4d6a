"""Special functions against slow references, at special values, near zeros and poles."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from blockwright import ir
from blockwright.support import special_functions as slow

INF, NAN = math.inf, math.nan
REFERENCE: dict[str, Callable[[float], float]] = {
    "erfc": math.erfc,
    "erfcx": slow.erfcx,
    "erfinv": slow.erfinv,
    "lgamma": slow.lgamma,
    "digamma": slow.digamma,
    "i0": partial(slow.bessel_i, 0, scaled=False),
    "i0e": partial(slow.bessel_i, 0, scaled=True),
    "i1": partial(slow.bessel_i, 1, scaled=False),
    "i1e": partial(slow.bessel_i, 1, scaled=True),
}
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.75, 2.25, 2.5, -2.5, 8.0, -8.0, 7.999, INF,
    -INF, NAN, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 1.4616321, 0.99999994, -0.99999994,
    1.0000001, 1.9999999, 2.0000002, 30.5, -26.6, 9.19, 88.7, 92.0, -2.4570247, -100.5, 1e6, -1e6,
]  # fmt: skip
# Results near a zero of these have the error of numbers near 1.
NEAR_ZERO = {"lgamma": 1e-9, "digamma": 4e-15}


def numbers(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    near, wide = rng.standard_normal(400) * 2, rng.standard_normal(300) * 20
    inside = rng.uniform(-1, 1, 300)
    ends = 1 - 10.0 ** -rng.uniform(0, 7, 100)
    tiny = 10.0 ** -rng.uniform(0, 37, 60)
    x = np.concatenate([SPECIAL, near, wide, inside, ends, tiny, -tiny]).astype(dtype)
    return x[: len(x) // 8 * 8]


def assert_close(name: str, x: np.ndarray, got: np.ndarray, ulp: float) -> None:
    exact = np.vectorize(REFERENCE[name], otypes=[np.float64])(x.astype(np.float64))
    rounded = exact.astype(got.dtype)
    for test in (np.isnan, np.isinf):
        assert np.array_equal(test(got), test(rounded)), (name, x[test(got) != test(rounded)])
    known = ~np.isnan(rounded)
    assert np.array_equal(np.signbit(got[known]), np.signbit(rounded[known])), name
    finite = np.isfinite(rounded)
    unit = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    error = np.abs(got[finite].astype(np.float64) - exact[finite]) - NEAR_ZERO.get(name, 0.0)
    worst = int(np.argmax(error / unit))
    assert error[worst] <= ulp * unit[worst], (
        f"{name}({x[finite][worst]!r}) is {got[finite][worst]!r}, "
        f"{error[worst] / unit[worst]:.2f} ulp from {exact[finite][worst]!r}"
    )


@pytest.mark.parametrize(("dtype", "lanes", "ulp"), [("float32", 8, 0.6), ("float64", 4, 12.0)])
def test_special_functions(
    dtype: str, lanes: int, ulp: float, evaluate: Callable[..., np.ndarray]
) -> None:
    """The references are themselves a few units from the exact values."""
    x = numbers(dtype)
    names = list(REFERENCE)
    got = evaluate([partial(ir.call, n) for n in names], [x], dtype, lanes)
    for name, row in zip(names, got, strict=True):
        assert_close(name, x, row, ulp)


def test_ends_of_double_precision(evaluate: Callable[..., np.ndarray]) -> None:
    """Where double precision overflows, and next to 1."""
    x = np.array([712.5, -712.5, 709.0, 714.5, 1e300, 1 - 2**-53, -(1 - 2**-53), 1e-300])
    names = ["i0", "i1", "i0e", "i1e", "erfinv", "erfcx", "digamma", "erfc"]
    got = evaluate([partial(ir.call, n) for n in names], [x], "float64", 4)
    for name, row in zip(names, got, strict=True):
        assert_close(name, x, row, 40.0)


def test_references() -> None:
    """Values of tables."""
    known = {
        ("erfcx", 1.0): 0.427583576155807, ("erfcx", 10.0): 0.0561409927438226,
        ("erfcx", -2.0): 108.940904389977, ("erfinv", 0.5): 0.476936276204470,
        ("erfinv", 0.999): 2.32675376551352, ("digamma", 1.0): -0.577215664901533,
        ("digamma", -0.5): 0.0364899739785765, ("digamma", 10.0): 2.25175258906672,
        ("i0", 1.0): 1.26606587775201, ("i1", 1.0): 0.565159103992485,
        ("i0", 50.0): 2.93255378384934e20, ("i1e", 40.0): 0.0624822290744421,
    }  # fmt: skip
    for (name, x), value in known.items():
        assert REFERENCE[name](x) == pytest.approx(value, rel=2e-14), (name, x)
