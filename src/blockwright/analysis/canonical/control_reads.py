"""Data-dependent control of blocks: reads by predicates, iterator values, bounds and conditions.

The predicate and iterator values of a realize, the bounds of enclosing loops, conditions, and the
shapes of allocations may load from buffers. No signature of the body mentions these reads, but they
belong to the block instance: if it were moved across a writer of such a buffer, it would run for
other points. `state_memory` adds them to signatures, so that dependence analysis, which only looks
at signatures, includes them.

Before::

    for i in range(8):
        with T.block("U"):
            vi = T.axis.spatial(8, i)
            T.where(N[7 - i] > 2)
            T.reads(A[vi])
            T.writes(C[vi])

After::

        T.reads(A[vi], N[0:8])

In a nested block, an element that no loop between the two blocks moves is stated exactly, because
the outer block states no more. If the outer block states a part of a buffer that the inner one
states whole, it states the whole buffer too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from weakref import WeakKeyDictionary

import msgspec

from blockwright import ir
from blockwright.analysis.access.tree import child_stmts

Loaded = Mapping[ir.Block, tuple[ir.BufferRegion, ...]]
"""Blocks with the regions that the statements around them load."""

_known: MutableMapping[ir.Stmt, bool] = WeakKeyDictionary()
"""For loops and blocks: whether statements in them that may contain blocks load memory."""


def loaded_around(func: ir.PrimFunc) -> Loaded:
    """Regions read around each block, within its parent block."""
    if not _may_load(func.body):
        return {}
    result: dict[ir.Block, tuple[ir.BufferRegion, ...]] = {}
    stack: list[tuple[ir.Stmt, _Around]] = [(func.body, _Around())]
    while stack:
        node, around = stack.pop()
        inside = around.within(node)
        if isinstance(node, ir.BlockRealize):
            if inside.loads:
                result[node.block] = inside.regions()
            outer = None if node is func.body else node.block
            stack += [(child, _Around(outer)) for child in child_stmts(node.block)]
        else:
            stack += [(child, inside) for child in child_stmts(node)]
    return result


class _Around(msgspec.Struct, frozen=True, eq=False):
    """Context between an enclosing block (None for the root) and a statement inside it."""

    block: ir.Block | None = None
    loads: tuple[ir.BufferLoad, ...] = ()
    moving: frozenset[ir.Var] = frozenset()

    def within(self, node: ir.Stmt) -> _Around:
        """The context of the children of a statement."""
        loads = loads_at(node)
        own = node.loop_var if isinstance(node, ir.For) else None
        if isinstance(node, ir.LetStmt):
            own = node.var
        if not loads and own is None:
            return self
        moving = self.moving if own is None else self.moving | {own}
        return _Around(self.block, (*self.loads, *loads), moving)

    def regions(self) -> tuple[ir.BufferRegion, ...]:
        return tuple(dict.fromkeys(map(self._region, self.loads)))

    def _region(self, load: ir.BufferLoad) -> ir.BufferRegion:
        fixed = not any(
            isinstance(n, ir.BufferLoad) or n in self.moving
            for index in load.indices
            for n in ir.walk(index)
        )
        if self.block is None or not fixed:
            return ir.full_region(load.buffer)
        return ir.BufferRegion(
            load.buffer, tuple(ir.Range(i, ir.const(1, i.dtype)) for i in load.indices)
        )


def stating_loads(block: ir.Block, loaded: Iterable[ir.BufferRegion]) -> ir.Block:
    """A block whose signature includes the reads around it."""
    reads = {r.buffer: r for r in block.reads}
    for region in loaded:
        known = reads.get(region.buffer)
        if known is None:
            reads[region.buffer] = region
        elif not (is_full(known) or ir.structural_equal(known, region)):
            del reads[region.buffer]
            reads[region.buffer] = ir.full_region(region.buffer)
    stated = tuple(reads.values())
    return block if stated == block.reads else block.replace(reads=stated)


def stating_inside(block: ir.Block) -> ir.Block:
    """A block that reads a whole buffer if it states a part and an inner block states the whole."""
    whole = {r.buffer for inner in ir.blocks(block.body) for r in inner.reads if is_full(r)}
    reads = tuple(
        ir.full_region(r.buffer) if r.buffer in whole and not is_full(r) else r for r in block.reads
    )
    return block if reads == block.reads else block.replace(reads=reads)


def is_full(region: ir.BufferRegion) -> bool:
    """Whether a region is stated as the whole buffer."""
    return all(
        ir.is_const_int(r.min, 0) and ir.structural_equal(r.extent, size)
        for r, size in zip(region.region, region.buffer.shape, strict=True)
    )


def loads_at(node: ir.Stmt) -> list[ir.BufferLoad]:
    """Loads in a statement's own expressions: conditions, bounds, values, shapes."""
    return [load for expr in _expressions(node) for load in _in_expression(expr)]


def loaded_buffers(exprs: Iterable[ir.Expr]) -> set[ir.Buffer]:
    """Buffers that expressions load from."""
    return {load.buffer for expr in exprs for load in _in_expression(expr)}


def made_buffers(node: ir.Node) -> tuple[ir.Buffer, ...]:
    """Buffers that a statement allocates or declares."""
    if isinstance(node, (ir.Allocate, ir.DeclBuffer)):
        return (node.buffer,)
    return node.alloc_buffers if isinstance(node, ir.Block) else ()


def loads_of_layout(buffer: ir.Buffer) -> list[ir.BufferLoad]:
    """Loads in the shape, strides and offset of a buffer."""
    return [load for expr in _layout(buffer) for load in _in_expression(expr)]


def _layout(buffer: ir.Buffer) -> Iterable[ir.Expr]:
    return (*buffer.shape, *buffer.strides, buffer.elem_offset)


def _expressions(node: ir.Stmt) -> Iterable[ir.Expr]:
    if isinstance(node, ir.For):
        return (node.min, node.extent)
    if isinstance(node, ir.BlockRealize):
        shapes = [e for buffer in node.block.alloc_buffers for e in _layout(buffer)]
        return (*node.iter_values, node.predicate, *shapes)
    if isinstance(node, (ir.IfThenElse, ir.While)):
        return (node.condition,)
    if isinstance(node, ir.AttrStmt):
        return (node.value,)
    if isinstance(node, (ir.Allocate, ir.DeclBuffer)):
        return _layout(node.buffer)
    return ()


def _in_expression(expr: ir.Expr) -> list[ir.BufferLoad]:
    return [] if isinstance(expr, (ir.Var, ir.IntImm)) else ir.collect(expr, ir.BufferLoad)


def _may_load(root: ir.Stmt) -> bool:
    """Whether any statement that may contain blocks loads memory.

    Cached for loops and blocks, because a step changes only a few of them.
    """
    loads = 0
    stack: list[ir.Stmt | tuple[ir.Stmt, int]] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            _known[node[0]] = loads > node[1]
            continue
        if isinstance(node, (ir.For, ir.Block)):
            known = _known.get(node)
            if known is not None:
                loads += known
                continue
            stack.append((node, loads))
        loads += len(loads_at(node))
        stack += child_stmts(node)
    return loads > 0
