"""Mutations of bound values, atomic updates, views, assertions, vectors and conversions.

They change what `fuzzing.mutants` does not: each is an error that a faulty step could make with the
programs of `fuzzing.proofs.features`. As there, a mutant may be equivalent to the original.
"""

from __future__ import annotations

import random
from typing import Any

from blockwright import ir
from fuzzing.mutants import MUTATIONS, Mutation, replaced


def _choice(func: ir.PrimFunc, chance: random.Random, kind: type[Any]) -> Any:
    nodes = ir.collect(func.body, kind)
    return chance.choice(nodes) if nodes else None


def _inline_value(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Compute a bound value where it is used."""
    let = _choice(func, chance, ir.LetStmt)
    if let is None:
        return None
    return replaced(func, let, ir.substitute(let.body, {let.var: let.value}))


def _bind_value(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Read what a store reads before the statements ahead of it."""
    stmt = _choice(func, chance, ir.SeqStmt)
    if stmt is None:
        return None
    stores = [s for s in stmt.seq if isinstance(s, ir.BufferStore) and s.value.dtype.lanes == 1]
    if not stores:
        return None
    store = chance.choice(stores)
    loads = [n for n in ir.collect(store.value, ir.BufferLoad) if n.dtype.lanes == 1]
    if not loads:
        return None
    load = chance.choice(loads)
    var = ir.Var("early", load.dtype)
    value = store.value if load is store.value else None
    late = ir.Mutator()
    late._memo[load] = var  # pyright: ignore[reportPrivateUsage]
    changed = store.replace(value=var if value is not None else late(store.value))
    seq = ir.seq(changed if s is store else s for s in stmt.seq)
    return replaced(func, stmt, ir.LetStmt(var, load, seq))


def _reach_late(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Move the first statement under a bound value before the value is read."""
    let = _choice(func, chance, ir.LetStmt)
    if let is None or not isinstance(let.body, ir.SeqStmt):
        return None
    first, *rest = let.body.seq
    if ir.uses_var(first, let.var):
        return None
    return replaced(func, let, ir.seq([first, let.replace(body=ir.seq(rest))]))


def _plain_update(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Make an atomic update a plain one."""
    calls = [
        e
        for e in ir.collect(func.body, ir.Evaluate)
        if isinstance(e.value, ir.Call) and ir.is_atomic(e.value)
    ]
    if not calls:
        return None
    node = chance.choice(calls)
    call: Any = node.value
    at = ir.atomic_place(call)
    if at is None:
        return None
    store = ir.BufferStore(at.buffer, ir.atomic_value(call, at), at.indices)
    return replaced(func, node, store)


def _loop_kind(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Run the iterations of a loop in another way."""
    loop = _choice(func, chance, ir.For)
    if loop is None:
        return None
    kinds = [ir.ForKind.SERIAL, ir.ForKind.PARALLEL]
    if ir.const_int(loop.extent) is not None and not isinstance(loop.body, ir.For):
        kinds.append(ir.ForKind.VECTORIZED)
    return replaced(func, loop, loop.replace(kind=chance.choice(kinds)))


def _iterator_kind(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Make a spatial iterator one of a reduction, or the other way around."""
    blocks = [b for b in ir.blocks(func.body) if b.iter_vars]
    if not blocks:
        return None
    block = chance.choice(blocks)
    k = chance.randrange(len(block.iter_vars))
    old = block.iter_vars[k]
    spatial = old.iter_type is ir.IterType.SPATIAL
    kind = ir.IterType.REDUCE if spatial else ir.IterType.SPATIAL
    iters = (*block.iter_vars[:k], old.replace(iter_type=kind), *block.iter_vars[k + 1 :])
    return replaced(func, block, block.replace(iter_vars=iters))


def _laziness(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Evaluate both branches of a choice, or only one."""
    nodes = [
        n
        for n in ir.walk(func.body)
        if isinstance(n, ir.Select) or (isinstance(n, ir.Call) and n.op == "if_then_else")
    ]
    if not nodes:
        return None
    node: Any = chance.choice(nodes)
    if isinstance(node, ir.Select):
        parts = (node.condition, node.true_value, node.false_value)
        return replaced(func, node, ir.Call("if_then_else", parts, node.dtype))
    return replaced(func, node, ir.Select(*node.args))


def _add_statement(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Add a statement that computes something nobody needs, or an assertion."""
    stores = [s for s in ir.collect(func.body, ir.BufferStore) if s.value.dtype.lanes == 1]
    if chance.random() < 0.4 or not stores:
        sizes = [v for b in func.buffers for n in b.shape for v in ir.collect(n, ir.Var)]
        if not sizes or not isinstance(func.body, ir.BlockRealize):
            return None
        limit = ir.const(chance.randrange(1, 9), sizes[0].dtype)
        test = ir.compare(chance.choice((ir.LT, ir.GE, ir.NE)), sizes[0], limit)
        stmt = ir.AssertStmt(test, "no")
        root = func.root
        parts = [root.body, stmt] if chance.random() < 0.7 else [stmt, root.body]
        return func.replace(body=func.body.replace(block=root.replace(body=ir.seq(parts))))
    store = chance.choice(stores)
    loads = [n for n in ir.collect(store.value, ir.BufferLoad) if n.dtype.is_int]
    other = [b for b in func.buffers if b.dtype.name == "int32" and b.ndim == 1]
    at = chance.choice(store.indices)
    if loads:
        value: ir.Expr = ir.floordiv(ir.const(7, loads[0].dtype), loads[0])
    elif other:
        value = ir.BufferLoad(chance.choice(other), (ir.add(at, 1),))
    else:
        return None
    var = ir.Var("unused", value.dtype)
    return replaced(func, store, ir.LetStmt(var, value, store))


def _drop_assertion(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    node = _choice(func, chance, ir.AssertStmt)
    if node is None:
        return None
    return replaced(func, node, ir.Evaluate(ir.const(0, "int32")))


def _skip_conversion(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Leave out a conversion between two others."""
    nodes = [n for n in ir.collect(func.body, ir.Cast) if isinstance(n.value, ir.Cast)]
    if not nodes:
        return None
    node: Any = chance.choice(nodes)
    return replaced(func, node, node.replace(value=node.value.value))


def _add_conversion(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Convert a value on a detour through another type."""
    node = _choice(func, chance, ir.Cast)
    if node is None or node.dtype.is_index:
        return None
    names = ("float8_e4m3fnuz", "float8_e4m3fn", "float8_e5m2", "float16", "int8")
    names += ("float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16")
    through = ir.Cast(ir.dtype_of(chance.choice(names)), node.value)
    return replaced(func, node, node.replace(value=through))


def _shift_view(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Write to the buffer of a view, not to the view, or the other way around."""
    blocks = [b for b in ir.blocks(func.body) if b.match_buffers]
    if not blocks:
        return None
    block = chance.choice(blocks)
    view = chance.choice(block.match_buffers)
    plain = ir.substitute(block.body, {view.buffer: view.source.buffer})
    rest = tuple(m for m in block.match_buffers if m is not view)
    return replaced(func, block, block.replace(body=plain, match_buffers=rest))


def _spread_lanes(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Change the step of a vector of positions."""
    node = _choice(func, chance, ir.Ramp)
    if node is None:
        return None
    stride = ir.const(chance.choice((-1, 0, 1)), node.stride.dtype)
    return replaced(func, node, node.replace(stride=stride))


def _one_vector(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Run a loop around one store as a single vector store."""
    nests = [
        loop
        for loop in ir.loops(func.body)
        if isinstance(loop.body, ir.BlockRealize)
        and isinstance(loop.body.block.body, ir.BufferStore)
        and loop.body.block.init is None
        and len(loop.body.block.iter_vars) == 1
        and (ir.const_int(loop.extent) or 0) > 1
        and loop.body.block.body.value.dtype.lanes == 1
        and loop.body.iter_values[0] is loop.loop_var
    ]
    if not nests:
        return None
    loop = chance.choice(nests)
    realize: Any = loop.body
    store, var = realize.block.body, realize.block.iter_vars[0].var
    if any(not isinstance(n, _VECTORS) for n in ir.walk(store.value) if isinstance(n, ir.Expr)):
        return None
    lanes = ir.const_int(loop.extent)
    assert lanes is not None
    lane = _Lanes(var, lanes)
    index = lane(store.indices[0])
    index = index if index.dtype.lanes > 1 else ir.Broadcast(index, lanes)
    value = lane(store.value)
    value = value if value.dtype.lanes > 1 else ir.Broadcast(value, lanes)
    whole = ir.BufferStore(store.buffer, value, (index,))
    block = ir.Block("vector", (), (), (), whole)
    return replaced(func, loop, ir.BlockRealize((), ir.const(True, "bool"), block))


_VECTORS = (ir.BufferLoad, ir.Add, ir.Max, ir.FloatImm, ir.IntImm, ir.Var)


class _Lanes(ir.Mutator):
    """Replace an iterator by all its values, in sums and maxima of elements."""

    def __init__(self, var: ir.Var, lanes: int) -> None:
        super().__init__()
        self.var, self.lanes = var, lanes

    def rewrite_Var(self, node: ir.Var) -> ir.Expr:
        if node is not self.var:
            return node
        zero, one = ir.const(0, node.dtype), ir.const(1, node.dtype)
        return ir.Ramp(zero, one, self.lanes)

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        index = self(node.indices[0])
        if index.dtype.lanes == 1:
            index = ir.Broadcast(index, self.lanes)
        return ir.BufferLoad(node.buffer, (index,))

    def _both(self, node: ir.Add | ir.Max) -> ir.Expr:
        a, b = (
            x if x.dtype.lanes > 1 else ir.Broadcast(x, self.lanes)
            for x in (self(node.a), self(node.b))
        )
        return type(node)(a, b)

    rewrite_Add = _both
    rewrite_Max = _both


def _begin_by_hand(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc | None:
    """Set the initial value of a reduction in its first iteration, in a block without `init`."""
    blocks = [b for b in ir.blocks(func.body) if b.init is not None]
    if not blocks:
        return None
    block = chance.choice(blocks)
    first = [
        ir.EQ(it.var, ir.cast_to(it.dom.min, it.var.dtype))
        for it in block.iter_vars
        if it.iter_type is ir.IterType.REDUCE
    ]
    assert block.init is not None
    start = ir.IfThenElse(ir.all_of(first), block.init)
    iters = tuple(it.replace(iter_type=ir.IterType.SPATIAL) for it in block.iter_vars)
    body = ir.seq([start, block.body])
    return replaced(func, block, block.replace(iter_vars=iters, init=None, body=body))


FEATURES: dict[str, Mutation] = {
    "inline a value": _inline_value,
    "bind a value early": _bind_value,
    "bind a value late": _reach_late,
    "update without atomicity": _plain_update,
    "change a loop's kind": _loop_kind,
    "change an iterator's kind": _iterator_kind,
    "change a choice's laziness": _laziness,
    "add a statement": _add_statement,
    "drop an assertion": _drop_assertion,
    "skip a conversion": _skip_conversion,
    "add a conversion": _add_conversion,
    "write through no view": _shift_view,
    "change a vector's step": _spread_lanes,
    "set an initial value by hand": _begin_by_hand,
    "one vector for a loop": _one_vector,
}
"""Mutations of these programs by name."""

ALL: dict[str, Mutation] = {**MUTATIONS, **FEATURES}
