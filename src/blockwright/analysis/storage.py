"""Alignment of strides, which blocks state in an annotation about buffers that they write.

A row `(index, axis, factor, offset)` under `buffer_dim_align` says that the buffer of the block's
write region number `index` is stored so that the stride of `axis` is `offset` modulo `factor`.
"""

from __future__ import annotations

from blockwright import ir

DIM_ALIGN = "buffer_dim_align"

AlignRow = tuple[int, int, int]
"""(axis, factor, offset)."""


def alignments(stmt: ir.Stmt) -> dict[ir.Buffer, tuple[AlignRow, ...]]:
    """What the blocks below a statement state about the strides of buffers."""
    found: dict[ir.Buffer, dict[int, AlignRow]] = {}
    for block in ir.collect(stmt, ir.Block):
        for index, axis, factor, offset in block.annotations.get(DIM_ALIGN, ()):
            rows = found.setdefault(block.writes[int(index)].buffer, {})
            rows[int(axis)] = (int(axis), int(factor), int(offset))
    return {buffer: tuple(rows.values()) for buffer, rows in found.items()}


def aligned_strides(shape: tuple[int, ...], rows: tuple[AlignRow, ...]) -> tuple[int, ...]:
    """Row-major element strides, each as small as its row allows."""
    wanted = {axis: (factor, offset) for axis, factor, offset in rows}
    strides: list[int] = []
    stride = 1
    for axis in reversed(range(len(shape))):
        factor, offset = wanted.get(axis, (1, 0))
        stride += (offset - stride) % factor
        strides.append(stride)
        stride *= max(shape[axis], 0)
    return tuple(reversed(strides))
