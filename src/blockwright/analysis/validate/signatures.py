"""Check that the signature of a block covers the accesses of its body."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.analysis.access.gathers import with_unknown_loads
from blockwright.analysis.access.regions import block_access_regions, clip_region
from blockwright.analysis.access.stable_values import reduced_over
from blockwright.arith import Analyzer, covers

Unstated = tuple[str, ir.BufferRegion, "ir.BufferRegion | None"]


def unstated(block: ir.Block, outside: Analyzer) -> list[Unstated]:
    """Accesses of a block beyond its signature.

    Each has "reads" or "writes", the region accessed, and the region stated for that buffer.

    Args:
        block: any block except the root.
        outside: facts about sizes and about the iterators of enclosing blocks.
    """
    analyzer = outside.copy()
    for it in block.iter_vars:
        analyzer.bind(it.var, it.dom)
    initial: set[ir.Buffer] = set()  # buffers of init, which also runs without iterations
    if block.init is not None:
        initial = set(ir.collect(block.init, ir.Buffer))
        for view in reversed(block.match_buffers):  # a view may be of a view before it
            if view.buffer in initial:
                initial.add(view.source.buffer)
        stepless = analyzer.without_empty(reduced_over(block))
    else:
        stepless = analyzer
    # Accesses through an address are described by the signature alone.
    reads, writes = block_access_regions(block, outside, addresses=False)
    result: list[Unstated] = []
    for word, touched, stated in (("reads", reads, block.reads), ("writes", writes, block.writes)):
        known = {r.buffer: r for r in stated}
        for region in touched:
            have = known.get(region.buffer)
            there = stepless if region.buffer in initial else analyzer
            if have is None or not _covered(have, region, there):
                result.append((word, region, have))
    if not result:
        return []
    # A region inferred from the block alone covers every access by construction (`regions`), even
    # if `covers` cannot prove that it contains the region inferred with facts about sizes. The
    # parser and most steps state such regions. It is inferred again here, so that it depends on
    # nothing that was stated except the signatures of inner blocks, which are checked themselves.
    deduced = block_access_regions(block, Analyzer(values=outside.space.values), addresses=False)
    alone: dict[str, Sequence[ir.BufferRegion]] = dict(
        zip(("reads", "writes"), deduced, strict=True)
    )
    return [
        (word, region, have)
        for word, region, have in result
        if have is None or not any(ir.structural_equal(have, whole) for whole in alone[word])
    ]


def _covered(have: ir.BufferRegion, need: ir.BufferRegion, analyzer: Analyzer) -> bool:
    if covers(have.region, need.region, analyzer):
        return True
    inside = clip_region(with_unknown_loads(need), analyzer)
    if covers(have.region, inside.region, analyzer):
        return True
    return any(analyzer.prove(ir.LE(*ir.match_types(rng.extent, 0))) for rng in need.region)
