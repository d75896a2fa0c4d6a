"""Buffers, regions and block iterators."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from blockwright.ir.dtype import INT32, DType
from blockwright.ir.expr import Expr, ExprLike, IntImm, Var
from blockwright.ir.node import Node


class Buffer(Node, frozen=True, eq=False):
    """A multi-dimensional array, identified by the node itself, not by its name.

    Attributes:
        shape: extents, possibly symbolic; empty for a scalar.
        strides: element strides per dimension; empty means compact row-major.
        offset: elements between the pointer and element 0; None means 0. `elem_offset` is the
            same value as an expression.
        scope: storage scope ("global", "shared", "local", "wmma.accumulator", …).
        data_alignment: alignment of the start address in bytes; 0 means the element's own size.
        offset_factor: a known divisor of `offset`; 0 means unknown.
        axis_separators: dimensions at which the flattened buffer starts a new physical axis.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...] = ()
    offset: Expr | None = None
    scope: str = "global"
    data_alignment: int = 0
    offset_factor: int = 0
    axis_separators: tuple[int, ...] = ()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def elem_offset(self) -> Expr:
        """Elements between the pointer and element 0, as an expression; constant 0 if unset."""
        return _NO_OFFSET if self.offset is None else self.offset

    if TYPE_CHECKING:  # installed by `ir.operators`, as the operators of expressions are

        def __getitem__(self, index: ExprLike | tuple[ExprLike, ...]) -> Expr: ...

        # Installed by `script.tir`, for scripts and the Python functions they call.
        @property
        def data(self) -> Expr: ...

        def access_ptr(self, access_mask: Any = ..., *args: Any, **options: Any) -> Expr: ...

        def vload(self, indices: Any, dtype: Any = ..., predicate: Any = ...) -> Expr: ...

        def vstore(self, indices: Any, value: Any, predicate: Any = ...) -> None: ...


_NO_OFFSET = IntImm(0, INT32)


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
