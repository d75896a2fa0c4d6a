"""Context of each block: enclosing loops, iterator values and conditions, in terms of loops alone.

`block_contexts` resolves nested blocks: iterators are replaced by the values bound to them, and loops
bound to the same thread axis of a kernel by one variable. `definite_accesses` lists the definite
accesses of a block without inner blocks, from its body, with the conditions around each access, so
that a guarded read counts only where its guard holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from blockwright import ir
from blockwright.analysis.access.regions import behind_view
from blockwright.analysis.access.tree import child_stmts, jumps
from blockwright.analysis.dataflow.counterexample import VarRange
from blockwright.analysis.kernels import KernelLaunch, ThreadAxis, axis_of


class LoopLevel(NamedTuple):
    """A loop or thread axis around a block; `var` is the variable of the axis in its kernel."""

    var: ir.Var
    low: ir.Expr
    extent: ir.Expr
    stmt: ir.Stmt
    tag: str = ""

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

    def resolved(self, expr: ir.Expr) -> ir.Expr:
        """An expression of the block in terms of loop variables."""
        return ir.substitute(expr, self.values)


class ConditionalAccess(NamedTuple):
    """An access that happens whenever its conditions hold.

    Attributes:
        how: "read", "write" or "atomic".
        spans: loops inside the block; conditions and indices are in terms of loop variables.
    """

    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    how: str
    spans: tuple[VarRange, ...]
    guards: tuple[ir.Expr, ...]


def block_contexts(func: ir.PrimFunc, kernels: Sequence[KernelLaunch]) -> list[BlockContext]:
    """All blocks of the function except the root, in program order."""
    walker = _Walker(kernels)
    walker.walk(func.body, (), {}, (), (), None)
    return walker.found


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
        bound = {
            it.var: ir.substitute(v, values)
            for it, v in zip(block.iter_vars, stmt.iter_values, strict=True)
        }
        if not ir.is_const_int(stmt.predicate, 1):
            guards = (*guards, ir.substitute(stmt.predicate, values))
        values = {**values, **bound}
        if len(around) > 1:  # all but the root block
            self.found.append(
                BlockContext(block, stmt, path, values, guards, around, kernel, len(self.found))
            )
        for child in child_stmts(block):
            self.walk(child, path, values, guards, (*around, block), kernel)


# ----------------------------------------------------------------------------------- accesses
def definite_accesses(context: BlockContext) -> list[ConditionalAccess]:
    """Definite accesses of a block without inner blocks.

    These are the accesses of its body (without the init statement), predicate and iterator values.
    """
    result: list[ConditionalAccess] = []
    starts = [rng.min for view in context.block.match_buffers for rng in view.source.region]
    decides = (context.realize.predicate, *context.realize.iter_values)
    _touch_loads((*decides, *starts), context, (), (), result)
    _touch_stmt(context.block.body, context, (), (), result)
    return result


def _touch_stmt(
    stmt: ir.Stmt,
    context: BlockContext,
    spans: tuple[VarRange, ...],
    guards: tuple[ir.Expr, ...],
    found: list[ConditionalAccess],
) -> None:
    match stmt:
        case ir.SeqStmt():
            for part in stmt.seq:
                _touch_stmt(part, context, spans, guards, found)
        case ir.For() if jumps(stmt.body):
            pass  # statements after the jump may not run
        case ir.For():
            _touch_loads((stmt.min, stmt.extent), context, spans, guards, found)
            low, count = context.resolved(stmt.min), context.resolved(stmt.extent)
            spans = (*spans, VarRange(stmt.loop_var, low, count))
            _touch_stmt(stmt.body, context, spans, guards, found)
        case ir.IfThenElse():
            _touch_loads((stmt.condition,), context, spans, guards, found)
            condition = context.resolved(stmt.condition)
            _touch_stmt(stmt.then_case, context, spans, (*guards, condition), found)
            if stmt.else_case is not None:
                _touch_stmt(stmt.else_case, context, spans, (*guards, ir.Not(condition)), found)
        case ir.AttrStmt() | ir.Allocate() | ir.DeclBuffer():
            _touch_stmt(stmt.body, context, spans, guards, found)
        case ir.LetStmt():
            _touch_loads((stmt.value,), context, spans, guards, found)
            _touch_stmt(
                ir.substitute(stmt.body, {stmt.var: stmt.value}), context, spans, guards, found
            )
        case ir.BufferStore():
            _touch_loads((stmt.value, *stmt.indices), context, spans, guards, found)
            if stmt.predicate is None:
                found.append(_touch(stmt, "write", context, spans, guards))
        case ir.Evaluate() if ir.is_atomic(stmt.value):
            place = ir.atomic_place(stmt.value)
            inside = (stmt.value.args[1], *(() if place is None else place.indices))
            _touch_loads(inside, context, spans, guards, found)
            if place is not None:
                found.append(_touch(place, "atomic", context, spans, guards))
        case _:
            pass  # other statements access memory in ways not modeled here


def _touch_loads(
    exprs: Sequence[ir.Expr],
    context: BlockContext,
    spans: tuple[VarRange, ...],
    guards: tuple[ir.Expr, ...],
    found: list[ConditionalAccess],
) -> None:
    for access, when in _loads(exprs, guards, context):
        found.append(_touch(access, "read", context, spans, when))


def _touch(
    access: ir.BufferLoad | ir.BufferStore,
    how: str,
    context: BlockContext,
    spans: tuple[VarRange, ...],
    guards: tuple[ir.Expr, ...],
) -> ConditionalAccess:
    buffer, indices = access.buffer, access.indices
    for block in (context.block, *reversed(context.around)):
        for view in block.match_buffers if isinstance(block, ir.Block) else ():
            if view.buffer is buffer:  # an access to a view is an access to its source
                buffer, indices = view.source.buffer, behind_view(view.source, indices)
    return ConditionalAccess(
        buffer, tuple(context.resolved(i) for i in indices), how, spans, guards
    )


def _loads(
    roots: Sequence[ir.Expr], guards: tuple[ir.Expr, ...], context: BlockContext
) -> Iterator[tuple[ir.BufferLoad, tuple[ir.Expr, ...]]]:
    """Loads that definitely happen if the guards hold."""
    for node in roots:
        match node:
            case ir.Call(op="if_then_else"):
                condition = context.resolved(node.args[0])
                yield from _loads(node.args[:1], guards, context)
                yield from _loads(node.args[1:2], (*guards, condition), context)
                yield from _loads(node.args[2:], (*guards, ir.Not(condition)), context)
            case ir.Call(op="address_of"):
                pass
            case ir.Let():
                inner = ir.substitute(node.body, {node.var: node.value})
                yield from _loads((node.value, inner), guards, context)
            case ir.And() | ir.Or():
                yield from _loads((node.a,), guards, context)
            case ir.BufferLoad():
                yield from _loads(node.indices, guards, context)
                if node.predicate is None:
                    yield node, guards
            case _:
                inner = [c for c in node.children() if isinstance(c, ir.Expr)]
                yield from _loads(inner, guards, context)
