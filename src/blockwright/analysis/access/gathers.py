"""Signatures whose indices load memory, as used for gathers in published programs.

    T.reads(I[vi], A[I[vi]])
    T.writes(B[vi])
    B[vi] = A[I[vi]]

The element read depends on data, so region queries (coverage by a producer, the copied part,
overlap of two iterations) must not treat it as a point. Such a dimension is widened to the whole
dimension, provided that the block accesses nothing else in it: the signature must hold with each
loaded value replaced by an unknown. Otherwise it is kept, and rejected as too narrow (BW216).
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
    """Widen data-dependent signature dimensions to whole dimensions; see the module docstring."""
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
    """The region with each load replaced by a variable, the same one for equal loads."""
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
    """Whether some stated region covers an access in the data-dependent dimensions."""
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
    """Replaces loads in indices and loop bounds by variables, and inner blocks by their bodies.

    Equal loads are replaced by the same variable.

    Attributes:
        loaded: buffers whose loaded values were replaced.
        lets: let-bound names and iterators of inner blocks, fully expanded.
        refused: whether the block contains accesses that indices do not describe.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loaded: set[ir.Buffer] = set()
        self.lets: dict[ir.Var, ir.Expr] = {}
        self.refused = False
        self._names: list[tuple[ir.BufferLoad, ir.Var]] = []

    def block(self, block: ir.Block) -> ir.Block | None:
        """The block with loads replaced; None if it has regions that are only stated."""
        if takes_addresses(block) or ir.collect(block, ir.MatchBufferRegion):
            return None
        init = None if block.init is None else self(block.init)
        return block.replace(body=self(block.body), init=init, reads=(), writes=())

    def range(self, rng: ir.Range) -> ir.Range:
        return ir.Range(self.index(rng.min), self.index(rng.extent))

    def index(self, expr: ir.Expr) -> ir.Expr:
        """An index with each load replaced by a variable."""
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
        for it, value in node.bindings:
            self.lets[it.var] = ir.substitute(value, self.lets)
        parts = (node.block.init, node.block.body)
        return ir.seq([self(part) for part in parts if part is not None])
