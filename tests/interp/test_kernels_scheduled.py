"""Schedules for GPUs run as threads, and compute what the program computed before.

No barrier is written in these programs: they stand where blocks hand values over.
"""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis import find_violations
from blockwright.interp import interpret
from blockwright.schedule import BlockRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.support import InterpretError
from blockwright.testing import random_program
from blockwright.testing.check import assert_same_meaning
from tests.schedule import programs_gemm


def func(text: str) -> ir.PrimFunc:
    found = from_source(text)
    assert isinstance(found, ir.PrimFunc)
    return found


def shared_by(sch: Schedule, copy: BlockRV, rows: int, columns: int) -> None:
    """Let `rows` × `columns` threads make a copy together, each every so many elements."""
    y, x = sch.get_loops(copy)[-2:]
    _, ty = sch.split(y, [None, rows])
    _, tx = sch.split(x, [None, columns])
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")


@pytest.mark.parametrize(
    ("block", "tile", "depth"), [(8, 2, 4), (16, 2, 8), (32, 8, 2), (8, 4, 16)]
)
def test_products_of_many_tilings(block: int, tile: int, depth: int) -> None:
    sch = Schedule(programs_gemm.matmul)
    programs_gemm.twenty_variables(sch, block, tile, depth)
    assert_same_meaning(programs_gemm.matmul, sch.func)


def gemm(rows: int, columns: int, terms: int) -> ir.PrimFunc:
    return func(f"""
@T.prim_func
def main(A: T.Buffer(({rows}, {terms}), "float32"), B: T.Buffer(({terms}, {columns}), "float32"),
         C: T.Buffer(({rows}, {columns}), "float32")):
    T.func_attr({{"num_outputs": 1}})
    for row, col, k in T.grid({rows}, {columns}, {terms}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [row, col, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""")


@pytest.mark.parametrize("seed", range(6))
def test_products_with_ragged_tiles(seed: int) -> None:
    """Sizes that the tiles do not divide: conditions guard threads, never barriers."""
    chance = random.Random(seed)
    before = gemm(*(chance.randint(9, 40) for _ in range(3)))
    sch = Schedule(before)
    c = sch.get_block("C")
    i, j, k = sch.get_loops(c)
    rows, columns = chance.choice([4, 8]), chance.choice([4, 8])
    bi, ti = sch.split(i, [None, rows])
    bj, tj = sch.split(j, [None, columns])
    ko, ki = sch.split(k, [None, chance.choice([4, 6, 8])])
    sch.reorder(bi, bj, ti, tj, ko, ki)
    for loop, axis in zip(
        (bi, bj, ti, tj), ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"), strict=True
    ):
        sch.bind(loop, axis)
    for operand in (0, 1):
        copy = sch.cache_read(c, operand, "shared")
        sch.compute_at(copy, ko)
        shared_by(sch, copy, rows, columns)
    assert_same_meaning(before, sch.func, exact=True)


STENCIL = """
@T.prim_func
def main(A: T.Buffer((34, 66), "float32"), B: T.Buffer((32, 64), "float32")):
    T.func_attr({"num_outputs": 1})
    for i, j in T.grid(32, 64):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj + 1] + A[vi + 2, vj + 1] + A[vi + 1, vj] + A[vi + 1, vj + 2]
"""


@pytest.mark.parametrize(("rows", "columns"), [(8, 16), (4, 32), (5, 12), (32, 8)])
def test_a_halo_is_fetched_by_all_threads(rows: int, columns: int) -> None:
    before = func(STENCIL)
    sch = Schedule(before)
    b = sch.get_block("B")
    i, j = sch.get_loops(b)
    bi, ti = sch.split(i, [None, rows])
    bj, tj = sch.split(j, [None, columns])
    sch.reorder(bi, bj, ti, tj)
    copy = sch.cache_read(b, 0, "shared")
    sch.compute_at(copy, bj)
    for loop, axis in (
        (bi, "blockIdx.y"),
        (bj, "blockIdx.x"),
        (ti, "threadIdx.y"),
        (tj, "threadIdx.x"),
    ):
        sch.bind(loop, axis)
    shared_by(sch, copy, rows, columns)
    assert_same_meaning(before, sch.func, exact=True)


ROWS = """
@T.prim_func
def main(A: T.Buffer((12, 100), "float32"), B: T.Buffer((12, 100), "float32")):
    T.func_attr({"num_outputs": 1})
    M = T.alloc_buffer((12,), "float32")
    S = T.alloc_buffer((12,), "float32")
    for i, k in T.grid(12, 100):
        with T.block("M"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                M[vi] = T.min_value("float32")
            M[vi] = T.max(M[vi], A[vi, vk])
    for i, k in T.grid(12, 100):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + T.exp(A[vi, vk] - M[vi])
    for i, j in T.grid(12, 100):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.exp(A[vi, vj] - M[vi]) / S[vi]
"""


@pytest.mark.parametrize("threads", [16, 32, 7])
def test_a_row_per_block_with_partial_results_of_threads(threads: int) -> None:
    """Each thread reduces a part of the row; then one loop over the parts, as the schedule says."""
    before = func(ROWS)
    sch = Schedule(before)
    row, column = sch.get_loops(sch.get_block("B"))
    for name in ("S", "M"):
        block = sch.get_block(name)
        sch.compute_at(block, row)
        _, lane = sch.split(sch.get_loops(block)[-1], [None, threads])
        part = sch.rfactor(lane, 0)
        loops = sch.get_loops(part)
        sch.bind(
            next(x for x in loops if ir.is_const_int(sch.get(x).extent, threads)), "threadIdx.x"
        )
        sch.set_scope(block, 0, "shared")
        sch.set_scope(part, 0, "shared")
    _, lane = sch.split(column, [None, threads])
    sch.bind(lane, "threadIdx.x")
    sch.bind(row, "blockIdx.x")
    assert_same_meaning(before, sch.func)


def test_the_large_product_with_registers_takes_seconds() -> None:
    """128 × 128 × 64 in float32, without matrix operations: 256 threads, 8 × 8 elements each."""
    before = gemm(128, 128, 64)
    sch = Schedule(before)
    programs_gemm.readable(sch, block=128, tile=8, depth=8)
    rng = np.random.default_rng(0)
    a, b = rng.random((128, 64), np.float32), rng.random((64, 128), np.float32)
    c = np.zeros((128, 128), np.float32)
    interpret(sch.func, a, b, c)
    assert np.allclose(c, a @ b, rtol=1e-4)
    bw.validate(sch.func, "cuda-sm_80")


def made_a_kernel(sch: Schedule, block: BlockRV, chance: random.Random) -> None:
    """Blocks and threads for one block, and shared copies of what it reads, where that is legal."""
    kinds = [it.iter_type for it in sch.get(block).iter_vars]
    loops = sch.get_loops(block)
    if len(loops) != len(kinds):
        return
    spatial = [x for x, kind in zip(loops, kinds, strict=True) if kind is ir.IterType.SPATIAL]
    terms = [x for x in loops if x not in spatial]
    if not spatial:
        return
    if terms:
        sch.reorder(*spatial, *terms)
    flat = sch.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    far, near = sch.split(flat, [None, chance.choice([3, 8, 32])])
    sch.bind(far, "blockIdx.x")
    sch.bind(near, "threadIdx.x")
    threads = sch.get(near).extent
    for position in range(len(sch.get(block).reads)):
        with contextlib.suppress(ScheduleError):
            scope = chance.choice(["shared", "shared", "local"])
            copy = sch.cache_read(block, position, scope)
            sch.compute_at(copy, chance.choice([far, near, *terms[:1]]))
            _, lane = sch.split(sch.get_loops(copy)[-1], [None, threads])
            if scope == "shared":
                sch.bind(lane, "threadIdx.x")


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_as_kernels(seed: int) -> None:
    """What the validator accepts runs without a report and computes the same."""
    chance = random.Random(seed)
    before = random_program(seed + 700)
    sch = Schedule(before)
    for block in sch.get_child_blocks(sch.get_block("root")):
        with contextlib.suppress(ScheduleError):
            made_a_kernel(sch, block, chance)
    if find_violations(sch.func):
        return
    try:
        assert_same_meaning(before, sch.func, seed=seed)
    except InterpretError as error:
        if "which ends with its kernel" not in error.message:  # a copy was made, but not moved
            raise
