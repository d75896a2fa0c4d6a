"""Stores of narrow integers under masks write the lanes of the mask and nothing behind them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import blockwright as bw
from blockwright.codegen.llvm.masked_stores import may_narrow, with_scalar_stores

PAIRS = [
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("float32", "int8"),
    ("int32", "int8"),
    ("int32", "uint8"),
    ("int32", "int16"),
    ("int64", "int32"),
    ("int64", "int8"),
    ("int16", "int8"),
]
LANES = 16


def _array(values: np.ndarray, dtype: str) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_tail_of_any_length_ends_where_it_ends(source: str, target: str) -> None:
    """What lies behind a tail keeps its value; a mask of a single lane may be anywhere."""
    kernels = "".join(
        f"""
    @T.prim_func
    def {name}(x: T.Buffer(({LANES},), "{source}"), y: T.Buffer(({3 * LANES},), "{target}")):
        for v in T.vectorized({LANES}):
            if {condition}:
                y[{LANES} + v] = T.Cast("{target}", x[v])
"""
        for name, condition in _conditions()
    )
    built = bw.build(bw.from_source(f"@I.ir_module\nclass Module:{kernels}"))
    x = _array(np.arange(1, LANES + 1), source)
    for name, condition in _conditions():
        y, expected = (_array(np.full(3 * LANES, 99), target) for _ in range(2))
        built[name](x, y)
        for v in range(LANES):
            if eval(condition, {"v": v}):
                expected[LANES + v] = x[v]
        np.testing.assert_array_equal(y.astype("float32"), expected.astype("float32"), name)


def _conditions() -> list[tuple[str, str]]:
    first = [(f"first_{n}", f"v < {n}") for n in (1, 2, 3, 15)]
    return [*first, *((f"only_{n}", f"v == {n}") for n in (1, 7, 8, 15)), ("last", "v > 14")]


TEXT = """\
  call void @llvm.masked.store.v4i8.p0(<4 x i8> %t, ptr align 4 %p, <4 x i1> <{mask}>), !tbaa !3
"""


def test_only_constant_masks_of_one_lane_are_replaced() -> None:
    def mask(*lanes: int) -> str:
        bits = ("true" if k in lanes else "false" for k in range(4))
        return ", ".join(f"i1 {bit}" for bit in bits)

    one = TEXT.format(mask=mask(2))
    assert may_narrow(one)
    assert with_scalar_stores(one).splitlines() == [
        "  %masked.lane.0 = extractelement <4 x i8> %t, i64 2",
        "  %masked.place.0 = getelementptr i8, ptr %p, i64 2",
        "  store i8 %masked.lane.0, ptr %masked.place.0, align 2",
    ]
    for lanes in ((), (0, 1), (0, 1, 2, 3)):
        text = TEXT.format(mask=mask(*lanes))
        assert with_scalar_stores(text) == text
    variable = one.replace(f"<{mask(2)}>", "%m")
    assert with_scalar_stores(variable) == variable
    assert not may_narrow(one.replace("v4i8", "v4f32"))
