"""Context of each block: enclosing loops, iterator values and conditions, in terms of loops alone.

`block_contexts` resolves nested blocks: iterators are replaced by the values bound to them, and
loops bound to the same thread axis of a kernel by one variable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from blockwright import ir
from blockwright.analysis.access.tree import child_stmts
from blockwright.analysis.dataflow.counterexample import (
    INSTANCES,
    Env,
    Instances,
    VarRange,
    instances,
    value_of,
)
from blockwright.analysis.kernels import KernelLaunch, ThreadAxis, axis_of

NodeT = TypeVar("NodeT", bound=ir.Node)


class LoopLevel(NamedTuple):
    """A loop or thread axis around a block; `var` is the variable of the axis in its kernel."""

    var: ir.Var
    low: ir.Expr
    extent: ir.Expr
    stmt: ir.Stmt
    tag: str = ""

    @property
    def dom(self) -> ir.Range:
        return ir.Range(self.low, self.extent)

    @property
    def span(self) -> VarRange:
        return VarRange(self.var, self.low, self.extent)


@dataclasses.dataclass(eq=False)
class BlockContext:
    """A block with its context.

    Attributes:
        block, realize: the block.
        path: all enclosing loops and axes, outermost first; one entry per thread axis.
        values: values bound to its iterators and to those of enclosing blocks.
        guards: conditions under which it runs.
        around: enclosing statements, outermost first.
        kernel: the launch it belongs to.
        order: position in the program.
    """

    block: ir.Block
    realize: ir.BlockRealize
    path: tuple[LoopLevel, ...]
    values: dict[ir.Var, ir.Expr]
    guards: tuple[ir.Expr, ...]
    around: tuple[ir.Stmt, ...]
    kernel: KernelLaunch | None
    order: int

    def resolved(self, node: NodeT) -> NodeT:
        """An expression or range of the block in terms of loop variables."""
        return ir.substitute(node, self.values)

    def views(self) -> Iterator[ir.MatchBufferRegion]:
        """Region views that the block may use: its own, then those of enclosing blocks."""
        for block in (self.block, *reversed(self.around)):
            if isinstance(block, ir.Block):
                yield from block.match_buffers

    def underlying(self, buffer: ir.Buffer) -> ir.Buffer:
        """The buffer behind a region view; any other buffer itself."""
        for view in self.views():
            if view.buffer is buffer:
                buffer = view.source.buffer
        return buffer

    def instances(
        self,
        known: Env,
        spans: Iterable[VarRange] | None = None,
        guards: Sequence[ir.Expr] = (),
        limit: int = INSTANCES,
    ) -> Instances:
        """The instances that run; raises `DependsOnMore` if that cannot be evaluated.

        Args:
            known: values of symbols, and of loops that `spans` omits.
            spans: the loops; by default all around the block.
            guards: conditions inside the block.
            limit: number of instances from which some are omitted.
        """
        if spans is None:
            spans = [level.span for level in self.path]
        rows = instances(spans, known, limit)
        for guard in (*self.guards, *guards):
            rows = rows.where(value_of(guard, rows.env))
        return rows


def block_contexts(func: ir.PrimFunc, kernels: Sequence[KernelLaunch]) -> list[BlockContext]:
    """All blocks of the function except the root, in program order."""
    walker = _Walker(kernels)
    walker.walk(func.body, (), {}, (), (), None)
    return walker.found


def leaf_contexts(found: Sequence[BlockContext]) -> list[BlockContext]:
    """The contexts of blocks without inner blocks."""
    outer = {s for context in found for s in context.around if isinstance(s, ir.Block)}
    return [context for context in found if context.block not in outer]


class _Walker:
    def __init__(self, kernels: Sequence[KernelLaunch]) -> None:
        self.launches = {nest: kernel for kernel in kernels for nest in kernel.nests}
        self.found: list[BlockContext] = []

    def walk(
        self,
        stmt: ir.Stmt,
        path: tuple[LoopLevel, ...],
        values: dict[ir.Var, ir.Expr],
        guards: tuple[ir.Expr, ...],
        around: tuple[ir.Stmt, ...],
        kernel: KernelLaunch | None,
    ) -> None:
        kernel = self.launches.get(stmt, kernel)
        inner = (*around, stmt)
        axis = axis_of(stmt)
        if axis is not None and kernel is not None:
            path, values = self._axis(axis, path, values, kernel)
        elif isinstance(stmt, ir.For):
            low, count = (ir.substitute(e, values) for e in (stmt.min, stmt.extent))
            path = (*path, LoopLevel(stmt.loop_var, low, count, stmt))
        elif isinstance(stmt, ir.IfThenElse):
            condition = ir.substitute(stmt.condition, values)
            self.walk(stmt.then_case, path, values, (*guards, condition), inner, kernel)
            if stmt.else_case is not None:
                no = (*guards, ir.Not(condition))
                self.walk(stmt.else_case, path, values, no, inner, kernel)
            return
        elif isinstance(stmt, ir.LetStmt):
            values = {**values, stmt.var: ir.substitute(stmt.value, values)}
        elif isinstance(stmt, ir.BlockRealize):
            self._block(stmt, path, values, guards, inner, kernel)
            return
        for child in child_stmts(stmt):
            self.walk(child, path, values, guards, inner, kernel)

    @staticmethod
    def _axis(
        axis: ThreadAxis,
        path: tuple[LoopLevel, ...],
        values: dict[ir.Var, ir.Expr],
        kernel: KernelLaunch,
    ) -> tuple[tuple[LoopLevel, ...], dict[ir.Var, ir.Expr]]:
        var = kernel.canonical(axis)
        if axis.var is not var:
            values = {**values, axis.var: var}
        if all(level.var is not var for level in path):
            low, count = (ir.substitute(e, values) for e in (axis.low, axis.extent))
            path = (*path, LoopLevel(var, low, count, axis.stmt, axis.tag))
        return path, values

    def _block(
        self,
        stmt: ir.BlockRealize,
        path: tuple[LoopLevel, ...],
        values: dict[ir.Var, ir.Expr],
        guards: tuple[ir.Expr, ...],
        around: tuple[ir.Stmt, ...],
        kernel: KernelLaunch | None,
    ) -> None:
        block = stmt.block
        bound = {it.var: ir.substitute(v, values) for it, v in stmt.bindings}
        if not ir.is_const_int(stmt.predicate, 1):
            guards = (*guards, ir.substitute(stmt.predicate, values))
        values = {**values, **bound}
        if len(around) > 1:  # all but the root block
            self.found.append(
                BlockContext(block, stmt, path, values, guards, around, kernel, len(self.found))
            )
        for child in child_stmts(block):
            self.walk(child, path, values, guards, (*around, block), kernel)
