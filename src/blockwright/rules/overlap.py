"""Long rows that are written past the caches: one is written while the next one is worked on.

    for row: reads; works; writes    →    reads, works (0)
                                          for row: reads (row + 1)
                                                   together: writes (row), works (row + 1)
                                          writes (last)

Otherwise a row is read, worked on and written in turn. Stores past the caches wait for the memory,
and nothing else is done meanwhile; and the memory stands still while a row is worked on.
"""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.analysis.streaming import READ_AHEAD
from blockwright.rules.facts import is_spatial
from blockwright.rules.inline import block_of, extent
from blockwright.rules.streaming import known_bytes, stream
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.support import ScheduleError
from blockwright.target import Target

_SHORT = 8  # rows that are no more than this part of the first-level cache are written at once
_TASKS = 8  # of a thread, at least
_FEWEST = 8  # rows of a task: the first one is worked on alone, and the last one written alone


class _Plan(msgspec.Struct, frozen=True):
    """Which statements of a row run side by side.

    Attributes:
        writer, worker: blocks that write the row, and that work on it in the pass before.
        position, statements: of that pass, and how many there are.
        vectors: of the last pass for a step of the other one.
        rows: of a task.
        ahead: whether the row after the next one is fetched.
    """

    writer: BlockRV
    worker: BlockRV
    position: int
    statements: int
    vectors: int
    rows: int
    ahead: bool


def overlap_rows(sch: Schedule, row: LoopRV, target: Target) -> bool:
    """Make tasks of rows, in which the last pass over a row shares a loop with the pass before it
    over the next row.

    Returns whether that was done; it is not where rows are short, few or of unknown number, or no
    multiple of the vectors of a pass, or where the program's dependences are against it.
    """
    plan = _plan(sch, row, target)
    if plan is None:
        return False
    try:
        _overlap(sch.copy(), row, plan, target)
    except ScheduleError:
        return False
    _overlap(sch, row, plan, target)
    return True


def _plan(sch: Schedule, row: LoopRV, target: Target) -> _Plan | None:
    body, rows = sch.get(row).body, _rows_of_task(extent(sch, row), target)
    if rows is None or not isinstance(body, ir.SeqStmt):
        return None
    passes = [k for k, part in enumerate(body.seq[:-1])
              if isinstance(part, ir.For) and part.kind is ir.ForKind.SERIAL]  # fmt: skip
    blocks = sch.get_child_blocks(row)
    bytes_of_row = _written_past_caches(sch, blocks[-1], target)
    if not passes or bytes_of_row <= target.cache(1).size // _SHORT:
        return None
    partner = body.seq[passes[-1]]
    assert isinstance(partner, ir.For)
    steps = extent(sch, sch.get_loops(blocks[-1])[-2])
    many = ir.const_int(partner.extent)
    if steps is None or many is None or steps % many or partner.annotations:
        return None
    inside = ir.collect(partner, ir.Block)
    beside = [h for h in blocks if any(block_of(sch, h) is b for b in inside)]
    read = {r.buffer for h in beside for r in block_of(sch, h).reads} & set(sch.func.buffers)
    ahead = any(known_bytes(b) >= target.cache(len(target.caches)).size for b in read)
    ahead = ahead and bytes_of_row <= target.cache(2).size // 4  # beside two rows and their copy
    return _Plan(blocks[-1], beside[0], passes[-1], len(body.seq), steps // many, rows, ahead)


def _rows_of_task(rows: int | None, target: Target) -> int | None:
    """As many of the rows as leave every thread several tasks, and divide them; None for none."""
    if rows is None:
        return None
    most = rows // (_TASKS * target.num_threads)
    return next((d for d in range(most, _FEWEST - 1, -1) if rows % d == 0), None)


def _written_past_caches(sch: Schedule, handle: BlockRV, target: Target) -> int:
    """Bytes that a block writes for a row, in whole vectors along its last axis; 0 where it does
    not, or where a later program may find them in a cache."""
    block = block_of(sch, handle)
    written, loops = block.writes[0].buffer, sch.get_loops(handle)[-2:]
    kinds = [sch.get(loop).kind for loop in loops]
    if not is_spatial(block) or kinds != [ir.ForKind.SERIAL, ir.ForKind.VECTORIZED]:
        return 0
    steps, lanes = (extent(sch, loop) for loop in loops)
    if steps is None or lanes is None:
        return 0
    whole = ir.is_const_int(block.iter_vars[-1].dom.extent, steps * lanes)
    large = known_bytes(written) >= target.cache(len(target.caches)).size
    past = whole and large and written in sch.func.buffers
    return steps * lanes * written.dtype.nbytes if past else 0


def _overlap(sch: Schedule, row: LoopRV, plan: _Plan, target: Target) -> None:
    writing = sch.get_loops(plan.writer)[-2]
    if plan.vectors > 1:
        writing, few = sch.split(writing, [None, plan.vectors])
        sch.unroll(few)
    working = sch.get_loops(plan.worker)[-2]
    task, each = sch.split(row, [None, plan.rows])
    sch.parallel(task)
    stream(sch, task, plan.writer, target)
    before = [k if k < plan.position else k + 1 for k in range(plan.statements - 1)]
    sch.software_pipeline(each, [0] * len(before) + [1], [*before, plan.position])
    together = sch.merge(writing, working)
    if plan.ahead:
        sch.annotate(together, READ_AHEAD, 1)
