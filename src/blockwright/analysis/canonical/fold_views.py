"""Replace accesses to views by accesses to the underlying buffer.

All analyses of dependence, order, coverage or lifetime compare buffers. Aliases would make their
results wrong, so programs are first normalized such that each buffer is a distinct memory
(`memory.plain_memory`). `fold_views` removes every view whose elements map to the underlying
buffer: same element type, and strides and offset that can be expressed as indices into its compact
layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

from blockwright import ir
from blockwright.analysis.access.regions import block_access_regions, relax_region
from blockwright.analysis.access.stable_values import reduced_over
from blockwright.analysis.access.stride_alignment import alignments
from blockwright.analysis.access.tree import child_stmts, takes_addresses
from blockwright.analysis.access.views import Placement, placement, shown
from blockwright.analysis.canonical.control_reads import loads_of_layout
from blockwright.analysis.facts import symbol_facts
from blockwright.arith import Analyzer, hull
from blockwright.ir.annotations import DIM_ALIGN, DOUBLE_BUFFER

_NAMED_BY_POSITION = (DIM_ALIGN, DOUBLE_BUFFER)
"""Block annotations that refer to writes by position."""


def has_views(func: ir.PrimFunc) -> bool:
    """Whether a function has two names for one memory."""
    stack: list[ir.Stmt] = [func.body]
    while stack:
        node = stack.pop()
        if isinstance(node, ir.DeclBuffer) or (isinstance(node, ir.Block) and twice_named(node)):
            return True
        stack.extend(child_stmts(node))
    return False


def twice_named(block: ir.Block) -> list[ir.Buffer]:
    """Region views of a block whose memory the block also uses under another name.

    For a block with an init statement, all region views: steps split it into two blocks.
    """
    if not block.match_buffers:
        return []
    if block.init is not None:
        return [m.buffer for m in block.match_buffers]
    sources = {m.buffer: m.source.buffer for m in block.match_buffers}
    names: dict[ir.Buffer, set[ir.Buffer]] = {}
    for part in (block.init, block.body):
        for node in () if part is None else ir.walk(part):
            if isinstance(node, ir.Buffer):
                names.setdefault(sources.get(node, node), set()).add(node)
    return [view for view, source in sources.items() if len(names.get(source, ())) > 1]


def fold_views(func: ir.PrimFunc) -> ir.PrimFunc:
    """Remove the views whose elements are known; see the module docstring."""
    if not has_views(func):
        return func
    body = _Fold(func)(func.body)
    return func if body is func.body else func.replace(body=body)


class _Fold(ir.Mutator):
    def __init__(self, func: ir.PrimFunc) -> None:
        super().__init__()
        self.analyzer = symbol_facts(func)
        self.places: dict[ir.Buffer, Placement] = {}
        self.padded = alignments(func.body).keys()
        self.loops: list[ir.Var] = []  # enclosing loops within the innermost block

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_DeclBuffer(self, node: ir.DeclBuffer) -> Any:
        source = self(node.source)
        node = node if source is node.source else node.replace(source=source)
        place = placement(node, self.analyzer)
        if place is not None and self._serves(place, node):
            self.places[node.buffer] = place
            return self(node.body)
        body = self(node.body)
        return node if body is node.body else node.replace(body=body)

    def _serves(self, place: Placement, node: ir.DeclBuffer) -> bool:
        """Whether every use of the view can be rewritten to the underlying buffer."""
        if place.root in self.padded or node.buffer in self.padded:
            return False
        given = {v for e in place.indices for v in ir.free_vars(e)}
        if given & set(self.loops) and ir.blocks(node.body):
            return False  # inner blocks cannot refer to the loops around them
        return all(_translates(use, node.buffer, place) for use in ir.walk(node.body))

    # ---------------------------------------------------------------- where things stand
    def rewrite_SeqStmt(self, node: ir.SeqStmt) -> ir.Stmt:
        new = self.descend(node)
        return new if new is node else ir.seq(new.seq)

    def rewrite_For(self, node: ir.For) -> Any:
        outside, self.analyzer = self.analyzer, self.analyzer.copy()
        self.analyzer.bind(node.loop_var, node.dom)
        self.loops.append(node.loop_var)
        new = self.descend(node)
        self.loops.pop()
        self.analyzer = outside  # the loop may have no iterations
        return new

    def rewrite_Block(self, node: ir.Block) -> Any:
        outside, self.analyzer = self.analyzer, self.analyzer.copy()
        for it in node.iter_vars:
            self.analyzer.bind(it.var, it.dom)
        new = self._block(node, outside)
        self.analyzer = outside
        return new

    def _block(self, node: ir.Block, outside: Analyzer) -> ir.Block:
        around, self.loops = self.loops, []
        views = self._matched(node)
        body = self(node.body)
        init, stepping = node.init, self.analyzer
        if init is not None:  # init also runs if the reduction has no iterations
            self.analyzer = stepping.without_empty(reduced_over(node))
            init = self(init)
        self.loops = around
        reads, writes = self._regions(node.reads), self._regions(node.writes)
        same = body is node.body and init is node.init and views is node.match_buffers
        if same and reads is node.reads and writes is node.writes:
            return node
        new = node.replace(body=body, init=init, match_buffers=views, reads=reads, writes=writes)
        if (reads or writes) and _declares(node) and not takes_addresses(new.body):
            # The address in the declaration counted as an access to the whole buffer.
            reads, writes = block_access_regions(new, outside)
            return new.replace(reads=reads, writes=writes)
        if init is not None and reads is not node.reads:
            needed = {r.buffer for r in block_access_regions(new, outside)[0]}
            kept = (r for r in reads if r.buffer in needed or not _states(writes, r))
            return new.replace(reads=tuple(kept))
        return new

    def _matched(self, block: ir.Block) -> tuple[ir.MatchBufferRegion, ...]:
        """The region views to keep: those whose memory the block uses under one name only."""
        twice = set(twice_named(block))
        kept: list[ir.MatchBufferRegion] = []
        for match in map(self, block.match_buffers):
            place = shown(match) if match.buffer in twice else None
            inside = [p for p in (block.init, block.body) if p is not None]
            if place is not None and _replaceable(match, place, inside):
                self.places[match.buffer] = place
            else:
                kept.append(match)
        same = len(kept) == len(block.match_buffers) and all(map(is_, kept, block.match_buffers))
        return block.match_buffers if same else tuple(kept)

    def _regions(self, regions: tuple[ir.BufferRegion, ...]) -> tuple[ir.BufferRegion, ...]:
        if not any(r.buffer in self.places for r in regions):
            return regions
        result: dict[ir.Buffer, ir.BufferRegion] = {}
        for region in map(self._region, regions):
            known = result.get(region.buffer)
            result[region.buffer] = (
                region
                if known is None
                else ir.BufferRegion(
                    region.buffer,
                    tuple(
                        hull(a, b, self.analyzer)
                        for a, b in zip(known.region, region.region, strict=True)
                    ),
                )
            )
        return tuple(result.values())

    def _region(self, region: ir.BufferRegion) -> ir.BufferRegion:
        place = self.places.get(region.buffer)
        if place is None:
            return region
        if place.shifts is not None:
            return ir.BufferRegion(
                place.root,
                tuple(
                    ir.point(s.start)
                    if s.dim is None
                    else _from(s.start, region.region[s.dim], self.analyzer)
                    for s in place.shifts
                ),
            )
        domains = {
            v: ir.Range(ir.cast_to(r.min, v.type), ir.cast_to(r.extent, v.type))
            for v, r in zip(place.variables, region.region, strict=True)
        }
        single = {v: r.min for v, r in domains.items() if ir.is_const_int(r.extent, 1)}
        points = tuple(
            ir.point(self.analyzer.simplify(ir.substitute(e, single))) for e in place.indices
        )
        rest = {v: r for v, r in domains.items() if v not in single}
        return relax_region(ir.BufferRegion(place.root, points), rest, self.analyzer)

    # ---------------------------------------------------------------- accesses
    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> Any:
        return self._access(self.descend(node))

    def rewrite_BufferStore(self, node: ir.BufferStore) -> Any:
        return self._access(self.descend(node))

    def _access(self, node: Any) -> Any:
        place = self.places.get(node.buffer)
        if place is None:
            return node
        indices = tuple(map(self.analyzer.simplify, place.at(node.indices)))
        return node.replace(buffer=place.root, indices=indices)

    def rewrite_BufferRegion(self, node: ir.BufferRegion) -> Any:
        return self._region(self.descend(node))


def _from(start: ir.Expr, rng: ir.Range, analyzer: Analyzer) -> ir.Range:
    low = analyzer.simplify(ir.add(start, rng.min))
    return ir.Range(low, ir.cast_to(rng.extent, low.dtype))


def _translates(use: ir.Node, view: ir.Buffer, place: Placement) -> bool:
    """Whether a node that may use a view can be rewritten to the underlying buffer."""
    match use:
        case ir.BufferLoad() | ir.BufferStore() if use.buffer is view:
            return place.shifts is not None or all(i.dtype.is_scalar for i in use.indices)
        case ir.Call(op="tensor"):
            return not any(b is view for b in ir.collect(use, ir.Buffer))
        case ir.AttrStmt():
            return use.node is not view
        case ir.Buffer() if any(load.buffer is view for load in loads_of_layout(use)):
            return False
        case ir.MatchBufferRegion() if use.source.buffer is view:
            return place.keeps_rows() and use.buffer.offset is None
        case ir.Block() if any(key in use.annotations for key in _NAMED_BY_POSITION):
            written = {r.buffer for r in use.writes}
            return not (view in written and place.root in written)
        case _:
            return True


def _declares(block: ir.Block) -> bool:
    """Whether a block contains a declaration of a view."""
    return any(isinstance(n, ir.DeclBuffer) for n in ir.walk(block.body))


def _states(regions: Sequence[ir.BufferRegion], wanted: ir.BufferRegion) -> bool:
    return any(
        r.buffer is wanted.buffer
        and all(ir.structural_equal(a, b) for a, b in zip(r.region, wanted.region, strict=True))
        for r in regions
    )


def _replaceable(match: ir.MatchBufferRegion, place: Placement, inside: Sequence[ir.Stmt]) -> bool:
    """Whether statements use a region view only by elements, and none of the sizes it binds."""
    bound = set(_bound(match))
    stack: list[ir.Node] = list(inside)
    while stack:
        node = stack.pop()
        if node in bound or not _translates(node, match.buffer, place):
            return False
        if not isinstance(node, ir.Buffer):
            stack.extend(node.children())
    return True


def _bound(match: ir.MatchBufferRegion) -> list[ir.Var]:
    """Variables bound by the layout of a view."""
    view = match.buffer
    offset = () if view.offset is None else (view.offset,)
    return [e for e in (*view.shape, *view.strides, *offset) if isinstance(e, ir.Var)]
