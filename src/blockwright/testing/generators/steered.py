"""Blocks with data-dependent predicates, conditions and loop bounds."""

from __future__ import annotations

import random
from collections.abc import Iterator

from blockwright import ir
from blockwright.interp import interpret
from blockwright.support import InterpretError
from blockwright.testing.arrays import make_arrays


def with_data_conditions(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc:
    """Make the execution of one block depend on data.

    The condition is on an element that the block reads, or the mirrored one in that row. Elements
    that are then left unwritten are never read.
    """
    places = [n for n in ir.collect(func.root.body, ir.BlockRealize) if _may_be_steered(func, n)]
    for realize in chance.sample(places, len(places)):
        loads = list(_plain_loads(func, realize))
        if not loads:
            continue
        load = chance.choice(loads)
        if load.indices and chance.random() < 0.5:
            load = _mirrored(load)
        result = _replaced(func, realize, _steered(realize, load, chance))
        if _runs(result):
            return result
    return func


def _may_be_steered(func: ir.PrimFunc, realize: ir.BlockRealize) -> bool:
    """Whether a block without reduction writes a result that is never read, unconditionally."""
    block, read = realize.block, {n.buffer for n in ir.collect(func.root.body, ir.BufferLoad)}
    plain = block.init is None and not ir.blocks(block.body)
    spatial = all(it.iter_type is ir.IterType.SPATIAL for it in block.iter_vars)
    views = any(ir.collect(func.root.body, ir.DeclBuffer))
    unread = not any(r.buffer in read for r in block.writes) and not views
    return plain and spatial and unread and ir.is_const_int(realize.predicate, 1)


def _plain_loads(func: ir.PrimFunc, realize: ir.BlockRealize) -> Iterator[ir.BufferLoad]:
    """Elements that the block loads or overwrites, indexed by the surrounding loops.

    Loads are unconditional; overwritten elements are values of the caller.
    """
    at = dict(zip((it.var for it in realize.block.iter_vars), realize.iter_values, strict=True))
    body = realize.block.body
    if not isinstance(body, ir.BufferStore):
        return
    lazy = [c for c in ir.collect(body, ir.Call) if c.op == "if_then_else"]
    inside = {load for call in lazy for load in ir.collect(call, ir.BufferLoad)}
    given = body.buffer in func.buffers and body.buffer not in func.outputs
    own = [ir.BufferLoad(body.buffer, body.indices)] if given else []
    for load in (*ir.collect(body.value, ir.BufferLoad), *own):
        if load not in inside and not any(ir.collect(i, ir.BufferLoad) for i in load.indices):
            yield ir.substitute(load, at)


def _mirrored(load: ir.BufferLoad) -> ir.BufferLoad:
    """The element at the same distance from the other end of the last axis."""
    *others, last = load.indices
    size = ir.cast_to(load.buffer.shape[-1], last.dtype)
    return load.replace(indices=(*others, ir.sub(ir.sub(size, 1), last)))


def _steered(realize: ir.BlockRealize, load: ir.BufferLoad, chance: random.Random) -> ir.Stmt:
    zero = ir.const(0, load.dtype)
    positive = ir.NE(load, zero) if load.dtype.is_bool else ir.GT(load, zero)
    form = chance.choice(["predicate", "condition", "bound"])
    if form == "predicate":
        return realize.replace(predicate=positive)
    if form == "condition":
        return ir.IfThenElse(positive, realize)
    index = ir.dtype_of("int64")
    once = ir.cast_to(positive, index)
    return ir.For(ir.Var("times", index), ir.const(0, index), once, ir.ForKind.SERIAL, realize)


def _replaced(func: ir.PrimFunc, old: ir.Stmt, new: ir.Stmt) -> ir.PrimFunc:
    body = ir.rewrite_bottom_up(func.body, lambda node: new if node is old else None)
    return func.replace(body=body)


def _runs(func: ir.PrimFunc) -> bool:
    try:
        for seed in range(3):
            interpret(func, *make_arrays(func, seed))
    except InterpretError:
        return False
    return True
