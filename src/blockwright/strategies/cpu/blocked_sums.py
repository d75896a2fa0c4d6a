"""Long sums in blocks: terms are added to a sum of their block, and these sums to one of their own.

A sum that grows by one small term after another loses what the terms have below its own last digit.
No sum of a schedule made here has more than `LONGEST` terms: the error of a sum of a million
numbers is a few units in the last place, where additions in order lose three digits.
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

LONGEST = 128  # terms that are added one after another
_BLOCK = 32  # terms of a block
_UNKNOWN = 1 << 40


class PartialSum(msgspec.Struct, frozen=True):
    """A sum of partial sums: its block, the loop over them, and the block that makes each."""

    total: BlockRV
    loop: LoopRV
    partial: BlockRV


def sums_floats(block: ir.Block) -> bool:
    """Whether a block is a sum of floats, which is more accurate in blocks.

    A product is not: its relative error is the same in any order, and that of a block of large
    factors may overflow where the whole does not.
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
    """Cut a long sum in two levels, of which the partial one stands inside the loop of the other.

    Args:
        handle: the block that sums.
        reducing: its reduction loops, outermost first, below all others that matter.
        step: the lengths of blocks are multiples of it where some divide the whole.
        lanes: terms that are summed apart, side by side or in one step.
        long: whether sizes without a known bound count as long.
        in_block: terms that a block sums side by side, where that is not `lanes`.

    Returns None where the sum is short, or is no sum of floats.
    """
    if not reducing or not sums_floats(block_of(sch, handle)):
        return None
    sizes = [_size(sch, loop, long) for loop in reducing]
    if math.prod(sizes) <= LONGEST * lanes:
        return None
    first, inner = reducing[0], math.prod(sizes[1:])
    together = _even(extent(sch, first), max(1, _BLOCK * (in_block or lanes) // inner), step)
    count = sizes[0]
    if inner <= LONGEST * lanes and together > 1:
        first, _ = sch.split(first, [None, together])
        count = -(-count // together)
    if count > _BLOCK:
        first, _ = sch.split(first, [None, _even(extent(sch, first), _BLOCK, 1)])
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


def _even(size: int | None, most: int, step: int) -> int:
    """A multiple of `step` up to `most`, and no less than a quarter of it, that divides a loop;
    `most` where there is none."""
    if size is None:
        return most
    lengths = range(most - most % step, max(most // 4, 1), -step)
    return next((n for n in lengths if size % n == 0), most)


def long_sums(func: ir.PrimFunc, terms: int) -> ir.Expr | None:
    """The condition on sizes under which a sum has more than `terms` terms, where only a call
    tells; None where the program says."""
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
