"""Mutate programs: inject one small error, as a faulty schedule step would.

A mutant may be equivalent to the original (an always-true condition can be dropped), so a test
that counts missed errors runs the mutant first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from blockwright import ir


class _Replace(ir.Mutator):
    """Replaces one node object by another."""

    def __init__(self, old: ir.Node, new: ir.Node) -> None:
        super().__init__()
        self._memo[old] = new


def replaced(func: ir.PrimFunc, old: ir.Node, new: ir.Node) -> ir.PrimFunc:
    """Replace one node object at all its occurrences in the body."""
    return func.replace(body=_Replace(old, new)(func.body))


def _drop_init(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    result = [b for b in ir.blocks(func.body) if b.init is not None]
    if not result:
        return None
    block = chance.choice(result)
    return replaced(func, block, block.replace(init=None))


def _shift_index(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    result = [a for a in ir.accesses(func.body) if a.indices]
    if not result:
        return None
    access: Any = chance.choice(result)
    k = chance.randrange(len(access.indices))
    index = access.indices[k]
    if index.dtype.lanes != 1:
        return None
    moved = ir.add(index, chance.choice((-1, 1)))
    indices = (*access.indices[:k], moved, *access.indices[k + 1 :])
    return replaced(func, access, access.replace(indices=indices))


def _swap_bindings(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    result = [r for r in ir.collect(func.body, ir.BlockRealize) if len(r.iter_values) > 1]
    if not result:
        return None
    realize = chance.choice(result)
    values = list(realize.iter_values)
    i, j = chance.sample(range(len(values)), 2)
    if values[i].dtype is not values[j].dtype:
        return None
    values[i], values[j] = values[j], values[i]
    return replaced(func, realize, realize.replace(iter_values=tuple(values)))


def _drop_predicate(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    result = [
        r for r in ir.collect(func.body, ir.BlockRealize) if not ir.is_const_int(r.predicate, 1)
    ]
    if not result:
        return None
    realize = chance.choice(result)
    return replaced(func, realize, realize.replace(predicate=ir.const(True, "bool")))


def _change_extent(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    result = ir.loops(func.body)
    if not result:
        return None
    loop = chance.choice(result)
    extent = ir.add(loop.extent, chance.choice((-1, 1)))
    return replaced(func, loop, loop.replace(extent=extent))


def _change_binding(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    result = [r for r in ir.collect(func.body, ir.BlockRealize) if r.iter_values]
    if not result:
        return None
    realize = chance.choice(result)
    k = chance.randrange(len(realize.iter_values))
    values = list(realize.iter_values)
    numbers = [n for n in ir.collect(values[k], ir.IntImm) if n.value > 1]
    if numbers and chance.random() < 0.7:
        number = chance.choice(numbers)
        changed = number.replace(value=number.value + chance.choice((-1, 1)))
        values[k] = _Replace(number, changed)(values[k])
    else:
        values[k] = ir.add(values[k], 1)
    return replaced(func, realize, realize.replace(iter_values=tuple(values)))


def _swap_statements(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    result = ir.collect(func.body, ir.SeqStmt)
    if not result:
        return None
    stmt = chance.choice(result)
    k = chance.randrange(len(stmt.seq) - 1)
    parts = [*stmt.seq[:k], stmt.seq[k + 1], stmt.seq[k], *stmt.seq[k + 2 :]]
    return replaced(func, stmt, stmt.replace(seq=tuple(parts)))


def _drop_statement(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    result = ir.collect(func.body, ir.SeqStmt)
    if not result:
        return None
    stmt = chance.choice(result)
    k = chance.randrange(len(stmt.seq))
    return replaced(func, stmt, ir.seq([*stmt.seq[:k], *stmt.seq[k + 1 :]]))


def _other_buffer(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    loads = ir.collect(func.body, ir.BufferLoad)
    pairs = [
        (a, b.buffer)
        for a in loads
        for b in loads
        if a.buffer is not b.buffer
        and a.buffer.dtype is b.buffer.dtype
        and a.buffer.ndim == b.buffer.ndim
        and all(map(ir.structural_equal, a.buffer.shape, b.buffer.shape))
    ]
    if not pairs:
        return None
    load, buffer = chance.choice(pairs)
    return replaced(func, load, load.replace(buffer=buffer))


Mutation = Callable[[ir.PrimFunc, random.Random], ir.PrimFunc | None]
MUTATIONS: dict[str, Mutation] = {
    "drop an initial value": _drop_init,
    "shift an index": _shift_index,
    "swap bindings": _swap_bindings,
    "drop a predicate": _drop_predicate,
    "change an extent": _change_extent,
    "change a binding": _change_binding,
    "swap statements": _swap_statements,
    "drop a statement": _drop_statement,
    "read another buffer": _other_buffer,
}


def mutant(
    func: ir.PrimFunc, chance: random.Random, mutations: Mapping[str, Mutation] = MUTATIONS
) -> tuple[str, ir.PrimFunc] | None:
    """Draw a mutation and its result; None if a few draws find none that changes the program."""
    for _ in range(8):
        name = chance.choice(list(mutations))
        result = mutations[name](func, chance)
        if result is not None and not ir.structural_equal(result, func):
            return name, result
    return None
