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
from blockwright.strategies.cpu.inline import block_of
from blockwright.strategies.cpu.nontemporal import known_bytes, stream
from blockwright.strategies.match.blocks import is_spatial
from blockwright.support import ScheduleError
from blockwright.target import Target

_SHORT = 8  # rows up to this fraction (1/8) of the first-level cache are written at once
_TASKS = 8  # fewest tasks per thread
_IN_VECTORS = [ir.ForKind.SERIAL, ir.ForKind.VECTORIZED]
# minimum rows per task: the prologue computes the first row, the epilogue writes the last
_FEWEST = 8


class PipelinePlan(msgspec.Struct, frozen=True):
    """How rows larger than the near caches are passed.

    Attributes:
        rows: rows per task, each written while the next one is computed where dependences allow
            it; 0: rows are not overlapped.
        far_bytes: size from which buffers stay in no cache: results are written with non-temporal
            stores, and the next row is prefetched; None: no buffer does.
        prefetch_bytes: bytes of the largest row that is prefetched before it is used.
    """

    rows: int = 0
    far_bytes: int | None = None
    prefetch_bytes: int = 0


class _Passes(msgspec.Struct, frozen=True):
    """The statements of a row that run in one loop.

    Attributes:
        writer, worker: blocks that write the row, and that compute it in the pass before.
        position, statements: position of that pass, and number of passes.
        ahead: a block in whose loop the row after the next one is prefetched; None for none.
    """

    writer: BlockRV
    worker: BlockRV
    position: int
    statements: int
    ahead: BlockRV | None


def rows_of_task(func: ir.PrimFunc, block: ir.Block, rows: int | None, target: Target) -> int:
    """Rows per task if a block writes long rows of a result that is too large for the caches.

    0 if it does not, or if there are few rows or their number is unknown.
    """
    written = block.writes[0].buffer
    if (
        rows is None
        or not is_spatial(block)
        or written not in func.buffers
        or known_bytes(written) < target.cache(len(target.caches)).size
        or _bytes_of_row(block) <= target.cache(1).size // _SHORT
    ):
        return 0
    largest = rows // (_TASKS * target.num_threads)
    return next((d for d in range(largest, _FEWEST - 1, -1) if rows % d == 0), 0)


def overlap_rows(sch: Schedule, row: LoopRV, plan: PipelinePlan) -> bool:
    """Group rows into tasks that write a row in the loop that computes the next row.

    The last pass over a row shares a loop with the pass before it over the next row.

    Returns whether that was done. It is not if no other pass has the same number of vectors per
    step, or if dependences forbid it.
    """
    passes = _passes(sch, row, plan)
    if passes is None:
        return False
    try:
        _overlap(sch.copy(), row, passes, plan)
    except ScheduleError:
        return False
    _overlap(sch, row, passes, plan)
    return True


def _passes(sch: Schedule, row: LoopRV, plan: PipelinePlan) -> _Passes | None:
    body = sch.get(row).body
    if not plan.rows or not isinstance(body, ir.SeqStmt):
        return None
    blocks = sch.get_child_blocks(row)
    last = body.seq[-1]
    if not isinstance(last, ir.For):
        return None
    count = ir.const_int(last.extent)
    if count is None or not is_spatial(block_of(sch, blocks[-1])):
        return None
    if [sch.get(loop).kind for loop in sch.get_loops(blocks[-1])[1:]] != _IN_VECTORS:
        return None
    at = next((k for k in reversed(range(len(body.seq) - 1)) if _takes(body.seq[k], count)), None)
    if at is None:
        return None
    inside = ir.collect(body.seq[at], ir.Block)
    beside = [h for h in blocks if any(block_of(sch, h) is b for b in inside)]
    small = _bytes_of_row(block_of(sch, blocks[-1])) <= plan.prefetch_bytes // 2
    ahead = _fetches(sch, body.seq, blocks, at, plan.far_bytes) if small else None
    return _Passes(blocks[-1], beside[0], at, len(body.seq), ahead)


def _fetches(
    sch: Schedule,
    statements: Sequence[ir.Stmt],
    blocks: list[BlockRV],
    at: int,
    smallest: int | None,
) -> BlockRV | None:
    """The block of the last pass that reads a row from memory, where the next row is prefetched.

    That pass is the fused one or a later one: the fused pass shares the memory bandwidth with
    stores, and a later pass would otherwise leave it idle.
    """
    far = {b for b in sch.func.buffers if smallest is not None and known_bytes(b) >= smallest}
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


def _bytes_of_row(block: ir.Block) -> int:
    """Bytes that a block writes along its last axis; 0 if unknown."""
    return (ir.const_int(block.iter_vars[-1].dom.extent) or 0) * block.writes[0].buffer.dtype.nbytes


def _overlap(sch: Schedule, row: LoopRV, passes: _Passes, plan: PipelinePlan) -> None:
    writing, working = (sch.get_loops(h)[-2] for h in (passes.writer, passes.worker))
    fetching = None if passes.ahead is None else sch.get_loops(passes.ahead)[-2]
    beside = fetching is not None and sch.get(fetching) is sch.get(working)
    ragged = LOOP_PARTITION in sch.get(writing).annotations
    task, each = sch.split(row, [None, plan.rows])
    sch.parallel(task)
    stream(sch, task, passes.writer, plan.far_bytes)
    before = [k if k < passes.position else k + 1 for k in range(passes.statements - 1)]
    sch.software_pipeline(each, [0] * len(before) + [1], [*before, passes.position])
    for loop in (writing, working) if ragged else ():
        sch.unannotate(loop, LOOP_PARTITION)
    together = sch.merge(writing, working)
    if ragged:
        sch.annotate(together, LOOP_PARTITION, True)
    if fetching is not None:
        sch.annotate(together if beside else fetching, PREFETCH_READ, 1)
