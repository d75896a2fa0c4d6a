"""Detect buffers in which each loop iteration accesses only its own disjoint slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blockwright import ir
from blockwright.schedule.engine.state import StepState


def own_slices(state: StepState, loop: ir.For, blocks: Iterable[ir.Block]) -> set[ir.Buffer]:
    """The written buffers in which each loop iteration accesses a slice disjoint from the slices of
    all other iterations, so that iterations never conflict.

    Args:
        blocks: all blocks below the loop; their signatures declare all accesses in it.
    """
    regions: dict[ir.Buffer, list[list[ir.Range]]] = {}
    written: set[ir.Buffer] = set()
    for block in blocks:
        realize = state.tree.realize(block)
        values = {it.var: v for it, v in zip(block.iter_vars, realize.iter_values, strict=True)}
        written |= {r.buffer for r in block.writes}
        for region in (*block.reads, *block.writes):
            box = [ir.substitute(rng, values) for rng in region.region]
            regions.setdefault(region.buffer, []).append(box)
    return {
        buffer
        for buffer in written
        if any(_moves(state, loop, dim) for dim in _dimensions(regions[buffer]))
    }


def _dimensions(boxes: list[list[ir.Range]]) -> Iterator[list[ir.Expr]]:
    """Yield the indices of each dimension in which all regions have extent 1."""
    for ranges in zip(*boxes, strict=True):
        if all(ir.is_const_int(rng.extent, 1) for rng in ranges):
            yield [rng.min for rng in ranges]


def _moves(state: StepState, loop: ir.For, indices: list[ir.Expr]) -> bool:
    """Whether all indices are equal and advance by a constant nonzero step per iteration."""
    analyzer = state.analyzer(loop.body)
    first = indices[0]
    inner = {v for v, f in state.tree.loops.items() if state.tree.is_below(f, loop)}
    after = ir.substitute(first, {loop.loop_var: ir.add(loop.loop_var, 1)})
    step = ir.const_int(analyzer.simplify(ir.sub(after, first)))
    return bool(step) and all(
        not ir.uses_var(e, inner)
        and not any(isinstance(n, ir.BufferLoad) for n in ir.walk(e))
        and analyzer.prove_equal(*ir.match_types(e, first))
        for e in indices
    )
