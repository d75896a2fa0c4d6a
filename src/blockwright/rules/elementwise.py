"""Element-wise programs: all blocks spatial. One parallel loop, vectors along the last axis."""

from __future__ import annotations

from blockwright import ir
from blockwright.rules.facts import is_spatial, leaf_blocks
from blockwright.rules.inline import block_of, inline_where
from blockwright.rules.rule import Rule
from blockwright.schedule import BlockRV, Schedule
from blockwright.target import Target

_MIN_TASK = 2048  # elements: below this a fork costs more than it saves


def refuses(func: ir.PrimFunc, target: Target) -> str:
    found = leaf_blocks(func)
    if not found:
        return "no blocks directly under the root"
    if not all(is_spatial(b) for b in found):
        return "a block reduces"
    return ""


def apply(sch: Schedule, target: Target) -> None:
    for handle in inline_where(sch, sch.get_child_blocks(sch.get_block("root"))):
        spread(sch, handle, target)


def spread(sch: Schedule, handle: BlockRV, target: Target) -> None:
    """Parallel tasks of some thousand elements over the outer loops, vectors over the last."""
    block = block_of(sch, handle)
    loops = sch.get_loops(handle)
    if not loops:
        return
    bits = max(r.buffer.dtype.bits for r in (*block.reads, *block.writes) or block.writes)
    lanes = max(1, target.vector_bits // max(bits, 8))
    sizes = [ir.const_int(_extent(sch, loop)) for loop in loops]
    last = sizes[-1]
    if last is not None and last < lanes and len(loops) > 1 or len(loops) == 1:
        _flat(sch, loops, sizes, lanes)
        return
    if last is None or last >= 2:
        _, lane = sch.split(loops[-1], [None, lanes if last is None else min(lanes, last)])
        sch.vectorize(lane)
    outer = sch.fuse(*loops[:-1]) if len(loops) > 2 else loops[0]
    _parallel(sch, outer, 1 if last is None else last)


def _flat(sch: Schedule, loops: list, sizes: list[int | None], lanes: int) -> None:
    """One fused loop: the last axis alone is too short for vectors."""
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    outer, lane = sch.split(fused, [None, lanes])
    sch.vectorize(lane)
    _parallel(sch, outer, lanes)


def _extent(sch: Schedule, loop: object) -> ir.Expr:
    found = sch.get(loop)  # type: ignore[arg-type]
    assert isinstance(found, ir.For)
    return found.extent


def _parallel(sch: Schedule, loop: object, inner: int) -> None:
    """Group iterations into tasks that are worth a fork."""
    group = max(1, _MIN_TASK // max(1, inner))
    size = ir.const_int(_extent(sch, loop))
    if size is not None and size <= group:
        return
    if group == 1:
        sch.parallel(loop)  # type: ignore[arg-type]
        return
    outer, _ = sch.split(loop, [None, group])  # type: ignore[arg-type]
    sch.parallel(outer)


RULE = Rule("elementwise", refuses, apply)
