"""Plans of the Winograd strategy: groups of tiles, the batched product, vectors of transforms."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from blockwright.strategies.cpu.gemm_cost import GemmBlocking, GemmShape, plan_seconds
from blockwright.strategies.cpu.gemm_plan import best_plan, other_plans
from blockwright.strategies.cpu.micro_kernel import MicroKernel
from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    register_tiles,
)
from blockwright.strategies.cpu.split_k import Pieces
from blockwright.strategies.cpu.winograd_cost import (
    Convolution,
    Grouping,
    group_estimate,
    input_in_task,
    partial_sums,
    ranked_groupings,
)
from blockwright.strategies.strategy import Plan
from blockwright.target import Target

_OTHERS = 8  # other plans of the product with the best number of groups


class WinogradPlan(Plan, frozen=True):
    """The decisions for one convolution.

    Attributes:
        tile: register tile of the product.
        group: tiles that a task takes through all steps; None to run one step after another on all
            tiles.
        blocking: tasks and loop order of the product of all tiles; None with a group.
        vector_bits: width of the vectors of channels that transforms run on.
        cut_tails: whether only the last vector of a row is masked, in code of its own.
        input_in_task: whether a task computes the part of the transforms' input that it reads, such
            as its border, instead of reading it from a pass over the whole input.
        sums: how a long reduction is split into partial sums, coarse to fine.
    """

    tile: RegisterTile
    group: int | None
    blocking: GemmBlocking | None
    vector_bits: int
    cut_tails: bool
    input_in_task: bool = False
    sums: tuple[Pieces, ...] = partial_sums(None)


class WinogradFacts(msgspec.Struct, frozen=True):
    """What plans depend on.

    Attributes:
        conv: extents of the convolution; None if not all are known.
        edge: of a tile of results.
        product: shape of the product of all tiles.
        input_bytes: size of the transforms' input that the program computes; None if it is a
            parameter or of unknown size.
    """

    conv: Convolution | None
    edge: int
    product: GemmShape
    input_bytes: int | None


def ranked_plans(
    target: Target, facts: WinogradFacts, kernel: MicroKernel
) -> Iterator[WinogradPlan]:
    """The best plan, then others in the order of their predicted time.

    Without all extents, only the plan that runs one step after another on all tiles.
    """
    if facts.conv is None:
        yield _in_passes(target, facts, kernel)
        return
    first, *others = ranked_groupings(target, facts.conv, facts.edge)
    best = _plan_of(target, facts, kernel, first)
    yield best
    seconds = {_plan_of(target, facts, kernel, way): way.seconds for way in others}
    seconds |= dict(_other_products(target, facts, facts.conv, best, first.seconds, kernel))
    yield from sorted(seconds, key=lambda plan: seconds[plan])


def _plan_of(
    target: Target, facts: WinogradFacts, kernel: MicroKernel, way: Grouping
) -> WinogradPlan:
    if way.group is None:
        return _in_passes(target, facts, kernel)
    return WinogradPlan(
        _tiles(target, facts, way.group)[0],
        way.group,
        None,
        target.vector_bits,
        cut_tails=not target.cheap_predication,
        input_in_task=input_in_task(target, facts.input_bytes or 0),
        sums=partial_sums(facts.product.k),
    )


def _tiles(target: Target, facts: WinogradFacts, group: int) -> list[RegisterTile]:
    """Register tiles for the product of a group, best first."""
    product = facts.product
    step = product.m_stride or product.bits // 8
    return register_tiles(target, group, product.n, product.bits, step, shifts=product.shifts)


def _in_passes(target: Target, facts: WinogradFacts, kernel: MicroKernel) -> WinogradPlan:
    """Run one step after another on all tiles."""
    product = best_plan(target, facts.product, kernel, partial_sums(facts.product.k))
    return WinogradPlan(
        product.tile,
        None,
        product.blocking,
        target.vector_bits,
        cut_tails=not target.cheap_predication,
        sums=product.sums,
    )


def _other_products(
    target: Target,
    facts: WinogradFacts,
    conv: Convolution,
    best: WinogradPlan,
    seconds: float,
    kernel: MicroKernel,
) -> Iterator[tuple[WinogradPlan, float]]:
    """Plans that differ from the best one in its product, and their predicted seconds."""
    shape, change = facts.product, msgspec.structs.replace
    if best.group is None:
        chosen = best_plan(target, shape, kernel, best.sums)
        least = plan_seconds(target, shape, chosen.tile, chosen.blocking)
        for other in islice(other_plans(target, shape, chosen), _OTHERS):
            more = plan_seconds(target, shape, other.tile, other.blocking) - least
            yield change(best, tile=other.tile, blocking=other.blocking), seconds + more
        return
    for tile in _tiles(target, facts, best.group)[1 : _OTHERS + 1]:
        predicted = group_estimate(target, conv, facts.edge, best.group, tile)
        yield change(best, tile=tile), predicted.seconds
