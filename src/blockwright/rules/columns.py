"""Column programs: reductions over outer axes, with the axis of neighbours in memory kept.

Column sums, softmax over a leading axis, statistics per column: a stretch of columns is a task, and
everything for it is done before the next. Vectors run along the columns, so no lanes are combined,
and some steps of a reduction are added to sums in cache at a time, so that memory is read in long
pieces of a few rows.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis import NoReduction, find_reduction
from blockwright.rules.facts import extent_of, is_spatial, leaf_blocks, windowed
from blockwright.rules.inline import block_of, extent, inline_where
from blockwright.rules.rows import accumulate, inner_loops, vectorize_last
from blockwright.rules.rule import Rule
from blockwright.rules.tiles import column_stretch
from blockwright.schedule import Schedule
from blockwright.target import Target


def _column(block: ir.Block) -> int | None:
    """The position of the iterator that is the last index of what a block stores."""
    store = block.body
    if not isinstance(store, ir.BufferStore) or not store.indices:
        return None
    places = [p for p, it in enumerate(block.iter_vars) if it.var is store.indices[-1]]
    return places[0] if places else None


def _along_columns(block: ir.Block) -> bool:
    """Whether all a block reads and writes is at the same place of the last axis, or needs none."""
    position = _column(block)
    if position is None or ir.is_const_int(block.iter_vars[position].dom.extent, 1):
        return False
    column = block.iter_vars[position]
    return all(
        load.indices[-1] is column.var
        for load in ir.collect(block.body, ir.BufferLoad)
        if load.indices and any(ir.uses_var(i, column.var) for i in load.indices)
    )


def refuses(func: ir.PrimFunc, target: Target) -> str:
    found = leaf_blocks(func)
    reducing = [b for b in found if not is_spatial(b)]
    if not reducing:
        return "no block reduces"
    for block in reducing:
        reduction = find_reduction(block)
        if isinstance(reduction, NoReduction):
            return "a block is no reduction that is known"
        if len(reduction.elements) > 1:
            return "a reduction has several results"
    written = [region.buffer for b in found for region in b.writes]
    if len(set(written)) < len(written):
        return "several blocks write one buffer"
    if not all(_along_columns(b) for b in found):
        return "a block does not keep the last axis"
    if any(windowed(b) for b in found):
        return "a window slides over an operand"
    if _column(found[-1]) not in _kept(found):
        return "the last block uses no result of a reduction"
    return ""


def _kept(found: list[ir.Block]) -> list[int]:
    """Positions of the last block's iterators that no reduction runs over."""
    last = found[-1]
    if not is_spatial(last):
        spatial = ir.IterType.SPATIAL
        return [p for p, it in enumerate(last.iter_vars) if it.iter_type is spatial]
    statistics: set[ir.Buffer] = set()
    for block in found[:-1]:
        if not is_spatial(block) or statistics.issuperset(r.buffer for r in block.reads):
            statistics.update(r.buffer for r in block.writes)
    loads = [n for n in ir.collect(last.body, ir.BufferLoad) if n.buffer in statistics]
    used = {v for load in loads for i in load.indices for v in ir.free_vars(i)}
    return [p for p, it in enumerate(last.iter_vars) if it.var in used]


def apply(sch: Schedule, target: Target) -> None:
    handles = inline_where(sch, sch.get_child_blocks(sch.get_block("root")), copies_only=True)
    blocks = [block_of(sch, handle) for handle in handles]
    last = handles[-1]
    loops, kept, column = sch.get_loops(last), _kept(blocks), _column(blocks[-1])
    assert column is not None  # `refuses` looked
    outer = [loops[p] for p in kept if p != column]
    inner = [loop for p, loop in enumerate(loops) if p not in kept]
    width = _stretch(blocks, extent(sch, loops[column]), target)
    task, columns = sch.split(loops[column], [None, width])
    sch.reorder(*outer, task, *inner, columns)
    for handle in reversed(handles[:-1]):
        sch.compute_at(handle, task)
    for handle in handles:
        if is_spatial(block_of(sch, handle)):
            vectorize_last(sch, handle, inner_loops(sch, handle, task)[-1], target)
        else:
            accumulate(sch, handle, task, target)
    task = sch.fuse(*outer, task) if outer else task
    sch.annotate(task, "loop_partition", True)
    sch.parallel(task)


def _stretch(blocks: list[ir.Block], columns: int | None, target: Target) -> int:
    """Columns of a task: all that is passed several times should stay in cache meanwhile."""
    depth: int | None = 0
    if len(blocks) > 1:
        depth = max((_size(b, ir.IterType.REDUCE) for b in blocks), key=lambda n: n or 1 << 30)
    passed = 1 + sum(is_spatial(b) for b in blocks[:-1])
    bits = max(r.buffer.dtype.bits for b in blocks for r in (*b.reads, *b.writes))
    return column_stretch(target, columns, None if depth is None else depth * passed, bits)


def _size(block: ir.Block, kind: ir.IterType) -> int | None:
    return extent_of(block, [p for p, it in enumerate(block.iter_vars) if it.iter_type is kind])


RULE = Rule("columns", refuses, apply)
