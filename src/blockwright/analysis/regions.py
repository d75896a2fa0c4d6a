"""Access regions: the boxes of buffers that a block reads and writes, over its own iterators.

Loops, inner blocks and lets inside the block are eliminated by interval evaluation, so that the
result mentions only what is visible outside: the block's iterators and symbolic sizes. Buffers
that live inside the block are left out. A block with an initial value does not list what it
updates among its reads (the update belongs to the block, not to a producer).
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.interval import Interval, hull, interval_of, larger, smaller
from blockwright.arith import Analyzer

Regions = tuple[tuple[ir.BufferRegion, ...], tuple[ir.BufferRegion, ...]]


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
    if block.init is not None:
        walker.visit(block.init)
    walker.visit(block.body)
    writes = walker.result(walker.writes)
    written = set(walker.writes) if block.init is not None else set[ir.Buffer]()
    reads = walker.result({b: r for b, r in walker.reads.items() if b not in written})
    return reads, writes


def stmt_access_regions(
    stmt: ir.Stmt, domains: dict[ir.Var, ir.Range], analyzer: Analyzer
) -> Regions:
    """Regions of a statement outside blocks, with the variables of `domains` eliminated."""
    wrapper = ir.Block("", (), (), (), stmt)
    walker = _Walker(analyzer.copy(), wrapper)
    for var, dom in domains.items():
        walker.enter(var, dom.min, dom.extent)
    walker.visit(stmt)
    return walker.result(walker.reads), walker.result(walker.writes)


def relax_region(
    region: ir.BufferRegion,
    domains: dict[ir.Var, ir.Range],
    analyzer: Analyzer,
    predicate: ir.Expr | None = None,
) -> ir.BufferRegion:
    """The box that covers `region` while the variables of `domains` run over their ranges.

    Domains are given outermost first; a domain may mention variables before it. `predicate` tells
    which points exist: a bound it states for an index expression clips the box.
    """
    walker = _Walker(analyzer.copy(), None)
    for var, dom in domains.items():
        walker.enter(var, dom.min, dom.extent)
    limits = upper_limits(predicate)
    box: list[ir.Range] = []
    for dim, rng in zip(region.buffer.shape, region.region, strict=True):
        box.append(walker.range_of(walker.relax(rng.min, rng.extent, limits), dim, rng))
    return ir.BufferRegion(region.buffer, tuple(box))


def upper_limits(predicate: ir.Expr | None) -> list[tuple[ir.Expr, ir.Expr]]:
    """Pairs (expression, inclusive upper limit) that a conjunction of comparisons states."""
    limits: list[tuple[ir.Expr, ir.Expr]] = []
    stack = [] if predicate is None else [predicate]
    while stack:
        node = stack.pop()
        if isinstance(node, ir.And):
            stack += [node.a, node.b]
        elif isinstance(node, ir.LT):
            limits.append((node.a, node.b - 1))
        elif isinstance(node, ir.LE):
            limits.append((node.a, node.b))
        elif isinstance(node, ir.GT):
            limits.append((node.b, node.a - 1))
        elif isinstance(node, ir.GE):
            limits.append((node.b, node.a))
    return limits


class _Walker:
    """Collects per buffer and dimension the hull of all accesses; None is the whole dimension."""

    def __init__(self, analyzer: Analyzer, block: ir.Block | None) -> None:
        self.analyzer = analyzer
        self.domains: dict[ir.Var, Interval] = {}
        self.lets: dict[ir.Var, ir.Expr] = {}
        self.inside: set[ir.Buffer] = set(block.alloc_buffers) if block is not None else set()
        self.views: dict[ir.Buffer, ir.BufferRegion] = {}
        self.reads: dict[ir.Buffer, list[Interval | None]] = {}
        self.writes: dict[ir.Buffer, list[Interval | None]] = {}
        for match in block.match_buffers if block is not None else ():
            self.views[match.buffer] = match.source

    # ------------------------------------------------------------------ scopes
    def enter(self, var: ir.Var, low: ir.Expr, extent: ir.Expr) -> None:
        """Let a variable run over a range whose ends may move with outer ones."""
        self.analyzer.bind(var, ir.Range(low, extent))
        first = interval_of(low, self.domains, self.analyzer)
        last = interval_of(self.analyzer.simplify(low + extent - 1), self.domains, self.analyzer)
        if first is not None and last is not None:
            self.domains[var] = (first[0], last[1])
        else:
            self.lets[var] = var  # known to exist, unknown where

    def visit(self, node: ir.Node) -> None:
        if isinstance(node, ir.For):
            self.visit(node.min)
            self.visit(node.extent)
            self.enter(node.loop_var, node.min, node.extent)
            self.visit(node.body)
        elif isinstance(node, ir.BlockRealize):
            self._inner_block(node)
        elif isinstance(node, (ir.LetStmt, ir.Let)):
            self.visit(node.value)
            self._let(node.var, node.value)
            self.visit(node.body)
        elif isinstance(node, (ir.Allocate, ir.DeclBuffer)):
            self.inside.add(node.buffer)
            if isinstance(node, ir.DeclBuffer):
                self.visit(node.source)
            self.visit(node.body)
        elif isinstance(node, ir.BufferStore):
            self._touch(self.writes, node.buffer, node.indices)
            for child in (*node.indices, node.value):
                self.visit(child)
            if node.predicate is not None:
                self.visit(node.predicate)
        elif isinstance(node, ir.BufferLoad):
            self._touch(self.reads, node.buffer, node.indices)
            for child in node.indices:
                self.visit(child)
        elif isinstance(node, ir.Call) and node.op in ("address_of", "tensor"):
            target = node.args[0]
            if isinstance(target, ir.BufferLoad):
                self._whole(target.buffer)
        elif not isinstance(node, ir.Buffer):
            for child in node.children():
                self.visit(child)

    def _let(self, var: ir.Var, value: ir.Expr) -> None:
        found = interval_of(ir.substitute(value, self.lets), self.domains, self.analyzer)
        if found is not None and value.dtype.is_int:
            self.domains[var] = found
        else:
            self.lets[var] = value

    def _inner_block(self, node: ir.BlockRealize) -> None:
        block = node.block
        binding = dict(zip((it.var for it in block.iter_vars), node.iter_values, strict=True))
        limits = upper_limits(node.predicate)
        for value in (*node.iter_values, node.predicate):
            self.visit(value)
        for target, regions in ((self.reads, block.reads), (self.writes, block.writes)):
            for region in regions:
                ranges = [ir.substitute(r, binding) for r in region.region]
                self._box(target, region.buffer, ranges, limits)

    # ------------------------------------------------------------------ accesses
    def _touch(
        self,
        target: dict[ir.Buffer, list[Interval | None]],
        buffer: ir.Buffer,
        indices: tuple[ir.Expr, ...],
    ) -> None:
        one = [ir.Range(i, ir.const(1, i.dtype.element)) for i in indices]
        self._box(target, buffer, one, [])

    def _whole(self, buffer: ir.Buffer) -> None:
        ranges = list(ir.full_region(buffer).region)
        self._box(self.reads, buffer, ranges, [])
        self._box(self.writes, buffer, ranges, [])

    def _box(
        self,
        target: dict[ir.Buffer, list[Interval | None]],
        buffer: ir.Buffer,
        ranges: list[ir.Range],
        limits: list[tuple[ir.Expr, ir.Expr]],
    ) -> None:
        view = self.views.get(buffer)
        if view is not None:
            extra = len(view.region) - len(ranges)
            inner = [ir.Range(o.min + r.min, r.extent)
                     for o, r in zip(view.region[extra:], ranges, strict=True)]  # fmt: skip
            self._box(target, view.buffer, [*view.region[:extra], *inner], limits)
            return
        if buffer in self.inside:
            return
        box = [self.relax(r.min, r.extent, limits) for r in ranges]
        old = target.get(buffer)
        if old is None:
            target[buffer] = box
            return
        for dim, (a, b) in enumerate(zip(old, box, strict=True)):
            old[dim] = None if a is None or b is None else hull(a, b, self.analyzer)

    def relax(
        self, low: ir.Expr, extent: ir.Expr, limits: list[tuple[ir.Expr, ir.Expr]]
    ) -> Interval | None:
        """Interval of [low, low + extent) with the inner variables eliminated."""
        if self.lets:
            low, extent = ir.substitute(low, self.lets), ir.substitute(extent, self.lets)
            if ir.uses_var(low, {v for v, e in self.lets.items() if e is v} or set[ir.Var]()):
                return None
        first = interval_of(low, self.domains, self.analyzer)
        if first is None:
            return None
        if ir.is_const_int(extent, 1) and low.dtype.is_scalar:
            span: Interval | None = first
        else:
            span = interval_of(self.analyzer.simplify(low + extent - 1) if low.dtype.is_scalar
                               else low, self.domains, self.analyzer)  # fmt: skip
        if span is None:
            return None
        top = span[1]
        for expr, limit in limits:
            if ir.const_int(extent) == 1 and self.analyzer.prove_equal(expr, low):
                bound = interval_of(limit, self.domains, self.analyzer)
                if bound is not None:
                    top = smaller(top, bound[1], self.analyzer)
        return first[0], top

    def result(
        self, found: dict[ir.Buffer, list[Interval | None]]
    ) -> tuple[ir.BufferRegion, ...]:
        """The collected boxes as regions."""
        out: list[ir.BufferRegion] = []
        for buffer, box in found.items():
            ranges = [self.range_of(span, dim, None)
                      for span, dim in zip(box, buffer.shape, strict=True)]  # fmt: skip
            out.append(ir.BufferRegion(buffer, tuple(ranges)))
        return tuple(out)

    def range_of(self, span: Interval | None, dim: ir.Expr, like: ir.Range | None) -> ir.Range:
        """An interval as a range; the whole dimension when nothing is known."""
        if span is None:
            return ir.Range(ir.const(0, dim.dtype), dim)
        low, high = span
        if low is high:
            return ir.Range(low, ir.const(1, low.dtype))
        if like is not None and low is like.min and not _mentions(like.extent, self.domains):
            known = self.analyzer.prove_equal(high, low + like.extent - 1)
            if known:
                return ir.Range(low, like.extent)
        return ir.Range(low, self.analyzer.simplify(high - low + 1))


def _mentions(expr: ir.Expr, domains: dict[ir.Var, Interval]) -> bool:
    return any(isinstance(n, ir.Var) and n in domains for n in ir.walk(expr))


def clip_region(region: ir.BufferRegion, analyzer: Analyzer) -> ir.BufferRegion:
    """The part of a region inside the buffer."""
    box: list[ir.Range] = []
    for rng, dim in zip(region.region, region.buffer.shape, strict=True):
        zero = ir.const(0, rng.min.dtype)
        low = larger(rng.min, zero, analyzer)
        end = ir.add(rng.min, rng.extent)
        top = smaller(analyzer.simplify(end), ir.cast_to(dim, end.dtype), analyzer)
        same = low is rng.min and analyzer.prove_equal(top, end)
        box.append(rng if same else ir.Range(low, analyzer.simplify(top - low)))
    return ir.BufferRegion(region.buffer, tuple(box))
