"""Vectorized reductions: lanes of an innermost loop that are combined into one element.

    for lane in T.vectorized(16):
        with T.block("B"): B[vi] = B[vi] + P[vi, v_lane]

The lanes do not race: such a loop means the combination of all its terms. The interpreter takes
them in the order of free loops (as written, reversed or shuffled); the generated code takes them by
halves, which for floating-point sums is another rounding, covered by the tolerance that reductions
are compared with. A combination whose order matters shows when the order is reversed.

What is such a loop is decided here anew, and not by `analysis.find_update`, which the schedule
asks: the interpreter judges schedules, and a mistake that both shared would pass.
"""

from __future__ import annotations

from blockwright import ir

_PLAIN = (ir.SeqStmt, ir.LetStmt, ir.BufferStore)
_COMBINES = (ir.Add, ir.Mul, ir.Min, ir.Max, ir.And, ir.Or)


def combines_lanes(loop: ir.For) -> bool:
    """Whether a loop is vectorized and all its iterations update one element, or one tuple."""
    realize = loop.body
    if loop.kind is not ir.ForKind.VECTORIZED or not isinstance(realize, ir.BlockRealize):
        return False
    block = realize.block
    if block.init is not None or any(
        isinstance(n, ir.Stmt) and not isinstance(n, _PLAIN) for n in ir.walk(block.body)
    ):
        return False
    driven = {
        it.var: it.iter_type
        for it, value in zip(block.iter_vars, realize.iter_values, strict=True)
        if ir.uses_var(value, loop.loop_var)
    }
    if any(kind is not ir.IterType.REDUCE for kind in driven.values()):
        return False
    stores = ir.collect(block.body, ir.BufferStore)
    moving = set(driven) | {let.var for let in ir.collect(block.body, ir.LetStmt)}
    if not all(_in_place(store, block.body, moving) for store in stores):
        return False
    return len(stores) > 1 or "reducer" in block.annotations or _combines(block.body)


def kind_of(loop: ir.For) -> ir.ForKind:
    """How the iterations of a loop run; one after the other where they combine."""
    return ir.ForKind.SERIAL if combines_lanes(loop) else loop.kind


def _in_place(store: ir.BufferStore, body: ir.Stmt, moving: set[ir.Var]) -> bool:
    """Whether every iteration reads and writes the same element of the buffer, and no other."""
    if store.predicate is not None or any(ir.uses_var(i, moving) for i in store.indices):
        return False
    again = [s for s in ir.collect(body, ir.BufferStore) if s.buffer is store.buffer]
    loads = [n for n in ir.collect(body, ir.BufferLoad) if n.buffer is store.buffer]
    return (len(again) == 1 and bool(loads)
            and all(ir.structural_equal(n.indices, store.indices) for n in loads))  # fmt: skip


def _combines(store: ir.Stmt) -> bool:
    """`B[i] = B[i] + term` or with another operation in which order does not matter."""
    if not isinstance(store, ir.BufferStore) or not isinstance(store.value, _COMBINES):
        return False
    return any(isinstance(side, ir.BufferLoad) and side.buffer is store.buffer
               for side in (store.value.a, store.value.b))  # fmt: skip
