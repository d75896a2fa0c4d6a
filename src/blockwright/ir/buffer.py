"""Buffers, regions and block iterators."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from blockwright.ir.dtype import DType
from blockwright.ir.expr import Expr, ExprLike, Var
from blockwright.ir.node import Node


class Buffer(Node, frozen=True, eq=False):
    """A multi-dimensional array; identity is what names it.

    Attributes:
        shape: extents, symbolic allowed; empty for a scalar.
        strides: element strides per dimension; empty means compact row-major.
        elem_offset: elements between the pointer and element 0; None means 0.
        scope: storage scope ("global", "shared", "local", "wmma.accumulator", …).
        data_alignment: bytes the start address is a multiple of; 0 means the element's own size.
        offset_factor: `elem_offset` is a multiple of this; 0 means nothing is known.
        axis_separators: dimensions at which the flattened buffer starts a new physical axis.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...] = ()
    elem_offset: Expr | None = None
    scope: str = "global"
    data_alignment: int = 0
    offset_factor: int = 0
    axis_separators: tuple[int, ...] = ()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    if TYPE_CHECKING:  # installed by `ir.build`, as the operators of expressions are

        def __getitem__(self, index: ExprLike | tuple[ExprLike, ...]) -> Expr: ...


class Range(Node, frozen=True, eq=False):
    """Half-open interval [min, min + extent)."""

    min: Expr
    extent: Expr


class BufferRegion(Node, frozen=True, eq=False):
    """A box of a buffer, one `Range` per dimension."""

    buffer: Buffer
    region: tuple[Range, ...]


class MatchBufferRegion(Node, frozen=True, eq=False):
    """A view `buffer` over the region `source`; its symbolic strides and offset are bound here."""

    buffer: Buffer
    source: BufferRegion


class IterType(Enum):
    """What a block iterator may be used for."""

    SPATIAL = "S"
    REDUCE = "R"
    SCAN = "scan"
    OPAQUE = "opaque"


class IterVar(Node, frozen=True, eq=False):
    """A block iterator with its domain and kind, or a thread axis with `thread_tag`."""

    var: Var
    dom: Range
    iter_type: IterType = IterType.SPATIAL
    thread_tag: str = ""
