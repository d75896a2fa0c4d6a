"""Vectorizing, unrolling, partitioning, simplification and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ir import PrimFunc
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.lower import LOWERING, LowerOptions, lower
from blockwright.script import tir as T
from blockwright.support import BuildError, OptionError

Check = Callable[..., PrimFunc]
RNG = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def stores(func: PrimFunc) -> list[S.BufferStore]:
    return ir.collect(func.body, S.BufferStore)


def test_contiguous_accesses_become_ramps(same_result: Check) -> None:
    @T.prim_func
    def scale(A: T.Buffer((4, 64)), s: T.Buffer((4,)), B: T.Buffer((4, 64))):
        for i, j0 in T.grid(4, 4):
            for j in T.vectorized(16):
                B[i, j0 * 16 + j] = T.exp(A[i, j0 * 16 + j]) * s[i]

    lowered = same_result(scale, normal(4, 64), normal(4), normal(4, 64))
    (store,) = stores(lowered)
    (index,) = store.indices
    assert isinstance(index, E.Ramp)
    assert ir.const_int(index.stride) == 1
    assert index.lanes == 16
    assert isinstance(store.value, E.Mul)
    assert isinstance(store.value.b, E.Broadcast)  # one scalar load for all lanes
    assert store.value.b.value.dtype.lanes == 1


def test_fused_and_split_indices_stay_contiguous(same_result: Check) -> None:
    @T.prim_func
    def fused(A: T.Buffer((8, 32)), B: T.Buffer((8, 32))):
        for f in range(16):
            for v in T.vectorized(16):
                B[(f * 16 + v) // 32, (f * 16 + v) % 32] = A[(f * 16 + v) // 32, (f * 16 + v) % 32]

    lowered = same_result(fused, normal(8, 32), normal(8, 32))
    (store,) = stores(lowered)
    assert isinstance(store.indices[0], E.Ramp)
    assert isinstance(store.value.indices[0], E.Ramp)  # type: ignore[attr-defined]


def test_strided_and_indirect_accesses_gather(same_result: Check) -> None:
    @T.prim_func
    def gather(A: T.Buffer((8, 16)), ids: T.Buffer((16,), "int32"), B: T.Buffer((16,))):
        for v in T.vectorized(8):
            B[v] = A[v, 3]
        for v in T.vectorized(8):
            B[v + 8] = A[0, ids[v]]

    ids = RNG.integers(0, 16, 16).astype("int32")
    lowered = same_result(gather, normal(8, 16), ids, normal(16))
    first = stores(lowered)[0].value.indices[0]  # type: ignore[attr-defined]
    assert isinstance(first, E.Ramp)
    assert ir.const_int(first.stride) == 16


def test_tails_are_masked(same_result: Check) -> None:
    @T.prim_func
    def tail(a: T.handle, s: T.Buffer((1,)), b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,))
        B = T.match_buffer(b, (n,))
        for i in range((n + T.int64(7)) // T.int64(8)):
            for v in T.vectorized(T.int64(8)):
                if i * T.int64(8) + v < n:
                    B[i * T.int64(8) + v] = A[i * T.int64(8) + v] * s[0]
                else:
                    T.evaluate(0)

    for n in (8, 13, 3):
        lowered = same_result(tail, normal(n), normal(1), normal(n))
    (store,) = stores(lowered)
    assert store.predicate is not None
    loads = ir.collect(store.value, E.BufferLoad)
    assert [load.predicate is not None for load in loads] == [True, False]


def test_choices_per_lane_read_only_what_they_take(same_result: Check) -> None:
    @T.prim_func
    def pad(A: T.Buffer((14,)), B: T.Buffer((16,))):
        for v in T.vectorized(16):
            B[v] = T.if_then_else(v >= 1 and v < 15, A[v - 1], T.float32(0))

    same_result(pad, normal(14), normal(16))


def test_both_branches_by_lane(same_result: Check) -> None:
    @T.prim_func
    def branch(A: T.Buffer((16,)), B: T.Buffer((16,))):
        for v in T.vectorized(16):
            if A[v] > T.float32(0):
                B[v] = A[v]
            else:
                B[v] = A[v] * T.float32(0.5)

    same_result(branch, normal(16), normal(16))


def test_masked_lanes_divide_by_no_zero(same_result: Check) -> None:
    @T.prim_func
    def divide(a: T.Buffer((8,), "int32"), b: T.Buffer((8,), "int32"), c: T.Buffer((8,), "int32")):
        for v in T.vectorized(8):
            if b[v] != 0:
                c[v] = a[v] // b[v]

    a = np.arange(8, dtype="int32")
    lowered = same_result(divide, a, a % 3, a)
    assert ir.collect(lowered.body, E.Select)


@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_reductions_over_lanes(same_result: Check, op: str) -> None:
    combine = {"sum": lambda a, b: a + b, "max": ir.maximum, "min": ir.minimum}[op]

    @T.prim_func
    def reduce(A: T.Buffer((4, 16)), B: T.Buffer((4,))):
        for i in range(4):
            for v in T.vectorized(16):
                if v < 11:
                    B[i] = combine(B[i], A[i, v])

    lowered = same_result(reduce, normal(4, 16), normal(4))
    assert any(call.op.startswith("vector_reduce") for call in ir.collect(lowered.body, ir.Call))


def test_other_reductions_over_lanes_are_refused() -> None:
    @T.prim_func
    def chain(A: T.Buffer((16,)), B: T.Buffer((1,))):
        for v in T.vectorized(16):
            B[0] = B[0] * T.float32(0.5) + A[v]

    with pytest.raises(BuildError, match="same element of B") as info:
        lower(chain, "x86-64")
    assert info.value.code == "BW632"


@pytest.mark.parametrize("update", ["v | B[v * 2 + 1]", "v - B[v * 2 + 1]", "B[v * 2 + 1] + v"])
def test_one_lane_may_update_its_element(update: str) -> None:
    """The condition makes the index a constant, which is no element of all lanes."""
    func: Any = bw.from_source(f"""
@T.prim_func
def main(B: T.Buffer((16,), "int32")):
    for v in T.vectorized(8):
        if v == 2:
            B[v * 2 + 1] = {update}
""")
    wanted, found = np.arange(16, dtype="int32"), np.arange(16, dtype="int32")
    bw.interpret(func, wanted)
    bw.build(func)["main"](found)
    np.testing.assert_array_equal(found, wanted)
    assert found[5] != 5


def test_loops_of_unknown_length_are_refused() -> None:
    @T.prim_func
    def vector(a: T.handle):
        n = T.int32()
        A = T.match_buffer(a, (n,))
        for v in T.vectorized(n):
            A[v] = T.float32(0)

    with pytest.raises(BuildError, match="split the loop") as info:
        lower(vector, "x86-64")
    assert info.value.code == "BW630"


def test_what_has_no_vector_form_runs_serially_with_a_note(same_result: Check) -> None:
    @T.prim_func
    def temporary(A: T.Buffer((8,)), B: T.Buffer((8,)), t: T.Buffer((1,))):
        for v in T.vectorized(8):
            t[0] = A[v]
            B[v] = t[0] + T.float32(1)

    lowered = same_result(temporary, normal(8), normal(8), normal(1))
    assert lowered.attrs["lower.notes"] == (
        "loop v is not vectorized: all iterations store to one element of t",
    )


def test_temporaries_of_one_iteration_become_vectors(same_result: Check) -> None:
    @T.prim_func
    def temporary(A: T.Buffer((2, 8)), B: T.Buffer((2, 8))):
        t = T.alloc_buffer((2, 8), scope="local")
        for i in range(2):
            for v in T.vectorized(8):
                with T.block("t"):
                    vi, vv = T.axis.remap("SS", [i, v])
                    t[vi, vv] = A[vi, vv] * A[vi, vv]
                with T.block("B"):
                    vi, vv = T.axis.remap("SS", [i, v])
                    B[vi, vv] = t[vi, vv] + T.float32(1)

    lowered = same_result(temporary, normal(2, 8), normal(2, 8))
    assert all(isinstance(store.indices[0], E.Ramp) for store in stores(lowered))


@pytest.mark.parametrize(
    ("held", "lanes", "masked"),
    [(1, 1, False), (3, 4, True), (8, 8, False), (9, 16, True), (16, 16, False)],
)
def test_a_vector_is_no_longer_than_its_condition_holds(
    same_result: Check, held: int, lanes: int, masked: bool
) -> None:
    """The end of an axis costs as much as there is of it; a mask of one lane would be a vector."""

    @T.prim_func
    def end(A: T.Buffer((80,)), B: T.Buffer((80,))):
        for v in T.vectorized(16):
            if v + 64 < 64 + held:
                B[v + 64] = A[v + 64] + T.float32(1)

    (store,) = stores(same_result(end, normal(80), np.zeros(80, "float32")))
    assert store.value.dtype.lanes == lanes
    assert (store.predicate is not None) == masked


@pytest.mark.parametrize("extent", [64, 96, 200, 131])
def test_long_vectors_are_cut(same_result: Check, extent: int) -> None:
    @T.prim_func
    def long(A: T.Buffer((extent,)), B: T.Buffer((extent,))):
        for v in T.vectorized(extent):
            B[v] = A[v] + T.float32(1)

    lowered = same_result(long, normal(extent), normal(extent))
    lanes = [store.value.dtype.lanes for store in stores(lowered)]
    assert max(lanes) <= 96
    assert lanes.count(1) <= 1  # what is left of an odd number
    assert all(isinstance(s.indices[0], E.Ramp) for s in stores(lowered) if s.value.dtype.lanes > 1)


def test_unrolled_loops_become_copies(same_result: Check) -> None:
    @T.prim_func
    def unrolled(A: T.Buffer((4, 6)), B: T.Buffer((4, 6))):
        for i in range(4):
            for j in T.unroll(6):
                for k in range(2):
                    if j < 3:
                        B[i, j] = A[i, j] + T.Cast("float32", k)
                    else:
                        B[i, j] = A[i, j] * T.float32(2)

    lowered = same_result(unrolled, normal(4, 6), normal(4, 6))
    inner = [loop for loop in ir.loops(lowered.body) if loop.loop_var.name == "k"]
    assert len(inner) == 6
    assert len({loop.loop_var for loop in inner}) == 6  # every copy defines its own
    assert not ir.collect(lowered.body, S.IfThenElse)


def test_pragmas_unroll_small_loops_only(same_result: Check) -> None:
    @T.prim_func
    def pragma(A: T.Buffer((8, 4)), B: T.Buffer((8, 4))):
        for i in T.serial(8, annotations={"pragma_auto_unroll_max_step": 4}):
            for j in range(4):
                B[i, j] = A[i, j]

    lowered = same_result(pragma, normal(8, 4), normal(8, 4))
    assert len(ir.loops(lowered.body)) == 1
    assert len(stores(lowered)) == 4


def test_unrolling_has_limits() -> None:
    @T.prim_func
    def huge(A: T.Buffer((100000,))):
        for i in T.unroll(100000):
            A[i] = T.float32(0)

    @T.prim_func
    def unknown(a: T.handle):
        n = T.int32()
        A = T.match_buffer(a, (n,))
        for i in T.unroll(n):
            A[i] = T.float32(0)

    with pytest.raises(BuildError, match="100000 statements") as info:
        lower(huge, "x86-64")
    assert info.value.code == "BW633"
    with pytest.raises(BuildError, match="not a constant") as info:
        lower(unknown, "x86-64")
    assert info.value.code == "BW630"


@pytest.mark.parametrize("n", [64, 61, 5, 16])
@pytest.mark.parametrize("parallel", [False, True])
def test_partition_takes_checks_out_of_the_main_part(
    same_result: Check, n: int, parallel: bool
) -> None:
    loop = T.parallel if parallel else T.serial

    @T.prim_func
    def tail(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,))
        B = T.match_buffer(b, (n,))
        for i in loop((n + T.int64(15)) // T.int64(16), annotations={"loop_partition": True}):
            for v in T.vectorized(T.int64(16)):
                if i * T.int64(16) + v < n:
                    B[i * T.int64(16) + v] = A[T.min(i * T.int64(16) + v, n - T.int64(1))]

    lowered = same_result(tail, normal(n), normal(n))
    masks = [store.predicate is not None for store in stores(lowered)]
    assert masks == [False, True]


def test_what_all_lanes_agree_on_is_asked_once(same_result: Check) -> None:
    """Masks alone would be lane by lane for rows that do not exist, where there are none."""

    @T.prim_func
    def rows(A: T.Buffer((5, 13)), B: T.Buffer((5, 13))):
        for i, c in T.grid(6, 2):
            for v in T.vectorized(8):
                if i < 5 and c * 8 + v < 13:
                    B[i, c * 8 + v] = A[i, c * 8 + v]

    lowered = same_result(rows, normal(5, 13), normal(5, 13))
    (branch,) = ir.collect(lowered.body, ir.IfThenElse)
    (store,) = stores(lowered)
    assert branch.condition.dtype.lanes == 1
    assert store.predicate is not None
    assert not ir.collect(store.predicate, E.And)


@pytest.mark.parametrize("n", [1, 4, 5, 6, 13, 16, 17, 18])
def test_the_last_tile_is_short_where_it_has_few_rows(same_result: Check, n: int) -> None:
    @T.prim_func
    def tiles(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,))
        B = T.match_buffer(b, (n,))
        for t in T.serial((n + T.int64(5)) // T.int64(6), annotations={"tail_specialization": 2}):
            for r in T.unroll(T.int64(6)):
                if t * T.int64(6) + r < n:
                    B[t * T.int64(6) + r] = A[t * T.int64(6) + r]

    lowered = same_result(tiles, normal(n), normal(n))
    assert "lower.notes" not in lowered.attrs
    (loop,) = ir.loops(lowered.body)
    assert isinstance(loop.body, ir.IfThenElse)
    assert loop.body.else_case is not None
    forms = (loop.body.then_case, loop.body.else_case)
    whole, short = (len(list(ir.collect(form, S.BufferStore))) for form in forms)
    assert (whole, short) == (6, 4)


def test_a_short_tail_needs_rows_that_may_be_missing(same_result: Check) -> None:
    @T.prim_func
    def tiles(A: T.Buffer((12,)), B: T.Buffer((12,))):
        for t in T.serial(T.int64(2), annotations={"tail_specialization": 2}):
            for r in T.unroll(T.int64(6)):
                B[t * T.int64(6) + r] = A[t * T.int64(6) + r]

    lowered = same_result(tiles, normal(12), normal(12))
    assert "has no short tail" in str(lowered.attrs["lower.notes"])


@pytest.mark.parametrize("rows", [0, -1, True, "two"])
def test_a_short_tail_is_a_number_of_rows(rows: object) -> None:
    @T.prim_func
    def tiles(A: T.Buffer((12,)), B: T.Buffer((12,))):
        for t in T.serial(T.int64(12), annotations={"tail_specialization": rows}):
            B[t] = A[t]

    with pytest.raises(
        BuildError, match="'tail_specialization' must be a positive number of rows"
    ) as caught:
        lower(tiles)
    assert caught.value.code == "BW636"


@pytest.mark.parametrize(("rows", "columns"), [(1, 61), (3, 61), (3, 64), (2, 5)])
def test_partition_asks_tasks_of_several_loops_for_their_digits(
    same_result: Check, rows: int, columns: int
) -> None:
    """Rows and tiles as one parallel loop: the last tile of every row has masks, no other one."""
    tiles = -(-columns // 16)

    @T.prim_func
    def tail(A: T.Buffer((rows, columns)), B: T.Buffer((rows, columns))):
        for t in T.parallel(rows * tiles, annotations={"loop_partition": True}):
            for v in T.vectorized(16):
                if t % tiles * 16 + v < columns:
                    B[t // tiles, t % tiles * 16 + v] = A[t // tiles, t % tiles * 16 + v]

    lowered = same_result(tail, normal(rows, columns), normal(rows, columns))
    masks = [store.predicate is not None for store in stores(lowered)]
    assert masks == ([False] if columns == 64 else [True] if columns == 5 else [False, True])


@pytest.mark.parametrize("n", [24, 28, 33, 148])
def test_partition_of_tiles_in_blocks_of_tiles(same_result: Check, n: int) -> None:
    """Whole blocks need no conditions, so their tiles need no bounds that depend on the block."""
    blocks = -(-n // 12)

    @T.prim_func
    def tiles(A: T.Buffer((n,)), B: T.Buffer((n,))):
        for i in T.serial(blocks, annotations={"loop_partition": True}):
            for j in T.serial(2, annotations={"loop_partition": True}):
                for v in T.unroll(6):
                    if i * 12 + j * 6 + v < n:
                        B[i * 12 + j * 6 + v] = A[i * 12 + j * 6 + v]

    lowered = same_result(tiles, normal(n), normal(n))
    assert not ir.collect(lowered.body, ir.IfThenElse)
    assert [ir.const_int(loop.extent) for loop in ir.loops(lowered.body)] == [n // 12, 2]
    assert "lower.notes" not in lowered.attrs  # each loop was split somewhere, or need not be


def test_a_condition_that_is_no_bound_is_noted(same_result: Check) -> None:
    @T.prim_func
    def squares(A: T.Buffer((30,)), B: T.Buffer((30,))):
        for i in T.serial(30, annotations={"loop_partition": True}):
            if i * i % 7 < 3:
                B[i] = A[i]

    lowered = same_result(squares, normal(30), normal(30))
    (note,) = lowered.attrs["lower.notes"]
    assert "loop i is not partitioned" in note


@pytest.mark.parametrize("n", [24, 28, 33, 35])
@pytest.mark.parametrize("unrolled", [False, True])
def test_partition_where_bounds_of_inner_loops_move(
    same_result: Check, n: int, unrolled: bool
) -> None:
    """Where the inner loops end depends on the outer one: their bounds say nothing of the last
    block by themselves."""
    own = T.unroll if unrolled else T.serial
    blocks, tiles = -(-n // 12), -(-n // 6)

    @T.prim_func
    def ragged(A: T.Buffer((n,)), B: T.Buffer((n,))):
        for i in T.serial(blocks, annotations={"loop_partition": True}):
            for j in range(T.min(n // 6 - 2 - i * 2, 0) + 2):
                for v in own(6):
                    B[i * 12 + j * 6 + v] = A[i * 12 + j * 6 + v]
            for j in T.serial(T.min(n // 6 - 2 - i * 2, 0) + 2, T.min(tiles - i * 2, 2)):
                for v in own(6):
                    if i * 12 + j * 6 + v < n:
                        B[i * 12 + j * 6 + v] = A[i * 12 + j * 6 + v]

    same_result(ragged, normal(n), normal(n))


@pytest.mark.parametrize("n", [24, 28, 33, 35])
def test_partition_of_symbolic_tiles_in_blocks(same_result: Check, n: int) -> None:
    @T.prim_func
    def tiles(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,))
        B = T.match_buffer(b, (n,))
        for i in T.serial((n + 11) // 12, annotations={"loop_partition": True}):
            for j in T.serial(T.int64(2), annotations={"loop_partition": True}):
                for v in T.unroll(T.int64(6)):
                    if i * T.int64(12) + j * T.int64(6) + v < n:
                        B[i * T.int64(12) + j * T.int64(6) + v] = A[
                            i * T.int64(12) + j * T.int64(6) + v
                        ]

    lowered = same_result(tiles, normal(n), normal(n))
    main, inside = ir.loops(lowered.body)[:2]
    assert ir.const_int(inside.extent) == 2
    assert not ir.collect(main.body, ir.IfThenElse)


def test_partition_of_constant_ranges(same_result: Check) -> None:
    @T.prim_func
    def pad(A: T.Buffer((10,)), B: T.Buffer((16,))):
        for i in T.serial(16, annotations={"loop_partition": True}):
            B[i] = T.if_then_else(i < 10, A[i], T.float32(0))

    lowered = same_result(pad, normal(10), normal(16))
    assert [ir.const_int(loop.extent) for loop in ir.loops(lowered.body)] == [10, 6]
    assert "if_then_else" not in lowered.script()


@pytest.mark.parametrize("n", [1, 5, 16])
def test_partition_leaves_out_what_a_choice_makes_neutral(same_result: Check, n: int) -> None:
    @T.prim_func
    def triangle(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n, n))
        B = T.match_buffer(b, (n,))
        for i in range(n):
            B[i] = T.float32(0)
            for j in T.serial(n, annotations={"loop_partition": True}):
                B[i] = B[i] + T.Select(j <= i, A[i, j], T.float32(-0.0))

    lowered = same_result(triangle, normal(n, n), normal(n))
    assert "Select" not in lowered.script()
    assert len(ir.loops(lowered.body)) == 3  # rows, keys up to the diagonal, keys beyond


@pytest.mark.parametrize("n", [3, 8, 21])
def test_partition_of_tiles_has_a_part_around_the_diagonal(same_result: Check, n: int) -> None:
    @T.prim_func
    def tiles(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n, n))
        B = T.match_buffer(b, (n, n))
        for i in range(n):
            for j in T.serial((n + T.int64(3)) // T.int64(4), annotations={"loop_partition": True}):
                for v in T.vectorized(T.int64(4)):
                    if j * T.int64(4) + v < n:
                        B[i, j * T.int64(4) + v] = T.Select(
                            j * T.int64(4) + v <= i, A[i, j * T.int64(4) + v], T.float32(0)
                        )

    lowered = same_result(tiles, normal(n, n), normal(n, n))
    reading = [s for s in stores(lowered) if ir.collect(s.value, ir.BufferLoad)]
    assert len(reading) == 2  # below the diagonal, and around it
    beyond = [s for s in stores(lowered) if s not in reading]
    assert [s.predicate is None for s in beyond] == [True, False]  # whole vectors, and the last


@pytest.mark.parametrize("n", [1, 7, 8, 30])
def test_partition_leaves_a_diagonal_to_the_loop_inside(same_result: Check, n: int) -> None:
    """Few tiles of rows see all keys; all tiles but the last have all their rows."""

    @T.prim_func
    def triangle(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n, n))
        B = T.match_buffer(b, (n,))
        for i in T.serial((n + T.int64(3)) // T.int64(4), annotations={"loop_partition": True}):
            for j in T.serial(n, annotations={"loop_partition": True}):
                for r in range(4):
                    if i * T.int64(4) + r < n:
                        B[i * T.int64(4) + r] = B[i * T.int64(4) + r] + T.Select(
                            j <= i * T.int64(4) + r, A[i * T.int64(4) + r, j], T.float32(-0.0)
                        )

    lowered = same_result(triangle, normal(n, n), normal(n))
    first, *_ = [s for s in ir.collect(lowered.body, ir.For) if ir.collect(s.body, ir.For)]
    assert "//" in ir.printer.script(first.extent)  # whole tiles, of any number of rows
    asked = [
        c
        for c in ir.collect(first.body, ir.IfThenElse)
        if ir.uses_var(c.condition, {first.loop_var})
    ]
    assert not asked


def test_partition_takes_the_first_iterations_off_too(same_result: Check) -> None:
    @T.prim_func
    def border(A: T.Buffer((10,)), B: T.Buffer((16,))):
        for i in T.serial(8, annotations={"loop_partition": True}):
            for j in range(2):
                B[i * 2 + j] = T.if_then_else(
                    i * 2 + j >= 3 and i * 2 + j < 13, A[i * 2 + j - 3], T.float32(0)
                )

    lowered = same_result(border, normal(10), normal(16))
    outer = [loop for loop in ir.loops(lowered.body) if ir.collect(loop.body, ir.For)]
    assert any(ir.const_int(loop.extent) == 4 for loop in outer)
    inside = next(loop for loop in outer if ir.const_int(loop.extent) == 4)
    assert not [n for n in ir.walk(inside) if isinstance(n, ir.Call)]


@pytest.mark.parametrize("n", [1, 5, 16, 37])
def test_partition_of_a_border_of_any_size(same_result: Check, n: int) -> None:
    @T.prim_func
    def border(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,))
        B = T.match_buffer(b, (n,))
        for i in T.serial((n + T.int64(7)) // T.int64(8), annotations={"loop_partition": True}):
            for v in T.vectorized(T.int64(8)):
                if i * T.int64(8) + v < n:
                    B[i * T.int64(8) + v] = T.if_then_else(
                        i * T.int64(8) + v >= T.int64(11),
                        A[i * T.int64(8) + v - T.int64(11)],
                        T.float32(0),
                    )

    same_result(border, normal(n), normal(n))


def test_loops_of_one_iteration_and_dead_code_vanish(same_result: Check) -> None:
    @T.prim_func
    def trivial(A: T.Buffer((8,)), B: T.Buffer((8,))):
        for i, j in T.grid(8, 1):
            for k in range(0):
                B[k] = T.float32(7)
            if i + j < 0:
                B[i] = T.float32(9)
            B[i + j] = A[i * 1 + j + 0]

    lowered = same_result(trivial, normal(8), normal(8))
    assert len(ir.loops(lowered.body)) == 1
    assert len(stores(lowered)) == 1


def test_scalars_and_strided_parameters(same_result: Check) -> None:
    @T.prim_func
    def total(A: T.Buffer((6,)), B: T.Buffer(())):
        B[()] = T.float32(0)
        for i in range(6):
            B[()] = B[()] + A[i]

    same_result(total, normal(6), np.zeros((), "float32"))

    @T.prim_func
    def strided(a: T.handle, B: T.Buffer((3, 4))):
        A = T.match_buffer(a, (3, 4), strides=[10, 1])
        for i, j in T.grid(3, 4):
            B[i, j] = A[i, j]

    flat = lower(strided, "x86-64").script()
    assert "i * 10 + j" in flat
    assert "(24,)" in flat  # (3 - 1) * 10 + (4 - 1) * 1 + 1


def test_indices_of_large_buffers_are_wide() -> None:
    @T.prim_func
    def large(A: T.Buffer((100000, 100000), "int8")):
        for i, j in T.grid(100000, 100000):
            A[i, j] = T.int8(0)

    (store,) = stores(lower(large, "x86-64"))
    assert store.indices[0].dtype.bits == 64


def test_checks_catch_what_they_look_for(run: Callable[..., Any]) -> None:
    @T.prim_func
    def shifted(A: T.Buffer((8,)), k: T.Buffer((1,), "int32"), B: T.Buffer((8,))):
        for i in range(8):
            B[i] = T.if_then_else(i + k[0] < 9, A[i + k[0]], T.float32(0))

    checked = lower(shifted, "x86-64", options=LowerOptions(sanitize=("bounds",)))
    one, two = np.array([0], "int32"), np.array([1], "int32")
    run(checked, normal(8), one, normal(8))
    with pytest.raises(Exception, match="A: index out of bounds in dimension 0"):
        run(checked, normal(8), two, normal(8))

    @T.prim_func
    def root(A: T.Buffer((8,)), B: T.Buffer((8,))):
        for i in T.vectorized(8):
            B[i] = T.sqrt(A[i])

    checked = lower(root, "x86-64", options=LowerOptions(sanitize=("nan",)))
    run(checked, np.ones(8, "float32"), normal(8))
    with pytest.raises(Exception, match="B: NaN written"):
        run(checked, -np.ones(8, "float32"), normal(8))

    @T.prim_func
    def partly(A: T.Buffer((8,)), k: T.Buffer((1,), "int32"), B: T.Buffer((8,))):
        t = T.alloc_buffer((8,))
        for i in range(8):
            if i < k[0]:
                t[i] = A[i]
        for i in range(8):
            B[i] = t[i]

    checked = lower(partly, "x86-64", options=LowerOptions(sanitize=("uninit",)))
    run(checked, normal(8), np.array([8], "int32"), normal(8))
    with pytest.raises(Exception, match="t: read before it is written"):
        run(checked, normal(8), np.array([7], "int32"), normal(8))
    with pytest.raises(OptionError, match="unknown sanitizer 'luck'"):
        LowerOptions(sanitize=("luck",))


def test_checks_that_provably_hold_are_left_out() -> None:
    @T.prim_func
    def copy(A: T.Buffer((8,)), B: T.Buffer((8,))):
        for i in range(8):
            B[i] = A[7 - i]

    checked = lower(copy, "x86-64", options=LowerOptions(sanitize=("bounds",)))
    assert not ir.collect(checked.body, S.AssertStmt)


def test_every_pass_reports_under_its_name() -> None:
    @T.prim_func
    def copy(A: T.Buffer((8,)), B: T.Buffer((8,))):
        for i in range(8):
            B[i] = A[i]

    seen: list[str] = []
    lower(copy, "x86-64", on_pass=lambda name, before, after: seen.append(name))
    assert seen == [name for name, _ in LOWERING]
    with pytest.raises(BuildError, match="choose a CPU target"):
        lower(copy, "cuda-sm_90a")
