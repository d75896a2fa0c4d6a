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
    """The regions of the written buffers, in terms of the loops, except those that are only read.

    A read of elements that none of the blocks writes in any instance conflicts with nothing.
    """
    blocks = tuple(blocks)
    writes: dict[ir.Buffer, list[tuple[ir.Block, ir.BufferRegion]]] = {}
    for block in blocks:
        for region in block.writes:
            writes.setdefault(region.buffer, []).append((block, region))
    regions: dict[ir.Buffer, list[list[ir.Range]]] = {buffer: [] for buffer in writes}
    for block in blocks:
        flow = state.flow_at(block)
        values = state.tree.realize(block).values
        reads = [
            region
            for region in block.reads
            if region.buffer in writes
            and not all(flow.apart((block, region), write) for write in writes[region.buffer])
        ]
        for region in (*reads, *block.writes):
            box = [ir.substitute(rng, values) for rng in region.region]
            regions[region.buffer].append(box)
    return regions


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
