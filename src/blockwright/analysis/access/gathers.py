"""Signatures whose indices load memory, as published programs write them for gathers.

    T.reads(I[vi], A[I[vi]])
    T.writes(B[vi])
    B[vi] = A[I[vi]]

Which element is read only the data says, so that no question about regions (does a producer cover
it, which part is copied, what do two iterations have in common) may take it for a point. A
dimension that is stated so becomes the whole dimension, provided that the block accesses nothing
else in it: the statement must hold with each loaded value taken for an unknown number. Otherwise
it stays, and is refused as too narrow (BW216).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from blockwright import ir
from blockwright.analysis.access.regions import access_boxes
from blockwright.analysis.access.stable_values import written_buffers
from blockwright.analysis.access.tree import takes_addresses
from blockwright.arith import Analyzer, covers, hull


def with_whole_gathers(block: ir.Block) -> ir.Block:
    """The block with whole dimensions in its signature in place of such that loaded values choose;
    see the module."""
    if not any(_loads(rng) for r in (*block.reads, *block.writes) for rng in r.region):
        return block
    named = _Named()
    plain = named.block(block)
    if plain is None or named.loaded & written_buffers(block):
        return block
    known = Analyzer()
    for it in block.iter_vars:
        known.bind(it.var, it.dom)
    reads, writes = (
        _widened(regions, boxes, named, known)
        for regions, boxes in zip((block.reads, block.writes), access_boxes(plain), strict=True)
    )
    return block.replace(reads=reads, writes=writes)


def with_unknown_loads(region: ir.BufferRegion) -> ir.BufferRegion:
    """The region with a variable in the place of each load, equal ones alike."""
    named = _Named()
    return region.replace(region=tuple(map(named.range, region.region)))


def _widened(
    regions: tuple[ir.BufferRegion, ...],
    boxes: dict[ir.Buffer, list[list[ir.Range | None]]],
    named: _Named,
    known: Analyzer,
) -> tuple[ir.BufferRegion, ...]:
    matches: dict[ir.Buffer, list[ir.BufferRegion]] = {}
    for region in regions:
        matches.setdefault(region.buffer, []).append(region)
    result: list[ir.BufferRegion] = []
    for buffer, stated in matches.items():
        gathers = any(_loads(rng) for r in stated for rng in r.region)
        if gathers and all(_states(stated, box, named, known) for box in boxes.get(buffer, ())):
            wide = [_whole(r) for r in stated]
            ranges = zip(*(r.region for r in wide), strict=True)
            joined = (reduce(lambda a, b: hull(a, b, known), parts) for parts in ranges)
            result.append(ir.BufferRegion(buffer, tuple(joined)))
        else:
            result += stated
    return tuple(result)


def _states(
    stated: list[ir.BufferRegion], box: list[ir.Range | None], named: _Named, known: Analyzer
) -> bool:
    """Whether one of the stated regions holds an access in the dimensions that data chooses."""
    return any(
        all(
            rng is not None and covers([named.range(have)], [rng], known)
            for have, rng in zip(region.region, box, strict=True)
            if _loads(have)
        )
        for region in stated
    )


def _whole(region: ir.BufferRegion) -> ir.BufferRegion:
    whole = ir.full_region(region.buffer).region
    ranges = zip(region.region, whole, strict=True)
    return ir.BufferRegion(region.buffer, tuple(w if _loads(r) else r for r, w in ranges))


def _loads(rng: ir.Range) -> bool:
    return bool(ir.collect(rng, ir.BufferLoad))


class _Named(ir.Mutator):
    """Names loaded values in indices and bounds of loops, equal ones alike, and takes blocks inside
    for what their bodies do.

    Attributes:
        loaded: the buffers whose values have names.
        lets: named values and iterators of inner blocks, written out.
        refused: whether something stands inside whose accesses are not told by indices.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loaded: set[ir.Buffer] = set()
        self.lets: dict[ir.Var, ir.Expr] = {}
        self.refused = False
        self._names: list[tuple[ir.BufferLoad, ir.Var]] = []

    def block(self, block: ir.Block) -> ir.Block | None:
        """The body of a block with names; None where regions of it are only stated."""
        if takes_addresses(block) or ir.collect(block, ir.MatchBufferRegion):
            return None
        init = None if block.init is None else self(block.init)
        return block.replace(body=self(block.body), init=init, reads=(), writes=())

    def range(self, rng: ir.Range) -> ir.Range:
        return ir.Range(self.index(rng.min), self.index(rng.extent))

    def index(self, expr: ir.Expr) -> ir.Expr:
        """An index with a variable for each load in it."""
        return ir.rewrite_bottom_up(ir.substitute(expr, self.lets), self._name)

    def _name(self, node: ir.Node) -> ir.Node | None:
        if not isinstance(node, ir.BufferLoad):
            return None
        for known, var in self._names:
            if ir.structural_equal(known, node):
                return var
        self.loaded.add(node.buffer)
        self._names.append((node, ir.Var(f"loaded{len(self._names)}", node.dtype)))
        return self._names[-1][1]

    # ------------------------------------------------------------------ statements
    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> Any:
        return node.replace(indices=tuple(map(self.index, node.indices)))

    def rewrite_BufferStore(self, node: ir.BufferStore) -> Any:
        return node.replace(value=self(node.value), indices=tuple(map(self.index, node.indices)))

    def rewrite_For(self, node: ir.For) -> Any:
        low, extent = self.index(node.min), self.index(node.extent)
        return node.replace(min=low, extent=extent, body=self(node.body))

    def rewrite_LetStmt(self, node: ir.LetStmt) -> Any:
        self.lets[node.var] = ir.substitute(node.value, self.lets)
        return node.replace(value=self(node.value), body=self(node.body))

    def rewrite_Let(self, node: ir.Let) -> Any:
        self.lets[node.var] = ir.substitute(node.value, self.lets)
        return node.replace(value=self(node.value), body=self(node.body))

    def rewrite_BlockRealize(self, node: ir.BlockRealize) -> Any:
        for it, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            self.lets[it.var] = ir.substitute(value, self.lets)
        parts = (node.block.init, node.block.body)
        return ir.seq([self(part) for part in parts if part is not None])
