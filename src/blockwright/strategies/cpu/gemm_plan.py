"""Plans of the GEMM strategy: the micro-kernel, register tile and blocking of each contraction."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from blockwright.strategies.cpu.gemm_blocking import gemm_blocking, gemm_tile, ranked_blockings
from blockwright.strategies.cpu.gemm_cost import GemmBlocking, GemmShape
from blockwright.strategies.cpu.micro_kernel import MicroKernel
from blockwright.strategies.cpu.register_tiling import RegisterTile
from blockwright.strategies.cpu.split_k import WHOLE, Pieces
from blockwright.strategies.strategy import Plan
from blockwright.target import Target


class ContractionPlan(msgspec.Struct, frozen=True):
    """The decisions for one contraction.

    Attributes:
        dot: the instruction of the micro-kernel: a dot product, or a product of tile registers;
            "" for outer products.
        tile: the register tile.
        blocking: tasks, panels, loop order and k-splits.
        sums: how a long reduction is split into partial sums, coarse to fine.
    """

    dot: str
    tile: RegisterTile
    blocking: GemmBlocking
    sums: tuple[Pieces, ...] = (Pieces(),)


class GemmPlan(Plan, frozen=True):
    """One plan for each contraction of a program, in program order."""

    contractions: tuple[ContractionPlan, ...]


def best_plan(
    target: Target,
    shape: GemmShape,
    kernel: MicroKernel,
    sums: tuple[Pieces, ...] = (Pieces(),),
    tile: RegisterTile | None = None,
) -> ContractionPlan:
    """The plan that the cost model prefers, for a given register tile if any.

    Sums of integers are exact in any order, so they are not split. Nor are those in tile registers:
    each product of tiles sums 32 terms before it adds them.
    """
    tile = tile or gemm_tile(target, shape)
    blocking = gemm_blocking(target, shape, tile)
    whole = kernel.exact or shape.unit
    return ContractionPlan(kernel.dot, tile, blocking, (WHOLE,) if whole else sums)


def other_plans(
    target: Target, shape: GemmShape, best: ContractionPlan
) -> Iterator[ContractionPlan]:
    """Plans with other register tiles and blockings, in the order of the cost model."""
    for tile, blocking in ranked_blockings(target, shape):
        plan = msgspec.structs.replace(best, tile=tile, blocking=blocking)
        if plan != best:
            yield plan
