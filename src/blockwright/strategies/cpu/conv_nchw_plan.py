"""Plans of the NCHW convolution strategy, and the formula that ranks them.

Whether the strategy is used at all is decided by the cost model, see `conv_nchw_cost`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from blockwright import ir
from blockwright.arith import simplify
from blockwright.strategies.cpu.conv_nchw_cost import pixels_seconds, planes_seconds
from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    predicted_share,
    register_tiles,
)
from blockwright.strategies.cpu.split_k import Pieces
from blockwright.strategies.match.blocks import extent_of
from blockwright.strategies.match.planes import Planes
from blockwright.strategies.strategy import Plan
from blockwright.target import Target

_UNEVEN = 0.25  # share of a task by which the last thread finishes after the others
# largest ratio to the GEMM strategy's time at which this strategy is chosen: its tasks are few and
# long
_BETTER = 0.97
_TILES = 8  # register tiles that alternative plans use


class ConvNchwPlan(Plan, frozen=True):
    """The decisions for one convolution.

    Attributes:
        tile: the register tile; filters are its rows, pixels its columns.
        steps: lines of pixels per task, or tiles of pixels where no axis of lines slides.
        filters: tiles of filters per task.
        vector_bits: width of the vectors in which a task copies contiguous data.
        sums: how a long reduction is split into partial sums.
    """

    tile: RegisterTile
    steps: int
    filters: int
    vector_bits: int
    sums: Pieces = Pieces()


def pays(target: Target, block: ir.Block, roles: Planes) -> bool:
    """Whether the cost model expects this strategy to be faster than a GEMM over pixels."""
    planes = planes_seconds(target, block, roles)
    return planes < _BETTER * pixels_seconds(target, block, roles)


def _products_per_cycle(target: Target, bits: int) -> float:
    """Elements multiplied per cycle at the FMA peak."""
    return target.vector_bits * target.core.arithmetic / bits


def ranked_plans(target: Target, block: ir.Block, roles: Planes) -> Iterator[ConvNchwPlan]:
    """The best plan of the fastest register tile, then all others in the order of their cost.

    The cost is that of the busiest thread.
    """
    filters, line = (extent_of(block, part) for part in (roles.filters, roles.pixels))
    first, *others = register_tiles(target, filters, line, _bits(block))
    cycles = _candidates(target, block, roles, first)
    best = min(cycles, key=lambda plan: cycles[plan])
    yield best
    peak = _speed(target, first, roles)
    for tile in others[: _TILES - 1]:
        slower = peak / _speed(target, tile, roles)
        cycles |= _candidates(target, block, roles, tile, slower)
    yield from (plan for plan in sorted(cycles, key=lambda plan: cycles[plan]) if plan != best)


def _speed(target: Target, tile: RegisterTile, roles: Planes) -> float:
    """Share of the FMA peak in a whole tile."""
    return predicted_share(target, tile, tile.rows, tile.columns, anywhere=roles.slides)


def _candidates(
    target: Target, block: ir.Block, roles: Planes, tile: RegisterTile, slower: float = 1.0
) -> dict[ConvNchwPlan, float]:
    """Plans of one register tile with their estimated cycles.

    `slower`: the time of an update, relative to that in the fastest tile.
    """
    core, bits = target.core, _bits(block)
    filters = math.ceil((extent_of(block, roles.filters) or 1) / tile.rows)
    pixels = math.ceil((extent_of(block, roles.pixels) or 1) / tile.columns)
    count, others = pixels, extent_of(block, (*roles.batch, *roles.outer)) or 1
    lines = lines_of(block, roles)
    if lines is not None:
        count = extent_of(block, [lines]) or 1
        others //= count
    depth = extent_of(block, roles.depth) or 1
    work = slower * tile.rows * tile.columns * depth / _products_per_cycle(target, bits)
    work *= 1 if lines is None else pixels
    room = target.cache(2).size // 2 * 8 // bits
    result: dict[ConvNchwPlan, float] = {}
    for steps in _sizes(count):
        copied = _copied(block, roles, tile, steps)
        if copied > room and result:
            break
        for group in _sizes(filters):
            tasks = others * math.ceil(count / steps) * math.ceil(filters / group)
            each = steps * group * work + copied / tile.lanes * roles.step * core.copy_cycles
            each += core.task_start_cycles
            plan = ConvNchwPlan(tile, steps, group, target.vector_bits)
            result[plan] = each * (math.ceil(tasks / target.num_threads) + _UNEVEN)
    return result


def _bits(block: ir.Block) -> int:
    return block.writes[0].buffer.dtype.bits


@functools.cache
def _sizes(extent: int) -> list[int]:
    """Sizes that divide an axis into nearly equal parts."""
    return sorted({math.ceil(extent / parts) for parts in range(1, extent + 1)})


def _data_load(block: ir.Block, roles: Planes) -> ir.BufferLoad:
    return next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is roles.data)


def lines_of(block: ir.Block, roles: Planes) -> int | None:
    """The axis whose lines form tasks: the last outer one, if taps share its index of the data."""
    if not roles.slides or not roles.outer or extent_of(block, roles.outer[-1:]) == 1:
        return None
    own = block.iter_vars[roles.outer[-1]].var
    taps = [block.iter_vars[p].var for p in roles.depth if extent_of(block, [p]) != 1]
    loads = [n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is roles.data]
    shared = any(
        ir.uses_var(index, own) and any(ir.uses_var(index, tap) for tap in taps)
        for load in loads
        for index in load.indices
    )
    return roles.outer[-1] if shared else None


def _copied(block: ir.Block, roles: Planes, tile: RegisterTile, steps: int) -> int:
    """Elements of the data that some steps of a task read: the size of their bounding box."""
    if not roles.slides:
        return steps * tile.columns * (extent_of(block, roles.depth) or 1)
    lines = lines_of(block, roles)
    (pixel,) = roles.pixels
    line = math.ceil((extent_of(block, [pixel]) or 1) / tile.columns) * tile.columns
    lengths = {p: extent_of(block, [p]) or 1 for p in roles.depth}
    lengths[pixel] = steps * tile.columns if lines is None else line
    if lines is not None:
        lengths[lines] = steps
    first = {it.var: ir.const(0, it.var.dtype) for it in block.iter_vars}
    last = {
        it.var: ir.const(lengths.get(position, 1) - 1, it.var.dtype)
        for position, it in enumerate(block.iter_vars)
    }
    total = 1
    for index in _data_load(block, roles).indices:
        span = simplify(ir.substitute(index, last) - ir.substitute(index, first))
        total *= 1 + (ir.const_int(span) or 0)
    return total
