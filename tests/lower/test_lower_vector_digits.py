"""Indices of vectors in digits, such as `lane // 4, lane % 4`, are contiguous where they are."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.lower import lower


@pytest.mark.parametrize(
    ("index", "flat"),
    [
        ("T.ramp(0, 1, 16) // T.broadcast(4, 16), T.ramp(0, 1, 16) % T.broadcast(4, 16)", (0, 1)),
        ("T.ramp(8, 1, 16) // T.broadcast(4, 16), T.ramp(8, 1, 16) % T.broadcast(4, 16)", (8, 1)),
        ("T.ramp(0, 2, 8) // T.broadcast(4, 8), T.ramp(0, 2, 8) % T.broadcast(4, 8)", (0, 2)),
        ("T.ramp(0, 1, 16) // T.broadcast(8, 16), T.ramp(0, 1, 16) % T.broadcast(4, 16)", None),
    ],
)
def test_digits_of_lanes_become_a_ramp(index: str, flat: tuple[int, int] | None) -> None:
    lanes = 8 if "8)" in index.split(",")[2] else 16
    func = bw.from_source(f"""
@T.prim_func
def gather(A: T.Buffer((8, 4), "float32"), B: T.Buffer(({lanes},), "float32")):
    with T.block("B"):
        T.reads(A[0:8, 0:4])
        T.writes(B[0:{lanes}])
        B[T.ramp(0, 1, {lanes})] = A[{index}]
""")
    lowered = lower(func, "x86-64-v4")  # which has vectors of 16 lanes
    (load,) = (n for n in ir.collect(lowered.body, ir.BufferLoad) if n.dtype.lanes > 1)
    (at,) = load.indices
    if flat is None:
        assert not isinstance(at, ir.Ramp)
    else:
        assert isinstance(at, ir.Ramp)
        assert (ir.const_int(at.base), ir.const_int(at.stride)) == flat
    a = np.arange(32, dtype=np.float32).reshape(8, 4)
    got, want = (np.zeros(lanes, np.float32) for _ in range(2))
    build(func)["gather"](a, got)
    bw.interpret(func, a, want)
    np.testing.assert_array_equal(got, want)
