"""Conversions that the verifier leaves out: exactly those to types that hold every value."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("islpy")

from blockwright import ir
from blockwright.verify import verify
from blockwright.verify.model.operators import (
    _carries,  # pyright: ignore[reportPrivateUsage]
)
from tests.verify.pairs import program

SMALL = (
    "int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16", "float4_e2m1fn",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float16", "bfloat16",
)  # fmt: skip
LARGE = ("int32", "uint32", "int64", "uint64", "float32", "float64")


def every_value(name: str) -> Any:
    """All values of a type of at most 16 bits, as float64."""
    dtype = ir.dtype_of(name)
    if dtype.is_int:
        return np.arange(dtype.min_value, dtype.max_value + 1).astype(np.float64)
    codes = np.arange(1 << dtype.bits, dtype=np.uint16 if dtype.bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):
        return codes.view(dtype.numpy()).astype(np.float64)


def holds(wide: str, values: Any) -> bool:
    """Whether each value is still the same after it was converted to a type."""
    dtype = ir.dtype_of(wide)
    if dtype.is_int:
        whole = np.isfinite(values) & (values == np.trunc(values)) & ~_is_negative_zero(values)
        inside = (values >= float(dtype.min_value)) & (values <= float(dtype.max_value))
        return bool((whole & inside).all())
    with np.errstate(all="ignore"):
        kept = values.astype(dtype.numpy()).astype(np.float64)
    same = (kept == values) & (np.signbit(kept) == np.signbit(values))
    return bool((same | (np.isnan(kept) & np.isnan(values))).all())


def _is_negative_zero(values: Any) -> Any:
    return (values == 0) & np.signbit(values)


@pytest.mark.parametrize("narrow", SMALL)
def test_a_type_carries_another_exactly_if_it_holds_every_value(narrow: str) -> None:
    values = every_value(narrow)
    for wide in (*SMALL, *LARGE):
        if ir.dtype_of(wide).is_int and not ir.dtype_of(narrow).is_int:
            assert not _carries(wide, narrow)  # an integer has no fractions, infinities and -0.0
            continue
        assert _carries(wide, narrow) == holds(wide, values), (wide, narrow)


@pytest.mark.parametrize(
    ("source", "between", "kept"),
    [
        ("float4_e2m1fn", "float8_e4m3fnuz", False),
        ("float4_e2m1fn", "float8_e4m3fn", True),
        ("int2", "float8_e8m0fnu", False),
        ("int2", "float4_e2m1fn", True),
        ("float8_e5m2fnuz", "float16", True),
        ("float8_e5m2", "float8_e5m2fnuz", False),
    ],
)
def test_a_detour_through_a_type(source: str, between: str, kept: bool) -> None:
    """The types `fnuz` have no -0.0, and `float8_e8m0fnu` has no 0."""
    texts = (f'T.Cast("{between}", X[vi])', "X[vi]")
    first, second = (
        program(
            f"X:{source}[8]; B[8]",
            f"""
            for i in range(8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    B[vi] = T.float32(1) / T.Cast("float32", {text})
            """,
        )
        for text in texts
    )
    assert (verify(first, second).verdict == "proved") == kept
    assert (verify(second, first).verdict == "proved") == kept


def test_types_that_carry_each_other_are_equal() -> None:
    for a, b in itertools.combinations((*SMALL, *LARGE), 2):
        assert not (_carries(a, b) and _carries(b, a)), (a, b)
