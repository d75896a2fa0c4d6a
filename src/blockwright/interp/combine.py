"""Recognize reductions whose terms are combined across vector lanes or threads.

    for lane in T.vectorized(16):
        with T.block("B"): B[vi] = B[vi] + P[vi, v_lane]

Such a loop denotes the combination of all its terms; its lanes do not race. The interpreter runs
them in the order of unordered loops (as written, reversed or shuffled). Generated code combines
halves; for floating-point sums this rounds differently, within the tolerance used to compare
reductions. A combination whose order matters is exposed by the reversed order.

Threads combine their terms in a block, with or without initialization, if its reduction iterators
are driven by a `threadIdx` axis that drives no other iterators. The initialization runs once,
before the first term.

This recognition is deliberately independent of `analysis.find_update`, which the schedule uses: the
interpreter checks schedules, and a shared mistake would go unnoticed.
"""

from __future__ import annotations

from blockwright import ir

_PLAIN = (ir.SeqStmt, ir.LetStmt, ir.BufferStore)
_COMBINES = (ir.Add, ir.Mul, ir.Min, ir.Max, ir.And, ir.Or)


def combines_lanes(loop: ir.For) -> bool:
    """Whether a loop is vectorized and all its iterations update one element or one tuple."""
    realize = loop.body
    if loop.kind is not ir.ForKind.VECTORIZED or not isinstance(realize, ir.BlockRealize):
        return False
    block = realize.block
    driven = {
        it.var: it.iter_type
        for it, value in zip(block.iter_vars, realize.iter_values, strict=True)
        if ir.uses_var(value, loop.loop_var)
    }
    if block.init is not None or any(k is not ir.IterType.REDUCE for k in driven.values()):
        return False
    return updates_in_place(block, set(driven))


def updates_in_place(block: ir.Block, moving: set[ir.Var]) -> bool:
    """Whether block instances that differ in the `moving` iterators update one element or tuple.

    The update must be an operation whose order does not matter.
    """
    if any(isinstance(n, ir.Stmt) and not isinstance(n, _PLAIN) for n in ir.walk(block.body)):
        return False
    stores = ir.collect(block.body, ir.BufferStore)
    moving = moving | {let.var for let in ir.collect(block.body, ir.LetStmt)}
    if not all(_in_place(store, block.body, moving) for store in stores):
        return False
    return len(stores) > 1 or "reducer" in block.annotations or _combines(block.body)


def combined_axes(realize: ir.BlockRealize, axis_of: dict[ir.Var, str]) -> list[str]:
    """The thread axes along which threads combine their terms in a block; none if they race.

    Args:
        axis_of: variable of a thread-bound loop → its axis.
    """
    block = realize.block
    axes: dict[str, set[ir.IterType]] = {}
    for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
        for var in ir.collect(value, ir.Var):
            if var in axis_of:
                axes.setdefault(axis_of[var], set()).add(it.iter_type)
    driving = [axis for axis, kinds in axes.items() if ir.IterType.REDUCE in kinds]
    stores = ir.collect(block.body, ir.BufferStore)
    if (
        any(not a.startswith("threadIdx") or axes[a] != {ir.IterType.REDUCE} for a in driving)
        or any(s.buffer.scope.partition(".")[0] not in ("global", "shared") for s in stores)
        or any(ir.uses_var(part, set(axis_of)) for part in (block.init, block.body) if part)
    ):
        return []
    reduced = {it.var for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE}
    return driving if updates_in_place(block, reduced) else []


def kind_of(loop: ir.For) -> ir.ForKind:
    """The effective loop kind: serial for loops that combine their lanes."""
    return ir.ForKind.SERIAL if combines_lanes(loop) else loop.kind


def _in_place(store: ir.BufferStore, body: ir.Stmt, moving: set[ir.Var]) -> bool:
    """Whether every iteration reads and writes the same element of the buffer, and no other."""
    if store.predicate is not None or any(ir.uses_var(i, moving) for i in store.indices):
        return False
    again = [s for s in ir.collect(body, ir.BufferStore) if s.buffer is store.buffer]
    loads = [n for n in ir.collect(body, ir.BufferLoad) if n.buffer is store.buffer]
    return (
        len(again) == 1
        and bool(loads)
        and all(ir.structural_equal(n.indices, store.indices) for n in loads)
    )


def _combines(store: ir.Stmt) -> bool:
    """Whether a store has the form `B[i] = B[i] + term`, with any commutative operation."""
    if not isinstance(store, ir.BufferStore) or not isinstance(store.value, _COMBINES):
        return False
    operation, parts = type(store.value), list[ir.Expr]()
    stack: list[ir.Expr] = [store.value]
    while stack:
        part = stack.pop()
        if isinstance(part, _COMBINES) and type(part) is operation:
            stack += [part.a, part.b]
        else:
            parts.append(part)
    held = [p for p in parts if isinstance(p, ir.BufferLoad) and p.buffer is store.buffer]
    loads = [n for n in ir.collect(store.value, ir.BufferLoad) if n.buffer is store.buffer]
    return len(held) == len(loads) == 1
