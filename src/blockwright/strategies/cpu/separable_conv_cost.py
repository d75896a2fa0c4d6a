"""Plans and analytic cost model of separable convolution: fused in one pass, or in two.

One pass saves a parallel launch and the cache traffic between the passes. But its tasks are whole
lines, which may not balance evenly among the threads, and register tiles end where a task does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from blockwright.strategies.cpu.depthwise_pool_cost import window_plan
from blockwright.strategies.cpu.depthwise_pool_nest import window_seconds
from blockwright.strategies.cpu.depthwise_pool_plan import (
    WindowFacts,
    WindowPlan,
    best_window,
    ranked_window_plans,
)
from blockwright.strategies.cpu.depthwise_pool_shape import WindowShape
from blockwright.strategies.cpu.gemm_blocking import (
    GemmBlocking,
    GemmShape,
    gemm_blocking,
    gemm_tile,
    plan_seconds,
)
from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    choose_register_tile,
    predicted_share,
    register_tiles,
)
from blockwright.strategies.strategy import Plan
from blockwright.target import Target

_AS_FAST = 0.98  # share of the speed at the best number of lines that is good enough
_TILES = 4  # register tiles that alternative plans use for each number of lines
_WORTH = 20  # smallest ratio of a task's time to the cost of dispatching it


class Separable(msgspec.Struct, frozen=True):
    """Extents of a window's result and of the product after it.

    Attributes:
        images: product of the axes before the lines; None if unknown.
        lines, width: of the window's result.
        channels, filters: of the window, and of the product.
    """

    images: int | None
    lines: int
    width: int
    channels: int
    filters: int
    bits: int

    @property
    def weights(self) -> int:
        """Bytes of the product's weights."""
        return self.channels * self.filters * self.bits // 8

    @property
    def product(self) -> GemmShape:
        """Shape of the product with symbolic m."""
        size = self.bits // 8
        return GemmShape(
            1,
            None,
            self.filters,
            self.channels,
            m_stride=self.channels * size,
            k_stride=size,
            bits=self.bits,
            b_bits=self.bits,
        )


class SeparableConvPlan(Plan, frozen=True):
    """The decisions for one separable convolution.

    Attributes:
        lines: lines of the window's result per task.
        tile: register tile of the product; its rows are the pixels of these lines.
        window: the plan of the window within a task.
    """

    lines: int
    tile: RegisterTile
    window: WindowPlan


def ranked_plans(
    target: Target, shape: Separable, window_of: Callable[[int], WindowFacts]
) -> Iterator[SeparableConvPlan]:
    """The best plan, then plans that differ in the lines, the tile or the window, by their cost.

    `window_of` returns what plans of the window depend on, for a number of lines per task.
    """
    one = Target(target, num_threads=1)
    best_lines = lines_of_task(target, shape)
    best = SeparableConvPlan(
        best_lines,
        _tiles(target, shape, best_lines)[0],
        best_window(one, window_of(best_lines)),
    )
    yield best
    cycles: dict[SeparableConvPlan, float] = {}
    for lines in (r for r in range(1, shape.lines + 1) if shape.lines % r == 0):
        facts = window_of(lines)
        tiles = _tiles(target, shape, lines)[:_TILES]
        windows = (w for w in ranked_window_plans(one, facts) if lines % w.blocks.rows == 0)
        choices = [(tile, window) for window in islice(windows, 1) for tile in tiles]
        if lines == best_lines:
            choices += [(tiles[0], window) for window in windows]
        for tile, window in choices:
            each = _product_line(one, shape, lines, tile)
            each += _window_cycles(one, facts.shape, shape.bits, window) / lines
            cycles[SeparableConvPlan(lines, tile, window)] = _busiest(target, shape, lines) * each
    yield from (plan for plan in sorted(cycles, key=lambda plan: cycles[plan]) if plan != best)


def _tiles(target: Target, shape: Separable, lines: int) -> list[RegisterTile]:
    """Register tiles of the product, best first."""
    apart = shape.channels * shape.bits // 8
    return register_tiles(target, lines * shape.width, shape.filters, shape.bits, apart)


def lines_of_task(target: Target, shape: Separable) -> int:
    """Lines per task.

    They divide the lines of an image and balance evenly among the threads, and the window's result
    for them fits in half of the second-level cache. Of such numbers: the smallest that is worth a
    task, and whose pixels divide into register tiles about as well as any; but the largest if the
    product's weights exceed that half, because each task reads them from L3 or DRAM.
    """
    line = shape.width * shape.channels * shape.bits // 8
    room = target.cache(2).size // 2
    fit = [r for r in range(1, shape.lines + 1) if shape.lines % r == 0 and r * line <= room] or [1]
    evenly = min(_busiest(target, shape, r) for r in fit)
    fit = [r for r in fit if _busiest(target, shape, r) == evenly]
    if shape.weights > room:
        return fit[-1]
    worth = [
        r
        for r in fit
        if r * _line_cycles(target, shape) >= _WORTH * target.core.task_dispatch_cycles
    ]
    speed = {r: _speed(target, shape, r) for r in worth or fit[-1:]}
    return next(r for r in speed if speed[r] >= _AS_FAST * max(speed.values()))


def tile_of(target: Target, shape: Separable, lines: int) -> RegisterTile:
    """The register tile for the pixels of some lines."""
    return choose_register_tile(target, lines * shape.width, shape.filters, shape.bits)


def _speed(target: Target, shape: Separable, lines: int) -> float:
    tile = tile_of(target, shape, lines)
    return predicted_share(target, tile, lines * shape.width, shape.filters)


def _busiest(target: Target, shape: Separable, lines: int) -> int:
    """Lines of the busiest thread, of one image or of all images if their number is known."""
    tasks = (shape.images or 1) * shape.lines // lines
    return math.ceil(tasks / target.num_threads) * lines


def _line_cycles(target: Target, shape: Separable) -> float:
    """Cycles of the product for a line, at the FMA peak."""
    vectors = math.ceil(shape.filters / max(1, target.vector_bits // shape.bits))
    return shape.width * shape.channels * vectors / target.core.arithmetic


def one_pass(target: Target, shape: Separable, window: WindowShape) -> float:
    """Estimated cycles of the fused pass; `window` has the sizes of one image's window."""
    lines = lines_of_task(target, shape)
    one = Target(target, num_threads=1)
    tile = tile_of(one, shape, lines)
    each = _product_line(one, shape, lines, tile) + _window_line(target, shape, window)
    return _busiest(target, shape, lines) * each + target.core.parallel_launch_cycles


def _product_line(target: Target, shape: Separable, lines: int, tile: RegisterTile) -> float:
    """Estimated cycles of the product, per line, in a task of some lines."""
    rows = math.ceil(lines * shape.width / tile.rows)
    plan = GemmBlocking(rows, math.ceil(shape.filters / tile.columns), rows_inside=True)
    product = msgspec.structs.replace(shape.product, m=rows * tile.rows)
    return _cycles(target, product, tile, plan) / lines


def two_passes(target: Target, shape: Separable, window: WindowShape) -> float:
    """Estimated cycles of the sliding-window strategy, followed by the GEMM strategy.

    The second pass reads the data of the first, which another thread may have written.
    """
    lines = (shape.images or 1) * shape.lines
    product = msgspec.structs.replace(shape.product, m=lines * shape.width)
    tile = gemm_tile(target, product)
    cycles = _cycles(target, product, tile, gemm_blocking(target, product, tile))
    moved = lines * shape.width * shape.channels * shape.bits // 8
    each = lines * _window_line(target, shape, window) + moved / target.bytes_per_cycle(moved)
    return cycles + each / target.num_threads + 2 * target.core.parallel_launch_cycles


def _window_line(target: Target, shape: Separable, window: WindowShape) -> float:
    """Estimated cycles of the window, per line, in the tasks of the sliding-window strategy."""
    one = Target(target, num_threads=1)
    tile, blocks = window_plan(target, window, shape.bits)
    return _of_loops(one, window_seconds(one, window, tile, blocks, shape.bits)) / shape.lines


def _window_cycles(target: Target, window: WindowShape, bits: int, plan: WindowPlan) -> float:
    """Estimated cycles of a window, without starting threads."""
    return _of_loops(target, window_seconds(target, window, plan.tile, plan.blocks, bits))


def _cycles(target: Target, product: GemmShape, tile: RegisterTile, plan: GemmBlocking) -> float:
    """Estimated cycles of a product, without starting threads."""
    return _of_loops(target, plan_seconds(target, product, tile, plan))


def _of_loops(target: Target, seconds: float) -> float:
    """The cycles of a parallel nest, without starting threads."""
    return seconds * target.core.frequency_hz - target.core.parallel_launch_cycles
