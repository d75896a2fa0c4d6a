"""A walk over the body of a block that collects what it touches, in terms of its iterators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TypeVar

from blockwright import ir
from blockwright.analysis.access.boxes import Box, is_short, is_within, lanes_of, value_hull, within
from blockwright.analysis.access.stable_values import (
    is_pure,
    is_steady,
    reduced_over,
    without_lets,
    written_buffers,
)
from blockwright.analysis.access.store_coverage import filled_boxes
from blockwright.arith import Analyzer, IntervalSet, bound_region, covers, hull
from blockwright.arith.condition import conjuncts

NodeT = TypeVar("NodeT", bound=ir.Node)
TouchedBoxes = dict[ir.Buffer, list[tuple[Box, Analyzer]]]
"""Boxes in order of first access, each with what is known where it is touched."""


class Walker:
    """Collects the boxes of all accesses per buffer, and what is known where each is touched.

    Attributes:
        outside: what is known where the block runs.
        analyzer: what is known where the walk stands: the loops around it have iterations.
        busiest: what is known where all loops have iterations and all blocks run.
        domains: what the loops around run over.
        hidden: variables of loops, which stand in no region.
        conditions: under which statements the walk stands.
        begun: the stores that give single elements an initial value, whatever happens.
        first: what is read before all elements have their initial values.
    """

    def __init__(self, analyzer: Analyzer, block: ir.Block, addresses: bool = True) -> None:
        self.addresses = addresses
        self.outside = self.analyzer = analyzer
        self.busiest = analyzer.copy()
        self.domains: dict[ir.Var, ir.Range | IntervalSet] = {}
        self.hidden: set[ir.Var] = set()
        self.conditions: list[ir.Expr] = []
        self.lets: dict[ir.Var, ir.Expr] = {}
        self.written_out: dict[ir.Var, ir.Expr] = {}  # values of `lets` in terms of no other name
        self.inside: set[ir.Buffer] = set(block.alloc_buffers)
        self.views: dict[ir.Buffer, ir.BufferRegion] = {}
        self.reads: TouchedBoxes = {}
        self.writes: TouchedBoxes = {}
        self.begun: list[ir.BufferStore] = []
        self.first: TouchedBoxes = {}
        for match in block.match_buffers:
            self.views[match.buffer] = match.source

    # ------------------------------------------------------------------ scopes
    def _loop(self, node: ir.For) -> None:
        """What lies in a loop runs if the loop does; what stands beside it may without."""
        self.visit(node.min)
        self.visit(node.extent)
        self.hidden.add(node.loop_var)
        around = self.analyzer
        self.analyzer = around.copy()
        dom = self._without_names(node.dom)
        if is_steady(dom):
            self.analyzer.bind(node.loop_var, dom)
            self.busiest.bind(node.loop_var, dom)
            self.domains[node.loop_var] = dom
        else:
            low = dom.min if is_steady(dom.min) else None
            self.domains[node.loop_var] = IntervalSet(low, None)
        self.visit(node.body)
        self.analyzer = around
        del self.domains[node.loop_var]  # elsewhere the loop may have no iterations

    def _branches(self, node: ir.IfThenElse) -> None:
        self.visit(node.condition)
        cases = (node.then_case, node.condition), (node.else_case, ir.Not(node.condition))
        for case, when in cases:
            if case is not None:
                self.conditions.append(when)
                self.visit(case)
                self.conditions.pop()

    def begin(self, block: ir.Block, init: ir.Stmt) -> None:
        """From here on all elements have the initial values that `init` gives them.

        It ran in the first of the instances of a reduction: only elements that the others find in
        the same place have a value.
        """
        parts = init.seq if isinstance(init, ir.SeqStmt) else (init,)
        stores = [p for p in parts if isinstance(p, ir.BufferStore) and p.predicate is None]
        moving = reduced_over(block)
        changing = (
            None
            if all(is_steady(i) for s in stores for i in s.indices)
            else (written_buffers(block))
        )

        def stays(index: ir.Expr) -> bool:
            loaded = {load.buffer for load in ir.collect(index, ir.BufferLoad)} if changing else ()
            same = not changing or changing.isdisjoint(loaded)
            return same and is_pure(index) and not ir.uses_var(index, moving)

        self.begun = [s for s in stores if all(map(stays, s.indices))]
        self.first, self.reads = self.reads, {}

    def leave_begun(self, block: ir.Block) -> None:
        """Drop reads of elements that have been given an initial value."""
        init = block.init
        if init is None:
            return
        moving = reduced_over(block)
        begun = set(self.writes) & {s.buffer for s in ir.collect(init, ir.BufferStore)}
        begun |= {r.buffer for b in ir.collect(init, ir.Block) for r in b.writes}
        for buffer in [b for b in self.reads if b in begun]:
            created = [
                box
                for box in filled_boxes(init, buffer, self.outside)
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
        later, self.reads = self.reads, self.first
        for buffer, boxes in later.items():
            self.reads.setdefault(buffer, []).extend(boxes)

    def _is_begun(self, node: ir.BufferLoad) -> bool:
        """Whether a load is of an element that has just been given its initial value."""
        return any(
            store.buffer is node.buffer and ir.structural_equal(store.indices, node.indices)
            for store in self.begun
        )

    def visit(self, node: ir.Node) -> None:
        if isinstance(node, ir.BufferStore):
            self._touch(self.writes, node.buffer, node.indices)
            for child in (*node.indices, node.value):
                self.visit(child)
            if node.predicate is not None:
                self.visit(node.predicate)
        elif isinstance(node, ir.BufferLoad):
            if not self._is_begun(node):
                self._touch(self.reads, node.buffer, node.indices)
            for child in node.indices:
                self.visit(child)
            if node.predicate is not None:
                self.visit(node.predicate)
        elif isinstance(node, ir.For):
            self._loop(node)
        elif isinstance(node, ir.IfThenElse):
            self._branches(node)
        elif isinstance(node, ir.BlockRealize):
            self._inner_block(node)
        elif isinstance(node, (ir.LetStmt, ir.Let)):
            self.visit(node.value)
            self.lets[node.var] = node.value
            self.written_out.pop(node.var, None)
            self.visit(node.body)
        elif isinstance(node, (ir.Allocate, ir.DeclBuffer)):
            self.inside.add(node.buffer)
            if isinstance(node, ir.DeclBuffer):
                self.visit(node.source)
            self.visit(node.body)
        elif ir.is_atomic(node):
            self._atomic(node)
        elif isinstance(node, ir.Call) and node.op in ("address_of", "tensor"):
            self._address(node.args[0])
        elif isinstance(node, ir.Call) and node.op == "tvm_thread_allreduce":
            self._all_reduce(node)
        elif not isinstance(node, ir.Buffer):
            for child in node.children():
                self.visit(child)

    def _address(self, target: ir.Expr) -> None:
        if not isinstance(target, ir.BufferLoad):
            return
        for index in target.indices:
            self.visit(index)
        if self.addresses:
            whole = ir.full_region(target.buffer).region
            self._box(self.reads, target.buffer, whole, None)
            self._box(self.writes, target.buffer, whole, None)

    def _all_reduce(self, node: ir.Call) -> None:
        """A reduction over threads has its results as places: it writes them and reads nothing.

        Its arguments are n, n values, a condition, n places and the axes of the threads.
        """
        count = (ir.const_int(node.args[0]) if node.args else None) or 0
        for k, arg in enumerate(node.args):
            if not isinstance(arg, ir.BufferLoad) or not 2 + count <= k < 2 + 2 * count:
                self.visit(arg)
                continue
            self._touch(self.writes, arg.buffer, arg.indices)
            for index in arg.indices:
                self.visit(index)

    def _atomic(self, node: ir.Call) -> None:
        """An atomic update reads and writes its element and no other."""
        place = ir.atomic_place(node)
        if place is None:
            self.visit(node.args[0])
        else:
            self.visit(place)
            self._touch(self.writes, place.buffer, place.indices)
        self.visit(node.args[1])

    def _inner_block(self, node: ir.BlockRealize) -> None:
        block = node.block
        binding = dict(zip((it.var for it in block.iter_vars), node.iter_values, strict=True))
        for value in (*node.iter_values, node.predicate):
            self.visit(value)
        if self._never(node.predicate):  # a piece of a loop that a bound leaves empty
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
        """Whether a reduction inside runs all of its instances here, from the first one on.

        Its own signature leaves out what it updates. If the initial values are given outside, by
        another instance of this block, these are reads.
        """
        reduced = reduced_over(node.block)
        pairs = zip(node.block.iter_vars, node.iter_values, strict=True)
        values = [
            (self._without_names(value), it.dom.min) for it, value in pairs if it.var in reduced
        ]
        moving = {v for value, _ in values for v in ir.free_vars(value) if v in self.domains}
        firsts: dict[ir.Var, ir.Expr] = {}
        for var, domain in self.domains.items():  # outer loops stand first
            if var in moving:
                if domain.min is None:
                    return False
                firsts[var] = ir.substitute(domain.min, firsts)
            elif isinstance(domain, ir.Range) and ir.uses_var(domain, moving):
                return False
        for value, low in values:
            if not self.analyzer.prove_equal(*ir.match_types(ir.substitute(value, firsts), low)):
                return False
        conditions = [self._without_names(c) for c in (node.predicate, *self.conditions)]
        known = self._knowing(ir.all_of(conditions))
        return all(
            known.prove(ir.substitute(part, firsts))
            for c in conditions
            for part in conjuncts(c)
            if ir.uses_var(part, moving)
        )

    def _bound(
        self, rng: ir.Range, binding: dict[ir.Var, ir.Expr], node: ir.BlockRealize
    ) -> ir.Range:
        """A range of an inner block in terms of the loops here. What a predicate keeps from running
        may reach beyond the domains of the iterators: what they touch at most is less, then."""
        value = ir.substitute(rng, binding)
        if ir.is_const_int(node.predicate) or value is rng:
            return value
        reached = self._relax(value, self._told(node.predicate))
        domains = {it.var: it.dom for it in node.block.iter_vars}
        unknown = [ir.const(-1, rng.min.dtype)]
        largest = bound_region([rng], domains, self.analyzer, None, unknown)[0]
        if reached is None or ir.is_const_int(largest.extent, -1):
            return value
        less = covers([reached], [largest], self.analyzer)
        return largest if less and not covers([largest], [reached], self.analyzer) else value

    def _never(self, predicate: ir.Expr) -> bool:
        """Whether a condition is seen to fail for all values of the loops."""
        if ir.is_const_int(predicate):
            return ir.is_const_int(predicate, 0)
        return any(self.analyzer.prove(ir.logical_not(p)) for p in conjuncts(predicate))

    # ------------------------------------------------------------------ accesses
    def _touch(self, target: TouchedBoxes, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> None:
        if any(i.dtype.lanes > 1 and not isinstance(i, (ir.Ramp, ir.Broadcast)) for i in indices):
            self._box(target, buffer, ir.full_region(buffer).region, None)  # gathered lanes
            return
        ranges = [self._lanes(index, dim) for index, dim in zip(indices, buffer.shape, strict=True)]
        self._box(target, buffer, ranges, None)

    def _lanes(self, index: ir.Expr, dim: ir.Expr) -> ir.Range:
        """An index as a range; a ramp of values, of which each lane may wrap around, as all of a
        dimension."""
        index = self._without_names(index) if self.lets else index
        if not isinstance(index, ir.Ramp) or not any(
            self.analyzer.is_value(part) for part in (index.base, index.stride)
        ):
            return lanes_of(index)
        steps = ir.const_int(index.stride)
        if steps is None or abs(steps) * index.lanes >= 1 << 31:
            return ir.Range(ir.const(0, dim.dtype), dim)
        reach = steps * (index.lanes - 1)  # where a lane wraps, it ends below zero
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
            extra = len(view.region) - len(ranges)
            inner = [within(o, r) for o, r in zip(view.region[extra:], ranges, strict=True)]
            self._box(target, view.buffer, (*view.region[:extra], *inner), predicate)
            return
        if buffer in self.inside:
            return
        known = self.analyzer
        predicate = None if predicate is None else self._told(predicate)
        if predicate is not None:
            known = self._knowing(predicate)
            self.busiest.learn(predicate)
        box: Box = [self._relax(r, predicate) for r in ranges]
        target.setdefault(buffer, []).append((box, known))

    def _told(self, predicate: ir.Expr) -> ir.Expr | None:
        """What a condition says of loops and sizes, if anything."""
        parts = [p for p in conjuncts(self._without_names(predicate)) if is_steady(p)]
        parts = [p for p in parts if not ir.is_const_int(p, 1)]
        return ir.all_of(parts) if parts else None

    def _knowing(self, predicate: ir.Expr) -> Analyzer:
        told = self._told(predicate)
        if told is None:
            return self.analyzer
        known = self.analyzer.copy()
        known.learn(told)
        return known

    def _without_names(self, node: NodeT) -> NodeT:
        """A node with the values of names in their places; few values ever decide an index."""
        used: dict[ir.Var, ir.Expr] = {}
        for var in ir.collect(node, ir.Var):
            if var in self.lets:
                if var not in self.written_out:
                    self.written_out[var] = self._without_names(self.lets[var])
                used[var] = self.written_out[var]
        return ir.substitute(node, used)

    def _relax(self, rng: ir.Range, predicate: ir.Expr | None) -> ir.Range | None:
        if self.lets:
            rng = self._without_names(rng)
        rng = without_lets(rng)
        if not is_steady(rng):
            return None
        if not ir.uses_var(rng, set(self.domains)):
            return rng
        unknown = [ir.const(-1, rng.min.dtype)]
        box = bound_region([rng], self.domains, self.analyzer, predicate, unknown)[0]
        return self._slid(rng) if ir.is_const_int(box.extent, -1) else box

    def _slid(self, rng: ir.Range) -> ir.Range | None:
        """A range that starts at a value, which wraps around, and an index that loops move.

        What they move it by is less than half of the numbers of the type: where the sum wraps, it
        ends below zero, outside of the buffer.
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
        """The hulls of the collected boxes; unknown dimensions are taken whole."""
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
        """The hull of what is touched in one dimension.

        What it is where all of it is touched is the simplest form. That is the hull everywhere if
        it covers each part wherever this one is touched.
        """
        ranges = [rng for rng, _ in parts if rng is not None]
        if len(ranges) < len(parts):
            return None
        if len(ranges) == 1:
            return ranges[0]
        if any(self.outside.is_value(rng.min) for rng in ranges):
            return value_hull(ranges, self.outside)
        simple = reduce(lambda a, b: hull(a, b, self.busiest), ranges)
        seen = not ir.uses_var(simple, self.hidden)  # conditions may tell sizes by loops
        if seen and all(covers([simple], [rng], known) for rng, known in parts if rng is not None):
            return simple
        return reduce(lambda a, b: hull(a, b, self.outside), ranges)
