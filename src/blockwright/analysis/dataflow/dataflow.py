"""Dataflow between the blocks of a scope: whether reads find values that are written and final.

- A consumer is *covered* if, in every iteration of the loops it shares with its producers, these
  together have written everything that the consumer reads in that iteration. A consumer that shares
  no loop with any producer is covered.
- What a block writes in an iteration is *final* if other iterations write other elements, or the
  same values again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from blockwright import ir
from blockwright.analysis.access.regions import clip_region
from blockwright.analysis.access.store_coverage import fill_box, stores_fill
from blockwright.analysis.access.tree import Tree
from blockwright.analysis.dataflow.block_kinds import BlockKind, BlockKinds
from blockwright.analysis.dataflow.conditional_cover import Made, covered_in_cases
from blockwright.analysis.dataflow.independence import corner, fills, write_apart
from blockwright.analysis.dataflow.memo import FlowMemo
from blockwright.arith import Analyzer, jointly_cover
from blockwright.arith.condition import conjuncts


class BlockScope(BlockKinds):
    """Producers, consumers and kinds of the blocks directly inside `block`, and read coverage.

    Args:
        tree: the function.
        block: the scope; its children are analyzed.
        memo: cached results; may be shared by functions that state the same sizes.
        initial: analyze the blocks of the init statement instead.
    """

    def __init__(
        self, tree: Tree, block: ir.Block, memo: FlowMemo | None = None, *, initial: bool = False
    ) -> None:
        super().__init__(tree, block, memo, initial=initial)
        self._found: dict[tuple[ir.Block, ir.BufferRegion], str] = {}

    def uncovered(self, block: ir.Block, among: Collection[ir.Buffer] | None = None) -> str:
        """Why `block` may read elements before they are written or final; "" if it is covered.

        Args:
            among: the buffers to check; by default all that the block reads.
        """
        asked = (r for r in block.reads if among is None or r.buffer in among)
        return next((why for region in asked if (why := self._unsettled(block, region))), "")

    def _unsettled(self, block: ir.Block, region: ir.BufferRegion) -> str:
        key = (block, region)
        if key not in self._found:
            self._found[key] = self._find_unsettled(block, region)
        return self._found[key]

    def _find_unsettled(self, block: ir.Block, region: ir.BufferRegion) -> str:
        makers = self._makers(block, region)
        close = [w for w in makers if self.tree.common_loops(w, block)]
        if close and not self.covers(makers, block, region):
            return (
                f"in an iteration of their shared loops, block {close[-1].name} has "
                f"not written all of {region.buffer.name} that block {block.name} "
                "reads"
            )
        for maker in close:
            written = self._region(maker.writes, region.buffer)
            if not self.final(maker, written, self.tree.common_loops(maker, block)):
                return (
                    f"what block {maker.name} writes in an iteration of the loops they "
                    f"share is not all that it writes to the same elements of "
                    f"{region.buffer.name}, which block {block.name} reads"
                )
        return ""

    def final(self, block: ir.Block, region: ir.BufferRegion, loops: Sequence[ir.For]) -> bool:
        """Whether what a block writes in an iteration of enclosing loops is final.

        It is if other iterations write other elements, or the same values again.
        """
        known = self.kind(block) is not BlockKind.OTHER
        again = known and not self.partial(block, loops) and not self.uncovered(block)
        return again or self.apart_in(block, region, loops)

    def apart_in(self, block: ir.Block, region: ir.BufferRegion, loops: Sequence[ir.For]) -> bool:
        """Whether iterations of enclosing loops provably write different elements of a region."""
        return all(
            ir.is_const_int(loop.extent, 1)
            or self.memo.answer(
                "turns",
                [*self._place(block), loop.loop_var, region],
                lambda f=loop: write_apart(self.tree, self.memo, f, block, region),
            )
            for loop in loops
        )

    def _makers(self, block: ir.Block, read: ir.BufferRegion) -> list[ir.Block]:
        """Writers before a block with final values, without those that initialize later updates."""
        before = self.writers_before(block, read)
        updates = [
            w for w in before if w.init is None and any(r.buffer is read.buffer for r in w.reads)
        ]
        return [
            w
            for w in before
            if not any(
                self.position[u] > self.position[w] and not self.disjoint(w, u, read.buffer)
                for u in updates
            )
        ]

    def covers(
        self, producers: Sequence[ir.Block], consumer: ir.Block, read: ir.BufferRegion
    ) -> bool:
        """Whether the producers write all of `read` in every iteration of the loops they share.

        All producers precede the consumer.
        """
        if any(self._covers_alone(p, consumer, read) for p in producers):
            return True
        if len(producers) < 2:
            return False
        places = [n for p in producers for n in self._place(p)]
        places += [*self._place(consumer), read]
        return self.memo.answer("union", places, lambda: self._union(producers, consumer, read))

    def _covers_alone(self, producer: ir.Block, consumer: ir.Block, read: ir.BufferRegion) -> bool:
        places = [*self._place(producer), *self._place(consumer), read]
        return self.memo.answer("covers", places, lambda: self._union([producer], consumer, read))

    def _union(
        self, producers: Sequence[ir.Block], consumer: ir.Block, read: ir.BufferRegion
    ) -> bool:
        """Whether the boxes of the producers cover the read.

        A producer's box is valid within the loops it shares with the consumer. What one iteration
        of all shared loops reads must lie in the boxes of the producers that ran before it.
        """
        shared = [self.tree.common_loops(p, consumer) for p in producers]
        deepest = max(shared, key=len)
        analyzer = self.memo.facts(self.tree, deepest[-1].body if deepest else self.block.body)
        result: list[Made] = []
        for producer, common in zip(producers, shared, strict=True):
            written = self._region(producer.writes, read.buffer)
            if self.partial(producer, common) or not self.is_exact(
                common, producer, written, analyzer, beside=consumer
            ):
                continue
            box = self.region_under(common, producer, written, analyzer)
            result.append((box.region, self.conditions(common, producer)))
        need = self.region_under(deepest, consumer, read, analyzer)
        if given := self.conditions(deepest, consumer):  # if these fail, nothing is needed
            analyzer = analyzer.copy()
            for condition in given:
                analyzer.learn(condition)
        known = analyzer.copy()  # facts that hold whenever an instance of the consumer runs
        for loop in self.tree.loops_above(consumer)[len(deepest) :]:
            known.bind(loop.loop_var, loop.dom)
        for condition in conjuncts(self.tree.realize(consumer).predicate):
            if all(known.knows(v) for v in ir.free_vars(condition)):
                known.learn(condition)
        return covered_in_cases(result, clip_region(need, analyzer).region, analyzer, known)

    def writes_all(self, block: ir.Block, region: ir.BufferRegion) -> bool:
        """Whether an instance of a block definitely writes all of one of its stated regions."""
        return self.memo.answer("inside", [block, region], lambda: self._filled(block, region))

    def _filled(self, block: ir.Block, region: ir.BufferRegion) -> bool:
        """Whether a block, or the blocks inside it, write all of one of its stated regions."""
        analyzer = self.memo.facts(self.tree, block.body)
        if not self.tree.child_blocks(block):
            return stores_fill(block, region, analyzer, self.sizes)
        inner = BlockScope(self.tree, block, self.memo)
        result = inner.filled(inner.writers.get(region.buffer, ()), region.buffer, analyzer)
        for match in block.match_buffers:
            if match.source.buffer is region.buffer and inner.fills(match.buffer, analyzer):
                result.append(match.source.region)
        return jointly_cover(result, clip_region(region, analyzer).region, analyzer)

    def fills(self, buffer: ir.Buffer, analyzer: Analyzer) -> bool:
        """Whether the blocks of this scope write every element of a buffer."""
        boxes = self.filled(self.writers.get(buffer, ()), buffer, analyzer)
        return bool(boxes) and jointly_cover(boxes, ir.full_region(buffer).region, analyzer)

    def filled(
        self, writers: Iterable[ir.Block], buffer: ir.Buffer, analyzer: Analyzer
    ) -> list[tuple[ir.Range, ...]]:
        """Boxes that blocks write completely over all their instances."""
        boxes: list[tuple[ir.Range, ...]] = []
        for block in writers:
            written = self._region(block.writes, buffer)
            if self.is_exact([], block, written, analyzer) and self.always(block, analyzer):
                boxes.append(self.region_under((), block, written, analyzer).region)
        return boxes

    def _may_not_run(
        self,
        block: ir.Block,
        boxes: Sequence[ir.Range],
        domains: Mapping[ir.Var, ir.Range],
        analyzer: Analyzer,
    ) -> bool:
        """Whether the box may be left unwritten because something does not run.

        That is a loop whose variable does not occur in the box and that may have no iterations, or
        the first instance of a reduction, if it may be skipped.

        Other reduction loops do not matter, because elements are initialized before the first term.
        """
        if block.init is not None and not self.begins(block):
            return True
        moving = {v for r in boxes for e in (r.min, r.extent) for v in ir.free_vars(e)}
        pairs = self.tree.realize(block).bindings
        moving |= {
            v
            for it, value in pairs
            if it.iter_type is ir.IterType.REDUCE
            for v in ir.free_vars(value)
        }
        return any(
            not analyzer.prove(ir.GT(rng.extent, ir.const(0, rng.extent.dtype)))
            for var, rng in domains.items()
            if var not in moving
        )

    def is_exact(
        self,
        common: list[ir.For],
        block: ir.Block,
        region: ir.BufferRegion,
        analyzer: Analyzer,
        reading: bool = False,
        beside: ir.Block | None = None,
    ) -> bool:
        """Whether the instances within the common loops fill their whole bounding box.

        `reading`: the region may also depend on reduction iterators. `beside`: as for `decided`.
        """
        if self.decided(block, common, beside) or not self.writes_all(block, region):
            return False
        realize = self.tree.realize(block)
        domains = {f.loop_var: f.dom for f in self.tree.loops_above(block) if f not in common}
        reduced = {it.var for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE}
        binding = {it.var: v for it, v in realize.bindings if reading or it.var not in reduced}
        corners: list[ir.Expr] = []
        boxes = [ir.substitute(rng, binding) for rng in region.region]
        if self._may_not_run(block, boxes, domains, analyzer):
            return False
        known = analyzer.copy()
        for var, domain in domains.items():
            known.bind(var, domain)
        for box, size in zip(boxes, region.buffer.shape, strict=True):
            if not ir.uses_var(box.min, set(domains)):
                if ir.uses_var(box.extent, set(domains)):
                    return False  # rows of different lengths do not form a box
                continue
            low = corner(box, domains, known)
            if low is None or not fills(box, size, domains, known):
                return False
            corners.append(low)
        predicate = None if ir.is_const_int(realize.predicate) else realize.predicate
        if block.init is not None and not corners and ir.is_const_int(realize.predicate, 1):
            return True  # each instance fills the box, also if only the init statement runs
        return fill_box(corners, domains, predicate, analyzer, self.sizes)
