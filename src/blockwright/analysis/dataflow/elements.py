"""Which elements of which memory an access touches, so that accesses can be compared.

Accesses touch the same element if the indices are equal in the same buffer. Memory that has several
aliases is compared by bytes: views that `fold_views` cannot remove show it with another element
type or with their own strides and offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from blockwright import ir
from blockwright.analysis.access.layout import buffer_strides
from blockwright.analysis.access.stride_alignment import alignments
from blockwright.analysis.access.views import behind
from blockwright.analysis.canonical.memory import memory_roots
from blockwright.analysis.dataflow.accesses import ConditionalAccess
from blockwright.analysis.dataflow.contexts import BlockContext
from blockwright.analysis.dataflow.counterexample import DependsOnMore, Instances, value_of

Place = tuple[int, ...]
Element = tuple[ir.Buffer, Place]
"""A buffer and the indices of an element, or (`_BYTE`, number) of a byte of aliased memory."""

_BYTE = -1  # no element has a negative index


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

    def elements(
        self, access: ConditionalAccess, context: BlockContext, rows: Instances
    ) -> list[Element]:
        """Elements that an access of a block touches in some instances; none if unknown."""
        held = self.bytes(access.buffer, access.indices)
        indices = access.indices if held is None else (context.resolved(held.first),)
        try:
            columns = [np.broadcast_to(value_of(i, rows.env), (rows.rows,)) for i in indices]
        except DependsOnMore:
            return []
        if not columns:
            return [(access.buffer, ())] if rows.rows else []
        lists: list[list[int]] = [column.astype(np.int64).tolist() for column in columns]
        if held is None:
            return [(access.buffer, place) for place in sorted(set(zip(*lists, strict=True)))]
        places = {first + k for first in lists[0] for k in range(held.size)}
        return [(held.buffer, (_BYTE, place)) for place in sorted(places)]

    def _flat(self, buffer: ir.Buffer, indices: Iterable[ir.Expr]) -> ir.Expr:
        place: ir.Expr = ir.const(0, "int64")
        strides = buffer_strides(buffer, self._padded.get(buffer, ()))
        for index, stride in zip(indices, strides, strict=True):
            place = place + _wide(index) * _wide(stride)
        return place


def _wide(expr: ir.Expr) -> ir.Expr:
    return ir.cast_to(expr, "int64")


def element_text(element: Element) -> str:
    """Text for an element, or for a byte of aliased memory."""
    buffer, place = element
    if place[:1] == (_BYTE,):
        return f"byte {place[1]} of {buffer.name}"
    return f"{buffer.name}[{', '.join(map(str, place))}]"
