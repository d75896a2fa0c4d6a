"""Consumers that read backwards, and producers that write backwards, are scheduled like others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright import ir
from blockwright.analysis import BlockKind, BlockScope
from blockwright.analysis.access.tree import Tree
from blockwright.schedule import LoopRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning

ELEMENTWISE = """
@T.prim_func
def main(a: T.handle, c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 8), "float32")
    C = T.match_buffer(c, (n, 8), "float32")
    B = T.alloc_buffer((n, 8), "float32")
    for i, j in T.grid(n, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[WRITTEN] = A[vi, vj] * 2.0
    for i, j in T.grid(n, 8):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[READ] + 1.0
"""
REDUCTION = """
@T.prim_func
def main(a: T.handle, c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 8, 5), "float32")
    C = T.match_buffer(c, (n, 8), "float32")
    B = T.alloc_buffer((n, 8), "float32")
    for i, j, k in T.grid(n, 8, 5):
        with T.block("B"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                B[WRITTEN] = T.float32(0)
            B[WRITTEN] = B[WRITTEN] + A[vi, vj, vk]
    for i, j in T.grid(n, 8):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[READ] + 1.0
"""
PLACES = {
    "reader": ("vi, vj", "n - 1 - vi, 7 - vj"),
    "writer": ("n - 1 - vi, vj", "vi, vj"),
    "both": ("n - 1 - vi, vj", "vi, 7 - vj"),
}


def at(sch: Schedule, block: str, position: int, tile: int | None) -> LoopRV:
    loop = sch.get_loops(sch.get_block(block))[position]
    return loop if tile is None else sch.split(loop, [None, tile])[0]


def compute_at(sch: Schedule, loop: int, tile: int | None) -> None:
    sch.compute_at(sch.get_block("B"), at(sch, "C", loop, tile))


def compute_and_store_at(sch: Schedule, loop: int, tile: int | None) -> None:
    place = at(sch, "C", loop, tile)
    sch.compute_at(sch.get_block("B"), place)
    sch.store_at(sch.get_block("B"), place)


def reverse_compute_at(sch: Schedule, loop: int, tile: int | None) -> None:
    sch.reverse_compute_at(sch.get_block("C"), at(sch, "B", loop, tile))


@pytest.mark.parametrize("tile", [None, 4, 5])
@pytest.mark.parametrize("step", [compute_at, compute_and_store_at, reverse_compute_at])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", [ELEMENTWISE, REDUCTION])
def test_a_block_moves_to_its_mirror_image(
    text: str, place: str, step: Callable[[Schedule, int, int | None], None], tile: int | None
) -> None:
    written, read = PLACES[place]
    func = from_source(text.replace("WRITTEN", written).replace("READ", read))
    assert isinstance(func, ir.PrimFunc)
    for loop in (0, 1):
        sch = Schedule(func, verify="full")
        step(sch, loop, tile)
        for n in (1, 4, 7):
            assert_same_meaning(func, sch.func, sizes={"n": n}, exact=True)


@pytest.mark.parametrize("place", PLACES)
def test_a_mirror_is_inlined_from_either_side(place: str) -> None:
    written, read = PLACES[place]
    func = from_source(ELEMENTWISE.replace("WRITTEN", written).replace("READ", read))
    assert isinstance(func, ir.PrimFunc)
    for backwards in (False, True):
        sch = Schedule(func, verify="full")
        if backwards:
            sch.reverse_compute_inline(sch.get_block("C"))
        else:
            sch.compute_inline(sch.get_block("B"))
        for n in (1, 6):
            assert_same_meaning(func, sch.func, sizes={"n": n}, exact=True)


def test_a_sum_whose_last_step_comes_first_is_no_reduction() -> None:
    """The initial value is set where the iterator has its first value: here at the end."""
    func = from_source("""
@T.prim_func
def main(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8,), "float32")):
    for i, k in T.grid(8, 12):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            vk = T.axis.reduce(12, 11 - k)
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]
""")
    assert isinstance(func, ir.PrimFunc)
    root = func.body
    assert isinstance(root, ir.BlockRealize)
    flow = BlockScope(Tree(func), root.block)
    assert flow.kind(flow.blocks[0]) is BlockKind.OTHER
    sch = Schedule(func)
    with pytest.raises(ScheduleError, match="do not start at the minimum of iterator vk"):
        sch.decompose_reduction(sch.get_block("C"), sch.get_loops(sch.get_block("C"))[1])


def test_a_transform_turns_a_buffer_around() -> None:
    written, read = PLACES["reader"]
    func = from_source(
        ELEMENTWISE.replace("n = T.int64()", "n = T.meta_var(6)")
        .replace("WRITTEN", written)
        .replace("READ", read)
    )
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    sch.transform_layout(sch.get_block("B"), ("write", 0), lambda i, j: (7 - j, 5 - i))
    assert_same_meaning(func, sch.func, exact=True)
