"""Dependences between the blocks directly inside a scope block, derived from signatures.

A block depends on another one if they may access a common element and at least one of them writes
it. Two regions are compared by their bounding boxes over all instances of the blocks. This is
conservative: no dependence is missed, and regions count as disjoint only with a proof. If several
blocks write a buffer, a block is a producer only of the readers whose box may overlap its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

import msgspec

from blockwright import ir
from blockwright.analysis.access.regions import relax_region
from blockwright.analysis.access.tree import Tree
from blockwright.analysis.dataflow.memo import FlowMemo
from blockwright.analysis.dataflow.overlap import (
    apart,
    apart_along_an_axis,
    interleaved,
    plainly_apart,
)
from blockwright.analysis.facts import symbols_of
from blockwright.arith import Analyzer

_MANY = 5
"""Number of writers of a buffer from which they are compared all at once instead of pairwise."""


Boxes = dict[tuple[ir.Block, ir.BufferRegion], ir.BufferRegion]
"""(block, region) → bounding box over the instances of the block."""


class Conflict(msgspec.Struct, frozen=True):
    """Regions of one buffer that two blocks access, at least one of them writing.

    Attributes:
        kind: dependence from the first to the second block: "flow", "anti" or "output".
        mine, theirs: the region of the first and of the second block.
    """

    kind: str
    first: ir.Block
    second: ir.Block
    mine: ir.BufferRegion
    theirs: ir.BufferRegion


def conflicts(first: ir.Block, second: ir.Block) -> Iterator[Conflict]:
    """All pairs of conflicting regions in the signatures of two blocks."""
    cases = (
        ("flow", first.writes, second.reads),
        ("anti", first.reads, second.writes),
        ("output", first.writes, second.writes),
    )
    for kind, left, right in cases:
        for mine in left:
            for theirs in right:
                if mine.buffer is theirs.buffer:
                    yield Conflict(kind, first, second, mine, theirs)


class Dependences:
    """Producers and consumers of the blocks directly inside `block`.

    Args:
        tree: the function.
        block: the scope; its children are analyzed.
        memo: cached results; may be shared by functions that state the same sizes.
        initial: analyze the blocks of the init statement instead, which are not siblings of those
            of the body, because they do not run in every instance.
    """

    def __init__(
        self, tree: Tree, block: ir.Block, memo: FlowMemo | None = None, *, initial: bool = False
    ) -> None:
        self.tree = tree
        self.memo = FlowMemo() if memo is None else memo
        self.block = block
        self.part = block.init if initial and block.init is not None else block.body
        self.blocks = tree.child_blocks(self.part if initial else block)
        self.position = {b: i for i, b in enumerate(self.blocks)}
        self.writers: dict[ir.Buffer, list[ir.Block]] = {}
        self.readers: dict[ir.Buffer, list[ir.Block]] = {}
        for child in self.blocks:
            for region in child.writes:
                self.writers.setdefault(region.buffer, []).append(child)
            for region in child.reads:
                self.readers.setdefault(region.buffer, []).append(child)
        self._apart: dict[ir.Buffer, bool] = {}
        self._boxes: Boxes = {}

    @cached_property
    def sizes(self) -> frozenset[ir.Var]:
        """Symbols of the program."""
        return frozenset(symbols_of(self.tree.func))

    # ------------------------------------------------------------------ relations
    def producers(self, block: ir.Block) -> list[ir.Block]:
        """Blocks before `block` that write something it reads, in program order."""
        result = {w for r in block.reads for w in self.writers_before(block, r)}
        return sorted(result, key=self.position.__getitem__)

    def consumers(self, block: ir.Block) -> list[ir.Block]:
        """Blocks after `block` that read something it writes, in program order."""
        here = self.position[block]
        result = {
            c
            for r in block.writes
            for c in self.readers.get(r.buffer, ())
            if self.position[c] > here and self._meets(block, c, r.buffer)
        }
        return sorted(result, key=self.position.__getitem__)

    def carried_readers(self, block: ir.Block) -> list[ir.Block]:
        """Loop-carried readers of `block`, in program order.

        These precede `block` in a shared loop and may read what it wrote in an earlier iteration.
        """
        here = self.position[block]
        result = {
            c
            for r in block.writes
            for c in self.readers.get(r.buffer, ())
            if self.position[c] < here
            and self.tree.common_loops(c, block)
            and self._meets(block, c, r.buffer)
        }
        return sorted(result, key=self.position.__getitem__)

    def writers_before(self, block: ir.Block, read: ir.BufferRegion) -> list[ir.Block]:
        """Blocks before `block` that may write a part of what it reads, in program order."""
        here = self.position[block]
        return [
            w
            for w in self.writers.get(read.buffer, ())
            if self.position[w] < here and self._meets(w, block, read.buffer)
        ]

    def _meets(self, writer: ir.Block, reader: ir.Block, buffer: ir.Buffer) -> bool:
        """Whether a block may read elements that another block writes.

        The only writer of a buffer is the producer of all its readers, even if they read beyond
        what it writes; regions are compared only if there are several writers.
        """
        if len(self.writers[buffer]) == 1:
            return True
        pair = [*self._place(writer), *self._place(reader), buffer]
        apart = self.memo.answer(
            "apart",
            pair,
            lambda: self.apart(
                (writer, self._region(writer.writes, buffer)),
                (reader, self._region(reader.reads, buffer)),
            ),
        )
        return not apart

    def is_output(self, block: ir.Block) -> bool:
        """Whether the block writes a buffer that outlives the scope."""
        own = set(self.block.alloc_buffers)
        return any(region.buffer not in own for region in block.writes)

    def writes_last(self, block: ir.Block) -> bool:
        """Whether all other blocks that may write the same elements come before it."""
        return all(
            self.position[other] <= self.position[block]
            or self.disjoint(block, other, region.buffer)
            for region in block.writes
            for other in self.writers[region.buffer]
        )

    # ------------------------------------------------------------------ same elements
    def _all_apart(self, buffer: ir.Buffer) -> bool:
        """Whether constant bounds along one axis show that many writers of a buffer are disjoint.

        Checked before pairs are compared, because a concatenation may have hundreds of parts.
        """
        result = self._apart.get(buffer)
        if result is None:
            writers = self.writers[buffer]
            regions = [self._region(w.writes, buffer) for w in writers]
            result = len(writers) >= _MANY and apart_along_an_axis(
                [self._whole(w, region) for w, region in zip(writers, regions, strict=True)]
            )
            self._apart[buffer] = result
        return result

    def disjoint(self, a: ir.Block, b: ir.Block, buffer: ir.Buffer) -> bool:
        """Whether two blocks provably write different parts of a buffer."""
        return self.apart(*((x, self._region(x.writes, buffer)) for x in (a, b)))

    def apart(self, *sides: tuple[ir.Block, ir.BufferRegion]) -> bool:
        """Whether two blocks, over all their instances, access different parts of a buffer."""
        if plainly_apart(*(self._whole(block, region) for block, region in sides)):
            return True  # fast path: this is queried for every pair of writers
        places = [node for block, region in sides for node in (*self._place(block), region)]
        return self.memo.answer("apart", places, lambda: self._find_apart(sides))

    def _find_apart(self, sides: Sequence[tuple[ir.Block, ir.BufferRegion]]) -> bool:
        analyzer = self.memo.facts(self.tree, self.block.body)
        first, second = (self._whole(block, region) for block, region in sides)
        (_, a), (_, b) = sides
        return apart(first, second, analyzer) or interleaved(a, b, analyzer)

    def _whole(self, block: ir.Block, region: ir.BufferRegion) -> ir.BufferRegion:
        """Bounding box of a region over all instances of a block."""
        key = (block, region)
        result = self._boxes.get(key)
        if result is None:
            result = self._boxes[key] = self.memo.answer(
                "whole",
                [*self._place(block), region],
                lambda: self.region_under(
                    (), block, region, self.memo.facts(self.tree, self.block.body)
                ),
            )
        return result

    def apart_within(
        self,
        fixed: Collection[ir.For],
        conflict: Conflict,
        analyzer: Analyzer,
        boxes: Boxes | None = None,
    ) -> bool:
        """Whether the regions are disjoint in one iteration of the fixed loops.

        All other loops above the blocks may be in any iterations.

        Args:
            analyzer: facts inside the fixed loops.
            boxes: cache of boxes within these loops.
        """
        boxes = {} if boxes is None else boxes
        sides = (conflict.first, conflict.mine), (conflict.second, conflict.theirs)
        for side in sides:
            if side not in boxes:
                boxes[side] = self.region_under(fixed, *side, analyzer)
        return apart(boxes[sides[0]], boxes[sides[1]], analyzer)

    # ------------------------------------------------------------------ boxes
    def region_under(
        self,
        common: Iterable[ir.For],
        block: ir.Block,
        region: ir.BufferRegion,
        analyzer: Analyzer,
        tight: bool = True,
    ) -> ir.BufferRegion:
        """A signature region with all loops of the block except the common ones eliminated.

        `tight`: the box is restricted by the block's predicate; otherwise it covers all iterations.
        """
        realize = self.tree.realize(block)
        fixed = set(common)
        domains = {f.loop_var: f.dom for f in self.tree.loops_above(block) if f not in fixed}
        binding = realize.values
        outer = ir.substitute(region, binding)
        loose = not tight or ir.is_const_int(realize.predicate)
        predicate = None if loose else realize.predicate
        if names := self._named(block, fixed):
            outer = _without_loads(ir.substitute(outer, names))
            predicate = None if predicate is None else ir.substitute(predicate, names)
        outer = ir.BufferRegion(region.buffer, outer.region)
        return relax_region(outer, domains, analyzer, predicate)

    def _named(self, block: ir.Block, fixed: Collection[ir.For] = ()) -> dict[ir.Var, ir.Expr]:
        """Let-bound values around a block, inside the fixed loops; they vary between instances."""
        result: list[ir.LetStmt] = []
        for above in self.tree.ancestors(self.tree.realize(block)):
            if above is self.block or above in fixed:
                break
            if isinstance(above, ir.LetStmt):
                result.append(above)
        values: dict[ir.Var, ir.Expr] = {}
        for let in reversed(result):
            values[let.var] = ir.substitute(let.value, values)
        return values

    def _place(self, block: ir.Block) -> list[ir.Node]:
        """Memo key of a block and its context: realize node, loops and conditions."""
        realize = self.tree.realize(block)
        result: list[ir.Node] = [realize, *self.tree.deciding(realize, self.block)]
        for loop in self.tree.loops_above(block):
            result += (loop.loop_var, loop.min, loop.extent)
        return result

    @staticmethod
    def _region(regions: tuple[ir.BufferRegion, ...], buffer: ir.Buffer) -> ir.BufferRegion:
        return next(r for r in regions if r.buffer is buffer)


def _without_loads(region: ir.BufferRegion) -> ir.BufferRegion:
    """The region with data-dependent dimensions replaced by whole ones."""
    ranges = [
        whole if any(isinstance(n, ir.BufferLoad) for n in ir.walk(rng)) else rng
        for rng, whole in zip(region.region, ir.full_region(region.buffer).region, strict=True)
    ]
    return region.replace(region=tuple(ranges))
