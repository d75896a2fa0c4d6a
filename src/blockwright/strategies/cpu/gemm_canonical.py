"""Schedule one contraction: canonical form, padding, register tiles, packing.

Used by the GEMM strategy at the root of a program and by the attention strategy inside a loop. A
block `C[b, s, j] += A[b, s, k] * W[j, k]` goes through these steps, each a schedule primitive:

1. `reindex` + `transform_block_layout` + `transform_layout`: C2[m, n] += A2[m, k] * W2[n, k]; a
   convolution keeps kernel axes apart from channels: C2[m, n] += A2[kh, m, k] * W2[n, kh, k]
2. `pad_einsum`: pad m and n to whole tiles; rows beyond the end repeat the last one, columns are 0.
   Pad k with zeros to whole groups of a dot-product instruction
3. `transform_layout`: pack W2 into panels [n / NR][k][NR], or [n / NR][k / g][NR][g] for groups of
   g; `hoist_weight_prepack` hoists packing to compile time when W is a constant
4. `split`, `reorder`, `fuse`, `parallel`: panels of W stay in cache across row tiles
5. accumulators and the A column of a step are in "local" scope, that is in registers
6. `decompose_reduction`, `tensorize` of one register tile, epilogue per tile
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.lower.cpu.register_transpose import LARGEST
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.inline import extent
from blockwright.strategies.cpu.micro_kernel import MicroKernel
from blockwright.strategies.cpu.register_tiling import RegisterTile, choose_register_tile
from blockwright.strategies.cpu.split_k import WHOLE, Pieces, sum_pieces, whole_pieces
from blockwright.strategies.match.blocks import (
    Contraction,
    address_of,
    depth_groups,
    extent_of,
    fusing_map,
    numeric_contraction_of,
    position_of,
    stride,
)
from blockwright.support import ScheduleError
from blockwright.target import Target

_RUN = 512  # bytes of a row that are packed at once
_SHARED = 8  # fewest groups of panels to share among the threads


class Canonical(msgspec.Struct):
    """A contraction in canonical form: `block` over (batch…, m, n, k).

    Attributes:
        block: the contraction.
        a, b: blocks that copy its operands to their canonical layouts.
        tile: the register tile.
        depth: number of reduction axes, without the one within groups.
        kernel: the micro-kernel.
        ragged: whether the last group of the reduction may be padded with zeros.
    """

    block: BlockRV
    a: BlockRV
    b: BlockRV
    tile: RegisterTile
    depth: int
    kernel: MicroKernel
    ragged: bool = False

    @property
    def in_tile(self) -> int:
        """Number of reduction loops inside the loops over a register tile."""
        return int(self.kernel.group > 1)

    def reduction_loops(self, loops: list[LoopRV]) -> tuple[list[LoopRV], list[LoopRV]]:
        """Divide reduction loops into those around a register tile and those inside."""
        split = len(loops) - self.in_tile
        return loops[:split], loops[split:]


def node(sch: Schedule, block: BlockRV) -> ir.Block:
    """The block of a handle."""
    result = sch.get(block)
    assert isinstance(result, ir.Block)
    return result


def canonicalize(
    sch: Schedule,
    block: BlockRV,
    tail: BlockRV | None,
    target: Target,
    pad_rows: bool = True,
    apart: int = 0,
    columns_apart: int = 0,
    most_rows: int = 16,
    tile: RegisterTile | None = None,
    pieces: Sequence[Pieces] = (),
    kernel: MicroKernel | None = None,
) -> Canonical:
    """Steps 1 to 3. `tail` is the block that reads the result, None when the result is an output.

    The first `apart` m axes are not fused with the others, so row tiles do not cross them; nor do
    panels cross the first `columns_apart` n axes. Tiles have up to `most_rows` rows.

    Batch axes are kept. The m axes are fused into one, and so are the n axes; reduction axes are
    fused as far as the left operand's address stays linear. A long reduction that does not divide
    into parts of the last of `pieces` is padded with zeros for `tile_partial_sums` to split.

    The reduction is split into groups of `kernel`, by default an outer product in the type of the
    result.
    """
    before = node(sch, block)
    facts = numeric_contraction_of(before)
    if facts is None:
        raise ScheduleError(
            f"block {before.name} is not a contraction",
            code="BW340",
            help="give a block C[...] = C[...] + A[...] * B[...] with a constant "
            "initial value, over two buffers A and B other than C",
        )
    inner, across = facts.m[apart:], facts.n[columns_apart:]
    rows, columns = extent_of(before, inner), extent_of(before, across)
    kernel = kernel or MicroKernel("", 1, *[before.writes[0].buffer.dtype] * 3)
    bits = kernel.accumulator.bits
    apart_bytes = row_distance(before, facts.a, inner) * bits // 8
    tile = tile or choose_register_tile(target, rows, columns, bits, apart_bytes, most_rows)
    depth = depth_groups(before, facts)
    a, b = fuse_axes(sch, block, tail, facts, apart, columns_apart)
    before_a, before_b = len(facts.batch) + apart, len(facts.batch) + columns_apart
    first, between, last = [1] * before_a, [1] * columns_apart, [1] * len(depth)
    whole = list(last)
    steps = [extent_of(before, axes) for axes in depth]
    if steps[-1] is not None:
        steps[-1] = math.ceil(steps[-1] / kernel.group)
    for cut in pieces[-1:]:
        whole[-1] = whole_pieces(steps, cut)
    whole[-1] *= kernel.group
    if pad_rows:  # rows beyond the end are read one by one: repeat the last row, without a test
        a, b = pad_operands(sch, block, a, b, [*first, tile.rows, *between, 1, *last], "clamp")
    padding = [*first, 1, *between, tile.columns, *whole]
    a, b = pad_operands(sch, block, a, b, padding, "zero")  # columns are read in vectors: mask them
    if kernel.group > 1:
        for copy in (block, a, b):
            split_groups(sch, copy, kernel.group)
    panels(sch, b, before_b, tile.columns, kernel.group)
    if len(depth) > 1 or kernel.group > 1:
        _row_last_but_one(sch, a, before_a, kernel.group)
    for copy, dtype in ((a, kernel.a), (b, kernel.b)):
        if node(sch, copy).writes[0].buffer.dtype is not dtype:
            sch.widen_dtype(copy, 0, dtype.name)
    terms = extent_of(before, depth[-1])
    ragged = whole[-1] > 1 and (terms is None or terms % whole[-1] > 0)
    return Canonical(block, a, b, tile, len(depth), kernel, ragged)


def fuse_axes(
    sch: Schedule,
    block: BlockRV,
    tail: BlockRV | None,
    facts: Contraction,
    apart: int = 0,
    columns_apart: int = 0,
) -> tuple[BlockRV, BlockRV]:
    """Step 1: fuse the axes of each role; see `canonicalize`. Returns the copies of A and B."""
    before = node(sch, block)
    depth = depth_groups(before, facts)
    extents = [it.dom.extent for it in before.iter_vars]
    a = sch.reindex(block, ("read", position_of(facts.a, before.reads)))
    b = sch.reindex(block, ("read", position_of(facts.b, node(sch, block).reads)))
    c = sch.reindex(block, ("write", 0))
    if tail is None:
        tail = c
    else:
        sch.compute_inline(c)
        align(sch, block, tail)
    inner, across = facts.m[apart:], facts.n[columns_apart:]
    batch = [(p,) for p in facts.batch]
    outer = [*batch, *((p,) for p in facts.m[:apart])]
    middle = [(p,) for p in facts.n[:columns_apart]]
    regroup(sch, block, extents, [*outer, inner, *middle, across, *depth])
    fuse_copy(sch, a, a, extents, [*outer, inner, *depth])
    fuse_copy(sch, b, b, extents, [*batch, *middle, across, *depth])
    fuse_copy(sch, block, tail, extents, [*outer, inner, *middle, across])
    return a, b


def split_groups(sch: Schedule, block: BlockRV, group: int) -> None:
    """Split the last iterator of a block, a reduction axis or a copy of it, into groups."""
    axes = tuple(ir.Var(it.var.name, it.var.dtype) for it in node(sch, block).iter_vars)
    k = axes[-1]
    digits = (ir.floordiv(k, group), ir.floormod(k, group))
    sch.transform_block_layout(block, IndexMap(axes, (*axes[:-1], *digits)))


def row_distance(block: ir.Block, operand: ir.Buffer, axes: Sequence[int]) -> int:
    """Stride of an operand along the last of its row axes, in elements; 1 where unknown."""
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is operand)
    address = address_of(load, block)
    result = [stride(address, block.iter_vars[p]) for p in axes[-1:]]
    return max(1, *(int(step) for step in result if step != math.inf), 1)


def align(sch: Schedule, product: BlockRV, tail: BlockRV) -> None:
    """Let the tail run over the product's own axes, by inverting its indices.

    Such indices merge heads, or number channels by group and member.
    """
    result = node(sch, product).writes[0].buffer
    block = node(sch, tail)
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is result)
    iters = tuple(it.var for it in block.iter_vars)
    if len(load.indices) != len(iters) or any(
        a is not b for a, b in zip(load.indices, iters, strict=True)
    ):
        sch.transform_block_layout(tail, IndexMap(iters, load.indices))


def pad_operands(
    sch: Schedule, block: BlockRV, a: BlockRV, b: BlockRV, padding: list[int], mode: str
) -> tuple[BlockRV, BlockRV]:
    """Pad the domain to multiples; padded copies replace the plain copies that they read."""
    sources = {node(sch, h).writes[0].buffer: h for h in (a, b)}
    for result in sch.pad_einsum(block, padding, mode=mode) or []:
        plain = sources.get(node(sch, result).reads[0].buffer)
        if plain is None:
            sch.compute_inline(result)  # the copy of the result, read by the tail
            continue
        sch.compute_inline(plain)
        a, b = (result, b) if plain == a else (a, result)
    return a, b


def _grouping(extents: list[ir.Expr], roles: list[tuple[int, ...]]) -> IndexMap | None:
    """The map that fuses each role's positions; None when it is the identity."""
    order = sorted(p for role in roles for p in role)
    local = {p: k for k, p in enumerate(order)}
    groups = [[local[p] for p in role] for role in roles]
    if groups == [[k] for k in range(len(groups))]:
        return None
    return fusing_map([extents[p] for p in order], groups)


def regroup(
    sch: Schedule, block: BlockRV, extents: list[ir.Expr], roles: list[tuple[int, ...]]
) -> None:
    mapping = _grouping(extents, roles)
    if mapping is not None:
        sch.transform_block_layout(block, mapping)


def fuse_copy(
    sch: Schedule,
    writer: BlockRV,
    copy: BlockRV,
    extents: list[ir.Expr],
    roles: list[tuple[int, ...]],
) -> None:
    """Fuse the axes of the buffer that `writer` writes, and the iterators of `copy`, alike."""
    mapping = _grouping(extents, roles)
    if mapping is not None:
        sch.transform_layout(writer, ("write", 0), mapping)
        sch.transform_block_layout(copy, mapping)


def panels(sch: Schedule, b: BlockRV, batch: int, width: int, group: int = 1) -> None:
    """Store an operand's copy [batch…][n][k…] in panels [n / width][k…][width].

    The elements of a group are next to each other: [n / width][k… / group][width][group].
    """
    axes = _axes(node(sch, b))
    n, *k = axes[batch:]
    outer, inner = _groups(k, group)
    final = (*axes[:batch], ir.floordiv(n, width), *outer, ir.floormod(n, width), *inner)
    sch.transform_layout(b, ("write", 0), IndexMap(axes, final))


def _row_last_but_one(sch: Schedule, a: BlockRV, batch: int, group: int) -> None:
    """Store the left operand's copy as [k…][m][k]: a register tile is its last two axes.

    The last axis has one group: [k…][k / group][m][group].
    """
    axes = _axes(node(sch, a))
    m, *k = axes[batch:]
    outer, inner = _groups(k, group)
    if group == 1:
        *outer, last = outer
        inner = [last]
    sch.transform_layout(a, ("write", 0), IndexMap(axes, (*axes[:batch], *outer, m, *inner)))


def _groups(k: Sequence[ir.Expr], group: int) -> tuple[list[ir.Expr], list[ir.Expr]]:
    """Split the last of the indices `k` into groups; the second list is empty for groups of 1."""
    *outer, last = k
    if group == 1:
        return [*outer, last], []
    return [*outer, ir.floordiv(last, group)], [ir.floormod(last, group)]


def _axes(copy: ir.Block) -> tuple[ir.Var, ...]:
    """A variable for each axis of the buffer that a copy writes."""
    rank = copy.writes[0].buffer.ndim
    return tuple(ir.Var(f"i{k}", copy.iter_vars[0].var.dtype) for k in range(rank))


def tile_registers(sch: Schedule, form: Canonical, m1: LoopRV, k: Sequence[LoopRV]) -> BlockRV:
    """Steps 5 and 6 without the epilogue, below loops (…, k…, m1, n1); returns the init block."""
    sch.set_scope(form.block, 0, "local")
    sch.set_scope(form.a, 0, "local")
    sch.compute_at(form.a, k[-1])
    unroll_all(sch, form.a, below=k[-1], inside=form.in_tile)
    if form.in_tile:
        sch.vectorize(sch.get_loops(form.a)[-1])
    init = sch.decompose_reduction(form.block, k[0])
    vector_rows(sch, init, form.tile.columns)
    sch.tensorize(m1, form.kernel.intrin(form.tile.rows, form.tile.columns))
    return init


def tile_partial_sums(
    sch: Schedule, form: Canonical, m1: LoopRV, k: list[LoopRV], pieces: Pieces, *finer: Pieces
) -> list[LoopRV]:
    """Apply `tile_registers`, with a long reduction split into partial sums.

    The registers hold the sum of one piece, which is added to the tile's total in the first-level
    cache. Pieces are split into `finer` ones in the same way. Summing thousands of terms one after
    another would lose three digits.

    Returns the reduction loops of the register tile.
    """
    cut = sum_pieces(sch, form.block, k, pieces, in_tile=form.in_tile)
    if cut is None:
        if finer:
            return tile_partial_sums(sch, form, m1, k, *finer)
        tile_registers(sch, form, m1, k)
        return k
    partial, loops, loop = cut
    own, m = loops[: -2 - form.in_tile], loops[-2 - form.in_tile]
    of_piece = msgspec.structs.replace(form, block=partial)
    own = tile_partial_sums(sch, of_piece, m, own, *finer or (WHOLE,))
    clear_total(sch, form.block, loop, form.tile.columns)
    return own


def clear_total(sch: Schedule, total: BlockRV, loop: LoopRV, lanes: int) -> BlockRV:
    """Unroll and vectorize the additions of `sum_pieces`; returns the init block."""
    sch.set_scope(total, 0, "local")
    clear = sch.decompose_reduction(total, loop)
    for handle in (clear, total):
        vector_rows(sch, handle, lanes)
    return clear


def unroll_reduction(sch: Schedule, loop: LoopRV, limit: int) -> LoopRV:
    """Unroll a reduction loop by `limit`, or by a slightly smaller divisor of its length.

    Returns the loop that remains.
    """
    length = extent(sch, loop)
    if length is None or limit == 1:
        return loop
    count = max(d for d in range(1, limit + 1) if length % d == 0)
    if 2 * count <= limit:
        count = limit
    outer, inner = sch.split(loop, [None, count])
    sch.unroll(inner)
    if length % count:
        sch.annotate(outer, LOOP_PARTITION, True)
    return outer


def pack_panels(
    sch: Schedule, form: Canonical, loops: Sequence[LoopRV], limit: int | None = None
) -> LoopRV:
    """Pack the panels one vector of columns at a time; return the loop over panels or their groups.

    If columns are contiguous in the source, each row is read in runs that span several panels,
    because rows may be on different pages, and each run costs a TLB lookup and restarts the
    hardware prefetcher. Otherwise, the source rows of a vector are read end to end, so that each
    cache line is fetched once; if k steps are contiguous, by square tiles of elements or groups
    that are transposed in registers (`lower.cpu.register_transpose`).

    Args:
        loops: the copy's own loops over (n, k…).
        limit: number of panels to pack.
    """
    copy = node(sch, form.b)
    load = _most_moving(copy)
    column = copy.iter_vars[len(copy.iter_vars) - len(loops)]
    address = None if load is None else address_of(load, copy)
    together = address is None or stride(address, column) == 1
    columns, *depth = loops
    lanes = math.gcd(form.tile.columns, form.tile.lanes)
    length = ir.const_int(copy.iter_vars[-1 - form.in_tile].dom.extent)
    transposed = (
        not together
        and address is not None
        and stride(address, copy.iter_vars[-1]) == 1
        and 2 < lanes <= LARGEST
        and (length is None or length >= lanes)
    )
    if transposed:
        depth, group = form.reduction_loops(depth)
        *depth, last = depth
        tiles, step = sch.split(last, [None, lanes])
        for loop in (step, *group):
            sch.unroll(loop)
        if length is None or length % lanes:
            sch.annotate(tiles, LOOP_PARTITION, True)
        depth += [tiles, step, *group]
    panel, chunk, lane = sch.split(columns, [None, form.tile.columns // lanes, lanes])
    if not together:
        sch.reorder(panel, chunk, *depth, lane)
        sch.vectorize(lane)
        # a partial last chunk must not keep the full chunks from being transposed in registers
        if transposed:
            sch.annotate(chunk, LOOP_PARTITION, True)
        return panel
    count = ir.const_int(copy.iter_vars[len(copy.iter_vars) - len(loops)].dom.extent)
    group, panel = sch.split(panel, [None, limit or _at_once(form, copy, count)])
    sch.reorder(group, *depth, panel, chunk, lane)
    sch.annotate(panel, LOOP_PARTITION, True)
    sch.vectorize(lane)
    return group


def _most_moving(copy: ir.Block) -> ir.BufferLoad | None:
    """The load of a copy's producer that depends on most of its iterators.

    Scales of rows, and the indices of a gather, depend on fewer. None if it computes its elements
    without reading any, as of a constant.
    """

    def moved(load: ir.BufferLoad) -> int:
        return sum(any(ir.uses_var(i, it.var) for i in load.indices) for it in copy.iter_vars)

    return max(ir.collect(copy.body, ir.BufferLoad), key=moved, default=None)


def _at_once(form: Canonical, copy: ir.Block, columns: int | None) -> int:
    """Panels packed per run of a row, few enough to leave groups for all threads."""
    run = math.ceil(_RUN * 8 / (form.tile.columns * copy.writes[0].buffer.dtype.bits))
    panels = run if columns is None else math.ceil(columns / form.tile.columns)
    return max(1, min(run, panels // _SHARED))


def vector_tile(sch: Schedule, block: BlockRV, n1: LoopRV, m1: LoopRV, lanes: int) -> None:
    """Unroll a register tile and vectorize its columns."""
    chunks, lane = sch.split(n1, [None, lanes])
    sch.vectorize(lane)
    sch.unroll(m1)
    sch.unroll(chunks)


def vector_rows(sch: Schedule, block: BlockRV, lanes: int, count: int = 2) -> None:
    """Vectorize the innermost loop of a tile-sized block and unroll the loops around it.

    `count` is the number of loops of the tile.
    """
    loops = sch.get_loops(block)
    chunks, lane = sch.split(loops[-1], [None, lanes])
    sch.vectorize(lane)
    sch.unroll(chunks)
    for loop in loops[-count:-1]:
        sch.unroll(loop)


def unroll_all(sch: Schedule, block: BlockRV, below: LoopRV, inside: int = 0) -> None:
    """Unroll the loops of a block inside of `below`, but for the `inside` innermost ones."""
    outer, inner = sch.get(below), False
    loops = sch.get_loops(block)
    for loop in loops[: len(loops) - inside]:
        if inner:
            sch.unroll(loop)
        inner = inner or sch.get(loop) is outer
