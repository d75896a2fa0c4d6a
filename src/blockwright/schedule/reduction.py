"""Reductions as primitives need them: recognised, or refused with the reason."""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis import NoReduction, Reduction, find_reduction
from blockwright.schedule.state import State


def reduction_of(state: State, block: ir.Block) -> Reduction:
    """The reduction a block computes; fails with the reason when it is none that is known."""
    found = find_reduction(block)
    if isinstance(found, NoReduction):
        declare = 'declare the combination: T.block_attr({"reducer": T.comm_reducer(…)})'
        state.fail(f"{block.name} is no reduction that can be split up: {found.why}", code="BW330",
                   guilty=[block], help="write it as B[i] = B[i] + x with an init, as "
                   f"reducer.step, or {declare}")  # fmt: skip
    return found


def require_restart(state: State, block: ir.Block, reduction: Reduction) -> None:
    """The initial value may stand in front of every partial result and of their combination."""
    if not reduction.may_restart:
        shown = ", ".join(repr(e) for e in reduction.initial)
        state.fail(f"{block.name} is no reduction that can be split up: every partial result "
                   f"would start from {shown}, which is not neutral and would count again",
                   code="BW330", guilty=[block],
                   help="start from the neutral value and combine the other one in a block "
                   "behind")  # fmt: skip
