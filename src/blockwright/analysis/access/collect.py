"""Collects the boxes that a block accesses, in terms of the block iterators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TypeVar

from blockwright import ir
from blockwright.analysis.access.boxes import Box, is_short, is_within, lanes_of, value_hull
from blockwright.analysis.access.stable_values import (
    is_pure,
    is_steady,
    reduced_over,
    with_loads_named,
    without_lets,
    written_buffers,
)
from blockwright.analysis.access.store_coverage import filled_boxes
from blockwright.analysis.access.views import (
    box_behind_view,
    element_behind_view,
    filled_behind_view,
)
from blockwright.analysis.access.walk import AccessWalker
from blockwright.analysis.reduction.first_steps import begins_at, holds_at
from blockwright.arith import Analyzer, IntervalSet, bound_region, covers, hull
from blockwright.arith.condition import conjuncts

AccessT = TypeVar("AccessT", ir.BufferLoad, ir.BufferStore)

TouchedBoxes = dict[ir.Buffer, list[tuple[Box, Analyzer]]]
"""Boxes in order of first access, each with the facts known at the access."""


class BoxCollector(AccessWalker):
    """Collects per buffer the boxes of all accesses, and the facts known at each access.

    Attributes:
        outside: facts where the block runs.
        analyzer: facts at the current position, including that the enclosing loops have iterations.
        all_run: facts if all loops have iterations and all blocks run.
        domains: domains of the enclosing loops.
        hidden: loop variables, which must not occur in a region.
        conditions: conditions of the enclosing `if` statements.
        initialized: unconditional stores that initialize single elements, of no views.
        initial_reads: reads before all elements are initialized.
        block: the block whose accesses are collected.
    """

    def __init__(self, analyzer: Analyzer, block: ir.Block, addresses: bool = True) -> None:
        super().__init__()
        self.addresses = addresses
        self.outside = self.analyzer = analyzer
        self.all_run = analyzer.copy()
        self.domains: dict[ir.Var, ir.Range | IntervalSet] = {}
        self.hidden: set[ir.Var] = set()
        self.conditions: list[ir.Expr] = []
        self.inside: set[ir.Buffer] = set(block.alloc_buffers)
        self.views: dict[ir.Buffer, ir.BufferRegion] = {}
        self.reads: TouchedBoxes = {}
        self.writes: TouchedBoxes = {}
        self.initialized: list[ir.BufferStore] = []
        self.initial_reads: TouchedBoxes = {}
        for match in block.match_buffers:
            self.views[match.buffer] = match.source
        self.block = block

    # ------------------------------------------------------------------ scopes
    def visit_For(self, node: ir.For) -> None:
        """Visit a loop; facts about its domain hold inside it, but not after it."""
        self.visit(node.min)
        self.visit(node.extent)
        self.hidden.add(node.loop_var)
        around = self.analyzer
        self.analyzer = around.copy()
        dom = self.without_names(node.dom)
        if is_steady(dom):
            self.analyzer.bind(node.loop_var, dom)
            self.all_run.bind(node.loop_var, dom)
            self.domains[node.loop_var] = dom
        else:
            low = dom.min if is_steady(dom.min) else None
            self.domains[node.loop_var] = IntervalSet(low, None)
        self.visit(node.body)
        self.analyzer = around
        del self.domains[node.loop_var]  # after the loop, it may have had no iterations

    def branch(self, condition: ir.Expr, part: ir.Stmt | ir.Expr) -> None:
        self.conditions.append(condition)
        self.visit(part)
        self.conditions.pop()

    def begin(self, block: ir.Block, init: ir.Stmt) -> None:
        """Mark the point after which all elements are initialized by `init`.

        `init` runs only in the first instance of a reduction, so this counts only for elements
        whose indices are the same in all instances.
        """
        parts = init.seq if isinstance(init, ir.SeqStmt) else (init,)
        stores = [
            self._behind_views(p)
            for p in parts
            if isinstance(p, ir.BufferStore) and p.predicate is None
        ]
        moving = reduced_over(block)
        changing = (
            None if all(is_steady(i) for s in stores for i in s.indices) else written_buffers(block)
        )

        def stays(index: ir.Expr) -> bool:
            loaded = {load.buffer for load in ir.collect(index, ir.BufferLoad)} if changing else ()
            same = not changing or changing.isdisjoint(loaded)
            return same and is_pure(index) and not ir.uses_var(index, moving)

        self.initialized = [s for s in stores if all(map(stays, s.indices))]
        self.initial_reads, self.reads = self.reads, {}

    def drop_initialized_reads(self, block: ir.Block) -> None:
        """Drop reads of elements that have been initialized."""
        init = block.init
        if init is None:
            return
        initialized = self._filled(init)
        moving = reduced_over(block)
        for buffer in [b for b in self.reads if b in initialized]:
            created = [
                box
                for box in initialized[buffer]
                if not any(ir.uses_var(rng, moving) for rng in box)
            ]
            left = [
                (box, known)
                for box, known in self.reads[buffer]
                if not is_within(box, created, known)
            ]
            if left:
                self.reads[buffer] = left
            else:
                del self.reads[buffer]
        later, self.reads = self.reads, self.initial_reads
        for buffer, boxes in later.items():
            self.reads.setdefault(buffer, []).extend(boxes)

    def _filled(self, init: ir.Stmt) -> dict[ir.Buffer, list[tuple[ir.Range, ...]]]:
        """Per buffer read, the boxes that `init` writes completely, also through views of it."""
        stored = [s.buffer for s in ir.collect(init, ir.BufferStore)]
        stored += [r.buffer for b in ir.collect(init, ir.Block) for r in b.writes]
        result: dict[ir.Buffer, list[tuple[ir.Range, ...]]] = {}
        for name in dict.fromkeys(stored):
            buffer, views = name, list[ir.BufferRegion]()
            while (view := self.views.get(buffer)) is not None:
                buffer = view.buffer
                views.append(view)
            if buffer not in self.reads:
                continue
            boxes = filled_boxes(init, name, self.outside)
            for view in views:
                boxes = [filled_behind_view(view, box) for box in boxes]
            result.setdefault(buffer, []).extend(boxes)
        return result

    def _behind_views(self, node: AccessT) -> AccessT:
        """An access of a view as an access of the memory behind it."""
        while (view := self.views.get(node.buffer)) is not None:
            indices = element_behind_view(view, node.indices)
            node = node.replace(buffer=view.buffer, indices=indices)
        return node

    def _is_initialized(self, node: ir.BufferLoad) -> bool:
        """Whether a load reads an element that was just initialized."""
        if not self.initialized:
            return False
        node = self._behind_views(node)
        return any(
            store.buffer is node.buffer and ir.structural_equal(store.indices, node.indices)
            for store in self.initialized
        )

    # ------------------------------------------------------------------ inner blocks
    def visit_BlockRealize(self, node: ir.BlockRealize) -> None:
        block = node.block
        binding = node.values
        for value in (*node.iter_values, node.predicate):
            self.visit(value)
        if self._never(node.predicate):  # a piece of a partitioned loop that is empty
            return
        for target, regions in ((self.reads, block.reads), (self.writes, block.writes)):
            for region in regions:
                ranges = tuple(self._bound(r, binding, node) for r in region.region)
                self._box(target, region.buffer, ranges, node.predicate)
        if block.init is not None and not self._begins(node):
            for region in block.writes:
                ranges = tuple(self._bound(r, binding, node) for r in region.region)
                self._box(self.reads, region.buffer, ranges, node.predicate)

    def _begins(self, node: ir.BlockRealize) -> bool:
        """Whether an inner reduction runs all of its instances here, starting with the first.

        Its own signature omits reads of the elements it updates. If the init statement runs
        outside, in another instance of this block, the updates count as reads.
        """
        reduced = reduced_over(node.block)
        pairs = node.bindings
        values = [
            (self.without_names(value), it.dom.min) for it, value in pairs if it.var in reduced
        ]
        moving = {v for value, _ in values for v in ir.free_vars(value) if v in self.domains}
        firsts: dict[ir.Var, ir.Expr] = {}
        for var, domain in self.domains.items():  # outer loops come first
            if var in moving:
                if domain.min is None:
                    return False
                firsts[var] = ir.substitute(domain.min, firsts)
            elif isinstance(domain, ir.Range) and ir.uses_var(domain, moving):
                return False
        if not begins_at(values, firsts, self.analyzer):
            return False
        conditions = [self.without_names(c) for c in (node.predicate, *self.conditions)]
        conditions = with_loads_named(conditions, self.hidden, self.block)
        known = self._knowing(ir.all_of(conditions)).copy()
        for var, domain in self.domains.items():
            if isinstance(domain, IntervalSet) and domain.min is not None:
                known.learn(ir.GE(*ir.match_types(var, domain.min)))
        return holds_at(conditions, firsts, known)

    def _bound(
        self, rng: ir.Range, binding: dict[ir.Var, ir.Expr], node: ir.BlockRealize
    ) -> ir.Range:
        """A range of an inner block in terms of the loops here.

        Instances that the predicate excludes may lie beyond the iterator domains; the range over
        the domains is then the tighter bound.
        """
        value = ir.substitute(rng, binding)
        if ir.is_const_int(node.predicate) or value is rng:
            return value
        reached = self._relax(value, self._steady_part(node.predicate))
        domains = {it.var: it.dom for it in node.block.iter_vars}
        unknown = [ir.const(-1, rng.min.dtype)]
        largest = bound_region([rng], domains, self.analyzer, None, unknown)[0]
        if reached is None or ir.is_const_int(largest.extent, -1):
            return value
        less = covers([reached], [largest], self.analyzer)
        return largest if less and not covers([largest], [reached], self.analyzer) else value

    def _never(self, predicate: ir.Expr) -> bool:
        """Whether a condition provably fails for all values of the loops."""
        if ir.is_const_int(predicate):
            return ir.is_const_int(predicate, 0)
        return any(self.analyzer.prove(ir.logical_not(p)) for p in conjuncts(predicate))

    # ------------------------------------------------------------------ accesses
    def read(self, load: ir.BufferLoad) -> None:
        if not self._is_initialized(load):
            self._touch(self.reads, load)

    def write(self, element: ir.BufferStore | ir.BufferLoad) -> None:
        self._touch(self.writes, element)

    def address(self, first: ir.BufferLoad) -> None:
        if self.addresses:
            whole = ir.full_region(first.buffer).region
            self._box(self.reads, first.buffer, whole, None)
            self._box(self.writes, first.buffer, whole, None)

    def local(self, buffer: ir.Buffer) -> None:
        self.inside.add(buffer)

    def _touch(self, target: TouchedBoxes, element: ir.BufferStore | ir.BufferLoad) -> None:
        buffer, indices = element.buffer, element.indices
        if any(i.dtype.lanes > 1 and not isinstance(i, (ir.Ramp, ir.Broadcast)) for i in indices):
            self._box(target, buffer, ir.full_region(buffer).region, None)  # gathered lanes
            return
        ranges = [self._lanes(index, dim) for index, dim in zip(indices, buffer.shape, strict=True)]
        self._box(target, buffer, ranges, None)

    def _lanes(self, index: ir.Expr, dim: ir.Expr) -> ir.Range:
        """An index as a range.

        For a ramp of values, whose lanes may wrap around, this may be the whole dimension.
        """
        index = self.without_names(index)
        if not isinstance(index, ir.Ramp) or not any(
            self.analyzer.is_value(part) for part in (index.base, index.stride)
        ):
            return lanes_of(index)
        steps = ir.const_int(index.stride)
        if steps is None or abs(steps) * index.lanes >= 1 << 31:
            return ir.Range(ir.const(0, dim.dtype), dim)
        reach = steps * (index.lanes - 1)  # a wrapped lane is negative
        start = ir.add(index.base, min(reach, 0))
        return ir.Range(start, ir.const(abs(reach) + 1, start.dtype))

    def _box(
        self,
        target: TouchedBoxes,
        buffer: ir.Buffer,
        ranges: Sequence[ir.Range],
        predicate: ir.Expr | None,
    ) -> None:
        view = self.views.get(buffer)
        if view is not None:
            self._box(target, view.buffer, box_behind_view(view, ranges), predicate)
            return
        if buffer in self.inside:
            return
        known = self.analyzer
        predicate = None if predicate is None else self._steady_part(predicate)
        if predicate is not None:
            known = self._knowing(predicate)
            self.all_run.learn(predicate)
        box: Box = [self._relax(r, predicate) for r in ranges]
        target.setdefault(buffer, []).append((box, known))

    def _steady_part(self, predicate: ir.Expr) -> ir.Expr | None:
        """The part of a condition that depends only on loops and sizes, or None."""
        parts = [p for p in conjuncts(self.without_names(predicate)) if is_steady(p)]
        parts = [p for p in parts if not ir.is_const_int(p, 1)]
        return ir.all_of(parts) if parts else None

    def _knowing(self, predicate: ir.Expr) -> Analyzer:
        steady = self._steady_part(predicate)
        if steady is None:
            return self.analyzer
        known = self.analyzer.copy()
        known.learn(steady)
        return known

    def _relax(self, rng: ir.Range, predicate: ir.Expr | None) -> ir.Range | None:
        rng = without_lets(self.without_names(rng))
        if not is_steady(rng):
            return None
        if not ir.uses_var(rng, set(self.domains)):
            return rng
        unknown = [ir.const(-1, rng.min.dtype)]
        box = bound_region([rng], self.domains, self.analyzer, predicate, unknown)[0]
        return self._range_of_moved_value(rng) if ir.is_const_int(box.extent, -1) else box

    def _range_of_moved_value(self, rng: ir.Range) -> ir.Range | None:
        """A range whose start is the sum of a wrapping value and an index that loops move.

        The index moves by less than half of the range of the type. If the sum wraps, it becomes
        negative, outside of the buffer.
        """
        analyzer, space = self.analyzer, self.analyzer.space
        start = analyzer.lift(rng.min)
        if not start.wraps:
            return None
        moving = set(self.domains)
        still = space.zero
        for mono, factor in start.terms:
            if not any(space.atoms[a].variables(space) & moving for a in mono):
                still = space.add(still, space.monomial(mono, factor))
        dtype = rng.min.dtype
        rest = ir.Range(analyzer.lower(space.sub(start, still), dtype), rng.extent)
        if analyzer.is_value(rest.min) or not still.terms:
            return None
        unknown = [ir.const(-1, dtype)]
        box = bound_region([rest], self.domains, analyzer, None, unknown)[0]
        if ir.is_const_int(box.extent, -1) or not is_short(box.extent, analyzer):
            return None
        return ir.Range(ir.add(*ir.match_types(analyzer.lower(still, dtype), box.min)), box.extent)

    def result(self, found: TouchedBoxes) -> tuple[ir.BufferRegion, ...]:
        """Hulls of the collected boxes; an unknown dimension is taken whole."""
        out: list[ir.BufferRegion] = []
        for buffer, boxes in found.items():
            joined = [
                self._joined([(box[k], known) for box, known in boxes]) for k in range(buffer.ndim)
            ]
            ranges = [
                ir.Range(ir.const(0, dim.dtype), dim) if rng is None else rng
                for rng, dim in zip(joined, buffer.shape, strict=True)
            ]
            out.append(ir.BufferRegion(buffer, tuple(ranges)))
        return tuple(out)

    def _joined(self, parts: list[tuple[ir.Range | None, Analyzer]]) -> ir.Range | None:
        """Hull of the accessed ranges of one dimension.

        The hull under the facts `all_run`, where everything is accessed, has the simplest form. It
        is valid everywhere if it covers each part under the facts known at that part.
        """
        ranges = [rng for rng, _ in parts if rng is not None]
        if len(ranges) < len(parts):
            return None
        if len(ranges) == 1:
            return ranges[0]
        if any(self.outside.is_value(rng.min) for rng in ranges):
            return value_hull(ranges, self.outside)
        simple = reduce(lambda a, b: hull(a, b, self.all_run), ranges)
        seen = not ir.uses_var(simple, self.hidden)  # conditions may relate sizes to loops
        if seen and all(covers([simple], [rng], known) for rng, known in parts if rng is not None):
            return simple
        return reduce(lambda a, b: hull(a, b, self.outside), ranges)
