"""Where elements and buffers lie in memory, in bytes, as expressions.

A buffer of shape (4, 8) with strides (16, 1) of `float32` takes the bytes [0, 4 * (3 * 16 + 8)),
counted from its element 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from blockwright import ir
from blockwright.analysis.access.layout import buffer_strides
from blockwright.analysis.access.stride_alignment import alignments
from blockwright.analysis.access.views import behind, plain_scope

_declarations: ir.Rare[ir.Allocate | ir.DeclBuffer] = ir.Rare(ir.Allocate, ir.DeclBuffer)
_NO_VALUES: Mapping[ir.Var, ir.Expr] = {}


class MemorySpan(NamedTuple):
    """The bytes that a buffer takes, counted from its element 0.

    Attributes:
        low: its first byte, which is 0 unless a stride is negative; high: the end.
        extents: extents that must not be 0 for the end to be right.
    """

    low: ir.Expr
    high: ir.Expr
    extents: tuple[ir.Expr, ...]

    def inside(self, start: ir.Expr, memory: MemorySpan) -> tuple[ir.Expr, ir.Expr]:
        """Conditions that the buffer, with its element 0 at `start`, lies in the memory: that it
        begins there, and that it ends there."""
        begins = ir.compare(ir.GE, ir.add(start, self.low), memory.low)
        return begins, ir.compare(ir.LE, ir.add(start, self.high), memory.high)


def memory_span(
    buffer: ir.Buffer, values: Mapping[ir.Var, ir.Expr] = _NO_VALUES
) -> MemorySpan | None:
    """The bytes of a buffer, with values for the variables of its shape and strides.

    None if its elements have no defined places.
    """
    if buffer.axis_separators or not plain_scope(buffer.scope):
        return None
    width, given = element_bytes(buffer), dict(values)
    shape = tuple(_int64(ir.substitute(extent, given)) for extent in buffer.shape)
    low, high = _int64(0), _int64(1)
    if not buffer.strides:
        for extent in shape:
            high = ir.mul(high, extent)
        return MemorySpan(low, ir.mul(high, width), ())
    for extent, stride in zip(shape, buffer.strides, strict=True):
        step = _int64(ir.substitute(stride, given))
        way = ir.mul(ir.sub(extent, 1), step)
        if (ir.const_int(step) or 0) < 0:
            low = ir.add(low, way)
        else:
            high = ir.add(high, way)
    return MemorySpan(ir.mul(low, width), ir.mul(high, width), shape)


def laid_out_buffers(func: ir.PrimFunc) -> set[ir.Buffer]:
    """Buffers whose elements are where their shapes and strides say.

    Not so views of regions, which have the strides of their source, and padded buffers.
    """
    blocks = list(ir.blocks(func.body))
    found = {*func.buffers, *(b for block in blocks for b in block.alloc_buffers)}
    for node in _declarations.of(func.body):
        found.add(node.buffer)
    return found - alignments(func.body).keys()


def byte_position(place: ir.BufferLoad) -> ir.Expr | None:
    """The byte at which an element begins, counted from element 0; None for several elements."""
    if place.predicate is not None or any(index.dtype.lanes > 1 for index in place.indices):
        return None
    result = _int64(0)
    for index, stride in zip(place.indices, buffer_strides(place.buffer), strict=True):
        result = ir.add(result, ir.mul(_int64(index), _int64(stride)))
    return ir.mul(result, element_bytes(place.buffer))


def view_start(node: ir.DeclBuffer) -> tuple[ir.Buffer, ir.Expr] | None:
    """The buffer on which a view is declared, and the byte of it at which element 0 lies.

    None if the view is declared on no element of a buffer.
    """
    first = behind(node)
    start = None if first is None else byte_position(first)
    if first is None or start is None:
        return None
    offset = node.buffer.offset
    if offset is not None:
        start = ir.add(start, ir.mul(_int64(offset), element_bytes(node.buffer)))
    return first.buffer, start


def element_bytes(buffer: ir.Buffer) -> int:
    """The size of an element, or of a vector, in bytes."""
    return buffer.dtype.nbytes * buffer.dtype.lanes


def _int64(value: ir.Expr | int) -> ir.Expr:
    return ir.const(value, "int64") if isinstance(value, int) else ir.cast_to(value, "int64")
