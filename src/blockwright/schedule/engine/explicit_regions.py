"""Preserve the explicit regions of `annotate_buffer_access` when a step rewrites the block.

An annotation of the block names the buffers. A step that recomputes the signature widens each
region by the declared one. If a copy replaces the buffer, the declared region applies to the copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.analysis.access.region_annotations import explicit_names
from blockwright.arith import Analyzer, covers, hull
from blockwright.ir.annotations import EXPLICIT_READ


def stated_by_user(block: ir.Block) -> tuple[str, ...]:
    """Names of the buffers whose read region the user declared explicitly."""
    return explicit_names(block, block.reads)


def with_explicit(block: ir.Block, before: Sequence[ir.BufferRegion]) -> ir.Block:
    """Widen the recomputed read regions of a block by the regions that were declared before.

    Args:
        block: the block, with the annotation and with the regions of its body.
        before: the read regions of its signature before the step.
    """
    known = Analyzer()
    for it in block.iter_vars:
        known.bind(it.var, it.dom)
    names = explicit_names(block, before)
    reads = list(block.reads)
    kept: list[str] = []
    for stated in before:
        if stated.buffer.name not in names or not _visible(stated, block):
            continue
        place = _successor(stated, before, reads, known)
        if place is None:
            continue
        result = reads[place]
        box = stated.region
        if not covers(box, result.region, known):
            box = tuple(hull(a, b, known) for a, b in zip(box, result.region, strict=True))
        reads[place] = ir.BufferRegion(result.buffer, box)
        kept.append(result.buffer.name)
    rest = {key: value for key, value in block.annotations.items() if key != EXPLICIT_READ}
    notes = {**rest, EXPLICIT_READ: tuple(kept)} if kept else rest
    return block.replace(reads=tuple(reads), annotations=notes)


def _successor(
    stated: ir.BufferRegion,
    before: Sequence[ir.BufferRegion],
    reads: Sequence[ir.BufferRegion],
    known: Analyzer,
) -> int | None:
    """The index of the region of the declared buffer, or of its only new copy."""
    for place, region in enumerate(reads):
        if region.buffer is stated.buffer:
            return place
    old = {r.buffer for r in before}
    copies = [
        place
        for place, region in enumerate(reads)
        if region.buffer not in old
        and ir.structural_equal(region.buffer.shape, stated.buffer.shape)
        and covers(stated.region, region.region, known)
    ]
    return copies[0] if len(copies) == 1 else None


def _visible(region: ir.BufferRegion, block: ir.Block) -> bool:
    """Whether all variables of a declared region are still in scope in the block."""
    visible = {it.var for it in block.iter_vars}
    visible.update(ir.collect(block.body, ir.Var), ir.collect(region.buffer, ir.Var))
    return all(v in visible for rng in region.region for v in ir.collect(rng, ir.Var))
