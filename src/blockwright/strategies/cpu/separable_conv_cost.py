"""Analytic model of separable convolutions: in one pass, or in two.

One pass saves a fork and what goes through caches from one pass to the other; its tasks are whole
lines, which may not share out evenly, and register tiles end where a task does.
"""

from __future__ import annotations

import math

import msgspec

from blockwright.strategies.cpu.depthwise_pool_cost import WindowShape, window_cycles
from blockwright.strategies.cpu.gemm_plan import (
    GemmPlan,
    GemmShape,
    gemm_plan,
    gemm_tile,
    plan_seconds,
)
from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    choose_register_tile,
    predicted_share,
)
from blockwright.target import Target

_AS_FAST = 0.98  # of the speed of the product with the best number of lines, that is enough
_WORTH = 20  # times what handing out a task costs, that it should take


class Separable(msgspec.Struct, frozen=True):
    """Extents of a window's result and of the product behind it.

    Attributes:
        images: product of the axes before the lines; None where it is not known.
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
        """The product, its rows left open."""
        size = self.bits // 8
        return GemmShape(
            1, None, self.filters, self.channels, self.channels * size, size, self.bits
        )


def lines_of_task(target: Target, shape: Separable) -> int:
    """Lines of a task: they share out evenly, and what the window makes of them stays in half of
    the second-level cache. Of such numbers the least that is worth a task, and whose pixels fall
    into register tiles about as well as any; the largest where the product's weights come from
    further away each time."""
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
    """Lines that the busiest thread makes of one image, or of all that are known to come."""
    tasks = (shape.images or 1) * shape.lines // lines
    return math.ceil(tasks / target.num_threads) * lines


def _line_cycles(target: Target, shape: Separable) -> float:
    """Cycles of the product for a line, at the peak."""
    vectors = math.ceil(shape.filters / max(1, target.vector_bits // shape.bits))
    return shape.width * shape.channels * vectors / target.core.arithmetic


def one_pass(target: Target, shape: Separable, window: WindowShape) -> float:
    """Cycles expected of this rule; `window` has the sizes of one image's window."""
    lines = lines_of_task(target, shape)
    one = Target(target, num_threads=1)
    tile = tile_of(one, shape, lines)
    rows = math.ceil(lines * shape.width / tile.rows)
    plan = GemmPlan(rows, math.ceil(shape.filters / tile.columns), rows_inside=True)
    product = msgspec.structs.replace(shape.product, rows=rows * tile.rows)
    each = _cycles(one, product, tile, plan) / lines + _window_line(target, shape, window)
    return _busiest(target, shape, lines) * each + target.core.parallel_launch_cycles


def two_passes(target: Target, shape: Separable, window: WindowShape) -> float:
    """Cycles expected of the window rule, and of the GEMM rule behind it.

    What the first one writes the other one reads, where another thread may have written it.
    """
    lines = (shape.images or 1) * shape.lines
    product = msgspec.structs.replace(shape.product, rows=lines * shape.width)
    tile = gemm_tile(target, product)
    cycles = _cycles(target, product, tile, gemm_plan(target, product, tile))
    moved = lines * shape.width * shape.channels * shape.bits // 8
    each = lines * _window_line(target, shape, window) + moved / target.bytes_per_cycle(moved)
    return cycles + each / target.num_threads + 2 * target.core.parallel_launch_cycles


def _window_line(target: Target, shape: Separable, window: WindowShape) -> float:
    return window_cycles(target, window, shape.bits) / shape.lines


def _cycles(target: Target, product: GemmShape, tile: RegisterTile, plan: GemmPlan) -> float:
    """Of a product, without starting threads."""
    return (
        plan_seconds(target, product, tile, plan) * target.core.frequency_hz
        - target.core.parallel_launch_cycles
    )
