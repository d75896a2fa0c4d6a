"""Blocked summation of long sums: terms are added within a block, and block sums to a total.

Adding one small term after another to a single sum loses the digits of a term below the sum's last
digit. The error of a sum of a million numbers is a unit in the last place, where addition in order
loses three digits. The errors of many block sums cancel, those of the total do not: of a known
number of blocks, the total has the fewest terms.
"""

from __future__ import annotations

import functools
import math

import msgspec

from blockwright import ir
from blockwright.analysis import Reduction, find_reduction
from blockwright.analysis.facts import symbol_facts
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.inline import block_of, extent, longest, reduces
from blockwright.strategies.match.blocks import leaf_blocks

LONGEST = 128  # most terms that are added one after another
_BLOCK = 32  # terms per block
_TOTAL = 8  # sums of blocks that are added to a total, if more than twice as many blocks are known
_UNKNOWN = 1 << 40  # terms assumed for a sum of unknown length


class PartialSum(msgspec.Struct, frozen=True):
    """A sum of partial sums.

    Attributes:
        total: the block of the sum.
        loop: its loop over partial sums.
        partial: the block that computes them.
    """

    total: BlockRV
    loop: LoopRV
    partial: BlockRV


def sums_floats(block: ir.Block) -> bool:
    """Whether a block is a sum of floats, which is more accurate in blocks.

    A product is excluded: its relative error is the same in any order, and the product of a block
    of large factors may overflow where the whole does not.
    """
    result = find_reduction(block)
    return (
        isinstance(result, Reduction)
        and result.name == "sum"
        and result.may_restart
        and all(element.dtype.is_float for element in result.elements)
    )


def next_level(
    sch: Schedule,
    handle: BlockRV,
    reducing: list[LoopRV],
    *,
    step: int,
    lanes: int,
    long: bool = False,
    in_block: int | None = None,
) -> PartialSum | None:
    """Split a long sum into two levels, with the partial sum inside the loop of the total.

    Args:
        handle: the block that sums.
        reducing: its reduction loops, outermost first, inside all other relevant loops.
        step: block lengths are multiples of it if some such length divides the loop.
        lanes: terms that are summed separately, side by side or in one step.
        long: whether sizes without a known bound count as long.
        in_block: terms that a block sums side by side, if not `lanes`.

    Returns None if the sum is short, or is not a sum of floats.
    """
    if not reducing or not sums_floats(block_of(sch, handle)):
        return None
    sizes = [_size(sch, loop, long) for loop in reducing]
    if math.prod(sizes) <= LONGEST * lanes:
        return None
    first, inner = reducing[0], math.prod(sizes[1:])
    known, together = extent(sch, first), 1
    if inner <= LONGEST * lanes:
        together = _even(known, max(1, _BLOCK * (in_block or lanes) // inner), step)
    count = -(-sizes[0] // together)
    if known is not None:
        together *= _blocks_together(count, LONGEST * lanes // (inner * together))
    if together > 1:
        first, _ = sch.split(first, [None, together])
    if known is None and count > _BLOCK:
        first, _ = sch.split(first, [None, _BLOCK])
    partial = sch.rfactor(first, 0)
    block = block_of(sch, handle)
    (loop,) = [k for k in sch.get_loops(handle) if reduces(sch, block, k)]
    return PartialSum(handle, loop, partial)


def _size(sch: Schedule, loop: LoopRV, long: bool) -> int:
    largest = longest(sch, loop)
    known = extent(sch, loop)
    if known is not None:
        return known
    return (largest or _UNKNOWN) if long else 1


def _even(size: int | None, limit: int, step: int) -> int:
    """A multiple of `step` up to `limit` that divides a loop, and is at least a quarter of `limit`.

    Returns `limit` if there is none.
    """
    if size is None:
        return limit
    lengths = range(limit - limit % step, max(limit // 4, 1), -step)
    return next((n for n in lengths if size % n == 0), limit)


def _blocks_together(count: int, short: int) -> int:
    """How many blocks form each of the few sums that are added to the total.

    Arguments: a sum of up to `short` blocks is not split again, and has long blocks.
    """
    least = max(-(-count // _TOTAL), short + 1)
    if count <= 2 * _TOTAL or 2 * least >= count:
        return 1
    return next((n for n in range(least, 2 * least) if count % n == 0), least)


def long_sums(func: ir.PrimFunc, terms: int) -> ir.Expr | None:
    """The condition on sizes under which a sum has more than `terms` terms.

    None if no sum of symbolic length can have that many terms.
    """
    facts = symbol_facts(func)
    result: list[ir.Expr] = []
    for block in leaf_blocks(func):
        total: ir.Expr = ir.const(1, "int64")
        for it in block.iter_vars:
            if it.iter_type is ir.IterType.REDUCE:
                total = ir.mul(total, ir.cast_to(it.dom.extent, "int64"))
        largest = facts.const_bounds(total)[1]
        if (
            sums_floats(block)
            and ir.const_int(total) is None
            and (largest is None or largest > terms)
        ):
            result.append(ir.GT(total, ir.const(terms, "int64")))
    return functools.reduce(ir.Or, result) if result else None
