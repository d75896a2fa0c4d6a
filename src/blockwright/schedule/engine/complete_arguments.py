"""Complete call arguments that depend on the block: buffer objects and maps of `*indices`.

A recorded step must be replayable from its text. A buffer therefore becomes its position in the
block's signature, and `lambda *i: …` becomes a map with one parameter per index.
"""

from __future__ import annotations

from typing import Any

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import OpenMap, Primitive
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.buffers import named_buffer


def completed(record: Primitive, state: StepState) -> Primitive:
    """The record with buffers replaced by positions and index maps of known rank.

    Returns the record itself if nothing needs completion.

    Raises ScheduleError (BW320) for a buffer that the block does not access.
    """
    handle = getattr(record, "block", None)
    changes: dict[str, Any] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, ir.Buffer) and isinstance(handle, BlockRV):
            changes[name] = _position(state, state.block(handle), value, record, name)
    if changes:
        record = msgspec.structs.replace(record, **changes)
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, OpenMap) and isinstance(handle, BlockRV):
            rank = _rank(state, state.block(handle), record, name)
            record = msgspec.structs.replace(record, **{name: value.at_rank(rank)})
    return record


def _position(
    state: StepState, block: ir.Block, buffer: ir.Buffer, record: Primitive, name: str
) -> int | tuple[str, int]:
    """The position of the buffer in the block's signature, in the form that the field expects."""
    reads = [r.buffer for r in block.reads]
    writes = [r.buffer for r in block.writes]
    if name == "buffer":
        kinds = ("write", "read")
    elif name == "read_buffer_index":
        kinds = ("read",)
    else:
        kinds = (str(getattr(record, "buf_type", "write")),)
    for kind in kinds:
        for position, result in enumerate(reads if kind == "read" else writes):
            if result is buffer:
                return (kind, position) if name == "buffer" else position
    return state.fail(
        f"block {block.name} {' or '.join(k + 's' for k in kinds)} no such buffer {buffer.name}",
        code="BW320",
        guilty=[block],
        help="use a buffer of the schedule's current program: sch.get(block).writes[0].buffer",
    )


def _rank(state: StepState, block: ir.Block, record: Primitive, name: str) -> int:
    """The number of indices of a field's map."""
    mapping = getattr(record, "index_map", None)
    if name == "pad_value" and isinstance(mapping, IndexMap):
        return len(mapping.final)
    named = getattr(record, "buffer", None)
    if named is None:
        return len(block.iter_vars)
    return named_buffer(state, block, named).ndim
