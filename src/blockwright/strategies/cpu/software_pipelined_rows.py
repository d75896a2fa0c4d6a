"""Software pipelining of long rows with non-temporal stores: store a row while computing the next.

    for row: reads; works; writes    →    reads, works (0)
                                          for row: reads (row + 1)
                                                   together: writes (row), works (row + 1)
                                          writes (last)

Otherwise a row is read, computed and written in turn: non-temporal stores wait for the memory while
nothing is computed, and the memory is idle while a row is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.ir.annotations import LOOP_PARTITION, PREFETCH_READ
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.inline import block_of, extent
from blockwright.strategies.cpu.nontemporal import known_bytes, stream
from blockwright.strategies.match.blocks import is_spatial
from blockwright.support import ScheduleError
from blockwright.target import Target

_SHORT = 8  # rows up to this fraction (1/8) of the first-level cache are written at once
_TASKS = 8  # fewest tasks per thread
_IN_VECTORS = [ir.ForKind.SERIAL, ir.ForKind.VECTORIZED]
# minimum rows per task: the prologue computes the first row, the epilogue writes the last
_FEWEST = 8


class _Plan(msgspec.Struct, frozen=True):
    """The statements of a row that run in one loop.

    Attributes:
        writer, worker: blocks that write the row, and that compute it in the pass before.
        position, statements: position of that pass, and number of passes.
        rows: rows per task.
        ahead: a block in whose loop the row after the next one is prefetched; None for none.
    """

    writer: BlockRV
    worker: BlockRV
    position: int
    statements: int
    rows: int
    ahead: BlockRV | None


def passes_caches(sch: Schedule, handle: BlockRV, row: LoopRV, target: Target) -> bool:
    """Whether a block writes long rows of a result that is too large for the caches."""
    block = block_of(sch, handle)
    written = block.writes[0].buffer
    return (
        is_spatial(block)
        and written in sch.func.buffers
        and known_bytes(written) >= target.cache(len(target.caches)).size
        and _bytes_of_row(block) > target.cache(1).size // _SHORT
        and _rows_of_task(extent(sch, row), target) is not None
    )


def overlap_rows(sch: Schedule, row: LoopRV, target: Target) -> bool:
    """Group rows into tasks that write a row in the loop that computes the next row.

    The last pass over a row shares a loop with the pass before it over the next row.

    Returns whether that was done. It is not if rows are short, few or of unknown number, if no
    other pass has the same number of vectors per step, or if dependences forbid it.
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
    blocks = sch.get_child_blocks(row)
    last = body.seq[-1]
    if not isinstance(last, ir.For):
        return None
    count = ir.const_int(last.extent)
    if count is None or not passes_caches(sch, blocks[-1], row, target):
        return None
    if [sch.get(loop).kind for loop in sch.get_loops(blocks[-1])[1:]] != _IN_VECTORS:
        return None
    at = next((k for k in reversed(range(len(body.seq) - 1)) if _takes(body.seq[k], count)), None)
    if at is None:
        return None
    inside = ir.collect(body.seq[at], ir.Block)
    beside = [h for h in blocks if any(block_of(sch, h) is b for b in inside)]
    small = _bytes_of_row(block_of(sch, blocks[-1])) <= target.cache(2).size // 4
    ahead = _fetches(sch, body.seq, blocks, at, target) if small else None
    return _Plan(blocks[-1], beside[0], at, len(body.seq), rows, ahead)


def _fetches(
    sch: Schedule, statements: Sequence[ir.Stmt], blocks: list[BlockRV], at: int, target: Target
) -> BlockRV | None:
    """The block of the last pass that reads a row from memory, where the next row is prefetched.

    That pass is the fused one or a later one: the fused pass shares the memory bandwidth with
    stores, and a later pass would otherwise leave it idle.
    """
    smallest = target.cache(len(target.caches)).size
    far = {b for b in sch.func.buffers if known_bytes(b) >= smallest}
    for statement in reversed(statements[at:-1]):
        for handle in blocks:
            around = sch.get(sch.get_loops(handle)[-2:][0])
            if around is statement and any(r.buffer in far for r in block_of(sch, handle).reads):
                return handle
    return None


def _takes(stmt: ir.Stmt, many: int) -> bool:
    """Whether a statement is a serial loop of `many` iterations."""
    if not isinstance(stmt, ir.For) or stmt.kind is not ir.ForKind.SERIAL:
        return False
    return ir.is_const_int(stmt.extent, many)


def _rows_of_task(rows: int | None, target: Target) -> int | None:
    """Most rows per task that divide `rows` and leave every thread several tasks; None for none."""
    if rows is None:
        return None
    largest = rows // (_TASKS * target.num_threads)
    return next((d for d in range(largest, _FEWEST - 1, -1) if rows % d == 0), None)


def _bytes_of_row(block: ir.Block) -> int:
    """Bytes that a block writes along its last axis; 0 if unknown."""
    return (ir.const_int(block.iter_vars[-1].dom.extent) or 0) * block.writes[0].buffer.dtype.nbytes


def _overlap(sch: Schedule, row: LoopRV, plan: _Plan, target: Target) -> None:
    writing, working = (sch.get_loops(h)[-2] for h in (plan.writer, plan.worker))
    fetching = None if plan.ahead is None else sch.get_loops(plan.ahead)[-2]
    beside = fetching is not None and sch.get(fetching) is sch.get(working)
    ragged = LOOP_PARTITION in sch.get(writing).annotations
    task, each = sch.split(row, [None, plan.rows])
    sch.parallel(task)
    stream(sch, task, plan.writer, target)
    before = [k if k < plan.position else k + 1 for k in range(plan.statements - 1)]
    sch.software_pipeline(each, [0] * len(before) + [1], [*before, plan.position])
    for loop in (writing, working) if ragged else ():
        sch.unannotate(loop, LOOP_PARTITION)
    together = sch.merge(writing, working)
    if ragged:
        sch.annotate(together, LOOP_PARTITION, True)
    if fetching is not None:
        sch.annotate(together if beside else fetching, PREFETCH_READ, 1)
