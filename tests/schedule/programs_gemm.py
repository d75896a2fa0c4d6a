"""One GPU schedule of a matrix product, written twice.

`twenty_variables` is how such schedules have been written: every axis of every tile is a variable
with a short name, and whoever fetches, computes and writes back splits the same sizes once more.
`readable` says the same with named axes, a line per tile, zooms, and one rule for what the threads
of a block do together.

Both give a block of threads a tile of `block` × `block` elements of C and each of its threads
`tile` × `tile` of them, kept in registers. `depth` columns of A and rows of B at a time are staged
in shared memory, which all threads fetch together.
"""

from __future__ import annotations

from blockwright.schedule import BlockRV, Schedule, Zoom, composite
from blockwright.script import tir as T


@T.prim_func
def matmul(
    A: T.Buffer((32, 16), "float32"),
    B: T.Buffer((16, 32), "float32"),
    C: T.Buffer((32, 32), "float32"),
):
    for row, col, k in T.grid(32, 32, 16):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [row, col, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


def twenty_variables(s: Schedule, block: int = 16, tile: int = 4, depth: int = 4) -> None:
    threads = block // tile
    C = s.get_block("C")
    AS = s.cache_read(C, 0, "shared")
    AL = s.cache_read(C, 0, "local")
    BS = s.cache_read(C, 1, "shared")
    BL = s.cache_read(C, 1, "local")
    CL = s.cache_write(C, 0, "local")
    x, y, k = s.get_loops(C)
    xb, xo, xi = s.split(x, [None, threads, tile])
    yb, yo, yi = s.split(y, [None, threads, tile])
    ko, ki = s.split(k, [None, depth])
    s.reorder(xb, yb, ko, xo, yo, ki, xi, yi)
    s.compute_at(AL, ki)
    s.compute_at(BL, ki)
    s.compute_at(AS, ko)
    s.compute_at(BS, ko)
    s.reverse_compute_at(CL, yb)
    _, _, _, ax, ay = s.get_loops(AS)
    axo, axi = s.split(ax, [threads, None])
    ayo, ayi = s.split(ay, [threads, None])
    s.reorder(axo, ayo, axi, ayi)
    _, _, _, bx, by = s.get_loops(BS)
    bxo, bxi = s.split(bx, [threads, None])
    byo, byi = s.split(by, [threads, None])
    s.reorder(bxo, byo, bxi, byi)
    _, _, cx, cy = s.get_loops(CL)
    cxo, cxi = s.split(cx, [threads, None])
    cyo, cyi = s.split(cy, [threads, None])
    s.reorder(cxo, cyo, cxi, cyi)
    s.bind(xb, "blockIdx.y")
    s.bind(yb, "blockIdx.x")
    s.bind(xo, "threadIdx.y")
    s.bind(yo, "threadIdx.x")
    s.bind(axo, "threadIdx.y")
    s.bind(ayo, "threadIdx.x")
    s.bind(bxo, "threadIdx.y")
    s.bind(byo, "threadIdx.x")
    s.bind(cxo, "threadIdx.y")
    s.bind(cyo, "threadIdx.x")


def readable(sch: Schedule, block: int = 16, tile: int = 4, depth: int = 4) -> None:
    threads = block // tile
    work = sch.tile(
        "C",
        "row col k -> row_block col_block k_step row_thread col_thread k_in row_reg col_reg",
        row_thread=threads,
        row_reg=tile,
        col_thread=threads,
        col_reg=tile,
        k_in=depth,
    )
    for operand in ("A", "B"):
        with sch.zoom(work.k_step) as step:
            share(step, step.cache_read("C", operand, "shared"), threads)
        with sch.zoom(work.k_in) as thread:
            thread.cache_read("C", f"{operand}_shared", "local")
    with sch.zoom(work.col_block) as tile_of_c:
        share(tile_of_c, tile_of_c.cache_write("C", 0, "local"), threads)
    sch.bind(work.row_block, "blockIdx.y")
    sch.bind(work.col_block, "blockIdx.x")
    sch.bind(work.row_thread, "threadIdx.y")
    sch.bind(work.col_thread, "threadIdx.x")


@composite
def share(sch: Zoom, copy: BlockRV, threads: int) -> None:
    """Let `threads` × `threads` threads make a copy together."""
    part = sch.tile(copy, "ax0=(y rows) ax1=(x cols) -> y x rows cols", y=threads, x=threads)
    sch.bind(part.y, "threadIdx.y")
    sch.bind(part.x, "threadIdx.x")
