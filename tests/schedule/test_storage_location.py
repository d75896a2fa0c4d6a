"""store_at and rolling_buffer: less memory and less work, the same results, also when compiled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ir.printer import script
from blockwright.schedule import LoopRV, Schedule, ScheduleError
from blockwright.script.compute import Program, Tensor
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning
from blockwright.testing.arrays import make_arrays
from tests.schedule.location_programs import PROGRAMS


def program(name: str) -> ir.PrimFunc:
    found = from_source(PROGRAMS[name])
    assert isinstance(found, ir.PrimFunc)
    return found


def at(sch: Schedule, block: str, position: int) -> LoopRV:
    return sch.get_loops(sch.get_block(block))[position]


def shape_of(func: ir.PrimFunc, name: str) -> list[int | None]:
    """The shape of an allocated buffer, by name."""
    found = [b for block in ir.blocks(func) for b in block.alloc_buffers if b.name == name]
    assert len(found) == 1
    return [ir.const_int(n) for n in found[0].shape]


def tiled_blur(factor: int) -> Schedule:
    """The last stencil in square tiles, the others computed per tile with their halos."""
    sch = Schedule(program("blur"), verify="full")
    i, j = sch.get_loops(sch.get_block("bz"))
    (i0, i1), (j0, j1) = sch.split(i, [None, factor]), sch.split(j, [None, factor])
    sch.reorder(i0, j0, i1, j1)
    for name in ("by", "bx"):
        sch.compute_at(sch.get_block(name), j0)
    return sch


def compiled_like_interpreted(func: ir.PrimFunc) -> None:
    """The native program and the reference interpreter give the same bits, or nearly so."""
    arrays = make_arrays(func, 5)
    expected, actual = [a.copy() for a in arrays], [a.copy() for a in arrays]
    bw.interpret(func, *expected)
    bw.build(func)["main"](*actual)
    for x, y in zip(expected, actual, strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-5)


# --------------------------------------------------------------------------------- store_at
@pytest.mark.parametrize("factor", [2, 3, 4])
def test_a_tile_stores_what_the_tile_needs(factor: int) -> None:
    sch = tiled_blur(factor)
    sch.store_at(sch.get_block("by"), at(sch, "bz", 1))
    assert_same_meaning(program("blur"), sch.func, exact=True)
    assert shape_of(sch.func, "By") == [factor + 2, factor]
    assert shape_of(sch.func, "Bx") == [14, 8]


def test_storage_may_live_outside_the_loop_that_computes() -> None:
    sch = tiled_blur(4)
    sch.store_at(sch.get_block("by"), at(sch, "bz", 0))
    assert shape_of(sch.func, "By") == [6, 8]  # the columns of all tiles in a row of tiles
    assert_same_meaning(program("blur"), sch.func, exact=True)


def test_several_buffers_in_one_loop_are_stored_one_inside_the_other() -> None:
    sch = tiled_blur(4)
    sch.parallel(at(sch, "bz", 0))
    sch.store_at(sch.get_block("by"), at(sch, "bz", 0))
    sch.store_at(sch.get_block("bx"), at(sch, "bz", 0), "Bx")
    assert shape_of(sch.func, "By") == [6, 8]
    assert shape_of(sch.func, "Bx") == [8, 4]
    assert_same_meaning(program("blur"), sch.func, exact=True)
    compiled_like_interpreted(sch.func)


def test_scheduling_goes_on_inside_the_new_block() -> None:
    sch = tiled_blur(4)
    inner = sch.get_block("by")
    made = sch.store_at(inner, at(sch, "bz", 1))
    inside = [sch.get(b) for b in sch.get_child_blocks(made)]
    assert {b.name for b in inside if isinstance(b, ir.Block)} == {"bx", "by", "bz"}
    sch.vectorize(sch.get_loops(inner)[-1])
    sch.compute_inline(sch.get_block("by"))
    assert_same_meaning(program("blur"), sch.func)


def test_sums_under_a_tile_keep_their_storage_per_tile() -> None:
    sch = Schedule(program("matmul_gelu"), verify="full")
    sch.compute_inline(sch.get_block("bias"))
    i, j = sch.get_loops(sch.get_block("gelu"))
    (i0, i1), (j0, j1) = sch.split(i, [None, 4]), sch.split(j, [None, 4])
    sch.reorder(i0, j0, i1, j1)
    sch.compute_at(sch.get_block("mm"), j0)
    sch.store_at(sch.get_block("mm"), j0)
    assert shape_of(sch.func, "C") == [4, 4]
    for n in (1, 4, 7):
        assert_same_meaning(program("matmul_gelu"), sch.func, sizes={"n": n})


def test_a_sum_that_a_loop_outside_the_new_block_drives_stays_where_it_is() -> None:
    """One visit of the block makes a part of the sum only; a copy in the block would lose it."""
    sch = Schedule(program("strided_conv"), verify="full")
    sch.compute_at(sch.get_block("scale"), at(sch, "conv", 4))
    sch.store_at(sch.get_block("scale"), at(sch, "conv", 4))
    assert_same_meaning(program("strided_conv"), sch.func)
    conv = sch.get_block("conv")
    for refused in (
        lambda: sch.cache_write(conv, 0, "local"),
        lambda: sch.decompose_reduction(conv, sch.get_loops(conv)[0]),
    ):
        with pytest.raises(ScheduleError, match="earlier executions of its scope"):
            refused()


# --------------------------------------------------------------------------------- rolling_buffer
def test_a_row_of_stencils_keeps_a_window_each() -> None:
    sch = Schedule(program("blur"), verify="full")
    for name in ("by", "bx"):
        sch.compute_at(sch.get_block(name), at(sch, "bz", 0))
    for name in ("by", "bx"):
        sch.rolling_buffer(sch.get_block(name), 0)
    assert shape_of(sch.func, "By") == [3, 8]
    assert shape_of(sch.func, "Bx") == [5, 8]
    assert_same_meaning(program("blur"), sch.func, exact=True)
    compiled_like_interpreted(sch.func)


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_tiles_roll_along_their_outer_loop(factor: int) -> None:
    sch = tiled_blur(factor)
    for name in ("by", "bx"):
        sch.rolling_buffer(sch.get_block(name), 0)
    assert shape_of(sch.func, "By") == [factor + 2, 8]
    assert_same_meaning(program("blur"), sch.func, exact=True)
    compiled_like_interpreted(sch.func)


def count_runs(func: ir.PrimFunc, block: str) -> int:
    """How often a block runs, counted by a buffer to which each run adds one."""
    counter = ir.Buffer("runs", ir.dtype_of("int64"), (ir.const(1, "int64"),))
    zero = ir.const(0, "int64")

    def counted(node: ir.Node) -> ir.Node | None:
        if isinstance(node, ir.Block) and node.name == block:
            more = ir.BufferStore(counter, ir.add(ir.BufferLoad(counter, (zero,)), 1), (zero,))
            return node.replace(
                body=ir.seq([node.body, more]),
                reads=(*node.reads, ir.full_region(counter)),
                writes=(*node.writes, ir.full_region(counter)),
            )
        return None

    handle = ir.Var("runs_handle", ir.dtype_of("handle"))
    new = func.replace(
        body=ir.rewrite_bottom_up(func.body, counted),
        params=(*func.params, handle),
        buffer_map=(*func.buffer_map, (handle, counter)),
    )
    runs = np.zeros(1, "int64")
    bw.interpret(new, *make_arrays(func, 1), runs)
    return int(runs[0])


def test_rolling_computes_each_element_once() -> None:
    sch = Schedule(program("blur"), verify="full")
    sch.compute_at(sch.get_block("by"), at(sch, "bz", 0))
    assert count_runs(sch.func, "by") == 10 * 3 * 8
    sch.rolling_buffer(sch.get_block("by"), 0)
    assert count_runs(sch.func, "by") == 12 * 8


def test_a_strided_window_under_a_reduction_rolls() -> None:
    sch = Schedule(program("strided_conv"), verify="full")
    sch.reorder(at(sch, "conv", 1), at(sch, "conv", 0))
    sch.compute_at(sch.get_block("scale"), at(sch, "conv", 0))
    sch.rolling_buffer(sch.get_block("scale"), "P")
    assert shape_of(sch.func, "P") == [3, 3, 11]
    assert_same_meaning(program("strided_conv"), sch.func)


def test_a_reduction_with_a_halo_rolls_and_its_padding_too() -> None:
    """A convolution recomputed for a second one: each row of sums is made once."""
    sch = Schedule(two_convolutions(), verify="full")
    for name in ("first", "pad"):
        sch.compute_at(sch.get_block(name), at(sch, "second", 0))
    before = count_runs(sch.func, "first")
    for name in ("first", "pad"):
        sch.rolling_buffer(sch.get_block(name), 0)
    assert count_runs(sch.func, "first") < before
    assert_same_meaning(two_convolutions(), sch.func)
    compiled_like_interpreted(sch.func)


def two_convolutions() -> ir.PrimFunc:
    p = Program("main")
    x = p.param("X", (12, 10), "float32")
    w = p.param("W", (3, 3), "float32")

    def padding(*at: ir.Expr) -> ir.Expr:
        i, j = at
        inside = ir.logical_and(ir.compare(ir.GE, i, 1), ir.compare(ir.LT, i, 13))
        return ir.if_then_else(inside, x[i - 1, j], ir.const(0, "float32"))

    padded = p.compute("pad", (14, 10), padding)

    def window(source: Tensor) -> Callable[..., ir.Expr]:
        def term(*at: ir.Expr) -> ir.Expr:
            i, j, r, c = at
            return source[i + r, j + c] * w[r, c]

        return term

    first = p.reduce("first", (12, 8), (3, 3), window(padded))
    return p.finish([p.reduce("second", (10, 6), (3, 3), window(first))])


# --------------------------------------------------------------------------------- both
STEPS: dict[str, Callable[[Schedule], object]] = {
    "store": lambda s: s.store_at(s.get_block("by"), at(s, "bz", 1)),
    "roll": lambda s: s.rolling_buffer(s.get_block("by"), 0),
}


@pytest.mark.parametrize("name", STEPS)
def test_handles_traces_and_script_survive(name: str) -> None:
    sch = tiled_blur(4)
    kept = [sch.get_block(b) for b in ("bx", "by", "bz")]
    loops = [loop for b in kept for loop in sch.get_loops(b)]
    STEPS[name](sch)
    assert all(map(sch.alive, [*kept, *loops]))
    again = Schedule(program("blur"))
    again.replay(sch.trace)
    ir.assert_structural_equal(again.func, sch.func)
    ir.assert_structural_equal(from_source(script(sch.func)), sch.func)


# --------------------------------------------------------------------------------- at random
def stencil_chain(chance: random.Random) -> ir.PrimFunc:
    """Two or three stencils, each of random width, step and direction, over one or two axes."""
    p = Program("main")
    size = chance.choice([40, 41, 45])
    source = p.param("X", (size, 5), "float32")
    for step in range(chance.randint(2, 3)):
        width, stride = chance.randint(1, 3), chance.choice([1, 1, 2])
        rows = (ir.const_int(source.shape[0]) or 1) - width
        rows = rows // stride + (rows % stride > 0)
        summed = chance.random() < 0.4

        def value(*at: ir.Expr, s: Tensor = source, w: int = width, t: int = stride) -> ir.Expr:
            row = at[0] * t
            return s[row, at[1]] - s[row + w, at[1]] * 0.5

        def term(*at: ir.Expr, s: Tensor = source, t: int = stride) -> ir.Expr:
            return s[at[0] * t + at[2], at[1]]

        name = f"s{step}"
        source = (
            p.reduce(name, (rows, 5), (width + 1,), term)
            if summed
            else p.compute(name, (rows, 5), value)
        )
    return p.finish([source])


@pytest.mark.fuzz
def test_windows_at_random_keep_the_meaning(fuzz_factor: int) -> None:
    taken: Counter[str] = Counter()
    for seed in range(25 * fuzz_factor):
        chance = random.Random(seed)
        func = stencil_chain(chance)
        sch = Schedule(func, verify="full")
        *producers, last = sch.get_child_blocks(sch.get_block("root"))
        if chance.random() < 0.6:
            sch.split(sch.get_loops(last)[0], [None, chance.choice([2, 3, 4])])
        if chance.random() < 0.3:
            sch.reorder(*sch.get_loops(last)[:2][::-1])
        where = sch.get_loops(last)[chance.choice([0, 0, 1])]
        for producer in reversed(producers):
            sch.compute_at(producer, where)
        for producer in chance.sample(producers, len(producers)):
            name = chance.choice(["rolling_buffer", "store_at", "parallel", "reverse"])
            try:
                if name == "rolling_buffer":
                    sch.rolling_buffer(producer, 0)
                elif name == "store_at":
                    sch.store_at(producer, chance.choice(sch.get_loops(producer)))
                elif name == "parallel":
                    sch.parallel(chance.choice(sch.get_loops(last)))
                else:
                    sch.reverse_compute_at(last, chance.choice(sch.get_loops(producer)))
            except ScheduleError:
                continue
            taken[name] += 1
        assert_same_meaning(func, sch.func, seed=seed)
    assert min(taken["rolling_buffer"], taken["store_at"]) > 2 * fuzz_factor, taken


def test_a_step_inside_a_block_that_no_longer_shows_its_regions_is_refused() -> None:
    """Rows of a window modulo its size: below a condition on one loop they are found, on parts of
    it they are not. The block around would state less than can be shown."""
    func = from_source("""
@T.prim_func
def main(A: T.Buffer((2, 4), "float32"), D: T.Buffer((2, 2), "float32")):
    B = T.alloc_buffer((2, 3), "float32")
    C = T.alloc_buffer((2, 3), "float32")
    for i, j in T.grid(2, 3):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
    for i, j in T.grid(2, 3):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] * T.float32(2)
    for i, j in T.grid(2, 2):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] + C[vi, vj + 1]
""")
    sch = Schedule(func, verify="full")
    sch.compute_at(sch.get_block("C"), at(sch, "D", 1))
    sch.rolling_buffer(sch.get_block("C"), 0)
    sch.compute_at(sch.get_block("B"), at(sch, "C", 1))
    sch.store_at(sch.get_block("B"), at(sch, "C", 1))
    with pytest.raises(ScheduleError, match="BW366"):
        sch.split(at(sch, "C", 0), [3, None])
    assert_same_meaning(func, sch.func, exact=True)
