"""Byte ranges of accesses to memory that has several aliases.

Views that `fold_views` cannot remove show memory with another element type or with their own
strides and offset, so their indices cannot be compared. Their byte ranges can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from blockwright import ir
from blockwright.analysis.access.layout import buffer_strides
from blockwright.analysis.access.stride_alignment import alignments
from blockwright.analysis.access.views import behind
from blockwright.analysis.canonical.memory import memory_roots


class Bytes(NamedTuple):
    """Byte range of an element.

    Attributes:
        first: first byte, relative to the start of the memory of `buffer`.
        size: number of bytes.
    """

    buffer: ir.Buffer
    first: ir.Expr
    size: int


class MemoryNames:
    """The aliases of each memory of a function that has more than one name."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.roots = memory_roots(func)
        self._declared = {n.buffer: n for n in ir.collect(func.body, ir.DeclBuffer)}
        self._several = {*self.roots, *self.roots.values()}
        self._padded = alignments(func.body)

    def root(self, buffer: ir.Buffer) -> ir.Buffer:
        """The buffer whose memory another buffer aliases."""
        return self.roots.get(buffer, buffer)

    def bytes(self, buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> Bytes | None:
        """Byte range of an element; None for memory without aliases, or if unknown.

        The position is in terms of variables of the access and of the view declarations.
        """
        if buffer not in self._several or any(i.dtype.lanes > 1 for i in indices):
            return None
        size = buffer.dtype.nbytes * buffer.dtype.lanes
        place = self._flat(buffer, indices)
        declared = self._declared.get(buffer)
        if declared is None:
            return Bytes(buffer, _wide(place * size), size)
        if buffer.offset is not None:
            place = place + _wide(buffer.offset)
        load = behind(declared)
        if load is None:
            plain = isinstance(declared.source, ir.Var)
            return Bytes(self.root(buffer), _wide(place * size), size) if plain else None
        below = self.bytes(load.buffer, load.indices)
        if below is None:
            return None
        return Bytes(below.buffer, below.first + place * size, size)

    def _flat(self, buffer: ir.Buffer, indices: Iterable[ir.Expr]) -> ir.Expr:
        place: ir.Expr = ir.const(0, "int64")
        strides = buffer_strides(buffer, self._padded.get(buffer, ()))
        for index, stride in zip(indices, strides, strict=True):
            place = place + _wide(index) * _wide(stride)
        return place


def _wide(expr: ir.Expr) -> ir.Expr:
    return ir.cast_to(expr, "int64")
