"""Alignment of buffer strides, stated by block annotations about written buffers.

A row `(index, axis, factor, offset)` under `buffer_dim_align` requires that, in the buffer of the
block's write region number `index`, the stride of `axis` is `offset` modulo `factor`.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.access.region_annotations import entries, whole_number
from blockwright.ir.annotations import DIM_ALIGN
from blockwright.support import ValidationError

AlignRow = tuple[int, int, int]
"""(axis, factor, offset)."""


def alignment_problem(block: ir.Block) -> str:
    """Why the annotation of a block is not a list of such rows; "" if it is or is absent."""
    if DIM_ALIGN not in block.annotations:
        return ""
    value = block.annotations[DIM_ALIGN]
    rows = entries(value)
    for row in (None,) if rows is None else rows:
        numbers = [whole_number(n) for n in entries(row) or ()]
        index, axis, factor, offset = numbers if len(numbers) == 4 else [None] * 4
        if index is None or axis is None or factor is None or offset is None:
            return f"{DIM_ALIGN!r} is {value!r}, not a list of rows [write, axis, factor, offset]"
        if not 0 <= index < len(block.writes):
            return f"{DIM_ALIGN!r} names write region {index}, the block has {len(block.writes)}"
        buffer = block.writes[index].buffer
        if not -buffer.ndim <= axis < buffer.ndim:
            return f"{DIM_ALIGN!r} names axis {axis} of {buffer.name}, which has {buffer.ndim} axes"
        if factor < 1:
            return f"{DIM_ALIGN!r} has the factor {factor}, it must be at least 1"
    return ""


def align_rows(block: ir.Block) -> list[tuple[int, AlignRow]]:
    """The alignment rows of a block, each with the number of its write region.

    Axes are normalized to count from 0.
    """
    problem = alignment_problem(block)
    if problem:
        raise ValidationError(
            f"annotation of block {block.name}: {problem}", code="BW257", span=block.span
        )
    result: list[tuple[int, AlignRow]] = []
    for row in entries(block.annotations.get(DIM_ALIGN, ())) or ():
        index, axis, factor, offset = (whole_number(n) or 0 for n in entries(row) or ())
        result.append((index, (axis % block.writes[index].buffer.ndim, factor, offset)))
    return result


def alignments(stmt: ir.Stmt) -> dict[ir.Buffer, tuple[AlignRow, ...]]:
    """Stride alignment of buffers, stated by the blocks in a statement."""
    result: dict[ir.Buffer, dict[int, AlignRow]] = {}
    for block in ir.collect(stmt, ir.Block):
        for index, row in align_rows(block):
            result.setdefault(block.writes[index].buffer, {})[row[0]] = row
    return {buffer: tuple(rows.values()) for buffer, rows in result.items()}


def aligned_strides(shape: tuple[int, ...], rows: tuple[AlignRow, ...]) -> tuple[int, ...]:
    """Row-major element strides, each the smallest that its row allows."""
    wanted = {axis: (factor, offset) for axis, factor, offset in rows}
    strides: list[int] = []
    stride = 1
    for axis in reversed(range(len(shape))):
        factor, offset = wanted.get(axis, (1, 0))
        stride += (offset - stride) % factor
        strides.append(stride)
        stride *= max(shape[axis], 0)
    return tuple(reversed(strides))
