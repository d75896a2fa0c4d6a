"""Data-dependent control of blocks: reads by predicates, iterator values, bounds and conditions.

The predicate and the iterator values of a realize, bounds of the loops around it, conditions, and
the shapes of what is allocated may load from buffers. No signature of the body mentions these
reads, but they belong to the instance of the block: moved over a writer of such a buffer, it would
run for other points. `state_surroundings` states them, so that dependence questions, which look at
signatures alone, count them.

Before::

    for i in range(8):
        with T.block("U"):
            vi = T.axis.spatial(8, i)
            T.where(N[7 - i] > 2)
            T.reads(A[vi])
            T.writes(C[vi])

After::

            T.reads(A[vi], N[0:8])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from weakref import WeakKeyDictionary

from blockwright import ir
from blockwright.analysis.tree import child_stmts

Loaded = Mapping[ir.Block, tuple[ir.Buffer, ...]]
"""Blocks whose surroundings load from buffers, and these."""

_known: MutableMapping[ir.Stmt, bool] = WeakKeyDictionary()
"""Loops and blocks, and whether statements in them load where blocks may stand."""


def loaded_around(func: ir.PrimFunc) -> Loaded:
    """The buffers that are read around each block, inside of the block that it stands in."""
    if not _may_load(func.body):
        return {}
    found: dict[ir.Block, dict[ir.Buffer, None]] = {}
    stack: list[tuple[ir.Stmt, tuple[ir.Buffer, ...]]] = [(func.body, ())]
    while stack:
        node, around = stack.pop()
        loaded = (*around, *(load.buffer for load in loads_at(node)))
        if isinstance(node, ir.BlockRealize):
            if loaded:
                found.setdefault(node.block, {}).update(dict.fromkeys(loaded))
            stack += [(child, ()) for child in child_stmts(node.block)]
        else:
            stack += [(child, loaded) for child in child_stmts(node)]
    return {block: tuple(buffers) for block, buffers in found.items()}


def stating_loads(block: ir.Block, buffers: Iterable[ir.Buffer]) -> ir.Block:
    """A block whose signature states that it reads all of some buffers."""
    stated = {r.buffer: r for r in block.reads}
    wide = [b for b in dict.fromkeys(buffers) if b not in stated or not is_full(stated[b])]
    if not wide:
        return block
    kept = tuple(r for r in block.reads if r.buffer not in wide)
    return block.replace(reads=(*kept, *map(ir.full_region, wide)))


def is_full(region: ir.BufferRegion) -> bool:
    """Whether a region is stated as all of its buffer."""
    return all(
        ir.is_const_int(r.min, 0) and ir.structural_equal(r.extent, size)
        for r, size in zip(region.region, region.buffer.shape, strict=True)
    )


def loads_at(node: ir.Stmt) -> list[ir.BufferLoad]:
    """The loads in a statement's own expressions: conditions, bounds, values, shapes."""
    return [load for expr in _expressions(node) for load in _in_expression(expr)]


def loaded_buffers(exprs: Iterable[ir.Expr]) -> set[ir.Buffer]:
    """The buffers that expressions load from."""
    return {load.buffer for expr in exprs for load in _in_expression(expr)}


def made_buffers(node: ir.Node) -> tuple[ir.Buffer, ...]:
    """The buffers that a statement makes or declares."""
    if isinstance(node, (ir.Allocate, ir.DeclBuffer)):
        return (node.buffer,)
    return node.alloc_buffers if isinstance(node, ir.Block) else ()


def loads_of_layout(buffer: ir.Buffer) -> list[ir.BufferLoad]:
    """The loads in the shape, strides and offset of a buffer."""
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
    """Whether statements that blocks may stand in load anything; remembered for loops and blocks,
    of which a step changes a few."""
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
