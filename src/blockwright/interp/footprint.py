"""Collect the accesses of a loop nest as functions of loop variables, or reject the nest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from blockwright.interp.privatization import Privates
from blockwright.ir import (
    OPS,
    AssertStmt,
    AttrStmt,
    BlockRealize,
    Buffer,
    BufferLoad,
    BufferRegion,
    BufferStore,
    Call,
    Evaluate,
    Expr,
    For,
    ForKind,
    IfThenElse,
    Let,
    LetStmt,
    Mutator,
    Node,
    SeqStmt,
    Stmt,
    Var,
    add,
    walk,
)
from blockwright.ir import stmt as S


class Opaque(Exception):
    """The nest contains a construct that the analysis does not support."""


def _is_pure(call: Call) -> bool:
    row = OPS.get(call.op)
    return row is not None and row.kind == "pure"


class TracedAccess(NamedTuple):
    buffer: Buffer
    indices: tuple[Expr, ...]
    loops: tuple[For, ...]  # loops inside the chain's body around the access
    writes: bool


class Resolve(Mutator):
    """Rewrite expressions in terms of loop variables and underlying buffers."""

    def __init__(self, bindings: dict[Var, Expr], views: dict[Buffer, BufferRegion]) -> None:
        super().__init__()
        self.bindings = bindings
        self.views = views

    def rewrite_Var(self, node: Var) -> Node:
        bound = self.bindings.get(node)
        return node if bound is None else self(bound)

    def rewrite_Buffer(self, node: Buffer) -> Node:
        return node

    def rewrite_BufferLoad(self, node: BufferLoad) -> Node:
        buffer, indices = self.place(node.buffer, node.indices)
        return BufferLoad(buffer, indices, node.predicate)

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        indices = tuple(self(i) for i in indices)
        source = self.views.get(buffer)
        if source is None:
            return buffer, indices
        extra = len(source.region) - len(indices)
        starts = tuple(self(r.min) for r in source.region)
        moved = tuple(add(s, i) for s, i in zip(starts[extra:], indices, strict=True))
        return self.place(source.buffer, (*starts[:extra], *moved))


class Collector:
    """Collects the accesses, bindings and private buffers of a nest's body."""

    def __init__(self, privates: Privates, known: frozenset[Var]) -> None:
        self.privates = privates
        self.known = known  # variables defined outside the nest: view shapes do not bind them
        self.bindings: dict[Var, Expr] = {}
        self.views: dict[Buffer, BufferRegion] = {}
        self.private: set[Buffer] = set()
        self.inner: set[Var] = set()
        self.found: list[TracedAccess] = []
        self.sizes: list[Expr] = []  # must not vary between lanes
        self._path: tuple[For, ...] = ()

    def bind(self, var: Var, value: Expr) -> None:
        if self.bindings.setdefault(var, value) is not value:
            raise Opaque  # one block object occurs in two positions
        self.expr(value)

    def expr(self, root: Expr) -> None:
        for node in walk(root):
            if isinstance(node, BufferLoad):
                self.found.append(TracedAccess(node.buffer, node.indices, self._path, False))
            elif (isinstance(node, Call) and not _is_pure(node)) or (
                isinstance(node, Let)
                and (self.bindings.setdefault(node.var, node.value) is not node.value)
            ):
                raise Opaque

    def stmt(self, node: Stmt) -> None:
        match node:
            case SeqStmt():
                for part in node.seq:
                    self.stmt(part)
            case BufferStore():
                self.found.append(TracedAccess(node.buffer, node.indices, self._path, True))
                parts = (node.value, *node.indices, node.predicate)
                self._exprs(p for p in parts if p is not None)
            case For():
                if node.kind is ForKind.THREAD_BINDING:
                    raise Opaque
                self._loop(node)
            case IfThenElse():
                self.expr(node.condition)
                self.stmt(node.then_case)
                if node.else_case is not None:
                    self.stmt(node.else_case)
            case LetStmt():
                self.bind(node.var, node.value)
                self.stmt(node.body)
            case AttrStmt():
                self.stmt(node.body)
            case Evaluate():
                self.expr(node.value)
            case AssertStmt():
                self._exprs((node.condition, *node.values))
            case S.Allocate():
                if node.buffer.scope not in ("global", "local"):
                    raise Opaque
                self.allocate(node.buffer)
                self.stmt(node.body)
            case BlockRealize():
                self._block(node)
            case _:
                raise Opaque

    def _exprs(self, exprs: Iterable[Expr]) -> None:
        for expr in exprs:
            self.expr(expr)

    def _loop(self, node: For) -> None:
        self.expr(node.min)
        self.expr(node.extent)
        self.inner.add(node.loop_var)
        self.allocate(*self.privates.get(node, ()))
        outer, self._path = self._path, (*self._path, node)
        self.stmt(node.body)
        self._path = outer

    def allocate(self, *buffers: Buffer) -> None:
        """Record buffers of which every lane has a private copy."""
        for buffer in buffers:
            self.private.add(buffer)
            self.sizes.extend((*buffer.shape, *buffer.strides))

    def _block(self, node: BlockRealize) -> None:
        block = node.block
        self.expr(node.predicate)
        for iter_var, value in zip(block.iter_vars, node.iter_values, strict=True):
            self.bind(iter_var.var, value)
            self._exprs((iter_var.dom.min, iter_var.dom.extent))
        if any(b.scope not in ("global", "local") for b in block.alloc_buffers):
            raise Opaque
        self.allocate(*block.alloc_buffers)
        for match in block.match_buffers:
            source = match.source
            self.views[match.buffer] = source
            extra = len(source.region) - match.buffer.ndim
            for extent, rng in zip(match.buffer.shape, source.region[extra:], strict=True):
                if isinstance(extent, Var) and extent not in self.known:
                    self.bind(extent, rng.extent)
            self._exprs(r.min for r in source.region)
            self.sizes.extend(r.extent for r in source.region)
        if block.init is not None:
            self.stmt(block.init)
        self.stmt(block.body)
