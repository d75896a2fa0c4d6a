"""Statements of the tensor level."""

from __future__ import annotations

from enum import Enum
from typing import Any

from blockwright.ir.buffer import Buffer, BufferRegion, IterVar, MatchBufferRegion, Range
from blockwright.ir.expr import Expr, Var
from blockwright.ir.node import Node


class Stmt(Node, frozen=True, eq=False, kw_only=True):
    """Base of all statements."""


class ForKind(Enum):
    """How the iterations of a loop run."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unrolled"
    THREAD_BINDING = "thread_binding"


class BufferStore(Stmt, frozen=True, eq=False):
    """Write of an element, or of a vector when the last index is a `Ramp`.

    `predicate` is a bool vector of the value's lanes; masked-off lanes are not written.
    """

    buffer: Buffer
    value: Expr
    indices: tuple[Expr, ...]
    predicate: Expr | None = None


class For(Stmt, frozen=True, eq=False):
    """A loop over [min, min + extent)."""

    loop_var: Var
    min: Expr
    extent: Expr
    kind: ForKind
    body: Stmt
    thread: IterVar | None = None
    annotations: dict[str, Any] = {}

    @property
    def dom(self) -> Range:
        """Range of `loop_var`, named like `IterVar.dom`."""
        return Range(self.min, self.extent)


class While(Stmt, frozen=True, eq=False):
    condition: Expr
    body: Stmt


class LetStmt(Stmt, frozen=True, eq=False):
    var: Var
    value: Expr
    body: Stmt


class AttrStmt(Stmt, frozen=True, eq=False):
    """A key and value that hold for `body`, such as a launch attribute."""

    node: Any
    key: str
    value: Expr
    body: Stmt


class IfThenElse(Stmt, frozen=True, eq=False):
    condition: Expr
    then_case: Stmt
    else_case: Stmt | None = None


class SeqStmt(Stmt, frozen=True, eq=False):
    """Statements one after the other; never nested directly in one another (see `ir.build.seq`)."""

    seq: tuple[Stmt, ...]


class Evaluate(Stmt, frozen=True, eq=False):
    """An expression evaluated for its effect."""

    value: Expr


class AssertStmt(Stmt, frozen=True, eq=False):
    """Stops the function with `message` when `condition` is false.

    With integer `values`, the message is a format string: one `%d` per value, `%%` for a percent
    sign.
    """

    condition: Expr
    message: str
    values: tuple[Expr, ...] = ()


class Allocate(Stmt, frozen=True, eq=False):
    """Storage for `buffer` during `body`; lowered form of a block's `alloc_buffers`."""

    buffer: Buffer
    body: Stmt
    annotations: dict[str, Any] = {}


class DeclBuffer(Stmt, frozen=True, eq=False):
    """Within `body`, `buffer` aliases the memory that the pointer `source` points to."""

    buffer: Buffer
    source: Expr
    body: Stmt


class Block(Stmt, frozen=True, eq=False):
    """The unit of scheduling: a computation on iterators, isolated by its signature.

    Attributes:
        iter_vars: block iterators; the body uses them, never the surrounding loop variables.
        reads, writes: accessed regions, as functions of the iterators.
        init: runs before the first iteration of the reduction iterators.
        alloc_buffers: buffers allocated for the duration of the block.
        match_buffers: views of regions, used by the body.
        exec_scope: "" or one of gpu_block, gpu_warp, gpu_thread.
    """

    name: str
    iter_vars: tuple[IterVar, ...]
    reads: tuple[BufferRegion, ...]
    writes: tuple[BufferRegion, ...]
    body: Stmt
    init: Stmt | None = None
    alloc_buffers: tuple[Buffer, ...] = ()
    match_buffers: tuple[MatchBufferRegion, ...] = ()
    annotations: dict[str, Any] = {}
    exec_scope: str = ""


class BlockRealize(Stmt, frozen=True, eq=False):
    """A block instance with the values of its iterators; it runs when `predicate` holds."""

    iter_values: tuple[Expr, ...]
    predicate: Expr
    block: Block

    @property
    def bindings(self) -> list[tuple[IterVar, Expr]]:
        """Each iterator of the block with the value bound to it."""
        return list(zip(self.block.iter_vars, self.iter_values, strict=True))

    @property
    def values(self) -> dict[Var, Expr]:
        """Maps the variable of each iterator to the value bound to it."""
        return {it.var: value for it, value in self.bindings}
