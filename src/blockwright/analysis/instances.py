"""Instances of a block: do two of them ever write the same element?

A data-parallel iterator promises that its instances are independent of one another. The promise is
kept where the spatial iterators and the elements written determine each other.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.arith import Analyzer, detect_iter_map


def shared_writes(block: ir.Block, analyzer: Analyzer) -> str:
    """Why two instances that differ in a spatial iterator may write one element; empty when none.

    Args:
        analyzer: what is known about sizes.
    """
    spatial = {it.var: it.dom for it in block.iter_vars
               if it.iter_type is ir.IterType.SPATIAL
               and not ir.is_const_int(it.dom.extent, 1)}  # fmt: skip
    for region in block.writes if spatial else ():
        problem = _shared(region, spatial, analyzer)
        if problem:
            return f"instances of it may write the same element of {region.buffer.name}: {problem}"
    return ""


def _shared(
    region: ir.BufferRegion, spatial: dict[ir.Var, ir.Range], analyzer: Analyzer
) -> str:
    plain = {r.min for r in region.region if isinstance(r.min, ir.Var)
             and ir.is_const_int(r.extent, 1)}  # fmt: skip
    left = {v: d for v, d in spatial.items() if v not in plain}
    if not left:
        return ""
    known = analyzer.copy()
    for var, domain in spatial.items():
        known.bind(var, domain)
    corners: list[ir.Expr] = []
    for rng in region.region:
        if not ir.uses_var(rng.min, set(left)):
            continue
        low = _step(rng, known)
        if low is not None:
            corners.append(low)
    unused = [v.name for v in left if not any(ir.uses_var(c, v) for c in corners)]
    if unused:
        return f"no index moves with {', '.join(unused)}"
    found = detect_iter_map(corners, left, None, known, "injective", pad=True)
    return "; ".join(found.errors)


def _step(rng: ir.Range, analyzer: Analyzer) -> ir.Expr | None:
    """Which of the boxes side by side along a dimension this is; None when boxes overlap."""
    if ir.is_const_int(rng.extent, 1):
        return rng.min
    whole = ir.floormod(rng.min, rng.extent)
    if not analyzer.prove_equal(whole, ir.const(0, whole.dtype)):
        return None
    return analyzer.simplify(ir.floordiv(rng.min, rng.extent))
