"""Generators of sample arrays: each is a function of a random generator, called by the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.row import Array, Sample

Maker = Callable[[np.random.Generator], Array]


def floats(*shape: int, dtype: str = "float32", low: float = -3.0, high: float = 3.0) -> Maker:
    """Uniformly distributed floats."""

    def make(rng: np.random.Generator) -> Array:
        return np.asarray(rng.uniform(low, high, shape)).astype(ir.dtype_of(dtype).numpy())

    return make


def ints(*shape: int, dtype: str = "int32", low: int = -9, high: int = 9) -> Maker:
    """Uniformly distributed integers from `low` to `high` (exclusive)."""

    def make(rng: np.random.Generator) -> Array:
        return np.asarray(rng.integers(low, high, shape)).astype(dtype)

    return make


def bools(*shape: int) -> Maker:
    """Random bools, True with probability 1/2."""

    def make(rng: np.random.Generator) -> Array:
        return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)

    return make


def values(*items: Any, dtype: str = "float32", shape: tuple[int, ...] | None = None) -> Maker:
    """The given elements."""

    def make(rng: np.random.Generator) -> Array:
        array = np.asarray(items).astype(ir.dtype_of(dtype).numpy())
        return array if shape is None else array.reshape(shape)

    return make


def special(dtype: str = "float32") -> Maker:
    """NaN, infinities, zeros of both signs, denormals, the largest numbers, ordinary numbers."""
    nan, inf = float("nan"), float("inf")
    tiny = {"float32": 1e-40, "float64": 5e-310, "float16": 1e-7}.get(dtype, 1e-39)
    huge = {"float32": 3.4e38, "float64": 1.7e308, "float16": 65504.0}.get(dtype, 3.3e38)
    return values(
        nan, inf, -inf, 0.0, -0.0, tiny, -tiny, huge, -huge, 1.0, -1.0, 0.5, -2.5, dtype=dtype
    )


def exact(*cases: tuple[Any, dict[str, Any]]) -> tuple[Sample, ...]:
    """Samples with one tensor argument whose results must be exact."""
    return tuple(Sample((array,), attrs, 0.0) for array, attrs in cases)
