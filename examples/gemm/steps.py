"""The schedules of `docs/scheduling.md`: each adds one idea to the one before."""

from __future__ import annotations

from collections.abc import Callable

import blockwright as bw
from blockwright.intrin import outer_product_name
from blockwright.ir import Expr
from blockwright.schedule import BlockRV, Schedule, composite
from examples.gemm.programs_matmul import matmul

LANES = bw.Target("native").vector_bits // 32
"""Elements of a vector register."""

ROWS, COLUMNS = (8, 3 * LANES) if LANES == 16 else (6, 2 * LANES)
"""The tile whose accumulators, with a row of B and an element of A, fill the registers."""


def naive() -> Schedule:
    return Schedule(matmul)


def vectorized() -> Schedule:
    sch = Schedule(matmul)
    nest = sch.tile("C", "i j k -> i k j0 j1", j1=LANES)
    sch.decompose_reduction("C", nest.k)
    sch.vectorize(nest.j1)
    return sch


@composite
def vector_rows(sch: Schedule, block: BlockRV | str) -> None:
    """Vectorize the rows of a register tile: its innermost axis, and unroll the one around it."""
    row, column = list(sch.loops(block))[-2:]
    vectors, lane = sch.split(column, [None, LANES])
    sch.unroll(row)
    sch.unroll(vectors)
    sch.vectorize(lane)


def in_registers() -> Schedule:
    sch = Schedule(matmul)
    nest = sch.tile("C", "i j k -> i0 j0 k i1 j1", i1=ROWS, j1=COLUMNS)
    with sch.zoom(nest.j0) as tile:
        tile.cache_write("C", 0, "local")
    sch.decompose_reduction("C", nest.k)
    for block in ("C_init", "C", "C_local"):
        vector_rows(sch, block)
    return sch


@composite
def pack(sch: Schedule, block: str) -> None:
    """Pack B into panels [column // COLUMNS][row][column % COLUMNS], each read sequentially."""

    def panel_of(k: Expr, j: Expr) -> tuple[Expr, Expr, Expr]:
        return j // COLUMNS, k, j % COLUMNS

    panels = sch.cache_read(block, "B", "global")
    sch.transform_layout(panels, ("write", 0), panel_of)
    nest = sch.tile(
        panels,
        "ax0 ax1=(panel vectors lane) -> panel ax0 vectors lane",
        vectors=COLUMNS // LANES,
        lane=LANES,
    )
    sch.unroll(nest.vectors)
    sch.vectorize(nest.lane)


def packed() -> Schedule:
    sch = Schedule(matmul)
    pack(sch, "C")
    nest = sch.tile("C", "i j k -> j0 i0 k i1 j1", i1=ROWS, j1=COLUMNS)
    with sch.zoom(nest.i0) as tile:
        tile.cache_write("C", 0, "local")
    sch.decompose_reduction("C", nest.k)
    vector_rows(sch, "C_init")
    vector_rows(sch, "C_local")
    sch.tensorize(nest.i1, outer_product_name(ROWS, COLUMNS))
    return sch


def parallel() -> Schedule:
    sch = packed()
    nest = sch.tile("C_local", "j0 i0 -> task=(j0 i0)")
    sch.parallel(nest.task)
    return sch


STEPS: dict[str, Callable[[], Schedule]] = {
    step.__name__: step for step in (naive, vectorized, in_registers, packed, parallel)
}
