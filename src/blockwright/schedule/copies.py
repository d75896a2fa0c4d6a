"""Where a copy of a buffer goes when producers and consumers share loops, and what it copies.

Without shared loops the whole buffer is copied. Under shared loops the copy stands in the
innermost of them and moves what one iteration produces or needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockwright import ir
from blockwright.analysis import clip_region
from blockwright.arith import covers
from blockwright.schedule.move import Domains, merge, nest_for
from blockwright.schedule.state import State


def anchor(state: State, start: ir.Stmt, scope: ir.Block, others: Iterable[ir.Stmt]) -> ir.Stmt:
    """The outermost statement around `start` that stands beside all of `others`."""
    found = start
    rest = list(others)
    for above in state.tree.ancestors(start):
        if above is scope or any(state.tree.is_below(other, above) for other in rest):
            break
        found = above
    return found


def copied_nest(
    state: State, scope: ir.Block, at: ir.Stmt, copy: ir.Block, whole: ir.Stmt,
    domain: Sequence[ir.Range], needs: list[tuple[ir.Block, ir.BufferRegion]],
    makers: list[tuple[ir.Block, ir.BufferRegion]],
) -> ir.Stmt:  # fmt: skip
    """The nest of a copying block at a place.

    Args:
        at: statement beside which the nest will stand.
        copy: the copying block, an iterator per dimension.
        whole: the nest that copies everything.
        domain: the box that `whole` copies.
        needs: blocks with the regions that decide what is copied.
        makers: blocks with the regions that must hold all that is copied; may be empty.
    """
    fixed = state.tree.loops_above(at)
    flow = state.data_flow(scope)
    analyzer = state.analyzer(at)
    domains: Domains = {}
    for block, region in needs:
        box = flow.region_under(fixed, block, region, analyzer, tight=False)
        for it, rng in zip(copy.iter_vars, box.region, strict=True):
            merge(domains, it.var, rng, analyzer)
    buffer = needs[0][1].buffer if needs else None
    if fixed and buffer is not None:
        box = ir.BufferRegion(buffer, tuple(domains[it.var] for it in copy.iter_vars))
        box = clip_region(box, analyzer)
    else:
        regions = needs or makers
        box = ir.BufferRegion(regions[0][1].buffer, tuple(domain))
    nest = nest_for(state, copy, fixed[-1], domains, False, at) if fixed else whole
    given = next(n.predicate for n in ir.walk(nest) if isinstance(n, ir.BlockRealize))
    for maker, region in makers:
        have = flow.region_under(fixed, maker, region, analyzer)
        filled = (
            covers(have.region, box.region, analyzer)
            and flow.is_exact(fixed, maker, region, analyzer)
            and flow.runs(fixed, maker, given, analyzer)
        )
        if not filled:
            state.fail(f"block {maker.name} does not write every element of "
                       f"{region.buffer.name} that the copy would read", code="BW323",
                       guilty=[state.tree.realize(maker)],
                       help="copy before the buffer is padded, or at another place")  # fmt: skip
    return nest
