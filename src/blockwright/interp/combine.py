"""Vectorized reductions: lanes of an innermost loop that are combined into one element.

    for lane in T.vectorized(16):
        with T.block("B"): B[vi] = B[vi] + P[vi, v_lane]

The lanes do not race: such a loop means the combination of all its terms. The interpreter takes
them in order; the generated code takes them by halves, which for floating-point sums is another
rounding, covered by the tolerance that reductions are compared with.

What is such a loop is decided here anew, and not by `analysis.find_update`, which the schedule
asks: the interpreter judges schedules, and a mistake that both shared would pass.
"""

from __future__ import annotations

from blockwright import ir


def kind_of(loop: ir.For) -> ir.ForKind:
    """How the iterations of a loop run; in order for a vectorized reduction."""
    combines = loop.kind is ir.ForKind.VECTORIZED and _combines_lanes(loop)
    return ir.ForKind.SERIAL if combines else loop.kind


def _combines_lanes(loop: ir.For) -> bool:
    realize = loop.body
    if not isinstance(realize, ir.BlockRealize) or realize.block.init is not None:
        return False
    store = realize.block.body
    if not isinstance(store, ir.BufferStore):
        return False
    if not isinstance(store.value, (ir.Add, ir.Min, ir.Max)):
        return False
    driven = {
        it.var: it.iter_type
        for it, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if ir.uses_var(value, loop.loop_var)
    }
    if any(kind is not ir.IterType.REDUCE for kind in driven.values()):
        return False
    if any(ir.uses_var(index, set(driven)) for index in store.indices):
        return False
    return any(_same_element(side, store) for side in (store.value.a, store.value.b))


def _same_element(side: ir.Expr, store: ir.BufferStore) -> bool:
    return (
        isinstance(side, ir.BufferLoad)
        and side.buffer is store.buffer
        and ir.structural_equal(side.indices, store.indices)
    )
