"""Plans of the NCHW convolution strategy, ranked by the cost model."""

from __future__ import annotations

from collections.abc import Iterator

from blockwright import ir
from blockwright.strategies.cpu.conv_nchw_cost import beats_gemm, ranked_blocks
from blockwright.strategies.cpu.conv_nchw_shape import conv_shape
from blockwright.strategies.cpu.register_tiling import RegisterTile
from blockwright.strategies.cpu.split_k import Pieces
from blockwright.strategies.match.planes import Planes
from blockwright.strategies.strategy import Plan
from blockwright.target import Target


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
    return beats_gemm(target, conv_shape(block, roles, Pieces()))


def ranked_plans(target: Target, block: ir.Block, roles: Planes) -> Iterator[ConvNchwPlan]:
    """The plan that the search over the cost model finds, then others by their predicted time."""
    shape = conv_shape(block, roles, Pieces())
    for blocks in ranked_blocks(target, shape):
        yield ConvNchwPlan(
            blocks.tile, blocks.steps, blocks.filters, target.vector_bits, shape.sums
        )
