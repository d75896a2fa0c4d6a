"""Every step on every block and loop of programs with blocks inside blocks.

Whatever is asked, it is refused with a `ScheduleError`, or the program still computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.support import ScheduleError

Call = tuple[str, tuple[Any, ...]]

SOURCE = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32"),
         E: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8, 8), "float32")
    D = T.alloc_buffer((8,), "float32")
    for i, k in T.grid(8, 8):
        with T.block("B"):
            vi, vk = T.axis.remap("SS", [i, k])
            B[vi, vk] = A[vi, vk] * T.float32(2)
    for i, k in T.grid(8, 8):
        with T.block("D"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                D[vi] = C[vi]
            D[vi] = D[vi] + B[vi, vk]
    for i in range(8):
        with T.block("E"):
            vi = T.axis.spatial(8, i)
            E[vi] = D[vi] + T.float32(1)
"""


def whole(s: Schedule) -> None:
    s.blockize(s.get_loops("D")[0])


def rows(s: Schedule) -> None:
    s.blockize(s.get_loops("D")[1])


def tiles(s: Schedule, size: int = 4) -> BlockRV:
    i, k = s.get_loops("D")
    io, ii = s.split(i, [None, size])
    ko, ki = s.split(k, [None, 4])
    s.reorder(io, ko, ii, ki)
    return s.blockize(ii)


def cut_tiles(s: Schedule) -> None:
    tiles(s, 3)


def decomposed(s: Schedule) -> None:
    s.decompose_reduction("D", s.get_loops("D")[1])


def decomposed_tiles(s: Schedule) -> None:
    outer = tiles(s)
    s.decompose_reduction(outer, s.get_loops(outer)[1])


def tiles_of_tiles(s: Schedule) -> None:
    s.blockize(s.get_loops(tiles(s))[1])


def split_initial_value(s: Schedule) -> None:
    tiles(s)
    s.split(s.get_loops("D_init")[0], [None, 2])


def tensorized(s: Schedule) -> None:
    """Both blocks inside a tile replaced by what they mean, as an intrinsic does."""
    tiles(s)
    for name, meaning in (("init", INIT), ("sum", STEP)):
        bw.TensorIntrin.register(
            f"test.{name}", bw.from_source(meaning), bw.from_source(meaning), override=True
        )
    s.tensorize(s.get_loops("D_init")[0], "test.init")
    s.tensorize(s.get_loops("D")[0], "test.sum")


INIT = """
@T.prim_func
def init(c: T.handle, d: T.handle):
    C = T.match_buffer(c, (4,), "float32", offset_factor=1)
    D = T.match_buffer(d, (4,), "float32", offset_factor=1)
    with T.block("root"):
        T.reads(C[0:4])
        T.writes(D[0:4])
        for i in range(4):
            with T.block("D_init"):
                vi = T.axis.spatial(4, i)
                D[vi] = C[vi]
"""
STEP = """
@T.prim_func
def step(b: T.handle, d: T.handle):
    B = T.match_buffer(b, (4, 4), "float32", offset_factor=1, strides=[8, 1])
    D = T.match_buffer(d, (4,), "float32", offset_factor=1)
    with T.block("root"):
        T.reads(D[0:4], B[0:4, 0:4])
        T.writes(D[0:4])
        for i, k in T.grid(4, 4):
            with T.block("D"):
                vi, vk = T.axis.remap("SR", [i, k])
                D[vi] = D[vi] + B[vi, vk]
"""
PROGRAMS: list[Callable[[Schedule], object]] = [
    whole,
    rows,
    tiles,
    cut_tiles,
    decomposed,
    decomposed_tiles,
    tiles_of_tiles,
    split_initial_value,
    tensorized,
]


def one(i: ir.Expr) -> tuple[ir.Expr]:
    return (i,)


def swapped(i: ir.Expr, j: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    return j, i


def on_block(s: Schedule, b: BlockRV) -> Iterator[Call]:
    """Steps that name one block."""
    rank = _rank(s, b)
    for method in (
        "get_loops",
        "get_child_blocks",
        "get_consumers",
        "get_producers",
        "get_output_blocks",
        "add_unit_loop",
        "compute_inline",
        "atomic_update",
        "reverse_compute_inline",
        "blockize",
        "sample_compute_location",
    ):
        yield method, (b,)
    yield "annotate", (b, "note", 1)
    yield "unannotate", (b, "note")
    yield "cache_index", (b, "local")
    yield "pad_einsum", (b, [2] * rank)
    yield "reorder_block_iter_var", (b, list(range(rank))[::-1])
    yield "tensorize", (b, "no such intrinsic")
    yield "transform_block_layout", (b, swapped if rank == 2 else one)
    for at in (0, 1):
        for method in ("cache_read", "cache_write", "cache_inplace"):
            yield method, (b, at, "local")
        for side in ("read", "write"):
            yield "reindex", (b, (side, at))
            yield "set_axis_separator", (b, (side, at), [])
            for index_map in (one, swapped):
                yield "transform_layout", (b, (side, at), index_map)
        for index_map in (one, swapped):
            yield "reindex_cache_read", (b, at, "local", index_map)
            yield "reindex_cache_write", (b, at, "local", index_map)
        yield "set_scope", (b, at, "local")
        yield "storage_align", (b, at, 0, 8, 1)
        yield "rolling_buffer", (b, at)
        yield "double_buffer", (b, at)


def on_loop(loop: LoopRV) -> Iterator[Call]:
    """Steps that name one loop."""
    for method in ("parallel", "vectorize", "unroll", "blockize", "add_unit_loop"):
        yield method, (loop,)
    for factors in ([None, 2], [3, None]):
        yield "split", (loop, factors)
    yield "loop_partition", (loop, [1, None])
    yield "bind", (loop, "threadIdx.x")
    yield "annotate", (loop, "note", 1)
    yield "rfactor", (loop, 0)
    yield "software_pipeline", (loop, [0])
    yield "tensorize", (loop, "no such intrinsic")
    yield "sample_perfect_tile", (loop, 2)


def on_both(b: BlockRV, loop: LoopRV) -> Iterator[Call]:
    for method in (
        "compute_at",
        "reverse_compute_at",
        "decompose_reduction",
        "decompose_padding",
        "explain_compute_at",
        "store_at",
    ):
        yield method, (b, loop)
    for method in ("read_at", "write_at"):
        yield method, (loop, b, 0, "local")


def calls(s: Schedule) -> Iterator[Call]:
    names = [b.name for b in ir.blocks(s.func.body)[1:]]
    blocks = [s.get_block(name) for name in names if names.count(name) == 1]
    loops = list(dict.fromkeys(loop for b in blocks for loop in s.get_loops(b)))
    for b in blocks:
        yield from on_block(s, b)
        for loop in loops:
            yield from on_both(b, loop)
        for other in blocks:
            yield "merge_reduction", (b, other)
            yield "fuse_reduction_epilogue", (b, other)
            yield "blockize", ([b, other],)
    for loop in loops:
        yield from on_loop(loop)
        for other in loops:
            for method in ("fuse", "reorder", "merge", "horizontal_fuse"):
                yield method, (loop, other)


def _rank(s: Schedule, b: BlockRV) -> int:
    block = s.get(b)
    assert isinstance(block, ir.Block)
    return len(block.iter_vars)


@pytest.mark.parametrize("prepare", PROGRAMS, ids=lambda p: p.__name__)
def test_refused_or_right(prepare: Callable[[Schedule], object]) -> None:
    func = bw.from_source(SOURCE)
    shapes = [(8, 8), (8,), (8,)]
    given = [np.random.default_rng(1).standard_normal(n).astype("float32") for n in shapes]
    expected = [x.copy() for x in given]
    bw.interpret(func, *expected)
    s = Schedule(func)
    prepare(s)
    taken = 0
    for method, arguments in list(calls(s)):
        after = s.copy()
        try:
            getattr(after, method)(*arguments)
        except ScheduleError as error:
            if error.code == "BW309":
                raise
            continue
        if after.func is s.func:
            continue
        taken += 1
        bw.validate(after.func)
        found = [x.copy() for x in given]
        bw.interpret(after.func, *found)
        for x, y in zip(expected, found, strict=True):
            np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5, err_msg=f"{method}{arguments}")
    assert taken > 30


def test_initial_values_are_no_siblings() -> None:
    s = Schedule(bw.from_source(SOURCE))
    tiles(s)
    assert s.get_consumers("D_init") == []
    assert s.get_producers("D_init") == []
    for step in (
        lambda: s.cache_write("D_init", 0, "local"),
        lambda: s.compute_at("D_init", s.get_loops("D")[0]),
    ):
        with pytest.raises(ScheduleError, match="initial value of block D_o") as found:
            step()
        assert found.value.code == "BW310"
    (loop,) = s.get_loops("D_init")
    s.vectorize(loop)
    s.decompose_reduction("D_o", s.get_loops("D_o")[1])
    s.cache_write("D_o_init", 0, "local")
