"""Element-wise programs: all blocks spatial. One parallel loop, vectors along the last axis."""

from __future__ import annotations

from blockwright import ir
from blockwright.rules.facts import is_spatial, leaf_blocks
from blockwright.rules.inline import block_of, extent, inline_where, push_into_parts
from blockwright.rules.rule import Rule
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.target import Target

_TYPICAL = 256  # elements taken for an axis of unknown length
_MIN_TASK = 2048  # elements: below this a fork costs more than it saves


def refuses(func: ir.PrimFunc, target: Target) -> str:
    found = leaf_blocks(func)
    if not found:
        return "no blocks directly under the root"
    if not all(is_spatial(b) for b in found):
        return "a block reduces"
    return ""


def apply(sch: Schedule, target: Target) -> None:
    handles = inline_where(sch, sch.get_child_blocks(sch.get_block("root")))
    for handle in push_into_parts(sch, handles):
        spread(sch, handle, target)


def spread(sch: Schedule, handle: BlockRV, target: Target) -> None:
    """Parallel tasks of some thousand elements over the outer loops, vectors over the last."""
    block = block_of(sch, handle)
    loops = sch.get_loops(handle)
    if not loops:
        return
    bits = max(r.buffer.dtype.bits for r in (*block.reads, *block.writes) or block.writes)
    lanes = max(1, target.vector_bits // max(bits, 8))
    while len(loops) > 1 and extent(sch, loops[-1]) == 1:
        loops.pop()  # trailing axes of one element: vectors run along the last longer one
    last = extent(sch, loops[-1])
    if last is None or last >= 2:
        outer, lane = sch.split(loops[-1], [None, lanes if last is None else min(lanes, last)])
        sch.vectorize(lane)
        loops[-1] = outer
    if len(loops) > 1:
        loop = sch.fuse(*loops[:-1]) if len(loops) > 2 else loops[0]
        _parallel(sch, loop, last or _TYPICAL)
    else:
        _parallel(sch, loops[0], lanes)


def _parallel(sch: Schedule, loop: LoopRV, inner: int) -> None:
    """Group iterations of `inner` elements into tasks that are worth a fork.

    A loop of unknown length gets small groups: a large one would leave other threads without work.
    """
    group = max(1, _MIN_TASK // max(1, inner))
    size = extent(sch, loop)
    if size is not None and size <= group:
        return
    group = group if size is not None else min(group, 8)
    if group > 1:
        loop, _ = sch.split(loop, [None, group])
    sch.parallel(loop)


RULE = Rule("elementwise", refuses, apply)
