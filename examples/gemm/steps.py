"""The schedules of `docs/scheduling.md`: each adds one idea to the one before."""

from __future__ import annotations

from collections.abc import Callable

import blockwright as bw
from blockwright.intrin import outer_product_name
from blockwright.ir import Expr
from blockwright.schedule import BlockRV
from examples.gemm.programs_matmul import matmul

LANES = bw.Target("native").vector_bits // 32
"""Elements of a vector register."""

ROWS, COLUMNS = (8, 3 * LANES) if LANES == 16 else (6, 2 * LANES)
"""The tile whose accumulators, with a row of B and an element of A, fill the registers."""


def naive() -> bw.Schedule:
    return bw.Schedule(matmul)


def vectorized() -> bw.Schedule:
    sch = bw.Schedule(matmul)
    c = sch.get_block("C")
    i, j, k = sch.get_loops(c)
    j0, lane = sch.split(j, [None, LANES])
    sch.reorder(i, k, j0, lane)
    sch.decompose_reduction(c, k)
    sch.vectorize(lane)
    return sch


def vector_row(sch: bw.Schedule, block: BlockRV) -> None:
    """Write the innermost loop of a block out as vector operations."""
    vectors, lane = sch.split(sch.get_loops(block)[-1], [None, LANES])
    sch.unroll(vectors)
    sch.vectorize(lane)


def vector_tile(sch: bw.Schedule, block: BlockRV) -> None:
    """Write the two innermost loops of a block out as vector operations."""
    row = sch.get_loops(block)[-2]
    vector_row(sch, block)
    sch.unroll(row)


def in_registers() -> bw.Schedule:
    sch = bw.Schedule(matmul)
    c = sch.get_block("C")
    i, j, k = sch.get_loops(c)
    i0, i1 = sch.split(i, [None, ROWS])
    j0, j1 = sch.split(j, [None, COLUMNS])
    sch.reorder(i0, j0, k, i1, j1)
    out = sch.cache_write(c, 0, "local")
    sch.reverse_compute_at(out, j0)
    init = sch.decompose_reduction(c, k)
    for block in (init, c, out):
        vector_tile(sch, block)
    return sch


def pack(sch: bw.Schedule, c: BlockRV) -> BlockRV:
    """Copy B into panels [column // COLUMNS][row][column % COLUMNS], each read front to back."""

    def panel_of(k: Expr, j: Expr) -> tuple[Expr, Expr, Expr]:
        return j // COLUMNS, k, j % COLUMNS

    panels = sch.cache_read(c, 1, "global")
    sch.transform_layout(panels, ("write", 0), panel_of)
    k, j = sch.get_loops(panels)
    panel, column = sch.split(j, [None, COLUMNS])
    sch.reorder(panel, k, column)
    vector_row(sch, panels)
    return panels


def packed() -> bw.Schedule:
    sch = bw.Schedule(matmul)
    c = sch.get_block("C")
    pack(sch, c)
    i, j, k = sch.get_loops(c)
    i0, i1 = sch.split(i, [None, ROWS])
    j0, j1 = sch.split(j, [None, COLUMNS])
    sch.reorder(j0, i0, k, i1, j1)
    out = sch.cache_write(c, 0, "local")
    sch.reverse_compute_at(out, i0)
    init = sch.decompose_reduction(c, k)
    vector_tile(sch, init)
    vector_tile(sch, out)
    sch.tensorize(i1, outer_product_name(ROWS, COLUMNS))
    return sch


def parallel() -> bw.Schedule:
    sch = packed()
    j0, i0 = sch.get_loops(sch.get_block("C_local"))[:2]
    sch.parallel(sch.fuse(j0, i0))
    return sch


STEPS: dict[str, Callable[[], bw.Schedule]] = {
    step.__name__: step for step in (naive, vectorized, in_registers, packed, parallel)
}
