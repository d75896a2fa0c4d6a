"""Special functions of one tensor: complementary and inverse error functions, log gamma and its
derivative, and modified Bessel functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from blockwright.ops.elementwise_unary import math_row
from blockwright.ops.row import OpRow
from blockwright.support import special_functions as slow


def _of_floats(function: Callable[[float], float]) -> Callable[..., Any]:
    return np.vectorize(function, otypes=[np.float64])


def _bessel(order: int, *, scaled: bool) -> Callable[..., Any]:
    return _of_floats(partial(slow.bessel_i, order, scaled=scaled))


def _names(*names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}.default" for name in names)


ROWS: tuple[OpRow, ...] = (
    math_row("erfc", _of_floats(math.erfc), torch=_names("erfc", "special_erfc")),
    math_row("erfcx", _of_floats(slow.erfcx), torch=_names("special_erfcx")),
    math_row(
        "erfinv",
        _of_floats(slow.erfinv),
        low=-0.99,
        high=0.99,
        torch=_names("erfinv", "special_erfinv"),
    ),
    math_row(
        "lgamma",
        _of_floats(slow.lgamma),
        low=9.0,
        high=30.0,
        torch=_names("lgamma", "special_gammaln"),
    ),
    math_row(
        "digamma",
        _of_floats(slow.digamma),
        low=9.0,
        high=30.0,
        torch=_names("digamma", "special_digamma", "special_psi"),
    ),
    math_row("i0", _bessel(0, scaled=False), torch=_names("i0", "special_i0")),
    math_row("i0e", _bessel(0, scaled=True), torch=_names("special_i0e")),
    math_row("i1", _bessel(1, scaled=False), torch=_names("special_i1")),
    math_row("i1e", _bessel(1, scaled=True), torch=_names("special_i1e")),
)
