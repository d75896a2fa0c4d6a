"""Access regions: the boxes of buffers that a block reads and writes, over its own iterators.

Loops, inner blocks and lets inside the block are eliminated by interval evaluation, so the result
mentions only what is visible outside: the block's iterators and symbolic sizes. Buffers local to
the block are omitted. Reads of elements initialized by the block itself are not among its reads
(the update belongs to the block, not to a producer). All other reads are: those of the init
statement, and of other elements of a buffer that the block updates.

Each region covers every access within its buffer, of every instance of the block; everything that
trusts a signature relies on this. It holds because each step only widens:

- a bound of an index is an end of an interval (`arith.extreme`) over the domains of the loops
  around the access only, because other loops may have no iterations; conditions of statements are
  ignored, so guarded accesses count;
- a dimension is taken whole if its index loads memory, has an effect, or is a value that loops move
  and that may wrap around: a region is evaluated when the block starts, and the memory may change
  before the access;
- no fact depends on loaded values, because two loads may contradict each other;
- a read is omitted only if its element has definitely been initialized by this instance or an
  earlier one of the same reduction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from blockwright import ir
from blockwright.analysis.access.boxes import Box
from blockwright.analysis.access.collect import BoxCollector
from blockwright.analysis.access.tree import is_address, takes_addresses
from blockwright.arith import Analyzer, bound_region, covers, hull
from blockwright.arith import clip_region as clip_box

Regions = tuple[tuple[ir.BufferRegion, ...], tuple[ir.BufferRegion, ...]]
Boxes = dict[ir.Buffer, list[Box]]


def block_access_regions(
    block: ir.Block, analyzer: Analyzer | None = None, *, addresses: bool = True
) -> Regions:
    """The regions that `block` reads and writes, one box per buffer, in order of first access.

    Args:
        block: the block; its own `reads` and `writes` are ignored, those of inner blocks are used.
        analyzer: facts about the free symbols; the block's iterators are added.
        addresses: whether taking an address counts as an access to the whole buffer.
    """
    known = Analyzer() if analyzer is None else analyzer.copy()
    for it in block.iter_vars:
        known.bind(it.var, it.dom)
    walker = BoxCollector(known, block, addresses)
    for view in block.match_buffers:  # view regions may depend on loaded elements
        for rng in view.source.region:
            walker.visit(rng)
    if block.init is not None:  # init also runs if the reduction has no iterations
        reduced = [it.var for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE]
        walker.outside = walker.analyzer = known.without_empty(reduced)
        walker.visit(block.init)
        walker.begin(block, block.init)
        walker.analyzer = known
    walker.visit(block.body)
    walker.drop_initialized_reads(block)
    return walker.result(walker.reads), walker.result(walker.writes)


def access_boxes(block: ir.Block) -> tuple[Boxes, Boxes]:
    """Per buffer, the boxes of all reads and of all writes of a block, one per access.

    An unknown dimension is None. Unlike in a signature, no read is omitted.
    """
    known = Analyzer()
    for it in block.iter_vars:
        known.bind(it.var, it.dom)
    walker = BoxCollector(known, block)
    for part in (block.init, block.body):
        if part is not None:
            walker.visit(part)
    reads, writes = (
        {b: [box for box, _ in boxes] for b, boxes in result.items()}
        for result in (walker.reads, walker.writes)
    )
    return reads, writes


def reads_elsewhere(block: ir.Block, analyzer: Analyzer) -> list[ir.BufferRegion]:
    """Reads of an instance of a block from buffers it writes, outside of its write regions.

    One region per access, in terms of the block's iterators. If the block takes addresses, the
    signature is used instead.
    """
    own = {r.buffer: r for r in block.writes}
    if _reads_written(block, own):
        return []
    known = analyzer.copy()
    for it in block.iter_vars:
        known.bind(it.var, it.dom)
    read = [r for r in block.reads if r.buffer in own]
    if not takes_addresses(block.body):
        walker = BoxCollector(known, block)
        walker.visit(block.body)
        read = [
            ir.BufferRegion(buffer, _known_box(box, buffer))
            for buffer, boxes in walker.reads.items()
            if buffer in own
            for box, _ in boxes
        ]
    return [r for r in read if not covers(own[r.buffer].region, r.region, known)]


def _reads_written(block: ir.Block, own: Mapping[ir.Buffer, ir.BufferRegion]) -> bool:
    """Whether every access to a written buffer is to the single element of its write region."""
    for node in ir.walk(block.body):
        if isinstance(node, (ir.BlockRealize, ir.DeclBuffer)) or is_address(node):
            return False
        if isinstance(node, (ir.BufferLoad, ir.BufferStore)) and node.buffer in own:
            stated = own[node.buffer].region
            if not all(
                ir.is_const_int(r.extent, 1) and ir.structural_equal(r.min, index)
                for r, index in zip(stated, node.indices, strict=True)
            ):
                return False
    return not block.match_buffers


def _known_box(box: Sequence[ir.Range | None], buffer: ir.Buffer) -> tuple[ir.Range, ...]:
    """A box with unknown dimensions replaced by whole ones."""
    whole = ir.full_region(buffer).region
    return tuple(w if rng is None else rng for rng, w in zip(box, whole, strict=True))


def domains_of(node: ir.Node, domains: Mapping[ir.Var, ir.Range]) -> dict[ir.Var, ir.Range]:
    """The entries of `domains` that a node depends on, directly or through other domains.

    Domains of other variables may be empty where the node is evaluated.
    """
    used, fresh = set[ir.Var](), set(ir.collect(node, ir.Var))
    while fresh := (fresh & domains.keys()) - used:
        used |= fresh
        fresh = {v for f in fresh for v in ir.collect(domains[f], ir.Var)}
    return {v: dom for v, dom in domains.items() if v in used}


def relax_region(
    region: ir.BufferRegion,
    domains: Mapping[ir.Var, ir.Range],
    analyzer: Analyzer,
    predicate: ir.Expr | None = None,
) -> ir.BufferRegion:
    """The box that covers `region` for all values of the variables in `domains`.

    `predicate` restricts the points, so bounds it states tighten the box. Domains of variables that
    neither depends on are ignored, because an init statement also runs if a reduction loop is
    empty.
    """
    shape = region.buffer.shape
    ranges = region.region
    if any(ir.uses_var(r, set(domains)) for r in ranges):
        own: dict[ir.Var, ir.Range] = {}
        for part in (*ranges, *(() if predicate is None else (predicate,))):
            own |= domains_of(part, domains)
        ranges = bound_region(
            ranges, {v: d for v, d in domains.items() if v in own}, analyzer, predicate, shape
        )
    return ir.BufferRegion(region.buffer, tuple(ranges))


def with_one_box_per_buffer(block: ir.Block) -> ir.Block:
    """The block with the regions of each buffer in its signature merged into one box."""
    if all(
        len({r.buffer for r in regions}) == len(regions) for regions in (block.reads, block.writes)
    ):
        return block
    known = Analyzer()
    for it in block.iter_vars:
        known.bind(it.var, it.dom)
    return block.replace(
        reads=_one_box_each(block.reads, known), writes=_one_box_each(block.writes, known)
    )


def _one_box_each(
    regions: Sequence[ir.BufferRegion], analyzer: Analyzer
) -> tuple[ir.BufferRegion, ...]:
    result: dict[ir.Buffer, list[ir.BufferRegion]] = {}
    for region in regions:
        result.setdefault(region.buffer, []).append(region)
    return tuple(
        reduce(lambda a, b: _joined_regions(a, b, analyzer), group) for group in result.values()
    )


def _joined_regions(a: ir.BufferRegion, b: ir.BufferRegion, analyzer: Analyzer) -> ir.BufferRegion:
    ranges = (hull(x, y, analyzer) for x, y in zip(a.region, b.region, strict=True))
    return ir.BufferRegion(a.buffer, tuple(ranges))


def clip_region(region: ir.BufferRegion, analyzer: Analyzer) -> ir.BufferRegion:
    """Intersection of a region with its buffer."""
    return ir.BufferRegion(region.buffer, clip_box(region.region, region.buffer.shape, analyzer))
