"""What a masked store has just written goes on to its reader in a register."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from blockwright import ir
from blockwright.script import tir as T


def row(length: int, read: int | None = None, first: int = 0) -> ir.PrimFunc:
    """Rows that are computed and summed in one pass, the last few elements under a mask."""
    taken = length % 8 if read is None else read
    whole = length // 8 * 8

    @T.prim_func
    def total(A: T.Buffer((5, length)), B: T.Buffer((5, length)), S: T.Buffer((5, 8))):
        for i in range(5):
            for v in T.vectorized(8):
                if v < length % 8:
                    B[i, whole + v] = A[i, whole + v] * A[i, whole + v]
            for v in T.vectorized(8):
                S[i, v] = S[i, v] + T.if_then_else(v < taken, B[i, whole + v - first], T.float32(0))

    return total


def masked_loads(func: ir.PrimFunc, name: str) -> int:
    loads = ir.collect(func.body, ir.BufferLoad)
    return sum(load.buffer.name.startswith(name) and load.predicate is not None for load in loads)


@pytest.mark.parametrize("length", [11, 12, 13, 15])
def test_the_end_of_a_row_is_not_read_back(
    same_result: Callable[..., ir.PrimFunc], length: int
) -> None:
    """Three or four are stored as a vector of four, more as one of eight, as which all are read."""
    a = np.random.default_rng(0).standard_normal((5, length)).astype("f4")
    lowered = same_result(row(length), a, np.zeros_like(a), np.ones((5, 8), "f4"))
    assert len(ir.collect(lowered.body, ir.Shuffle)) == 1
    assert masked_loads(lowered, "B") == 0


@pytest.mark.parametrize(("read", "first"), [(2, 0), (3, 1), (3, 4)])
def test_other_elements_are_read_from_memory(
    same_result: Callable[..., ir.PrimFunc], read: int, first: int
) -> None:
    """Fewer of them, or from another place on: what is before in the row was written earlier."""
    a = np.random.default_rng(0).standard_normal((5, 11)).astype("f4")
    lowered = same_result(row(11, read, first), a, np.ones_like(a), np.ones((5, 8), "f4"))
    assert not ir.collect(lowered.body, ir.Shuffle)
    assert masked_loads(lowered, "B") == 1
