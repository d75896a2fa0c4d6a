"""Detect block signatures that a step leaves too large: stated regions or iterator domains.

Such signatures do not change the meaning. But later steps rely on them: a region stated as written
counts as written, and steps that need all of a domain reject a block whose loops cover part of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockwright import ir
from blockwright.analysis import block_access_regions, clip_region
from blockwright.arith import Analyzer, covers, eval_set
from blockwright.schedule.engine.handle import Handle
from blockwright.schedule.engine.state import StepState, Target


def slack(before: ir.PrimFunc, after: ir.PrimFunc) -> list[str]:
    """List the signatures of `after` that are too large, if none of `before` was.

    They state regions that the body does not access, or domains whose end the loops do not reach.
    Parts of a loop (`loop_partition`, prologues) keep the domain of the whole loop.
    """
    known = StepState(before, _no_handles, "slack")
    if any(_wide(known, block) for block in known.tree.blocks):
        return []
    old = [it.dom for block in known.tree.blocks for it in block.iter_vars]
    new = StepState(after, _no_handles, "slack")
    result: list[str] = []
    for block in new.tree.blocks:
        result += _wide(new, block)
        result += [
            f"{block.name} does not reach the end of {it.var.name} in {it.dom!r}"
            for it in _short(new, block)
            if not any(_same(it.dom, dom, new.analyzer(block)) for dom in old)
        ]
    return result


def _no_handles(handle: Handle) -> Target:
    raise AssertionError(f"{handle!r} is resolved although no step is taken")


def _wide(state: StepState, block: ir.Block) -> list[str]:
    """Stated regions that are larger than the regions accessed."""
    if block is state.func.root:
        return []
    analyzer = state.analyzer(block)
    for it in block.iter_vars:
        analyzer.bind(it.var, it.dom)
    touched = block_access_regions(block, analyzer)
    return [
        f"{block.name} states {region!r}"
        for stated, real in zip((block.reads, block.writes), touched, strict=True)
        for region in stated
        if not _within(region, [r for r in real if r.buffer is region.buffer], analyzer)
    ]


def _within(region: ir.BufferRegion, real: list[ir.BufferRegion], analyzer: Analyzer) -> bool:
    boxes = (region.region, clip_region(region, analyzer).region)
    return any(covers(r.region, box, analyzer) for r in real for box in boxes)


def _short(state: StepState, block: ir.Block) -> Iterator[ir.IterVar]:
    """Iterators whose values provably end before their domains do."""
    if block is state.func.root:
        return
    realize = state.tree.realize(block)
    analyzer = state.analyzer(realize)
    domains = {f.loop_var: f.dom for f in state.tree.loops_above(block)}
    for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
        largest = eval_set(value, domains, analyzer).max
        if largest is None:
            continue
        end = ir.add(*ir.match_types(it.dom.min, it.dom.extent))
        if analyzer.prove(ir.LT(*ir.match_types(largest + 1, end))):
            yield it


def _same(a: ir.Range, b: ir.Range, analyzer: Analyzer) -> bool:
    return all(
        analyzer.prove_equal(*ir.match_types(x, y))
        for x, y in ((a.min, b.min), (a.extent, b.extent))
    )
