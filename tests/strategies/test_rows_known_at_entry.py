"""Products of unknown rows: register tiles that calls choose from, all on one packed matrix."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis import find_violations
from blockwright.schedule import Schedule
from blockwright.script.compute import Program
from blockwright.strategies import CONSTANT_PARAMS, apply_strategies
from blockwright.strategies.cpu.register_tiling import RowTile, row_tiles
from blockwright.strategies.multiversion import chosen_at_entry
from blockwright.strategies.strategy import Plan, Strategy, try_strategies
from blockwright.target import Target
from blockwright.testing import assert_same_meaning

WIDE = Target("x86-64-v4", num_threads=2)
N = ir.var("n", "int64")


def product(rows: ir.Expr, columns: int = 200, depth: int = 8, least: int = 1) -> ir.PrimFunc:
    p = Program("product")
    a, w = p.param("A", (rows, depth), "float32"), p.param("W", (columns, depth), "float32")
    c = p.reduce("C", (rows, columns), (depth,), lambda i, j, k: a[i, k] * w[j, k])
    func = p.finish([p.compute("D", (rows, columns), lambda i, j: c[i, j] + 1.0)])
    bounds = {"tir_var_lower_bound": {"n": least}, CONSTANT_PARAMS: (1,)}
    return func.replace(attrs={**func.attrs, **bounds})


def choices(func: ir.PrimFunc) -> list[ir.Stmt]:
    """What is chosen from at the end of a function."""
    body = func.root.body
    last = body.seq[-1] if isinstance(body, ir.SeqStmt) else body
    found: list[ir.Stmt] = []
    while isinstance(last, ir.IfThenElse):
        found.append(last.then_case)
        assert last.else_case is not None
        last = last.else_case
    return [*found, last]


def passed(rows: int, tiles: tuple[RowTile, ...]) -> int:
    """Rows that are computed for so many."""
    best = min(tiles, key=lambda one: one.of(np.array(rows)))
    whole, rest = divmod(rows, best.tile.rows)
    last = 0 if rest == 0 else best.short if rest <= best.short else best.tile.rows
    return whole * best.tile.rows + last


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_few_rows_are_passed_in_tiles_that_suit_them(name: str) -> None:
    tiles = row_tiles(Target(name), 1, 768)
    assert len({one.tile.columns for one in tiles}) == 1
    for rows in range(8, 64):
        assert passed(rows, tiles) <= 1.25 * rows


def test_panels_from_memory_are_passed_in_higher_tiles() -> None:
    """The first tile over a panel waits for it, unless it has enough to compute meanwhile."""
    near, far = row_tiles(WIDE, 1, 768)[0], row_tiles(WIDE, 1, 768, uncached=True)[0]
    assert far.tile.rows > near.tile.rows
    assert far.min_cost <= far.cost  # what is chosen is high enough


def test_many_rows_have_one_tile() -> None:
    assert len(row_tiles(WIDE, 3136, 768)) == 1


@pytest.mark.parametrize("each", [4, 49, 128, 196, 784])
def test_rows_that_come_in_whole_images_fill_their_tiles(each: int) -> None:
    """So many for each of an unknown number of images: next to no row is computed in vain."""
    tiles = row_tiles(WIDE, each, 512, each=each)
    for images in range(1, 9):
        assert passed(images * each, tiles) <= 1.03 * images * each


def images(pixels: int) -> ir.PrimFunc:
    p = Program("images")
    a, w = p.param("A", (N, pixels, 8), "float32"), p.param("W", (512, 8), "float32")
    return p.finish(
        [p.reduce("C", (N, pixels, 512), (8,), lambda b, i, j, k: a[b, i, k] * w[j, k])]
    )


def test_what_is_known_of_the_rows_is_found_in_the_program() -> None:
    result = apply_strategies(images(49), WIDE)
    heights = {
        ir.const_int(loop.extent)
        for choice in choices(result.func)
        for loop in ir.loops(choice)
        if loop.kind is ir.ForKind.UNROLLED
    }
    assert heights & {7, 14}


def test_the_matrix_is_packed_once_for_all_of_them() -> None:
    result = apply_strategies(product(N), WIDE)
    assert result.strategy == "gemm"
    assert len(result.variants) == len(choices(result.func)) - 1 > 0
    packing, _ = result.func.root.body.children()
    (packed,) = {n.buffer for n in ir.collect(packing, ir.BufferStore)}
    for choice in choices(result.func):
        touched = [(b.reads, b.writes) for b in ir.blocks(choice)]
        assert any(region.buffer is packed for reads, _ in touched for region in reads)
        assert all(region.buffer is not packed for _, writes in touched for region in writes)


@pytest.mark.parametrize("rows", [1, 5, 9, 10, 13, 17, 18, 23, 40])
def test_each_number_of_rows_is_right(rows: int) -> None:
    func = product(N, columns=100, depth=3)
    assert_same_meaning(func, apply_strategies(func, WIDE).func, sizes={"n": rows})


def test_all_choices_are_proved() -> None:
    pytest.importorskip("islpy")
    func = product(N)
    found = bw.verify(func, apply_strategies(func, WIDE).func)
    assert found.verdict == "proved", found


@pytest.mark.parametrize("rows", [ir.const(9, "int64"), N * 3136])
def test_there_is_nothing_to_choose_for_rows_that_are_known_or_many(rows: ir.Expr) -> None:
    assert apply_strategies(product(rows), WIDE).variants == ()


def test_a_variant_that_is_refused_is_left_out() -> None:
    class Outermost(Plan, frozen=True):
        block: str = "D"

    def apply(sch: Schedule, target: Target, plan: Outermost) -> None:
        loops = sch.get_loops(plan.block)
        sch.parallel(loops[-1] if plan.block == "C" else loops[0])  # the last one reduces

    variants = [(ir.LT(N, ir.const(9, "int64")), Outermost(block)) for block in "CD"]
    rule = Strategy(
        "outermost",
        lambda func, _: func,
        apply,
        Outermost,
        lambda *_: [Outermost()],
        variants=lambda *_: variants,
    )
    result = try_strategies([rule], product(N), WIDE)
    assert "strategy outermost, where n < 9, gave up: [BW317]" in result.note
    assert len(result.variants) == len(choices(result.func)) - 1 == 1


def test_choices_share_neither_blocks_nor_memory() -> None:
    """A block without axes is copied too: both schedules leave the last one as it is."""
    p = Program("total")
    a = p.param("A", (N,), "float32")
    total = p.reduce("S", (), (N,), lambda k: a[k])
    func = p.finish([p.compute("D", (), lambda: total[()] + 1.0)])
    found = apply_strategies(func, WIDE)
    assert len(found.variants) == 1
    assert not find_violations(found.func, WIDE)
    both = chosen_at_entry(func, [(ir.GT(N, ir.const(8, "int64")), func)] * 2)
    assert not find_violations(both, WIDE)
    used = [{n.buffer for n in ir.collect(c, ir.BufferStore)} for c in choices(both)]
    assert [len(made & set(both.root.alloc_buffers)) for made in used] == [1, 1, 1]
    assert len(set[ir.Buffer]().union(*used)) == 4


def test_a_model_shows_its_choices_and_computes_the_same() -> None:
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear(96, 192)
    exe = bw.compile(
        linear,
        (torch.randn(40, 96),),
        target=Target("native"),
        dynamic_shapes=({0: torch.export.Dim("n", min=2, max=4096)},),
    )
    (name,) = exe.context.traces
    shown = exe.show("schedule")
    for when, trace in exe.context.variants.get(name, ()):
        assert f"# where {when!r}:" in shown
        assert trace.as_python() in shown
    for rows in (2, 9, 10, 13, 18, 64):
        x = torch.randn(rows, 96)
        np.testing.assert_allclose(exe(x), linear(x).detach(), rtol=1e-4, atol=1e-5)
