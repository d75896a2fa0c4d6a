"""Schedule one contraction on a matrix unit: tile registers for both operands and the sums.

A register tile is 2 × 2 tiles of 16 × 16 sums, or 1 × 2 for up to 16 rows. After axes are fused
and padded as in `gemm_canonical`, both operands are stored tile by tile, in the order of use:

    A   [m / 32][k / K][m % 32 / 16][16 rows][16 groups][g]        K = 16 g: a tile's reduction
    B   [n / 32][k / K][n % 32 / 16][16 groups][16 columns][g]

Panels of a constant B are packed when the program is compiled. Rows of A are loaded from where
they are if whole tiles of them lie in memory as the unit reads them; otherwise they are gathered:
by the tasks, if one task reads each row or rows are read through a window, else before. Sums are
stored to a buffer in the first-level cache, from which the epilogue reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.intrin.hardware import MATRIX_PRODUCTS, MatrixProduct
from blockwright.ir.annotations import PREFETCH_SHARED
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.gemm_canonical import (
    Canonical,
    fuse_axes,
    node,
    pad_operands,
    split_groups,
    vector_rows,
)
from blockwright.strategies.cpu.gemm_contract import operands_of, pack
from blockwright.strategies.cpu.gemm_cost import UNKNOWN_EXTENT, panels_outside
from blockwright.strategies.cpu.gemm_plan import ContractionPlan
from blockwright.strategies.cpu.inline import extent
from blockwright.strategies.cpu.micro_kernel import named_kernel
from blockwright.strategies.cpu.register_tiling import RegisterTile
from blockwright.strategies.cpu.vector_loops import inner_loops
from blockwright.strategies.match.blocks import Contraction, depth_groups, position_of, windowed
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
    direct = _loads_directly(node(sch, block), facts, plan.tile, row)
    in_windows = facts.a in windowed(node(sch, block))  # all rows would be many times the image
    blocking, apart = plan.blocking, len(facts.m) - 1 if direct else 0
    batch = len(facts.batch) + apart
    form = _canonicalize(sch, block, tail, target, plan, row, apart)
    if packed is not None:
        sch.compute_inline(packed)
    if tail is None:
        (tail,) = sch.get_consumers(block)
    a, b = (_into_tiles(sch, form.block, h) for h in (form.a, form.b))
    if direct:
        sch.compute_inline(form.a)
    sums = _sums_in_tiles(sch, form, batch)
    loops = sch.get_loops(block)
    m0, m1, rows = sch.split(loops[batch], [None, form.tile.rows // _EDGE, _EDGE])
    n0, n1, columns = sch.split(loops[batch + 1], [None, form.tile.columns // _EDGE, _EDGE])
    *k, groups, inside = loops[batch + 2 :]
    step, groups = sch.split(groups, [None, _EDGE])
    k.append(step)
    sch.reorder(*loops[:batch], m0, n0, *k, m1, n1, rows, columns, groups, inside)
    tiles = (extent(sch, m0) or UNKNOWN_EXTENT, extent(sch, n0) or UNKNOWN_EXTENT)
    mo, mi = sch.split(m0, [None, blocking.row_tiles])
    no, ni = sch.split(n0, [None, blocking.panels])
    outer = (no, mo) if panels_outside(*tiles, form.tile, blocking) else (mo, no)
    inner = (ni, mi) if blocking.rows_inside else (mi, ni)
    sch.reorder(*loops[:batch], *outer, *inner)
    for handle in (sums, tail):
        sch.reverse_compute_at(handle, inner[1])
    vector_rows(sch, tail, form.tile.columns, count=1)
    for copy in (a, b):
        sch.compute_at(copy, k[-1])
    if blocking.rows_inside and blocking.row_tiles > 1:
        sch.annotate(mi, PREFETCH_SHARED, 1)  # each row tile fetches a share of the next panel
    by_task = not direct and (in_windows or extent(sch, no) == 1)
    task = sch.fuse(*loops[:batch], *outer)
    if by_task:
        sch.compute_at(form.a, task, preserve_unit_loops=True)
        _gather(sch, inner_loops(sch, form.a, task), form.depth)
    sch.parallel(task)
    clear = sch.decompose_reduction(form.block, k[0])
    _tensorize(sch, clear, inner[1], 2, f"tile_zero_{row.accumulator}")
    _tensorize(sch, sums, inner[1], 2, f"tile_store_{row.accumulator}")
    _tensorize(sch, a, k[-1], 3, f"tile_load_{'rows_' * direct}{row.a}")
    _tensorize(sch, b, k[-1], 3, f"tile_load_{row.b}")
    for loop in (m1, n1):
        sch.unroll(loop)
    sch.tensorize(rows, row.name)
    if not (by_task or direct):
        _gather_before(sch, form, batch)
    pack(sch, form, len(facts.batch))


def _loads_directly(
    block: ir.Block, facts: Contraction, tile: RegisterTile, row: MatrixProduct
) -> bool:
    """Whether the unit can load A from where it is: whole tiles of rows that are contiguous.

    The last m axis and the only k axis are the last two dimensions of A, and divide into tiles.
    """
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is facts.a)
    if len(facts.k) != 1 or len(load.indices) < 2 or facts.a.strides or not facts.m:
        return False
    if facts.a.dtype.name != row.a:
        return False
    axes = [block.iter_vars[position] for position in (facts.m[-1], facts.k[-1])]
    for axis, index, size in zip(axes, load.indices[-2:], (tile.rows, row.depth), strict=True):
        length = ir.const_int(axis.dom.extent)
        if index is not axis.var or length is None or length % size:
            return False
    return not any(ir.uses_var(i, it.var) for i in load.indices[:-2] for it in axes)


def _canonicalize(
    sch: Schedule,
    block: BlockRV,
    tail: BlockRV | None,
    target: Target,
    plan: ContractionPlan,
    row: MatrixProduct,
    apart: int,
) -> Canonical:
    """Fuse the axes of each role, pad them to whole tiles, and store operands tile by tile.

    The first `apart` m axes are not fused with the last one.
    """
    before, facts, tile = node(sch, block), operands_of(sch, block), plan.tile
    types = (facts.a.dtype, facts.b.dtype, before.writes[0].buffer.dtype)
    kernel = named_kernel(target, *types, plan.dot)
    batch, depth = len(facts.batch), depth_groups(before, facts)
    a, b = fuse_axes(sch, block, tail, facts, apart)
    first, last = [1] * (batch + apart), [1] * len(depth)
    a, b = pad_operands(sch, block, a, b, [*first, tile.rows, 1, *last], "clamp")
    padding = [*first, 1, tile.columns, *last[1:], row.depth]
    a, b = pad_operands(sch, block, a, b, padding, "zero")
    for copy in (block, b):
        split_groups(sch, copy, row.group)
    rows = _tile_by_tile(sch, a, batch + apart, tile.rows, row, False)
    sch.transform_block_layout(a, rows)
    _tile_by_tile(sch, b, batch, tile.columns, row, True)
    return Canonical(block, a, b, tile, len(depth), kernel)


def _tile_by_tile(
    sch: Schedule, copy: BlockRV, batch: int, extent: int, row: MatrixProduct, in_groups: bool
) -> IndexMap:
    """Store a copy [batch…][x][k…] as [batch…][x / extent][k… / depth][extent / 16] tiles.

    A tile is [16 x][16 groups][g], or with `in_groups` [16 groups][16 x][g]. Returns the map.
    """
    buffer = node(sch, copy).writes[0].buffer
    axes = tuple(ir.Var(f"i{k}", _index_type(sch, copy)) for k in range(buffer.ndim))
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
    mapping = IndexMap(axes, final)
    sch.transform_layout(copy, ("write", 0), mapping)
    return mapping


def _index_type(sch: Schedule, copy: BlockRV) -> ir.DType:
    """The type of a block's iterators."""
    return node(sch, copy).iter_vars[0].var.dtype


def _into_tiles(sch: Schedule, block: BlockRV, source: BlockRV) -> BlockRV:
    """Read an operand through tile registers; returns the block that loads them."""
    buffer = node(sch, source).writes[0].buffer
    return sch.cache_read(block, position_of(buffer, node(sch, block).reads), TILE_SCOPE)


def _sums_in_tiles(sch: Schedule, form: Canonical, batch: int) -> BlockRV:
    """Sum in tile registers; returns the block that stores them to a buffer of the thread."""
    sums = sch.cache_write(form.block, 0, TILE_SCOPE)
    sch.set_scope(sums, 0, "local")
    axes = tuple(ir.Var(f"i{k}", _index_type(sch, sums)) for k in range(batch + 2))
    sizes = list(zip(axes[batch:], (form.tile.rows, form.tile.columns), strict=True))
    mapping = IndexMap(
        axes,
        (
            *axes[:batch],
            *(ir.floordiv(axis, size) for axis, size in sizes),
            *(ir.floordiv(ir.floormod(axis, size), _EDGE) for axis, size in sizes),
            *(ir.floormod(axis, _EDGE) for axis, _ in sizes),
        ),
    )
    sch.transform_layout(form.block, ("write", 0), mapping)
    sch.transform_block_layout(sums, mapping)
    return sums


def _tensorize(sch: Schedule, block: BlockRV, within: LoopRV, rank: int, name: str) -> None:
    """Let a block that moves tiles do so by an intrinsic; unroll its loops over tiles."""
    *tiles, first = inner_loops(sch, block, within)[: 1 - rank]
    for loop in tiles:
        sch.unroll(loop)
    sch.tensorize(first, name)


def _gather_before(sch: Schedule, form: Canonical, batch: int) -> None:
    """Copy all rows of A to tiles, in parallel."""
    loops = sch.get_loops(form.a)
    _gather(sch, loops[batch:], form.depth)
    sch.parallel(sch.fuse(*loops[: batch + 1]))


def _gather(sch: Schedule, loops: Sequence[LoopRV], depth: int) -> None:
    """Copy rows of A to tiles, row by row.

    `loops` are those over pairs of tiles, the reduction, tiles, and rows, groups and elements of a
    tile.
    """
    *outer, tiles, rows, groups, group = loops[-5 - depth :]
    count = ir.const_int(sch.get(group).extent) or 1
    sch.reorder(*outer[:-depth], tiles, rows, *outer[-depth:], groups)
    _, lanes = sch.split(sch.fuse(groups, group), [None, _EDGE * count])
    sch.vectorize(lanes)
