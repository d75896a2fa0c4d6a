"""Plans of matrix products: what the cost model makes the GEMM rule choose."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import msgspec
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.cost import estimate
from blockwright.lower import lower
from blockwright.script.compute import Program
from blockwright.strategies import CONSTANT_PARAMS, UNCACHED_PARAMS, apply_strategies
from blockwright.strategies.cpu.gemm import STRATEGY as GEMM
from blockwright.strategies.cpu.gemm_blocking import gemm_blocking, gemm_tile
from blockwright.strategies.cpu.gemm_cost import GemmBlocking, GemmShape, plan_seconds
from blockwright.strategies.cpu.gemm_plan import ContractionPlan, GemmPlan
from blockwright.strategies.cpu.register_tiling import RegisterTile
from blockwright.strategies.strategy import apply_plan
from blockwright.target import Target
from blockwright.testing import assert_same_meaning

ONE, TWO = (Target("x86-64-v3", num_threads=n) for n in (1, 2))
SHAPES = [(1024, 1024, 1024), (512, 1024, 4096), (300, 500, 700), (128, 3072, 768), (49, 512, 4608)]


def product(m: int, n: int, k: int) -> GemmShape:
    return GemmShape(1, m, n, k, 4 * k, 4)


def narrow(shape: GemmShape) -> GemmShape:
    """The same product with weights in bfloat16, without an instruction that takes them."""
    return msgspec.structs.replace(shape, b_bits=16, shifts=1)


def program(m: int | ir.Var, n: int, k: int) -> ir.PrimFunc:
    p = Program("product")
    rows, columns, depth = (
        extent if isinstance(extent, ir.Var) else ir.const(extent, "int64") for extent in (m, n, k)
    )
    a, w = p.param("A", (rows, depth), "float32"), p.param("W", (depth, columns), "float32")

    def term(i: ir.Expr, j: ir.Expr, k: ir.Expr) -> ir.Expr:
        return a[i, k] * w[k, j]

    func = p.finish([p.reduce("C", (rows, columns), (depth,), term)])
    return func.replace(attrs={**func.attrs, CONSTANT_PARAMS: (1,)})


@pytest.mark.parametrize("shape", SHAPES)
def test_a_plan_gives_every_thread_its_share(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    tile = gemm_tile(TWO, product(m, n, k))
    plan = gemm_blocking(TWO, product(m, n, k), tile)
    tasks = math.ceil(m / tile.rows / plan.row_tiles) * math.ceil(n / tile.columns / plan.panels)
    assert tasks >= 2
    one = plan_seconds(ONE, product(m, n, k), tile, gemm_blocking(ONE, product(m, n, k), tile))
    assert plan_seconds(TWO, product(m, n, k), tile, plan) < 0.6 * one


@pytest.mark.parametrize(("columns", "depth", "each"), [(960, 160, 49), (576, 96, 196)])
def test_threads_share_any_number_of_images(columns: int, depth: int, each: int) -> None:
    """A few images are a few tiles of rows: two threads take half as long as one, however many."""
    some = msgspec.structs.replace(product(1, columns, depth), m=None, min_m=each, m_multiple=each)
    tile = gemm_tile(TWO, some)
    plan = gemm_blocking(TWO, some, tile)
    for images in (1, 2, 3, 4, 5, 16):
        rows = images * each
        one, two = (
            plan_seconds(target, product(rows, columns, depth), tile, plan) for target in (ONE, TWO)
        )
        assert two < 0.57 * one, images


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_of_the_reduction_are_equal(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    plan = gemm_blocking(TWO, product(m, n, k), gemm_tile(TWO, product(m, n, k)))
    assert plan.depth is None or k % plan.depth == 0


def test_a_prime_reduction_is_not_cut() -> None:
    """Pieces of one step each would add a tile in memory for every product."""
    plan = gemm_blocking(TWO, product(512, 512, 4099), gemm_tile(TWO, product(512, 512, 4099)))
    assert plan.depth is None


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_the_plan_costs_what_its_program_costs(shape: tuple[int, int, int]) -> None:
    """The nest that is written down to compare plans, and the one read from the rule's program."""
    tile = gemm_tile(ONE, product(*shape))
    planned = plan_seconds(ONE, product(*shape), tile, gemm_blocking(ONE, product(*shape), tile))
    func = apply_strategies(program(*shape), ONE).func
    packing = func.root.body
    assert isinstance(packing, ir.SeqStmt)
    kernel = func.body.replace(block=func.root.replace(body=packing.seq[1]))
    assert estimate(func.replace(body=kernel), ONE).seconds == pytest.approx(planned, rel=0.1)


@pytest.mark.parametrize(("depth", "rows"), [(1024, 14), (512, 14), (1024, 6)])
def test_sums_stay_in_registers_while_the_next_panel_is_prefetched(depth: int, rows: int) -> None:
    """Two steps at a time need four vectors of a panel beside 28 sums, and 32 registers exist."""
    target = Target("x86-64-v4", num_threads=1)
    blocking = GemmBlocking(4, 1, rows_inside=True)
    tile = RegisterTile(rows, 32, 16)
    plan = GemmPlan((ContractionPlan("", tile, blocking),))
    func = apply_plan(GEMM, across(rows * 14, 256, depth), target, plan).func
    text = bw.build(func, target).source("asm")
    inner = [part for part in re.split(r"^\.LBB\w+:", text, flags=re.MULTILINE) if "vfmadd" in part]
    loops = [re.split(r"^\tj\w+\t\.LBB", part, flags=re.MULTILINE)[0] for part in inner]
    assert loops
    assert not any("(%rsp)" in line for loop in loops for line in loop.split("\n") if "zmm" in line)


def across(m: int, n: int, k: int) -> ir.PrimFunc:
    """A product whose left operand and result are stored column by column."""
    p = Program("across")
    rows, columns, depth = (ir.const(extent, "int64") for extent in (m, n, k))
    a, w = p.param("A", (depth, rows), "float32"), p.param("W", (depth, columns), "float32")

    def term(j: ir.Expr, i: ir.Expr, k: ir.Expr) -> ir.Expr:
        return a[k, i] * w[k, j]

    func = p.finish([p.reduce("C", (columns, rows), (depth,), term)])
    return func.replace(attrs={**func.attrs, CONSTANT_PARAMS: (1,)})


def test_the_next_panel_comes_while_one_is_used_for_all_rows() -> None:
    func = program(128, 768, 768)
    uncached = func.replace(attrs={**func.attrs, UNCACHED_PARAMS: (1,)})

    def shared(func: ir.PrimFunc) -> list[ir.For]:
        loops = ir.loops(apply_strategies(func, TWO).func.body)
        return [loop for loop in loops if "prefetch_shared" in loop.annotations]

    (loop,) = shared(uncached)
    extents = msgspec.structs.replace(product(128, 768, 768), uncached=True)
    assert (
        ir.const_int(loop.extent) == gemm_blocking(TWO, extents, gemm_tile(TWO, extents)).row_tiles
    )
    assert not shared(program(2048, 64, 64))  # a tile of rows meets all panels, which are near


def fetched(text: str) -> int:
    return text.count("call void @llvm.prefetch")


@pytest.mark.parametrize("depth", [504, 509])
def test_a_line_of_the_next_panel_is_asked_for_once(depth: int) -> None:
    """Asked for again while it is on its way, it would take another place of the few that a core
    has for such lines. Steps that fetch a line together are written out, the rest of them too."""
    func = program(128, 768, depth)
    uncached = func.replace(attrs={**func.attrs, UNCACHED_PARAMS: (1,)})
    loops = ir.loops(lower(apply_strategies(uncached, TWO).func, TWO).body)
    (tiles,) = [loop for loop in loops if "prefetch_shared" in loop.annotations]
    (steps,) = [loop for loop in ir.loops(tiles.body) if loop.kind is ir.ForKind.SERIAL]
    assert ir.const_int(steps.extent) == depth // 8


@pytest.mark.parametrize(("machine", "steps"), [("x86-64-v3", 500 // 4), ("x86-64-v4", 500)])
def test_the_loop_of_a_product_is_written_out_where_its_own_instructions_count(
    machine: str, steps: int
) -> None:
    target = Target(machine, num_threads=1)
    loops = list(
        ir.loops(lower(apply_strategies(program(512, 256, 500), target).func, target).body)
    )
    (step,) = [loop for loop in loops if loop.loop_var.name.startswith("k")]
    assert ir.const_int(step.extent) == steps


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4"])
def test_no_size_of_a_product_makes_the_rule_give_up(machine: str) -> None:
    """Depths that fall into pieces, which steps that are written out do not divide; packed
    operands, constant ones, and tiles that do not fill their last row or column."""
    draw = random.Random(4)
    for _ in range(24):
        rows, columns, depth = (int(2 ** draw.uniform(5, 12.3)) for _ in range(3))
        target = Target(machine, num_threads=draw.choice([1, 2, 8]))
        func = program(rows, columns, depth)
        if draw.random() < 0.6:
            func = func.replace(attrs={k: v for k, v in func.attrs.items() if k != CONSTANT_PARAMS})
        found = apply_strategies(func, target)
        assert (found.strategy, found.note, found.faults) == ("gemm", "", ()), (
            rows,
            columns,
            depth,
        )


@pytest.mark.parametrize("depth", [4095, 4097])
def test_pieces_of_a_sum_have_panels_of_their_own_length(depth: int) -> None:
    """Steps are written out four at a time, which divides neither piece."""
    # Two tiles of rows and two panels: the loops of 96 by 64, with a sixteenth of the work.
    func = program(12, 32, depth)
    func = func.replace(attrs={k: v for k, v in func.attrs.items() if k != CONSTANT_PARAMS})
    found = apply_strategies(func, TWO)
    assert (found.strategy, found.note) == ("gemm", "")
    assert any(block.name == "C_rf_init" for block in ir.blocks(found.func.body))
    assert_same_meaning(program(12, 32, depth), found.func)


@pytest.mark.parametrize(("rows", "columns"), [(5, 768), (8, 768), (14, 768), (6, 32)])
def test_so_it_does_when_all_rows_are_one_tile(rows: int, columns: int) -> None:
    """Also where a task has one panel, and the next one is that of the next task."""
    func = program(rows, columns, 768)
    uncached = func.replace(attrs={**func.attrs, UNCACHED_PARAMS: (1,)})
    tile = gemm_tile(TWO, msgspec.structs.replace(product(rows, columns, 768), uncached=True))
    assert tile.rows >= rows
    assert fetched(bw.build(apply_strategies(uncached, TWO).func, target=TWO).source("llvm"))


@pytest.mark.parametrize(("columns", "depth"), [(64, 512), (64, 1024), (96, 768), (96, 6144)])
def test_the_next_panel_is_prefetched_as_far_ahead_when_its_sums_are_split(
    columns: int, depth: int
) -> None:
    """A piece of a panel ahead would be too late for memory; a panel that fills the second-level
    cache, too early."""
    func = program(4, columns, depth)
    uncached = func.replace(attrs={**func.attrs, UNCACHED_PARAMS: (1,)})
    tile = gemm_tile(ONE, msgspec.structs.replace(product(4, columns, depth), uncached=True))
    loops = ir.loops(lower(apply_strategies(uncached, ONE).func, ONE).body)
    (steps,) = [loop for loop in loops if "prefetch_read" in loop.annotations]
    pieces = [loop for loop in loops if steps in ir.loops(loop.body)][-1]
    piece = depth // (ir.const_int(pieces.extent) or 1) if depth > 512 else depth
    ahead = steps.annotations["prefetch_read"] * piece
    assert ahead == depth or depth > ahead > ONE.cache(2).size // 8 // (tile.columns * 4)


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("threads", [1, 2])
def test_reading_an_uncached_matrix_once_is_counted_once(machine: str, threads: int) -> None:
    """The few rows of a Winograd product of a 7×7 image: all of their time is that of reading the
    filters, which no cache holds. So a tile is better if it pads them less, and no tile is better
    because it computes more slowly meanwhile."""
    target = Target(machine, num_threads=threads)
    filters = GemmShape(36, 4, 512, 512, 2048, 4)
    uncached = msgspec.structs.replace(filters, uncached=True)
    tile = gemm_tile(target, uncached)
    plan = gemm_blocking(target, uncached, tile)
    seconds = plan_seconds(target, uncached, tile, plan)
    assert seconds == pytest.approx(plan_seconds(target, filters, tile, plan), rel=0.01)
    assert tile.rows * tile.vectors >= target.core.arithmetic * target.core.latency
    assert 512 % tile.columns == 0


def test_so_it_does_for_as_many_tiles_as_an_unknown_number_of_rows_fills() -> None:
    """The loop over a band's tiles ends where the rows do, and the shares are of what is left."""
    func = program(ir.var("n", "int64"), 768, 768)
    uncached = func.replace(attrs={**func.attrs, UNCACHED_PARAMS: (1,)})
    scheduled = apply_strategies(uncached, TWO).func
    loops = ir.loops(lower(scheduled, TWO).body)
    shared = [loop for loop in loops if "prefetch_shared" in loop.annotations]
    assert shared
    assert all(ir.const_int(loop.extent) is None for loop in shared)
    assert fetched(bw.build(scheduled, target=TWO).source("llvm"))


def test_an_uncached_matrix_comes_from_memory_once_for_each_thread() -> None:
    """Read by every thread from the first row tile on, it would be waited for twice: threads have
    panels of their own, and use each for all rows."""
    warm, uncached = (
        msgspec.structs.replace(product(128, 1024, 1024), uncached=c) for c in (False, True)
    )
    tile = gemm_tile(TWO, uncached)
    plan = gemm_blocking(TWO, uncached, tile)
    assert plan.rows_inside
    assert plan_seconds(TWO, uncached, tile, plan) >= plan_seconds(TWO, warm, tile, plan)


def test_so_does_one_that_only_the_last_cache_holds() -> None:
    """Weights of a small model: a core's own caches have seen others since the last call."""
    inside, outside = (
        msgspec.structs.replace(product(49, 320, 960), outside_private_cache=a)
        for a in (False, True)
    )
    tile = gemm_tile(TWO, outside)
    plan = gemm_blocking(TWO, outside, tile)
    assert plan.rows_inside
    assert plan.row_tiles == math.ceil(49 / tile.rows)
    assert not gemm_blocking(TWO, inside, gemm_tile(TWO, inside)).rows_inside


@pytest.mark.parametrize("rows", [None, 1024])
def test_rows_go_by_bands_past_weights_that_only_the_last_cache_holds(rows: int | None) -> None:
    inside, outside = (
        msgspec.structs.replace(product(1024, 512, 512), m=rows, outside_private_cache=a)
        for a in (False, True)
    )
    tile = gemm_tile(TWO, outside)
    plan = gemm_blocking(TWO, outside, tile)
    assert plan.rows_inside
    assert plan.row_tiles * tile.rows * 512 * 4 <= TWO.cache(2).size // 2
    assert plan.bands == (rows is None)
    assert not gemm_blocking(TWO, inside, gemm_tile(TWO, inside)).rows_inside


@pytest.mark.parametrize("shape", [(12544, 512, 128), (3136, 256, 1024), (4096, 384, 1536)])
def test_rows_that_are_far_more_than_the_weights_pass_once(shape: tuple[int, int, int]) -> None:
    """The activations of many images or texts come from memory; so do results go there, in rows."""
    tall = msgspec.structs.replace(product(*shape), uncached=True, outside_private_cache=True)
    tile = gemm_tile(TWO, tall)
    plan = gemm_blocking(TWO, tall, tile)
    assert not plan.rows_inside
    assert plan.panels * tile.columns >= shape[1] // 2


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("rows", [8, 12, 16, 24, 32, 64])
def test_few_rows_meet_each_panel_of_an_uncached_matrix_in_one_task(target: str, rows: int) -> None:
    """In tasks of fewer rows, or panel after panel for each tile of rows, its 150 MB would come
    from memory or the last cache again and again."""
    machine = Target(target, num_threads=2)
    uncached = msgspec.structs.replace(product(rows, 50257, 768), uncached=True)
    tile = gemm_tile(machine, uncached)
    plan = gemm_blocking(machine, uncached, tile)
    assert plan.row_tiles == math.ceil(rows / tile.rows)
    assert plan.rows_inside


def test_a_prime_number_of_panels_is_shared_out_too() -> None:
    """Tasks of one panel have no next one to fetch meanwhile; the last task may be a little
    shorter."""
    uncached = msgspec.structs.replace(product(1, 50257, 768), m=None, uncached=True)
    tile = gemm_tile(TWO, uncached)
    panels = math.ceil(50257 / tile.columns)
    share = math.ceil(panels / 2)
    assert all(share % n for n in range(2, 100))
    plan = gemm_blocking(TWO, uncached, tile)
    assert math.ceil(panels / plan.panels) == 2 * 8


def test_so_it_does_for_rows_of_unknown_number() -> None:
    """Every thread has panels of its own, in some tasks that others can take over, and passes each
    for as many rows as stay near."""
    uncached = msgspec.structs.replace(product(1, 3072, 768), m=None, uncached=True)
    tile = gemm_tile(TWO, uncached)
    plan = gemm_blocking(TWO, uncached, tile)
    assert plan.bands
    assert plan.rows_inside
    assert math.ceil(3072 / tile.columns / plan.panels) == 2 * 8
    band = plan.row_tiles * tile.rows * uncached.m_stride
    assert TWO.cache(2).size / 4 < band <= TWO.cache(2).size / 2


def test_rows_that_do_not_stay_near_go_by_equal_bands() -> None:
    """A panel that comes from memory is used for all of a band's rows, and is near for the next."""
    uncached = msgspec.structs.replace(product(197, 768, 768), uncached=True)
    tile = gemm_tile(TWO, uncached)
    plan = gemm_blocking(TWO, uncached, tile)
    assert plan.rows_inside
    assert plan.row_tiles * tile.rows * uncached.m_stride <= TWO.cache(2).size / 2
    tiles = math.ceil(197 / tile.rows)
    bands = math.ceil(tiles / plan.row_tiles)
    assert plan.row_tiles - tiles / bands < 1


def test_unknown_rows_fall_into_equal_bands_where_they_come_in_multiples() -> None:
    """Images of 197 rows: the last band of one would have a few rows only."""
    images = msgspec.structs.replace(
        product(1, 768, 768), m=None, uncached=True, min_m=197, m_multiple=197
    )
    tile = gemm_tile(TWO, images)
    plan = gemm_blocking(TWO, images, tile)
    tiles = math.ceil(197 / tile.rows)
    assert plan.bands
    assert plan.row_tiles == math.ceil(tiles / math.ceil(tiles / plan.row_tiles))


def test_too_few_panels_for_the_threads_are_not_all_that_is_shared_out() -> None:
    many = Target("x86-64-v3", num_threads=16)
    uncached = msgspec.structs.replace(product(1, 320, 768), m=None, uncached=True)
    assert not gemm_blocking(many, uncached, gemm_tile(many, uncached)).bands


def test_rows_that_share_a_set_of_the_cache_make_lower_tiles() -> None:
    """Rows of 1024 floats lie a multiple of the first cache's ways apart: more of them than it has
    ways drive each other out at every step."""
    wide = Target("x86-64-v4", num_threads=1)
    assert gemm_tile(wide, product(1024, 1024, 1024)).rows <= wide.cache(1).ways
    assert gemm_tile(wide, product(1024, 1024, 1040)).rows > wide.cache(1).ways


@pytest.mark.parametrize(
    "plan",
    [
        GemmBlocking(2, 2),
        GemmBlocking(2, 2, None, True),
        GemmBlocking(2, 2, None, True, True),
        GemmBlocking(2, 2, 16),
    ],
)
def test_tasks_may_be_cut_unevenly(
    plan: GemmBlocking, monkeypatch: pytest.MonkeyPatch, checks: Any
) -> None:
    """Rows and panels that tasks do not divide leave conditions on whole tiles, nothing more."""

    def fixed(*_: object) -> GemmBlocking:
        return plan

    monkeypatch.setattr("blockwright.strategies.cpu.gemm_plan.gemm_blocking", fixed)
    func = program(5 * 6 + 1, 5 * 16 + 3, 32)
    result = checks.taken_by("gemm", func)
    assert "outer_product" in str(result.trace.as_python())
    assert_same_meaning(func, result.func)


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_tasks_widen_panels_that_many_rows_share(name: str) -> None:
    """A panel that few rows use is widened by the micro-kernel, so it is not stored and loaded."""
    target = Target(name, num_threads=1)
    for rows, widens in ((4, False), (1024, True)):
        shape = narrow(product(rows, 768, 768))
        plan = gemm_blocking(target, shape, gemm_tile(target, shape))
        assert plan.widens is widens
        assert plan.rows_inside or not widens
    unknown = msgspec.structs.replace(narrow(product(1, 768, 768)), m=None)
    assert not gemm_blocking(target, unknown, gemm_tile(target, unknown)).widens


def test_widening_in_the_micro_kernel_favors_few_vectors_per_row() -> None:
    """Each vector of B takes an instruction more, which more rows share."""
    wide = msgspec.structs.replace(product(1, 768, 768), m=None)
    tile, narrow_tile = (gemm_tile(Target("x86-64-v4"), s) for s in (wide, narrow(wide)))
    assert narrow_tile.vectors < tile.vectors


def test_widening_takes_time() -> None:
    """The prediction counts it where B comes from a near cache, as in a small product."""
    wide = product(48, 64, 512)
    tile = gemm_tile(ONE, narrow(wide))
    plan = gemm_blocking(ONE, wide, tile)
    both = [plan_seconds(ONE, s, tile, plan) for s in (wide, narrow(wide))]
    assert 1.05 < both[1] / both[0] < 1.3


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_register_tiles_are_no_higher_than_the_result(rows: int) -> None:
    """Also where weights come from memory, and the model expects high tiles to take less time."""
    for columns, depth in ((768, 768), (320, 1280), (1000, 2048)):
        some = msgspec.structs.replace(product(rows, columns, depth), uncached=True)
        assert gemm_tile(Target("x86-64-v4", num_threads=2), some).rows <= rows


def test_one_row_of_a_batch_is_scheduled_with_uncached_weights(checks: Any) -> None:
    p = Program("one")
    sizes = [ir.const(n, "int64") for n in (1, 768)]
    a, w = p.param("A", (sizes[0], *sizes), "float32"), p.param("W", (sizes[1],) * 2, "float32")
    c = p.reduce("C", (sizes[0], *sizes), sizes[1:], lambda b, i, j, k: a[b, i, k] * w[j, k])
    func = p.finish([p.compute("D", (sizes[0], *sizes), lambda *i: c[i] + 1.0)])
    func = func.replace(attrs={**func.attrs, CONSTANT_PARAMS: (1,), UNCACHED_PARAMS: (1,)})
    for target in (Target("x86-64-v4", num_threads=2), TWO):
        result = apply_strategies(func, target)
        assert (result.strategy, result.note) == ("gemm", "")


def test_the_choice_is_the_same_every_time() -> None:
    traces: list[str] = []
    for _ in range(2):
        gemm_blocking.cache_clear()
        traces.append(apply_strategies(program(200, 300, 400), TWO).trace.as_python())
    assert traces[0] == traces[1]


def made_each_time(m: int, n: int, k: int) -> GemmShape:
    return msgspec.structs.replace(product(m, n, k), packed=True)


@pytest.mark.parametrize(("m", "n", "k"), [(512, 1024, 4096), (64, 2048, 2048), (100, 1040, 4096)])
def test_a_far_operand_is_packed_where_it_is_used(m: int, n: int, k: int) -> None:
    """Its panels never leave the second cache, and a tile of rows stays in the first one while it
    meets those of a task."""
    tile = gemm_tile(TWO, made_each_time(m, n, k))
    plan = gemm_blocking(TWO, made_each_time(m, n, k), tile)
    depth = plan.depth or k
    assert plan.packs
    assert plan.row_tiles == math.ceil(m / tile.rows)
    assert math.ceil(n / tile.columns) % plan.panels == 0
    assert k % depth == 0
    assert plan.panels * tile.columns * depth * 4 <= TWO.cache(2).size // 2
    assert tile.rows * depth * 4 < TWO.cache(1).size


@pytest.mark.parametrize(("m", "n", "k"), [(1024, 2048, 2048), (512, 1024, 8192)])
def test_panels_of_a_far_constant_are_passed_once(m: int, n: int, k: int) -> None:
    tile = gemm_tile(TWO, product(m, n, k))
    plan = gemm_blocking(TWO, product(m, n, k), tile)
    assert plan.row_tiles == math.ceil(m / tile.rows)
    assert plan.panels * tile.columns * (plan.depth or k) * 4 <= TWO.cache(2).size
    near = gemm_blocking(TWO, product(m, 256, 256), tile)
    assert near.panels == 256 // tile.columns


@pytest.mark.parametrize(("m", "n", "k"), [(1024, 512, 512), (512, 67 * 16, 4096)])
def test_a_near_one_is_packed_before_and_so_are_panels_that_nobody_can_share(
    m: int, n: int, k: int
) -> None:
    few = made_each_time(m, n, k)
    assert not gemm_blocking(TWO, few, gemm_tile(TWO, few)).packs
    constant = product(512, 1024, 4096)
    assert not gemm_blocking(TWO, constant, gemm_tile(TWO, constant)).packs


def test_what_a_task_packs_is_as_large_as_what_it_uses() -> None:
    func = program(64, 2048, 2048).replace(attrs={})
    found = apply_strategies(func, TWO)
    assert found.strategy == "gemm"
    assert "gave up" not in found.note
    (parallel,) = [f for f in ir.loops(found.func.body) if f.kind is ir.ForKind.PARALLEL]
    flat = lower(found.func, TWO)
    largest = max(
        math.prod(ir.const_int(d) or 0 for d in n.buffer.shape)
        for n in ir.collect(flat.body, ir.Allocate)
    )
    assert largest * 4 <= TWO.cache(2).size
    assert ir.const_int(parallel.extent) >= 2


def test_products_that_pack_in_tasks_mean_the_same() -> None:
    """Small ones, for a machine of small caches."""
    smaller = zip(TWO.caches, (8, 16, 512), strict=True)
    caches = tuple(msgspec.structs.replace(c, size=c.size // by) for c, by in smaller)
    small = Target("x86-64-v3", num_threads=2, caches=caches)
    for m, n, k in ((13, 128, 512), (7, 64, 384)):
        func = program(m, n, k).replace(attrs={})
        found = apply_strategies(func, small)
        assert "gave up" not in found.note
        (_,) = [f for f in ir.loops(found.func.body) if f.kind is ir.ForKind.PARALLEL]
        assert_same_meaning(func, found.func, sizes={})
