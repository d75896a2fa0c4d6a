"""Schedule one contraction on a matrix unit: tile registers for both operands and the sums.

A register tile is 2 × 2 tiles of 16 × 16 sums, or 1 × 2 for up to 16 rows. After axes are fused
and padded as in `gemm_canonical`, both operands are stored tile by tile, in the order of use:

    A   [m / 32][k / K][m % 32 / 16][16 rows][16 groups][g]        K = 16 g: a tile's reduction
    B   [n / 32][k / K][n % 32 / 16][16 groups][16 columns][g]

Panels of a constant B are packed when the program is compiled. Rows of A are loaded from where
they are if whole tiles of them lie in memory as the unit reads them; otherwise they are gathered
before, or by each task. Sums are stored to a buffer in the first-level cache, from which the
epilogue reads them.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.intrin.hardware import MATRIX_PRODUCTS, MatrixProduct
from blockwright.schedule import BlockRV, Schedule
from blockwright.strategies.cpu.gemm_canonical import (
    Canonical,
    fuse_axes,
    node,
    pad_operands,
    split_groups,
    vector_rows,
)
from blockwright.strategies.cpu.gemm_contract import operands_of, pack
from blockwright.strategies.cpu.gemm_plan import ContractionPlan
from blockwright.strategies.cpu.micro_kernel import named_kernel
from blockwright.strategies.match.blocks import depth_groups, position_of
from blockwright.target import Target
from blockwright.target.scopes import TILE_SCOPE

_EDGE = 16  # rows, and columns, of a tile


def contract_in_tiles(
    sch: Schedule,
    block: BlockRV,
    tail: BlockRV | None,
    target: Target,
    plan: ContractionPlan,
    packed: BlockRV | None = None,
) -> None:
    """Schedule one contraction at the root, with its consumer and producer; see `contract`."""
    row = MATRIX_PRODUCTS[plan.dot]
    facts = operands_of(sch, block)
    batch, blocking = len(facts.batch), plan.blocking
    form = _canonicalize(sch, block, tail, target, plan, row)
    if packed is not None:
        sch.compute_inline(packed)
    if tail is None:
        (tail,) = sch.get_consumers(block)
    a, b = (_into_tiles(sch, form.block, h) for h in (form.a, form.b))
    sums = _sums_in_tiles(sch, form, batch)
    loops = sch.get_loops(block)
    m0, m1, rows = sch.split(loops[batch], [None, form.tile.rows // _EDGE, _EDGE])
    n0, n1, columns = sch.split(loops[batch + 1], [None, form.tile.columns // _EDGE, _EDGE])
    *k, groups, inside = loops[batch + 2 :]
    step, groups = sch.split(groups, [None, _EDGE])
    k.append(step)
    sch.reorder(*loops[:batch], m0, n0, *k, m1, n1, rows, columns, groups, inside)
    mo, mi = sch.split(m0, [None, blocking.row_tiles])
    no, ni = sch.split(n0, [None, blocking.panels])
    outer, inner = ((no, mo), (ni, mi)) if blocking.rows_inside else ((mo, no), (mi, ni))
    sch.reorder(*loops[:batch], *outer, *inner)
    for handle in (sums, tail):
        sch.reverse_compute_at(handle, inner[1])
    vector_rows(sch, tail, form.tile.columns, count=1)
    for copy in (a, b):
        sch.compute_at(copy, k[-1])
    task = sch.fuse(*loops[:batch], *outer)
    sch.parallel(task)
    clear = sch.decompose_reduction(form.block, k[0])
    _tensorize(sch, clear, 2, 2, f"tile_zero_{row.accumulator}")
    _tensorize(sch, sums, 2, 2, f"tile_store_{row.accumulator}")
    _tensorize(sch, a, 1, 3, f"tile_load_{row.a}")
    _tensorize(sch, b, 1, 3, f"tile_load_{row.b}")
    for loop in (m1, n1):
        sch.unroll(loop)
    sch.tensorize(rows, row.name)
    _gather_rows(sch, form, batch)
    pack(sch, form, batch)


def _canonicalize(
    sch: Schedule,
    block: BlockRV,
    tail: BlockRV | None,
    target: Target,
    plan: ContractionPlan,
    row: MatrixProduct,
) -> Canonical:
    """Fuse the axes of each role, pad them to whole tiles, and store operands tile by tile."""
    before, facts, tile = node(sch, block), operands_of(sch, block), plan.tile
    types = (facts.a.dtype, facts.b.dtype, before.writes[0].buffer.dtype)
    kernel = named_kernel(target, *types, plan.dot)
    batch, depth = [1] * len(facts.batch), depth_groups(before, facts)
    a, b = fuse_axes(sch, block, tail, facts)
    last = [1] * len(depth)
    a, b = pad_operands(sch, block, a, b, [*batch, tile.rows, 1, *last], "clamp")
    padding = [*batch, 1, tile.columns, *last[1:], row.depth]
    a, b = pad_operands(sch, block, a, b, padding, "zero")
    for copy in (block, a, b):
        split_groups(sch, copy, row.group)
    for copy, extent, in_groups in ((a, tile.rows, False), (b, tile.columns, True)):
        _tile_by_tile(sch, copy, len(batch), extent, row, in_groups)
    return Canonical(block, a, b, tile, len(depth), kernel)


def _tile_by_tile(
    sch: Schedule, copy: BlockRV, batch: int, extent: int, row: MatrixProduct, in_groups: bool
) -> None:
    """Store a copy [batch…][x][k…] as [batch…][x / extent][k… / depth][extent / 16] tiles.

    A tile is [16 x][16 groups][g], or with `in_groups` [16 groups][16 x][g].
    """
    buffer = node(sch, copy).writes[0].buffer
    axes = tuple(ir.Var(f"i{k}", copy_dtype(sch, copy)) for k in range(buffer.ndim))
    x, *k, last = axes[batch:]
    tile = [ir.floormod(x, _EDGE), ir.floordiv(ir.floormod(last, row.depth), row.group)]
    final = (
        *axes[:batch],
        ir.floordiv(x, extent),
        *k,
        ir.floordiv(last, row.depth),
        ir.floordiv(ir.floormod(x, extent), _EDGE),
        *(tile[::-1] if in_groups else tile),
        ir.floormod(last, row.group),
    )
    sch.transform_layout(copy, ("write", 0), IndexMap(axes, final))


def copy_dtype(sch: Schedule, copy: BlockRV) -> ir.DType:
    """The type of a block's iterators."""
    dtype = node(sch, copy).iter_vars[0].var.dtype
    return dtype


def _into_tiles(sch: Schedule, block: BlockRV, source: BlockRV) -> BlockRV:
    """Read an operand through tile registers; returns the block that loads them."""
    buffer = node(sch, source).writes[0].buffer
    return sch.cache_read(block, position_of(buffer, node(sch, block).reads), TILE_SCOPE)


def _sums_in_tiles(sch: Schedule, form: Canonical, batch: int) -> BlockRV:
    """Sum in tile registers; returns the block that stores them to a buffer of the thread."""
    sums = sch.cache_write(form.block, 0, TILE_SCOPE)
    sch.set_scope(sums, 0, "local")
    axes = tuple(ir.Var(f"i{k}", copy_dtype(sch, sums)) for k in range(batch + 2))
    tile = form.tile
    final = [*axes[:batch]]
    for axis, extent in zip(axes[batch:], (tile.rows, tile.columns), strict=True):
        final.append(ir.floordiv(axis, extent))
    for axis, extent in zip(axes[batch:], (tile.rows, tile.columns), strict=True):
        final.append(ir.floordiv(ir.floormod(axis, extent), _EDGE))
    final += [ir.floormod(axis, _EDGE) for axis in axes[batch:]]
    mapping = IndexMap(axes, tuple(final))
    sch.transform_layout(form.block, ("write", 0), mapping)
    sch.transform_block_layout(sums, mapping)
    return sums


def _tensorize(sch: Schedule, block: BlockRV, tiled: int, rank: int, name: str) -> None:
    """Let a block that moves tiles do so by an intrinsic; unroll the `tiled` loops over tiles."""
    loops = sch.get_loops(block)
    for loop in loops[-rank - tiled : -rank]:
        sch.unroll(loop)
    sch.tensorize(loops[-rank], name)


def _gather_rows(sch: Schedule, form: Canonical, batch: int) -> None:
    """Copy rows of A to tiles, in parallel."""
    loops = sch.get_loops(form.a)
    outer = sch.fuse(*loops[: batch + 1]) if batch else loops[0]
    inside, lanes = loops[-2:]
    last = sch.fuse(inside, lanes)
    strip, lane = sch.split(last, [None, 32])
    sch.vectorize(lane)
    sch.parallel(outer)
