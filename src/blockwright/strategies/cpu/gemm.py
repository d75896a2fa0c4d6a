"""GEMM and convolution: a contraction fused with its element-wise epilogue.

    out[b, m, n] = epilogue(sum over k of A[b, m, k] * W[b, n, k], bias[n], residual[m, n], …)

Handles any number of batch, m, n and k axes, symbolic extents included; see `gemm_canonical` for
the steps. A may be accessed at any index: a convolution reads X[h * s + kh, w * s + kw, c] where a
matrix product reads A[m, k], so it is an implicit GEMM. Groups are batch axes. A producer of A that
is more than a copy (padding, an activation) is computed once, before. A producer of W (dequantized
numbers of few bits, gathered rows) is computed while panels are packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.intrin.hardware import MATRIX_PRODUCTS
from blockwright.schedule import BlockRV, Schedule
from blockwright.strategies.cpu.blocked_sums import long_sums
from blockwright.strategies.cpu.elementwise import spread
from blockwright.strategies.cpu.gemm_blocking import unknown_rows
from blockwright.strategies.cpu.gemm_canonical import node
from blockwright.strategies.cpu.gemm_contract import contract, operands_of
from blockwright.strategies.cpu.gemm_cost import GemmShape
from blockwright.strategies.cpu.gemm_plan import GemmPlan, best_plan, other_plans
from blockwright.strategies.cpu.gemm_shape import shape_of
from blockwright.strategies.cpu.gemm_tiles import contract_in_tiles
from blockwright.strategies.cpu.inline import inline_where, is_copy
from blockwright.strategies.cpu.inner_reduction import reduce_lanes
from blockwright.strategies.cpu.lanes_plan import lanes_plan
from blockwright.strategies.cpu.micro_kernel import (
    MicroKernel,
    fastest_kernel,
    matrix_kernel,
    offset_of,
)
from blockwright.strategies.cpu.register_tiling import RowTile
from blockwright.strategies.cpu.split_k import Pieces
from blockwright.strategies.match.blocks import (
    Contraction,
    address_of,
    contraction_of,
    extent_of,
    is_spatial,
    leaf_blocks,
    numeric_contraction_of,
    position_of,
    stride,
    windowed,
)
from blockwright.strategies.strategy import Fusion, Strategy, facts_unless
from blockwright.target import Target

_LONG = (Pieces(most=128, unknown=True),)  # the last k-split is zero-padded


_FEW = 32  # columns up to which a left operand is widened in registers


@lru_cache(maxsize=8)  # for `plans` and `variants`
def shapes_of(func: ir.PrimFunc, target: Target) -> list[tuple[GemmShape, MicroKernel]]:
    """Shapes of the contractions after `_prepare`, and their fastest micro-kernels."""
    sch = Schedule(func)
    result: list[tuple[GemmShape, MicroKernel]] = []
    for handle in _prepare(sch, target).products:
        block, facts = node(sch, handle), operands_of(sch, handle)
        kernel = _kernel(target, block, facts)
        assert kernel is not None  # `why_not` checked it
        result.append((shape_of(sch.func, block, facts, kernel), kernel))
    return result


def why_not(func: ir.PrimFunc, target: Target) -> str:
    """The reason why a program is not one of contractions and spatial blocks; "" if it is."""
    matches = leaf_blocks(func)
    contractions = [b for b in matches if numeric_contraction_of(b) is not None]
    if not contractions:
        return "no contraction"
    if not all(is_spatial(b) for b in matches if b not in contractions):
        return "other blocks reduce too"
    created = {w.buffer for b in contractions for w in b.writes}
    for block in contractions:
        facts = numeric_contraction_of(block)
        assert facts is not None
        if created & {facts.a, facts.b}:
            return "one contraction reads the result of another"
        if any(extent_of(block, axes) == 1 for axes in (facts.n, facts.k)):
            return "an operand is a vector"
        if _kernel(target, block, facts) is None:
            types = [x.dtype.name for x in (facts.a, facts.b, block.writes[0].buffer)]
            return "no micro-kernel for {} x {} -> {}".format(*types)
    return ""


def _kernel(target: Target, block: ir.Block, facts: Contraction) -> MicroKernel | None:
    return fastest_kernel(target, *_types(block, facts))


def _types(block: ir.Block, facts: Contraction) -> tuple[ir.DType, ir.DType, ir.DType]:
    return facts.a.dtype, facts.b.dtype, block.writes[0].buffer.dtype


def _offset_signed(sch: Schedule, handle: BlockRV, target: Target) -> None:
    """Make the left operand of a product of signed bytes unsigned, where that is faster.

    The sums of the correction are computed once per column, at compile time if B is a constant.
    """
    block, facts = node(sch, handle), operands_of(sch, handle)
    types = _types(block, facts)
    offset = offset_of(target, *types)
    if offset is None or matrix_kernel(target, *types) is not None:
        return
    at = position_of(facts.a, block.reads)
    _, sums, _ = sch.offset_operand(handle, at, offset, "uint8")
    correction = node(sch, sums)
    loads = ir.collect(correction.body, ir.BufferLoad)
    (load,) = (n for n in loads if n.buffer is facts.b)
    address = address_of(load, correction)
    spatial = [it for it in correction.iter_vars if it.iter_type is ir.IterType.SPATIAL]
    if stride(address, spatial[-1]) == 1:
        _sum_columns(sch, sums, target)
    else:
        reduce_lanes(sch, sums, sch.get_loops(sums)[0], lanes_plan(target))
        sch.parallel(sch.get_loops(sums)[0])


def _widen_left(
    sch: Schedule,
    handle: BlockRV,
    products: list[BlockRV],
    kept: list[BlockRV],
    target: Target,
) -> None:
    """Widen a narrow left operand once, if the micro-kernel would widen it for every panel.

    Its elements are broadcast one by one, so widening them takes as long as multiplying them. Those
    of the right operand are widened a vector at a time.
    """
    block, facts = node(sch, handle), operands_of(sch, handle)
    kernel, columns = _kernel(target, block, facts), extent_of(block, facts.n)
    once = columns is not None and columns <= _FEW and facts.a not in windowed(block)
    if kernel is None or kernel.a is facts.a.dtype or once:
        return
    copy = next((h for h in kept if node(sch, h).writes[0].buffer is facts.a), None)
    if copy is None:
        readers = [p for p in products if operands_of(sch, p).a is facts.a]
        copy = sch.cache_read(handle, position_of(facts.a, block.reads), "global", readers)
        kept.append(copy)
    sch.widen_dtype(copy, 0, kernel.a.name)


def _sum_columns(sch: Schedule, handle: BlockRV, target: Target) -> None:
    """Vectorize a sum along its last spatial axis, in strips that threads share."""
    loops = sch.get_loops(handle)
    count = sum(it.iter_type is ir.IterType.SPATIAL for it in node(sch, handle).iter_vars)
    strip, lane = sch.split(loops[count - 1], [None, target.lanes("int32")])
    sch.reorder(strip, *loops[count:], lane)
    init = sch.decompose_reduction(handle, loops[count])
    for block in (init, handle):
        sch.vectorize(sch.get_loops(block)[-1])
    sch.parallel(strip)


def plans(func: ir.PrimFunc, target: Target) -> Iterator[GemmPlan]:
    """The best plan of each contraction, then plans that differ in one contraction."""
    pairs = shapes_of(func, target)
    best = [best_plan(target, shape, kernel) for shape, kernel in pairs]
    yield GemmPlan(tuple(best))
    for k, (shape, _) in enumerate(pairs):
        for plan in other_plans(target, shape, best[k]):
            yield GemmPlan((*best[:k], plan, *best[k + 1 :]))


class _Prepared(msgspec.Struct, frozen=True):
    """A program whose producers that only move data are inlined.

    Attributes:
        products: the contractions.
        behind: the blocks after the first contraction.
        kept: producers that are computed before.
        packed: contraction → producer that is computed while panels are packed, if any.
    """

    products: list[BlockRV]
    behind: list[BlockRV]
    kept: list[BlockRV]
    packed: dict[BlockRV, BlockRV | None]


def _prepare(sch: Schedule, target: Target) -> _Prepared:
    for handle in parts(sch)[1]:
        _offset_signed(sch, handle, target)
    before, products, behind = parts(sch)
    kept = inline_producers(sch, before, products)
    for handle in products:
        _widen_left(sch, handle, products, kept, target)
    packed = {block: _packed_with(sch, kept, products, block) for block in products}
    for handle in kept:
        if handle not in packed.values():
            _as_its_source(sch, handle, products, target)
    return _Prepared(products, behind, kept, packed)


def apply(sch: Schedule, target: Target, plan: GemmPlan) -> None:
    """Schedule a program by a plan."""
    program = _prepare(sch, target)
    kept, behind = list(program.kept), program.behind
    if len(program.products) == 1 and behind:  # one epilogue, at the register tile
        for handle in behind[:-1]:
            sch.compute_inline(handle)
        tails = behind[-1:]
    else:
        kept += inline_where(sch, behind)
        tails = [None] * len(program.products)
    for block, tail, one in zip(program.products, tails, plan.contractions, strict=True):
        schedule = contract_in_tiles if one.dot in MATRIX_PRODUCTS else contract
        schedule(sch, block, tail, target, one, program.packed[block])
    for handle in kept:
        if handle not in program.packed.values():
            spread(sch, [handle], target)


def _as_its_source(sch: Schedule, handle: BlockRV, products: list[BlockRV], target: Target) -> None:
    """Store a producer's result in its source's memory order if it has fewer channels than lanes.

    Elements of the left operand are loaded one by one, from anywhere, but should be stored as
    vectors.
    """
    block = node(sch, handle)
    result, loads = block.writes[0].buffer, ir.collect(block.body, ir.BufferLoad)
    if len(loads) != 1 or any(result is own for own in sch.func.buffers):
        return
    for product in products:
        facts = numeric_contraction_of(node(sch, product))
        if facts is None or facts.a is not result or extent_of(node(sch, product), facts.m) == 1:
            return
    address = address_of(loads[0], block)
    steps = [stride(address, it) for it in block.iter_vars]
    channels = ir.const_int(block.iter_vars[-1].dom.extent)
    if steps[-1] == 1 or 1 not in steps or 0 in steps or channels is None:
        return
    if channels * result.dtype.bits >= target.vector_bits:
        return
    axes = tuple(it.var for it in block.iter_vars)
    order = tuple(axes[k] for k in sorted(range(len(axes)), key=lambda k: -steps[k]))
    sch.transform_layout(handle, ("write", 0), IndexMap(axes, order))
    sch.transform_block_layout(handle, IndexMap(axes, order))
    for product in products:
        _without_unit_axes(sch, product)


def _without_unit_axes(sch: Schedule, handle: BlockRV) -> None:
    """Drop unit axes: in the new layout, elements are indexed without them."""
    block = node(sch, handle)
    axes = tuple(it.var for it in block.iter_vars)
    longer = tuple(it.var for it in block.iter_vars if not ir.is_const_int(it.dom.extent, 1))
    if len(longer) < len(axes):
        sch.transform_block_layout(handle, IndexMap(axes, longer))


def variants(func: ir.PrimFunc, target: Target) -> list[tuple[ir.Expr, GemmPlan]]:
    """Plans for some values of symbolic extents.

    For a symbolic m: other register tiles, used where they waste less of the last tile, all on the
    same panels. For a symbolic k: long sums split into pieces.
    """
    pairs = shapes_of(func, target)
    long = long_sums(func, Pieces().longest)
    result: list[tuple[ir.Expr, GemmPlan]] = []
    if long is not None and not all(shape.unit for shape, _ in pairs):
        split = GemmPlan(tuple(best_plan(target, s, kernel, _LONG) for s, kernel in pairs))
        result.append((long, split))
    shape, kernel = pairs[0]
    if len(pairs) > 1 or shape.m is not None or shape.unit:
        return result
    block = next(b for b in leaf_blocks(func) if numeric_contraction_of(b) is not None)
    roles = numeric_contraction_of(block)
    assert roles is not None
    rows: ir.Expr = ir.const(1, "int64")
    for position in roles.m:
        rows = rows * block.iter_vars[position].dom.extent
    first, *others = unknown_rows(target, shape)
    for k, one in enumerate(others):
        here = _passed(rows, one)
        better: ir.Expr = ir.LT(here, _passed(rows, first))
        for other in others[k + 1 :]:
            better = ir.And(better, ir.LE(here, _passed(rows, other)))
        result.append((better, GemmPlan((best_plan(target, shape, kernel, tile=one.tile),))))
    return result


def _passed(rows: ir.Expr, one: RowTile) -> ir.Expr:
    """Cost of `rows` rows in tiles of one height, as an expression; see `RowTile.of`."""
    height = one.tile.rows
    tiles = ir.floordiv(rows + (height - 1), height)
    if one.short:
        whole = ir.floordiv(rows + (height - one.short - 1), height)
        passed = whole * (one.cost - one.short_cost) + tiles * one.short_cost
    else:
        passed = tiles * one.cost
    lowest = one.short_cost if one.short else one.cost
    return ir.Max(passed, ir.const(one.min_cost, passed.dtype)) if one.min_cost > lowest else passed


def parts(sch: Schedule) -> tuple[list[BlockRV], list[BlockRV], list[BlockRV]]:
    """The blocks before the first contraction, the contractions, and the blocks after."""
    handles = [h for h in sch.get_child_blocks(sch.get_block("root")) if not _scheduled(sch, h)]
    at = [k for k, h in enumerate(handles) if numeric_contraction_of(node(sch, h)) is not None]
    others = [h for k, h in enumerate(handles) if k > at[0] and k not in at]
    return handles[: at[0]], [handles[k] for k in at], others


def _scheduled(sch: Schedule, handle: BlockRV) -> bool:
    """Whether a block is part of a correction, which `_offset_signed` has scheduled."""
    kinds = {sch.get(loop).kind for loop in sch.get_loops(handle)}
    return bool(kinds - {ir.ForKind.SERIAL})


def inline_producers(
    sch: Schedule, before: list[BlockRV], products: list[BlockRV]
) -> list[BlockRV]:
    """Inline the producers that only move data, and everything before other producers.

    Returns the blocks that stay: each computes an operand whose elements the contraction reads many
    times.
    """
    kept: list[BlockRV] = []
    for handle in before:
        written = node(sch, handle).writes[0].buffer
        read = any(r.buffer is written for p in products for r in node(sch, p).reads)
        if read and not is_copy(node(sch, handle)):
            kept.append(handle)
        else:
            sch.compute_inline(handle)
    return kept


def _packed_with(
    sch: Schedule, kept: list[BlockRV], products: list[BlockRV], block: BlockRV
) -> BlockRV | None:
    """The producer of the operand that is packed into panels, if it serves one product alone.

    Packing reads each element once, so the producer can be inlined there.
    """
    facts = numeric_contraction_of(node(sch, block))
    if facts is None or facts.b in windowed(node(sch, block)):
        return None
    if sum(r.buffer is facts.b for p in products for r in node(sch, p).reads) > 1:
        return None
    return next((h for h in kept if node(sch, h).writes[0].buffer is facts.b), None)


def packs_operand(func: ir.PrimFunc, operand: int, target: Target) -> bool:
    """Whether a buffer is the operand of the only contraction that is packed into panels."""
    products = [facts for b in leaf_blocks(func) if (facts := contraction_of(b)) is not None]
    return len(products) == 1 and products[0].b is func.buffers[operand]


STRATEGY = Strategy(
    "gemm",
    facts_unless(why_not),
    apply,
    GemmPlan,
    plans,
    variants=variants,
    fusion=Fusion(computes_operand=packs_operand),
)
