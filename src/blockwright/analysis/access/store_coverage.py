"""Check that the stores of a block write the whole box stated in its signature.

A signature is a bounding box of what the block writes. Loops in the body that leave gaps, end early
or have no iterations, and conditional stores, write less: `for r in range(4): B[r * 16 + v]` states
49 elements and writes 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import msgspec

from blockwright import ir
from blockwright.analysis.access.stable_values import is_steady, reduced_over
from blockwright.analysis.access.tree import jumps
from blockwright.analysis.access.views import shown
from blockwright.arith import (
    Analyzer,
    bound_region,
    clip_region,
    detect_iter_map,
    jointly_cover,
    leaves_no_gap,
)
from blockwright.arith.condition import conjuncts
from blockwright.arith.itermap import extent_of

Box = tuple[ir.Range, ...]


class _Place(msgspec.Struct, frozen=True):
    """Context of a store: enclosing loops and conditions, and the symbols of the program."""

    loops: Mapping[ir.Var, ir.Range] = {}
    conditions: tuple[ir.Expr, ...] = ()
    sizes: Set[ir.Var] = frozenset()

    def when(self, condition: ir.Expr) -> _Place:
        return msgspec.structs.replace(self, conditions=(*self.conditions, condition))

    def inside(self, loop: ir.For) -> _Place:
        loops = {**self.loops, loop.loop_var: loop.dom}
        return msgspec.structs.replace(self, loops=loops)


def stores_fill(
    block: ir.Block, region: ir.BufferRegion, analyzer: Analyzer, sizes: Set[ir.Var] = frozenset()
) -> bool:
    """Whether a block without inner blocks writes every element of one of its stated write regions.

    Writes other than by stores (intrinsics, views with another layout) are assumed to match the
    signature.
    """
    if _is_one_store(block.body, region):
        return True
    body = _through_views(block, block.body, region.buffer)
    init = None if block.init is None else _through_views(block, block.init, region.buffer)
    parts = [body] if init is None else [body, init]
    stores = [store for part in parts for store in ir.collect(part, ir.BufferStore)]
    if all(store.buffer is not region.buffer for store in stores):
        return True
    place = _Place(sizes=sizes)
    boxes = _boxes(body, region.buffer, place, analyzer)
    if init is not None:
        moving = reduced_over(block)  # init runs only in the first instance of a reduction
        boxes += [
            box
            for box in _boxes(init, region.buffer, place, analyzer)
            if not any(ir.uses_var(rng, moving) for rng in box)
        ]
    return jointly_cover(boxes, clip_region(region.region, region.buffer.shape, analyzer), analyzer)


def filled_boxes(
    stmt: ir.Stmt, buffer: ir.Buffer, analyzer: Analyzer, sizes: Set[ir.Var] = frozenset()
) -> list[Box]:
    """Boxes of a buffer that a statement, including blocks in it, definitely writes completely.

    A block that writes the buffer other than by stores of elements is assumed to write its stated
    regions.
    """
    return _boxes(stmt, buffer, _Place(sizes=sizes), analyzer)


def _through_views(block: ir.Block, part: ir.Stmt, buffer: ir.Buffer) -> ir.Stmt:
    """A part of a block with stores to views replaced by stores to the source buffer."""
    views = {m.buffer: shown(m) for m in block.match_buffers if m.source.buffer is buffer}
    if not views:
        return part

    def stored(node: ir.Node) -> ir.Node | None:
        place = views.get(node.buffer) if isinstance(node, ir.BufferStore) else None
        if place is None or not isinstance(node, ir.BufferStore):
            return None
        return node.replace(buffer=buffer, indices=place.at(node.indices))

    return ir.rewrite_bottom_up(part, stored)


def _is_one_store(body: ir.Stmt, region: ir.BufferRegion) -> bool:
    """Whether a body only stores the one element of the region, as most blocks do."""
    return (
        isinstance(body, ir.BufferStore)
        and body.buffer is region.buffer
        and all(
            ir.is_const_int(rng.extent, 1) and rng.min is index
            for rng, index in zip(region.region, body.indices, strict=True)
        )
    )


def fill_box(
    indices: Sequence[ir.Expr],
    domains: Mapping[ir.Var, ir.Range],
    predicate: ir.Expr | None,
    analyzer: Analyzer,
    sizes: Set[ir.Var],
) -> bool:
    """Whether indices take every point of their bounding box.

    Args:
        indices: the indices to check.
        domains: domains of their variables.
        predicate: condition on the iterations, or None.
        analyzer: facts about other variables.
        sizes: symbols of the program, assumed to be positive.
    """
    if predicate is not None and not is_steady(predicate):
        return False  # data decides whether it ever holds
    if predicate is not None:
        predicate = _somewhere(indices, domains, predicate, analyzer, sizes)
        if predicate is None:
            return False
        predicate = None if ir.is_const_int(predicate, 1) else predicate
    idle = [v for v, domain in domains.items() if not runs(domain, analyzer, sizes)]
    result = detect_iter_map(indices, domains, predicate, analyzer, "surjective")
    if result.ok and not idle:
        spans = [analyzer.lower(extent_of(i, analyzer), i.base.dtype) for i in result.indices]
    elif (
        predicate is None
        and leaves_no_gap(indices, domains, analyzer)
        and all(_alone(v, indices, domains) for v in idle)
    ):
        spans = [_span(index, domains) for index in indices]
    else:
        return False
    if predicate is None and all(map(_is_fixed, domains.values())):
        return True
    # A condition may restrict the map, or a loop may end early, within the known bounding box.
    boxes = _bounded(indices, domains, analyzer, predicate)
    return boxes is not None and all(
        analyzer.prove_equal(*ir.match_types(span, box.extent))
        for span, box in zip(spans, boxes, strict=True)
    )


def _somewhere(
    indices: Sequence[ir.Expr],
    domains: Mapping[ir.Var, ir.Range],
    predicate: ir.Expr,
    analyzer: Analyzer,
    sizes: Set[ir.Var],
) -> ir.Expr | None:
    """Restrict a predicate to the variables of the indices.

    The result implies the predicate for the first iteration of all other loops. None if the
    predicate may fail there regardless of the indices.
    """
    used = {v for i in indices for v in ir.free_vars(i)}
    first = {v: domain.min for v, domain in domains.items() if v not in used}
    kept: list[ir.Expr] = []
    for part in conjuncts(predicate):
        if not ir.uses_var(part, set(first)):
            kept.append(part)
            continue
        here = analyzer.simplify(ir.substitute(part, first))
        if ir.uses_var(here, set(domains)):
            kept.append(here)
        elif not analyzer.prove(here) and not _holds_for_sizes(here, analyzer, sizes):
            return None
    return ir.all_of(kept)


def _is_fixed(domain: ir.Range) -> bool:
    return ir.const_int(domain.extent) is not None and ir.const_int(domain.min) is not None


def runs(domain: ir.Range, analyzer: Analyzer, sizes: Set[ir.Var]) -> bool:
    """Whether a loop has an iteration; extents that depend on sizes alone count as positive."""
    if not ir.is_const_int(domain.extent) and _of_sizes(domain.extent, sizes):
        return True
    return analyzer.prove(ir.GE(*ir.match_types(domain.extent, 1)))


def _surely_runs(domain: ir.Range, analyzer: Analyzer, sizes: Set[ir.Var]) -> bool:
    """Whether a loop has an iteration, given that all sizes of the program are positive."""
    filled = ir.GE(*ir.match_types(domain.extent, 1))
    return analyzer.prove(filled) or _holds_for_sizes(filled, analyzer, sizes)


def _of_sizes(expr: ir.Expr, sizes: Set[ir.Var]) -> bool:
    """Whether an expression depends only on sizes of the program."""
    return sizes >= set(ir.free_vars(expr)) and not ir.is_const_int(expr)


def _holds_for_sizes(condition: ir.Expr, analyzer: Analyzer, sizes: Set[ir.Var]) -> bool:
    """Whether a condition on program sizes alone holds if all of them are positive."""
    used = set(ir.free_vars(condition))
    if not used or not used <= sizes or not is_steady(condition):
        return False
    known = analyzer.copy()
    for size in used:
        known.learn(ir.GE(size, ir.const(1, size.dtype)))
    return known.prove(condition)


def _alone(var: ir.Var, indices: Sequence[ir.Expr], domains: Mapping[ir.Var, ir.Range]) -> bool:
    """Whether exactly one index depends on the variable, and that index on no other variable.

    The index then spans nothing if the variable has an empty domain.
    """
    users = [set(ir.free_vars(i)) & set(domains) for i in indices if ir.uses_var(i, var)]
    return users == [{var}]


def _span(index: ir.Expr, domains: Mapping[ir.Var, ir.Range]) -> ir.Expr:
    """Extent of the values of an index that increases with each of its iterators."""
    first = {v: d.min for v, d in domains.items()}
    last = {
        v: ir.sub(*ir.match_types(ir.add(*ir.match_types(d.min, d.extent)), 1))
        for v, d in domains.items()
    }
    return ir.sub(ir.substitute(index, last), ir.substitute(index, first)) + 1


def _boxes(stmt: ir.Stmt, buffer: ir.Buffer, place: _Place, analyzer: Analyzer) -> list[Box]:
    """Boxes of a buffer that a statement definitely writes completely."""
    if isinstance(stmt, ir.BufferStore):
        return _box(stmt, place, analyzer) if stmt.buffer is buffer else []
    if isinstance(stmt, ir.While):
        return []
    if isinstance(stmt, ir.IfThenElse):
        return _chosen(stmt, buffer, place, analyzer)
    if isinstance(stmt, ir.BlockRealize):
        return _inside(stmt, buffer, place, analyzer)
    if isinstance(stmt, ir.For):
        if jumps(stmt.body):
            return []  # statements after the jump may not run
        place = place.inside(stmt)
    return [
        box
        for child in stmt.children()
        if isinstance(child, ir.Stmt)
        for box in _boxes(child, buffer, place, analyzer)
    ]


def _inside(
    realize: ir.BlockRealize, buffer: ir.Buffer, place: _Place, analyzer: Analyzer
) -> list[Box]:
    """Boxes that the body of a block definitely writes where its predicate holds."""
    block = realize.block
    binding = realize.values
    if not ir.is_const_int(realize.predicate, 1):
        place = place.when(realize.predicate)
    views = {view.buffer for view in block.match_buffers if view.source.buffer is buffer}
    stores = ir.collect(block.body, ir.BufferStore)
    if not views and any(store.buffer is buffer for store in stores):
        return _boxes(ir.substitute(block.body, binding), buffer, place, analyzer)
    return [
        box
        for region in block.writes
        if region.buffer is buffer
        for box in _stated(ir.substitute(region, binding), place, analyzer)
    ]


def _stated(region: ir.BufferRegion, place: _Place, analyzer: Analyzer) -> list[Box]:
    """The box of a region that is written completely whenever a block runs."""
    loops = dict(place.loops)
    indices: list[ir.Expr] = []
    for rng in region.region:
        index = rng.min
        if not ir.is_const_int(rng.extent, 1):
            along = ir.Var("r", rng.min.dtype)
            loops[along] = ir.Range(ir.const(0, along.dtype), ir.cast_to(rng.extent, along.dtype))
            index = ir.add(index, along)
        indices.append(index)
    store = ir.BufferStore(region.buffer, ir.const(0, region.buffer.dtype), tuple(indices))
    return _box(store, msgspec.structs.replace(place, loops=loops), analyzer)


def _chosen(stmt: ir.IfThenElse, buffer: ir.Buffer, place: _Place, analyzer: Analyzer) -> list[Box]:
    """Boxes written under a condition known to hold, and boxes written by both branches."""
    boxes = _boxes(stmt.then_case, buffer, place.when(stmt.condition), analyzer)
    if stmt.else_case is not None:
        boxes += _boxes(stmt.else_case, buffer, place.when(ir.Not(stmt.condition)), analyzer)
        other = _boxes(stmt.else_case, buffer, place, analyzer)
        boxes += [
            box
            for box in _boxes(stmt.then_case, buffer, place, analyzer)
            if jointly_cover(other, box, analyzer)
        ]
    return boxes


def _box(store: ir.BufferStore, place: _Place, analyzer: Analyzer) -> list[Box]:
    """The box that a store fills; empty if it may leave gaps."""
    if any(not i.dtype.is_scalar for i in store.indices):
        single = _one_lane(store)
        if single is None:
            return []
        store, lane = single
        place = place.inside(lane)
    moving = [i for i in store.indices if ir.uses_var(i, set(place.loops))]
    moved = {v: d for v, d in place.loops.items() if any(ir.uses_var(i, v) for i in moving)}
    known = analyzer.copy()
    for var, domain in place.loops.items():
        if var not in moved and not _surely_runs(domain, known, place.sizes):
            return []  # may have no iterations
        known.bind(var, domain)
    parts = [c for whole in place.conditions for c in conjuncts(whole)]
    unsure = [c for c in parts if not known.prove(c)]
    if any(not set(ir.free_vars(c)) & set(moved) for c in unsure):
        return []  # may never hold
    predicate = ir.all_of(unsure) if unsure else None
    if not fill_box(moving, moved, predicate, analyzer, place.sizes):
        return []
    box = _bounded(store.indices, moved, analyzer, predicate)
    return [] if box is None else [box]


def _one_lane(store: ir.BufferStore) -> tuple[ir.BufferStore, ir.For] | None:
    """Convert a vector store to a store of one lane and the loop over the lanes."""
    lanes = max(i.dtype.lanes for i in store.indices)
    masked = store.predicate is not None
    if masked or not all(i.dtype.is_scalar or isinstance(i, ir.Ramp) for i in store.indices):
        return None
    lane = ir.Var("lane", ir.dtype_of("int32"))
    indices = tuple(
        ir.add(*ir.match_types(i.base, ir.mul(*ir.match_types(lane, i.stride))))
        if isinstance(i, ir.Ramp)
        else i
        for i in store.indices
    )
    single = ir.BufferStore(store.buffer, ir.const(0, store.buffer.dtype), indices)
    return single, ir.For(
        lane, ir.const(0, lane.dtype), ir.const(lanes, lane.dtype), ir.ForKind.SERIAL, single
    )


def _bounded(
    indices: Sequence[ir.Expr],
    domains: Mapping[ir.Var, ir.Range],
    analyzer: Analyzer,
    predicate: ir.Expr | None,
) -> Box | None:
    """Bounding box of the indices; None if one is unbounded, such as a wrapping value."""
    unknown = [ir.const(-1, i.dtype) for i in indices]
    box = bound_region(_points(indices), domains, analyzer, predicate, unknown)
    return None if any(ir.is_const_int(rng.extent, -1) for rng in box) else box


def _points(indices: Sequence[ir.Expr]) -> Box:
    return tuple(ir.point(i) for i in indices)
