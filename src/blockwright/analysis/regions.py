"""Access regions: the boxes of buffers that a block reads and writes, over its own iterators.

Loops, inner blocks and lets inside the block are eliminated by interval evaluation, so that the
result mentions only what is visible outside: the block's iterators and symbolic sizes. Buffers
that live inside the block are left out. Reads of elements to which the block gives an initial
value are not among its reads (the update belongs to the block, not to a producer). All others are:
what the initial value itself reads, and other elements of a buffer that the block updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TypeVar

from blockwright import ir
from blockwright.analysis.filled import filled_boxes
from blockwright.arith import Analyzer, bound_region, covers, hull, jointly_cover
from blockwright.arith import clip_region as clip_box
from blockwright.arith.condition import conjuncts

Regions = tuple[tuple[ir.BufferRegion, ...], tuple[ir.BufferRegion, ...]]
NodeT = TypeVar("NodeT", bound=ir.Node)
_Box = list["ir.Range | None"]
"""One range per dimension; None is a dimension of which nothing is known."""
Boxes = dict[ir.Buffer, list[_Box]]
_Boxes = dict[ir.Buffer, list[tuple[_Box, Analyzer]]]
"""Boxes in order of first access, each with what is known where it is touched."""


def block_access_regions(block: ir.Block, analyzer: Analyzer | None = None) -> Regions:
    """The regions `block` reads and writes, one box per buffer, in order of first access.

    Args:
        block: the block; its own `reads` and `writes` are ignored, those of inner blocks are used.
        analyzer: what is known about the free symbols; the block's iterators are added.
    """
    known = Analyzer() if analyzer is None else analyzer.copy()
    for it in block.iter_vars:
        known.bind(it.var, it.dom)
    walker = _Walker(known, block)
    for view in block.match_buffers:  # what they show may be chosen by elements
        for rng in view.source.region:
            walker.visit(rng)
    if block.init is not None:  # it is set, too, where the reduction takes no step
        reduced = [it.var for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE]
        walker.outside = walker.analyzer = known.without_empty(reduced)
        walker.visit(block.init)
        walker.begin(block.init)
        walker.analyzer = known
    walker.visit(block.body)
    walker.leave_begun(block.init)
    return walker.result(walker.reads), walker.result(walker.writes)


def access_boxes(block: ir.Block) -> tuple[Boxes, Boxes]:
    """Per buffer, the boxes of all reads and of all writes of a block, one per access; a dimension
    of which nothing is known is None. Other than in a signature, no read is left out."""
    known = Analyzer()
    for it in block.iter_vars:
        known.bind(it.var, it.dom)
    walker = _Walker(known, block)
    for part in (block.init, block.body):
        if part is not None:
            walker.visit(part)
    reads, writes = ({b: [box for box, _ in boxes] for b, boxes in found.items()}
                     for found in (walker.reads, walker.writes))  # fmt: skip
    return reads, writes


def reads_elsewhere(block: ir.Block, analyzer: Analyzer) -> list[ir.BufferRegion]:
    """What an instance of a block reads of the buffers it writes, outside of what it writes.

    One region per access, in terms of the block's iterators. Where addresses are taken, only the
    signature says what is touched.
    """
    own = {r.buffer: r for r in block.writes}
    if _reads_written(block, own):
        return []
    known = analyzer.copy()
    for it in block.iter_vars:
        known.bind(it.var, it.dom)
    read = [r for r in block.reads if r.buffer in own]
    if not any(c.op in ("address_of", "tensor") for c in ir.collect(block.body, ir.Call)):
        walker = _Walker(known, block)
        walker.visit(block.body)
        read = [ir.BufferRegion(buffer, _known_box(box, buffer)) for buffer, boxes in
                walker.reads.items() if buffer in own for box, _ in boxes]  # fmt: skip
    return [r for r in read if not covers(own[r.buffer].region, r.region, known)]


def _reads_written(block: ir.Block, own: Mapping[ir.Buffer, ir.BufferRegion]) -> bool:
    """Whether every access to a written buffer is to the element that its write region states."""
    for node in ir.walk(block.body):
        if isinstance(node, (ir.BlockRealize, ir.DeclBuffer)):
            return False
        if isinstance(node, ir.Call) and node.op in ("address_of", "tensor"):
            return False
        if isinstance(node, (ir.BufferLoad, ir.BufferStore)) and node.buffer in own:
            stated = own[node.buffer].region
            if not all(ir.is_const_int(r.extent, 1) and ir.structural_equal(r.min, index)
                       for r, index in zip(stated, node.indices, strict=True)):  # fmt: skip
                return False
    return not block.match_buffers


def _known_box(box: Sequence[ir.Range | None], buffer: ir.Buffer) -> tuple[ir.Range, ...]:
    """A box with whole dimensions where nothing is known."""
    whole = ir.full_region(buffer).region
    return tuple(w if rng is None else rng for rng, w in zip(box, whole, strict=True))


def relax_region(
    region: ir.BufferRegion,
    domains: Mapping[ir.Var, ir.Range],
    analyzer: Analyzer,
    predicate: ir.Expr | None = None,
) -> ir.BufferRegion:
    """The box that covers `region` while the variables of `domains` run over their ranges.

    `predicate` tells which points count: a bound that it states tightens the box.
    """
    shape = region.buffer.shape
    ranges = region.region
    if any(ir.uses_var(r, set(domains)) for r in ranges):
        ranges = bound_region(ranges, domains, analyzer, predicate, shape)
    return ir.BufferRegion(region.buffer, tuple(ranges))


def with_one_box_per_buffer(block: ir.Block) -> ir.Block:
    """The block with the regions of each buffer in its signature joined into one box."""
    if all(len({r.buffer for r in regions}) == len(regions)
           for regions in (block.reads, block.writes)):  # fmt: skip
        return block
    known = Analyzer()
    for it in block.iter_vars:
        known.bind(it.var, it.dom)
    return block.replace(reads=_one_box_each(block.reads, known),
                         writes=_one_box_each(block.writes, known))  # fmt: skip


def _one_box_each(
    regions: Sequence[ir.BufferRegion], analyzer: Analyzer
) -> tuple[ir.BufferRegion, ...]:
    found: dict[ir.Buffer, list[ir.BufferRegion]] = {}
    for region in regions:
        found.setdefault(region.buffer, []).append(region)
    return tuple(
        reduce(lambda a, b: _joined_regions(a, b, analyzer), group) for group in found.values()
    )


def _joined_regions(a: ir.BufferRegion, b: ir.BufferRegion, analyzer: Analyzer) -> ir.BufferRegion:
    ranges = (hull(x, y, analyzer) for x, y in zip(a.region, b.region, strict=True))
    return ir.BufferRegion(a.buffer, tuple(ranges))


def clip_region(region: ir.BufferRegion, analyzer: Analyzer) -> ir.BufferRegion:
    """The part of a region inside the buffer."""
    return ir.BufferRegion(region.buffer, clip_box(region.region, region.buffer.shape, analyzer))


class _Walker:
    """Collects the boxes of all accesses per buffer, and what is known where each is touched.

    Attributes:
        outside: what is known where the block runs.
        analyzer: what is known where the walk stands: the loops around it have iterations.
        busiest: what is known where all loops have iterations and all blocks run.
        begun: the stores that give single elements an initial value, whatever happens.
        first: what is read before all elements have their initial values.
    """

    def __init__(self, analyzer: Analyzer, block: ir.Block) -> None:
        self.outside = self.analyzer = analyzer
        self.busiest = analyzer.copy()
        self.domains: dict[ir.Var, ir.Range] = {}
        self.lets: dict[ir.Var, ir.Expr] = {}
        self.written_out: dict[ir.Var, ir.Expr] = {}  # values of `lets` in terms of no other name
        self.inside: set[ir.Buffer] = set(block.alloc_buffers)
        self.views: dict[ir.Buffer, ir.BufferRegion] = {}
        self.reads: _Boxes = {}
        self.writes: _Boxes = {}
        self.begun: list[ir.BufferStore] = []
        self.first: _Boxes = {}
        for match in block.match_buffers:
            self.views[match.buffer] = match.source

    # ------------------------------------------------------------------ scopes
    def _loop(self, node: ir.For) -> None:
        """What lies in a loop runs if the loop does; what stands beside it may without."""
        self.visit(node.min)
        self.visit(node.extent)
        around = self.analyzer
        self.analyzer = around.copy()
        dom = node.dom
        self.analyzer.bind(node.loop_var, dom)
        self.busiest.bind(node.loop_var, dom)
        self.domains[node.loop_var] = dom
        self.visit(node.body)
        self.analyzer = around

    def begin(self, init: ir.Stmt) -> None:
        """From here on all elements have the initial values that `init` gives them."""
        parts = init.seq if isinstance(init, ir.SeqStmt) else (init,)
        self.begun = [p for p in parts if isinstance(p, ir.BufferStore) and p.predicate is None]
        self.first, self.reads = self.reads, {}

    def leave_begun(self, init: ir.Stmt | None) -> None:
        """Drop reads of elements that have been given an initial value."""
        if init is None:
            return
        begun = set(self.writes) & {s.buffer for s in ir.collect(init, ir.BufferStore)}
        begun |= {r.buffer for b in ir.collect(init, ir.Block) for r in b.writes}
        for buffer in begun & set(self.reads):
            made = filled_boxes(init, buffer, self.outside)
            left = [(box, known) for box, known in self.reads.pop(buffer)
                    if not _made(box, made, known)]  # fmt: skip
            if left:
                self.reads[buffer] = left
        later, self.reads = self.reads, self.first
        for buffer, boxes in later.items():
            self.reads.setdefault(buffer, []).extend(boxes)

    def _is_begun(self, node: ir.BufferLoad) -> bool:
        """Whether a load is of an element that has just been given its initial value."""
        return any(store.buffer is node.buffer
                   and ir.structural_equal(store.indices, node.indices)
                   for store in self.begun)  # fmt: skip

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
        elif isinstance(node, ir.For):
            self._loop(node)
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
            target = node.args[0]
            if isinstance(target, ir.BufferLoad):
                whole = ir.full_region(target.buffer).region
                self._box(self.reads, target.buffer, whole, None)
                self._box(self.writes, target.buffer, whole, None)
        elif not isinstance(node, ir.Buffer):
            for child in node.children():
                self.visit(child)

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

    def _bound(
        self, rng: ir.Range, binding: dict[ir.Var, ir.Expr], node: ir.BlockRealize
    ) -> ir.Range:
        """A range of an inner block in terms of the loops here. What a predicate keeps from running
        may reach beyond the domains of the iterators: what they touch at most is less, then."""
        value = ir.substitute(rng, binding)
        if ir.is_const_int(node.predicate) or value is rng:
            return value
        reached = self._relax(value, node.predicate)
        domains = {it.var: it.dom for it in node.block.iter_vars}
        unknown = [ir.const(-1, rng.min.dtype)]
        most = bound_region([rng], domains, self.analyzer, None, unknown)[0]
        if reached is None or ir.is_const_int(most.extent, -1):
            return value
        less = covers([reached], [most], self.analyzer)
        return most if less and not covers([most], [reached], self.analyzer) else value

    def _never(self, predicate: ir.Expr) -> bool:
        """Whether a condition is seen to fail for all values of the loops."""
        if ir.is_const_int(predicate):
            return ir.is_const_int(predicate, 0)
        return any(self.analyzer.prove(ir.logical_not(p)) for p in conjuncts(predicate))

    # ------------------------------------------------------------------ accesses
    def _touch(self, target: _Boxes, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> None:
        if any(i.dtype.lanes > 1 and not isinstance(i, (ir.Ramp, ir.Broadcast)) for i in indices):
            self._box(target, buffer, ir.full_region(buffer).region, None)  # gathered lanes
            return
        self._box(target, buffer, tuple(_lanes_of(i) for i in indices), None)

    def _box(
        self,
        target: _Boxes,
        buffer: ir.Buffer,
        ranges: Sequence[ir.Range],
        predicate: ir.Expr | None,
    ) -> None:
        view = self.views.get(buffer)
        if view is not None:
            extra = len(view.region) - len(ranges)
            inner = [_within(o, r) for o, r in zip(view.region[extra:], ranges, strict=True)]
            self._box(target, view.buffer, (*view.region[:extra], *inner), predicate)
            return
        if buffer in self.inside:
            return
        if ir.is_const_int(predicate):
            predicate = None
        known = self.analyzer
        if predicate is not None:
            known = known.copy()
            known.learn(predicate)
            self.busiest.learn(predicate)
        box: _Box = [self._relax(r, predicate) for r in ranges]
        target.setdefault(buffer, []).append((box, known))

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
        nodes = list(ir.walk(rng))
        if any(isinstance(n, ir.BufferLoad) for n in nodes):
            return None
        if not any(isinstance(n, ir.Var) and n in self.domains for n in nodes):
            return rng
        unknown = [ir.const(-1, rng.min.dtype)]
        box = bound_region([rng], self.domains, self.analyzer, predicate, unknown)[0]
        return None if ir.is_const_int(box.extent, -1) else box

    def result(self, found: _Boxes) -> tuple[ir.BufferRegion, ...]:
        """The hulls of the collected boxes; unknown dimensions are taken whole."""
        out: list[ir.BufferRegion] = []
        for buffer, boxes in found.items():
            joined = [self._joined([(box[k], known) for box, known in boxes])
                      for k in range(buffer.ndim)]  # fmt: skip
            ranges = [ir.Range(ir.const(0, dim.dtype), dim) if rng is None else rng
                      for rng, dim in zip(joined, buffer.shape, strict=True)]  # fmt: skip
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
        simple = reduce(lambda a, b: hull(a, b, self.busiest), ranges)
        if all(covers([simple], [rng], known) for rng, known in parts if rng is not None):
            return simple
        return reduce(lambda a, b: hull(a, b, self.outside), ranges)


def _made(box: _Box, made: Sequence[Sequence[ir.Range]], analyzer: Analyzer) -> bool:
    """Whether other boxes cover one of which each dimension is known."""
    ranges = [rng for rng in box if rng is not None]
    return len(ranges) == len(box) and jointly_cover([tuple(m) for m in made], ranges, analyzer)


def behind_view(source: ir.BufferRegion, indices: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
    """Where an element of a view lies in the buffer whose region the view shows."""
    extra = len(source.region) - len(indices)
    shown = (r.min + i for r, i in zip(source.region[extra:], indices, strict=True))
    return (*(r.min for r in source.region[:extra]), *shown)


def _within(outer: ir.Range, rng: ir.Range) -> ir.Range:
    """A range of a view in the coordinates of what it is a view of, in one type of integers."""
    start = outer.min + rng.min
    return ir.Range(start, ir.cast_to(rng.extent, start.dtype))


def _lanes_of(index: ir.Expr) -> ir.Range:
    """An index as a range: a ramp covers what lies between its ends."""
    if isinstance(index, ir.Ramp):
        reach = index.stride * (index.lanes - 1)
        last = ir.maximum(index.base, index.base + reach)
        first = ir.minimum(index.base, index.base + reach)
        return ir.Range(first, last - first + 1)
    if isinstance(index, ir.Broadcast):
        return _lanes_of(index.value)
    return ir.point(index)
