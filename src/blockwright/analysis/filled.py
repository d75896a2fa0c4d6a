"""Do the stores of a block write all of the box that its signature states?

A signature is a box around what the block writes. Loops in the block's body that leave gaps, or
that end before the box does, write less: `for r in range(4): B[r * 16 + v]` states 49 elements and
writes 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from blockwright import ir
from blockwright.arith import (
    Analyzer,
    bound_region,
    detect_iter_map,
    jointly_cover,
    leaves_no_gap,
)

_Domains = Mapping[ir.Var, ir.Range]


def stores_fill(block: ir.Block, region: ir.BufferRegion, analyzer: Analyzer) -> bool:
    """Whether a block without inner blocks writes every element of a region that it states.

    What it writes otherwise than by stores of elements (through views, by intrinsics, in vectors)
    is taken to be what it states, and a store under a condition to happen.
    """
    if all(ir.is_const_int(rng.extent, 1) for rng in region.region):
        return True
    boxes: list[tuple[ir.Range, ...]] = []
    stores = list(_stores(block.body, region.buffer, {}))
    if not stores or any(not i.dtype.is_scalar for store, _ in stores for i in store.indices):
        return True
    for store, domains in stores:
        moving = [i for i in store.indices if ir.uses_var(i, set(domains))]
        exact = detect_iter_map(moving, domains, None, analyzer, "surjective").ok
        if exact or leaves_no_gap(moving, domains, analyzer):
            points = [ir.Range(i, ir.const(1, i.dtype)) for i in store.indices]
            boxes.append(bound_region(points, domains, analyzer))
    return jointly_cover(boxes, region.region, analyzer)


def _stores(
    stmt: ir.Stmt, buffer: ir.Buffer, domains: _Domains
) -> Iterator[tuple[ir.BufferStore, _Domains]]:
    """Stores to a buffer, each with the loops around it."""
    if isinstance(stmt, ir.BufferStore):
        if stmt.buffer is buffer:
            yield stmt, domains
        return
    if isinstance(stmt, ir.For):
        domains = {**domains, stmt.loop_var: ir.Range(stmt.min, stmt.extent)}
    for child in stmt.children():
        if isinstance(child, ir.Stmt):
            yield from _stores(child, buffer, domains)
