"""Analytic cost model of Winograd convolution: cycles, and the best group size of tiles.

The direct method is a matrix product, which the cost model predicts. Of the algorithm it counts
cycles of one core: products at the rate of their register tiles, transforms by their vector
instructions, and memory traffic where arithmetic does not hide it. Tiles are processed in groups
whose transforms stay in the second-level cache; filters are then read once per group. Where filters
are large and tiles few, all tiles are one group, and each step of the algorithm is a separate pass.
Filters that come from memory, because a model has more weights than the last-level cache holds,
favor few groups and small tiles, whose filters are fewer bytes.
"""

from __future__ import annotations

import math
from functools import lru_cache

import msgspec

from blockwright.ops.winograd import TAPS
from blockwright.ops.winograd_transforms import operations, transforms
from blockwright.strategies.cpu.gemm_cost import GemmShape, plan_seconds
from blockwright.strategies.cpu.gemm_start_plans import start_plans
from blockwright.strategies.cpu.register_tiling import choose_register_tile, predicted_share
from blockwright.target import Target

_A_FEW = 4  # images assumed for a batch of unknown size


class Convolution(msgspec.Struct, frozen=True):
    """Extents of a 3×3 convolution with stride 1; height and width are those of the result.

    Attributes:
        batch: number of images; None if unknown, which is costed as a few.
        uncached: whether filters are in no cache at entry.
    """

    batch: int | None
    height: int
    width: int
    channels: int
    filters: int
    bits: int = 32
    uncached: bool = False

    def grid(self, m: int) -> tuple[int, int, int]:
        """Number of images, and rows and columns of m×m result tiles in each."""
        return self.images, math.ceil(self.height / m), math.ceil(self.width / m)

    @property
    def images(self) -> int:
        return _A_FEW if self.batch is None else self.batch


class Grouping(msgspec.Struct, frozen=True):
    """How to process the tiles.

    Attributes:
        group: tiles per group; None for all steps one after another.
        cycles: estimated cycles.
    """

    group: int | None
    cycles: float


def ranked_groupings(target: Target, conv: Convolution, m: int) -> list[Grouping]:
    """All ways to process the tiles of edge m, the cheapest first."""
    count = math.prod(conv.grid(m))
    result = [Grouping(None, _in_passes(target, conv, m, count))]
    for group in _groups(conv, m):
        if _group_bytes(conv, m, group) <= target.cache(2).size * 3 // 4:
            tasks = math.ceil(count // group / target.num_threads)
            size = _filter_bytes(conv, m)
            filters = _filters(target, conv, size, 2)
            products = _products(target, conv, m, group)
            each = max(products, filters) + _transforms(target, conv, m, group)
            if size > target.caches[-1].size // 3:
                each += target.core.uncached_wait * min(products, filters)
            cycles = tasks * each + target.core.parallel_launch_cycles
            result.append(Grouping(group, cycles))
    return sorted(result, key=lambda way: way.cycles)


@lru_cache(maxsize=1024)
def best_grouping(target: Target, conv: Convolution, m: int) -> Grouping:
    """The cheapest way to process the tiles of edge m."""
    return ranked_groupings(target, conv, m)[0]


def direct_cycles(target: Target, conv: Convolution) -> float:
    """Estimated cycles of the direct method: a product of pixels and filters."""
    size, pixels = conv.bits // 8, conv.images * conv.height * conv.width
    step = conv.channels * size
    product = GemmShape(
        1,
        pixels,
        conv.filters,
        TAPS**2 * conv.channels,
        m_stride=step,
        k_stride=size,
        bits=conv.bits,
        b_bits=conv.bits,
        uncached=conv.uncached,
    )
    tile = choose_register_tile(target, pixels, conv.filters, conv.bits, step)
    plan = start_plans(target, product, tile)[0]
    return plan_seconds(target, product, tile, plan) * target.core.frequency_hz


def _groups(conv: Convolution, m: int) -> list[int]:
    """Group sizes: parts of a tile row, whole rows, or whole images; one and all are excluded.

    If the batch may be a single image, all tiles are those of one image.
    """
    images, rows, columns = conv.grid(m)
    batch = 1 if conv.batch is None else images
    result = {d for d in range(1, columns + 1) if columns % d == 0}
    result |= {columns * d for d in range(1, rows + 1) if rows % d == 0}
    result |= {columns * rows * d for d in range(1, batch + 1) if batch % d == 0}
    return sorted(result - {1, batch * rows * columns})


def _in_passes(target: Target, conv: Convolution, m: int, count: int) -> float:
    filters = _filters(target, conv, _filter_bytes(conv, m))
    moved = 2 * _group_bytes(conv, m, count)  # written by one pass, read by the next
    cycles = max(_products(target, conv, m, count), filters) + _transforms(target, conv, m, count)
    cycles += moved / target.bytes_per_cycle(moved)
    return cycles / target.num_threads + 3 * target.core.parallel_launch_cycles


def _products(target: Target, conv: Convolution, m: int, tiles: int) -> float:
    tile = choose_register_tile(target, tiles, conv.filters, conv.bits)
    steps = (m + TAPS - 1) ** 2 * tiles * conv.channels * conv.filters / tile.lanes
    return steps / target.core.arithmetic / predicted_share(target, tile, tiles, conv.filters)


def _transforms(target: Target, conv: Convolution, m: int, tiles: int) -> float:
    matrices, edge = transforms(m, TAPS), m + TAPS - 1
    into = 2 * edge * operations(matrices.input) + 4 * edge**2  # and the input's border
    back = (edge + m) * operations(matrices.output) + edge**2 + m**2
    lanes = _lanes(target, conv)
    vectors = into * math.ceil(conv.channels / lanes) + back * math.ceil(conv.filters / lanes)
    return tiles * vectors / target.core.arithmetic


def _lanes(target: Target, conv: Convolution) -> int:
    return max(1, target.vector_bits // conv.bits)


def _filter_bytes(conv: Convolution, m: int) -> int:
    return (m + TAPS - 1) ** 2 * conv.channels * conv.filters * conv.bits // 8


def _group_bytes(conv: Convolution, m: int, tiles: int) -> int:
    return (m + TAPS - 1) ** 2 * tiles * (conv.channels + conv.filters) * conv.bits // 8


def _filters(target: Target, conv: Convolution, size: int, copies: int = 1) -> float:
    """Cycles in which a core fetches `size` bytes of filters, with `copies` of them in the caches.

    From memory, the cores share the bandwidth: each further pass of a group over the filters waits
    as long again, though another core may have left some of them in the last-level cache.
    """
    if conv.uncached:
        return size / target.core.dram_bandwidth_per_core(target.num_threads)
    return size / target.bytes_per_cycle(copies * size)
