"""Guards around tiles, and vectors longer than a register."""

from __future__ import annotations

import numpy as np
import pytest

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.interp import interpret
from blockwright.lower import lower
from blockwright.script import tir as T


def stores(func: ir.PrimFunc) -> list[ir.BufferStore]:
    return ir.collect(func.body, ir.BufferStore)


def test_a_long_vector_becomes_register_sized_ones() -> None:
    @T.prim_func
    def scale(A: T.Buffer((48,), "float32"), B: T.Buffer((48,), "float32")):
        for v in T.vectorized(48):
            B[v] = A[v] * T.float32(2)

    assert [s.value.dtype.lanes for s in stores(lower(scale, "x86-64-v4"))] == [16, 16, 16]
    assert [s.value.dtype.lanes for s in stores(lower(scale, "x86-64-v3"))] == [8] * 6


def test_what_is_left_of_a_long_vector_goes_into_shorter_ones() -> None:
    @T.prim_func
    def scale(A: T.Buffer((27,), "float32"), B: T.Buffer((27,), "float32")):
        for v in T.vectorized(27):
            B[v] = A[v] * T.float32(2)

    lowered = stores(lower(scale, "x86-64-v4"))
    assert [s.value.dtype.lanes for s in lowered] == [16, 8, 2, 1]
    last = lowered[-1]
    assert ir.const_int(last.indices[0]) == 26  # one element, and no vector of one


def test_one_element_under_a_mask_is_left_in_its_vector() -> None:
    @T.prim_func
    def scale(n: T.int64, A: T.Buffer((17,), "float32"), B: T.Buffer((17,), "float32")):
        for v in T.vectorized(17):
            if v < n:
                B[v] = A[v] * T.float32(2)

    assert [s.value.dtype.lanes for s in stores(lower(scale, "x86-64-v4"))] == [17]


def test_a_vector_that_reads_neighbours_of_what_it_stores_stays_whole() -> None:
    """Stored in pieces, the second piece would read what the first has overwritten."""

    @T.prim_func
    def shift(A: T.Buffer((33,), "float32")):
        A[T.ramp(1, 1, 32)] = A[T.ramp(0, 1, 32)]

    assert [s.value.dtype.lanes for s in stores(lower(shift, "x86-64-v4"))] == [32]


def test_one_guard_per_tile_when_all_statements_imply_it() -> None:
    @T.prim_func
    def tiles(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n, T.int64(4)))
        B = T.match_buffer(b, (n,))
        for i in T.serial((n + T.int64(31)) // T.int64(32) * T.int64(4)):
            for r in T.serial(T.int64(8)):
                if i * T.int64(8) + r < n:
                    B[i * T.int64(8) + r] = T.float32(0)
            for k in T.serial(T.int64(4)):
                for r in T.serial(T.int64(8)):
                    if i * T.int64(8) + r < n and i < (n + T.int64(7)) // T.int64(8):
                        B[i * T.int64(8) + r] = B[i * T.int64(8) + r] + A[i * T.int64(8) + r, k]
            if i < (n + T.int64(7)) // T.int64(8):
                B[i * T.int64(8)] = B[i * T.int64(8)] * T.float32(2)

    loop = ir.loops(lower(tiles, "x86-64-v3").body)[0]
    assert isinstance(loop.body, ir.IfThenElse)
    inner = [n for n in ir.walk(loop.body.then_case) if isinstance(n, ir.IfThenElse)]
    assert all("// T.int64(8)" not in repr(n.condition) for n in inner)


def test_masked_vectors_in_registers_are_merged() -> None:
    """A store under a mask would need an address, and the buffer could not live in registers."""

    @T.prim_func
    def tile(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,))
        B = T.match_buffer(b, (n,))
        for i in T.parallel((n + T.int64(7)) // T.int64(8)):
            with T.block("tile"):
                vi = T.axis.spatial((n + T.int64(7)) // T.int64(8), i)
                sums = T.alloc_buffer((8,), scope="local")
                for v in T.vectorized(8):
                    if vi * T.int64(8) + v < n:
                        sums[v] = A[vi * T.int64(8) + v] + T.float32(1)
                for v in T.vectorized(8):
                    if vi * T.int64(8) + v < n:
                        B[vi * T.int64(8) + v] = sums[v]

    local, shared = stores(lower(tile, "x86-64-v3"))
    assert local.predicate is None
    assert isinstance(local.value, ir.Select)
    assert shared.predicate is not None


def test_a_border_is_a_mask_where_masked_loads_are_instructions() -> None:
    @T.prim_func
    def rows(A: T.Buffer((6, 8), "float32"), B: T.Buffer((8, 8), "float32")):
        for i in T.serial(8):
            for v in T.vectorized(8):
                B[i, v] = T.if_then_else(i >= 1 and i < 7, A[i - 1, v], T.float32(0))

    (masked,) = stores(lower(rows, "x86-64-v3"))
    assert isinstance(masked.value, ir.Select)
    (branch,) = stores(lower(rows, "x86-64"))
    assert isinstance(branch.value, ir.Call)


def test_masked_vectors_lie_in_their_buffer_even_where_no_lane_reads() -> None:
    """Above the first row there may be no memory, and asking for it takes a processor long."""

    @T.prim_func
    def above(a: T.handle, b: T.handle):
        c = T.int64()
        A = T.match_buffer(a, (T.int64(14), c * T.int64(16)))
        B = T.match_buffer(b, (T.int64(14), c * T.int64(16)))
        for h, k in T.grid(T.int64(14), c):
            for v in T.vectorized(T.int64(16)):
                B[h, k * T.int64(16) + v] = T.if_then_else(
                    h >= T.int64(2), A[h - T.int64(2), k * T.int64(16) + v], T.float32(0)
                ) + T.if_then_else(
                    h < T.int64(11), A[h + T.int64(3), k * T.int64(16) + v], T.float32(0)
                )

    lowered = lower(above, "x86-64-v4")
    loads = [n for n in ir.collect(lowered.body, ir.BufferLoad) if n.predicate is not None]
    assert len(loads) == 2
    h, k = (loop.loop_var for loop in ir.loops(lowered.body))
    (c,) = ir.free_vars(above.buffers[0].shape[1])
    whole = {c: 3, k: 2}
    for load, near in zip(loads, ([0, 0, 0, 1], [12, 13, 13, 13]), strict=True):
        (index,) = load.indices
        assert isinstance(index, ir.Ramp)
        rows = []
        for row in (0, 1, 2, 3) if near[0] == 0 else (9, 10, 11, 13):
            known = {var: ir.const(value, "int64") for var, value in {**whole, h: row}.items()}
            at = ir.const_int(Analyzer().simplify(ir.substitute(index.base, known)))
            assert at is not None
            assert at % 48 == 32
            rows.append(at // 48)
        assert rows == near


def test_the_rows_of_all_images_may_be_one_loop() -> None:
    """Above its first row every image reads nothing, near that row."""

    @T.prim_func
    def above(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n, T.int64(14), T.int64(32)))
        B = T.match_buffer(b, (n, T.int64(14), T.int64(32)))
        for i in T.serial(n * T.int64(28)):
            for v in T.vectorized(T.int64(16)):
                B[
                    i // T.int64(28),
                    i // T.int64(2) % T.int64(14),
                    i % T.int64(2) * T.int64(16) + v,
                ] = T.if_then_else(
                    i // T.int64(2) % T.int64(14) >= T.int64(1),
                    A[
                        i // T.int64(28),
                        i // T.int64(2) % T.int64(14) - T.int64(1),
                        i % T.int64(2) * T.int64(16) + v,
                    ],
                    T.float32(0),
                )

    lowered = lower(above, "x86-64-v4")
    (load,) = (n for n in ir.collect(lowered.body, ir.BufferLoad) if n.predicate is not None)
    (index,) = load.indices
    assert isinstance(index, ir.Ramp)
    (loop,) = (found.loop_var for found in ir.loops(lowered.body))

    def place(image: int, row: int, half: int) -> tuple[int, int]:
        """Image and row, one after the other, and the element in the row that is read there."""
        i = ir.const((image * 14 + row) * 2 + half, "int64")
        at = ir.const_int(Analyzer().simplify(ir.substitute(index.base, {loop: i})))
        assert at is not None
        return divmod(at, 32)

    for image in (0, 3):
        for half in (0, 1):
            assert place(image, 0, half) == (image * 14, half * 16)  # read nowhere
            assert place(image, 1, half) == (image * 14, half * 16)
            assert place(image, 13, half) == (image * 14 + 12, half * 16)


def test_a_sum_over_lanes_is_added_where_its_element_exists() -> None:
    @T.prim_func
    def sums(A: T.Buffer((3, 8), "float32"), B: T.Buffer((3,), "float32")):
        for i in range(4):
            for v in T.vectorized(8):
                if i < 3 and v < 5:
                    B[i] = B[i] + A[i, v]

    (guard,) = ir.collect(lower(sums, "x86-64-v3").body, ir.IfThenElse)
    assert ir.free_vars(guard.condition)  # the row's, which no lane changes
    assert ir.collect(guard.then_case, ir.BufferStore)


@pytest.mark.parametrize(("n", "divisor"), [(0, 0), (5, 3), (16, -3)])
def test_a_divisor_that_all_lanes_share_is_not_0_where_no_lane_runs(n: int, divisor: int) -> None:
    """A size, an element, and the extent of a loop divide under a mask that is false everywhere."""

    @T.prim_func(index_dtype="int64")
    def divide(
        n: T.int64,
        A: T.Buffer((16,), "int32"),
        D: T.Buffer((1,), "int32"),
        B: T.Buffer((16,), "int32"),
    ):
        for v in T.vectorized(16):
            if v < n:
                B[v] = A[v] // D[0] + T.Cast("int32", v // n + 7 % n + (v + 7 // n) % n)
                for _ in range(8 // n):
                    B[v] = B[v] + A[v] % D[0]

    lowered = lower(divide, "x86-64-v4")
    assert any(load.predicate is not None for load in ir.collect(lowered.body, ir.BufferLoad))
    a, d = np.arange(16, dtype="int32"), np.array([divisor], "int32")
    expected, result = np.full(16, 3, "int32"), np.full(16, 3, "int32")
    for v in range(n):
        expected[v] = a[v] // divisor + (v // n + 7 % n + (v + 7 // n) % n)
        expected[v] += 8 // n * (a[v] % divisor)
    interpret(lowered, n, a, d, result)
    np.testing.assert_array_equal(result, expected)


def test_a_masked_store_to_shared_memory_leaves_the_other_lanes_alone() -> None:
    """A `local` buffer that a parallel loop shares is in memory; its other lanes are unset."""

    @T.prim_func
    def shared(n: T.int64, A: T.Buffer((4, 8), "float32"), C: T.Buffer((4, 8), "float32")):
        B = T.allocate((4, 8), "float32", scope="local")
        for i in range(4):
            for v in T.vectorized(8):
                if v < n:
                    B[i, v] = A[i, v]
        for i in T.parallel(4):
            for j in range(n):
                C[i, j] = B[i, j]

    lowered = lower(shared, "x86-64-v4")
    (masked,) = [s for s in stores(lowered) if s.value.dtype.lanes == 8]
    assert masked.predicate is not None
    assert masked.buffer.scope == "global"
    assert [load.buffer.name for load in ir.collect(masked.value, ir.BufferLoad)] == ["A"]
