"""Detect buffers in which each loop iteration accesses only its own disjoint slice, and the indices
that all accesses to a buffer share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from blockwright import ir
from blockwright.arith import detect_iter_map
from blockwright.schedule.engine.state import StepState


def own_slices(state: StepState, loop: ir.For, blocks: Iterable[ir.Block]) -> set[ir.Buffer]:
    """The written buffers in which each loop iteration accesses a slice disjoint from the slices of
    all other iterations, so that iterations never conflict.

    Args:
        blocks: all blocks below the loop; their signatures declare all accesses in it.
    """
    blocks = tuple(blocks)
    shared = common_indices(state, blocks)
    return {
        buffer
        for buffer, boxes in _written_regions(state, blocks).items()
        if any(_moves(state, loop, dim) for dim in _dimensions(boxes))
        or loop in determined_loops(state, loop, shared[buffer])
    }


def determined_loops(state: StepState, top: ir.For, indices: Sequence[ir.Expr]) -> set[ir.For]:
    """The loops, from `top` inwards, whose values follow from the values of the indices."""
    used = {v for e in indices for v in ir.free_vars(e)}
    nest = [
        f
        for v, f in state.tree.loops.items()
        if v in used and (f is top or state.tree.is_below(f, top))
    ]
    domains = {f.loop_var: f.dom for f in nest}
    bounds = [e for dom in domains.values() for e in (dom.min, dom.extent)]
    if not domains or any(ir.uses_var(e, set(domains)) for e in bounds):
        return set()
    found = detect_iter_map(indices, domains, None, state.facts(top), "injective")
    return set(nest) if found.ok else set()


def common_indices(state: StepState, blocks: Iterable[ir.Block]) -> dict[ir.Buffer, list[ir.Expr]]:
    """For each written buffer, the indices that are equal in all accesses of the blocks.

    Arguments: `blocks` all access the buffers one element at a time along these dimensions.
    """
    result: dict[ir.Buffer, list[ir.Expr]] = {}
    for buffer, boxes in _written_regions(state, blocks).items():
        result[buffer] = [
            first
            for first, *others in _dimensions(boxes)
            if not any(isinstance(n, ir.BufferLoad) for n in ir.walk(first))
            and all(_equal(state, first, e) for e in others)
        ]
    return result


def _equal(state: StepState, a: ir.Expr, b: ir.Expr) -> bool:
    return a is b or state.analyzer().prove_equal(*ir.match_types(a, b))


def _written_regions(
    state: StepState, blocks: Iterable[ir.Block]
) -> dict[ir.Buffer, list[list[ir.Range]]]:
    """All regions of the written buffers, in terms of the loops."""
    regions: dict[ir.Buffer, list[list[ir.Range]]] = {}
    written: set[ir.Buffer] = set()
    for block in blocks:
        realize = state.tree.realize(block)
        values = {it.var: v for it, v in zip(block.iter_vars, realize.iter_values, strict=True)}
        written |= {r.buffer for r in block.writes}
        for region in (*block.reads, *block.writes):
            box = [ir.substitute(rng, values) for rng in region.region]
            regions.setdefault(region.buffer, []).append(box)
    return {buffer: regions[buffer] for buffer in written}


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
