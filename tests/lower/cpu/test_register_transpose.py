"""Tiles that are read across: rows are read, and turned over in registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from blockwright import ir
from blockwright.lower import lower
from blockwright.script import tir as T


def gathers(func: ir.PrimFunc) -> int:
    """Vector loads of elements that do not lie side by side."""
    indices = [load.indices[0] for load in ir.collect(func.body, ir.BufferLoad)]
    return sum(isinstance(i, ir.Ramp) and ir.const_int(i.stride) != 1 for i in indices)


def tile(size: int, dtype: str = "float32") -> ir.PrimFunc:
    @T.prim_func
    def turn(A: T.Buffer((3 * size, 50), dtype), B: T.Buffer((50, 3 * size), dtype)):
        for i in T.unroll(size):
            for v in T.vectorized(size):
                B[i + 7, v + size] = A[v + size, i + 7] + A[v + size, i + 7]

    return turn


@pytest.mark.parametrize(
    ("size", "dtype"), [(4, "float64"), (8, "float64"), (4, "int8"), (16, "float32"), (16, "int16")]
)
def test_rows_are_read_and_turned_over(
    same_result: Callable[..., ir.PrimFunc], size: int, dtype: str
) -> None:
    a = np.arange(3 * size * 50).reshape(3 * size, 50).astype(dtype)
    lowered = same_result(tile(size, dtype), a, np.zeros((50, 3 * size), dtype))
    assert gathers(lowered) == 0
    rows = [load for load in ir.collect(lowered.body, ir.BufferLoad) if load.dtype.lanes > 1]
    assert len(rows) == size
    shuffles = ir.collect(lowered.body, ir.Shuffle)
    assert len(shuffles) == size * (size.bit_length() - 1)


@pytest.mark.parametrize(
    ("size", "group", "dtype"), [(4, 2, "int16"), (16, 2, "int16"), (8, 4, "int8"), (4, 4, "int8")]
)
def test_groups_of_elements_stay_together(
    same_result: Callable[..., ir.PrimFunc], size: int, group: int, dtype: str
) -> None:
    """Panels of dot products hold the group of a column in neighbouring elements."""

    @T.prim_func
    def turn(A: T.Buffer((size, 99), dtype), B: T.Buffer((48, size, group), dtype)):
        for i in T.unroll(size):
            for g in T.unroll(group):
                for v in T.vectorized(size):
                    B[i + 7, v, g] = A[v, i * group + g + 3]

    a = np.arange(size * 99).reshape(size, 99).astype(dtype)
    lowered = same_result(turn, a, np.zeros((48, size, group), dtype))
    assert gathers(lowered) == 0
    rows = [load for load in ir.collect(lowered.body, ir.BufferLoad) if load.dtype.lanes > 1]
    assert [load.dtype.lanes for load in rows] == [size * group] * size


def test_groups_that_overlap_or_have_gaps_are_gathered(
    same_result: Callable[..., ir.PrimFunc],
) -> None:
    @T.prim_func
    def turn(A: T.Buffer((4, 99), "int16"), B: T.Buffer((2, 4, 4, 2), "int16")):
        for i in T.unroll(4):
            for g in T.unroll(2):
                for v in T.vectorized(4):
                    B[0, i, v, g] = A[v, i * 3 + g]
        for i in T.unroll(4):
            for g in T.unroll(2):
                for v in T.vectorized(4):
                    B[1, i, v, g] = A[v, i + g]

    a = np.arange(4 * 99).reshape(4, 99).astype("int16")
    assert gathers(same_result(turn, a, np.zeros((2, 4, 4, 2), "int16"))) > 0


def test_rows_may_lie_at_a_distance_that_is_not_known(
    same_result: Callable[..., ir.PrimFunc],
) -> None:
    @T.prim_func
    def turn(a: T.handle, b: T.handle):
        n = T.int64()
        A, B = T.match_buffer(a, (8, n)), T.match_buffer(b, (n, 8))
        for t in range(n // 8):
            for i in T.unroll(8):
                for v in T.vectorized(8):
                    B[t * 8 + i, v] = A[v, t * 8 + i]

    a = np.random.default_rng(0).standard_normal((8, 24)).astype("float32")
    assert gathers(same_result(turn, a, np.zeros((24, 8), "float32"))) == 0


def test_two_tensors_in_one_pass(same_result: Callable[..., ir.PrimFunc]) -> None:
    @T.prim_func
    def turn(A: T.Buffer((8, 9)), X: T.Buffer((8, 9)), R: T.Buffer((9, 8)), B: T.Buffer((9, 8))):
        for i in T.unroll(8):
            for v in T.vectorized(8):
                B[i, v] = A[v, i] * X[v, i] + R[i, v]

    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype("float32") for s in ((8, 9), (8, 9), (9, 8), (9, 8))]
    assert gathers(same_result(turn, *arrays)) == 0


def test_a_matrix_that_is_turned_over_in_place_is_read_as_it_is_written(
    same_result: Callable[..., ir.PrimFunc],
) -> None:
    """Later rows read what earlier ones stored, so no row may be read before."""

    @T.prim_func
    def turn(A: T.Buffer((8, 8))):
        for i in T.unroll(8):
            for v in T.vectorized(8):
                A[i, v] = A[v, i]

    a = np.arange(64, dtype="float32").reshape(8, 8)
    assert gathers(same_result(turn, a)) == 8


def padded(rows: int, columns: int) -> ir.PrimFunc:
    """The transpose of a padded matrix, in square tiles from its first row and column."""

    @T.prim_func
    def turn(A: T.Buffer((columns, rows), "float32"), B: T.Buffer((rows + 2, columns), "float32")):
        for t, c in T.grid((rows + 2) // 8, columns // 8):
            for i in T.unroll(8):
                for v in T.vectorized(8):
                    B[t * 8 + i, c * 8 + v] = T.if_then_else(
                        t * 8 + i > 0 and t * 8 + i < rows + 1 and c < 2,
                        A[c * 8 + v, t * 8 + i - 1],
                        T.float32(0),
                    )

    return turn


@pytest.mark.parametrize(("rows", "columns"), [(14, 16), (30, 8), (22, 24)])
def test_padding_is_not_read(
    same_result: Callable[..., ir.PrimFunc], rows: int, columns: int
) -> None:
    """Rows of a tile are loaded before the guard of an element: only under guards of them all."""
    a = np.arange(columns * rows, dtype="float32").reshape(columns, rows)
    same_result(padded(rows, columns), a, np.zeros((rows + 2, columns), "float32"))


def test_tiles_under_one_guard_are_turned_over(same_result: Callable[..., ir.PrimFunc]) -> None:
    @T.prim_func
    def turn(A: T.Buffer((8, 16)), B: T.Buffer((32, 8))):
        for t in range(4):
            for i in T.unroll(8):
                for v in T.vectorized(8):
                    B[t * 8 + i, v] = T.if_then_else(
                        t >= 1 and t < 3, A[v, t * 8 + i - 8], T.float32(0)
                    )

    a = np.arange(128, dtype="float32").reshape(8, 16)
    assert gathers(same_result(turn, a, np.zeros((32, 8), "float32"))) == 0


def test_other_gathers_stay() -> None:
    @T.prim_func
    def every_other(A: T.Buffer((8, 64)), B: T.Buffer((8, 8))):
        for i in T.unroll(8):
            for v in T.vectorized(8):
                B[i, v] = A[v, i * 2]

    @T.prim_func
    def few(A: T.Buffer((8, 64)), B: T.Buffer((3, 8))):
        for i in T.unroll(3):
            for v in T.vectorized(8):
                B[i, v] = A[v, i]

    @T.prim_func
    def masked(n: T.int64, A: T.Buffer((8, 64)), B: T.Buffer((8, 8))):
        for i in T.unroll(8):
            for v in T.vectorized(8):
                if v < n:
                    B[i, v] = A[v, i]

    assert [gathers(lower(f, "x86-64-v4")) for f in (every_other, few, masked)] == [8, 3, 8]
