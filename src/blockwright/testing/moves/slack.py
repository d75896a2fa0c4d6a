"""Promises of blocks that say more than what happens, which a step must not leave behind.

They change no meaning. But later steps rest on signatures: what is stated to be written counts as
written, and a block whose loops stop short of its domain is refused by steps that need all of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockwright import ir
from blockwright.analysis import block_access_regions, clip_region
from blockwright.arith import Analyzer, covers, eval_set
from blockwright.schedule.engine.handle import Handle
from blockwright.schedule.engine.state import StepState, Target


def slack(before: ir.PrimFunc, after: ir.PrimFunc) -> list[str]:
    """What blocks of a program promise too much, that none did before a step: regions that the body
    does not touch, ends of domains that the loops do not come to.

    Pieces of a loop (`loop_partition`, prologues) keep the domain of the whole one.
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
            f"{block.name} never comes to the end of {it.var.name} in {it.dom!r}"
            for it in _short(new, block)
            if not any(_same(it.dom, dom, new.analyzer(block)) for dom in old)
        ]
    return result


def _no_handles(handle: Handle) -> Target:
    raise AssertionError(f"{handle!r} is asked for where no step is taken")


def _wide(state: StepState, block: ir.Block) -> list[str]:
    """Stated regions that are larger than what the body touches."""
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
    """Iterators whose values surely end before their domains do."""
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
