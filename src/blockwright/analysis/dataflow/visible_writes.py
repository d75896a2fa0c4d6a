"""Upper bounds of what a block can see of other blocks' writes when it reads a buffer.

The bounds are for the first iteration of the loops that the reader shares with writers: only
earlier writers in program order have run. Each may have written the box of its signature, over the
loops that it does not share with the reader. Of writes by other threads, a thread sees those to
copies of the buffer that they share, after a barrier.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Container, Sequence
from typing import NamedTuple

from blockwright import ir
from blockwright.analysis.access.regions import relax_region
from blockwright.analysis.access.tree import child_stmts
from blockwright.analysis.dataflow.contexts import BlockContext, LoopLevel
from blockwright.analysis.dataflow.order import runs_before
from blockwright.analysis.kernels import BLOCK_AXES, shares
from blockwright.arith import Analyzer


@dataclasses.dataclass(eq=False)
class Writer:
    """A block that writes a region of a buffer."""

    context: BlockContext
    region: ir.BufferRegion


def writers_by_buffer(
    found: Sequence[BlockContext], buffers: Collection[ir.Buffer]
) -> dict[ir.Buffer, list[Writer]]:
    """The innermost blocks that write each of the buffers, in program order."""
    result: dict[ir.Buffer, list[Writer]] = {}
    for context in found:
        for region in context.block.writes:
            if region.buffer in buffers and not _delegates(context, region.buffer, found):
                result.setdefault(region.buffer, []).append(Writer(context, region))
    return result


def _delegates(context: BlockContext, buffer: ir.Buffer, found: Sequence[BlockContext]) -> bool:
    """Whether inner blocks state all writes of this block more precisely."""
    if any(m.source.buffer is buffer for m in context.block.match_buffers):
        return False
    if _stores_itself(context.block, buffer):
        return False
    return any(
        context.block in other.around and any(r.buffer is buffer for r in other.block.writes)
        for other in found[context.order + 1 :]
    )


def _stores_itself(block: ir.Block, buffer: ir.Buffer) -> bool:
    """Whether statements of a block or its init, outside of inner blocks, may store to a buffer."""
    stack: list[ir.Stmt] = [block.body] if block.init is None else [block.init, block.body]
    while stack:
        node = stack.pop()
        if isinstance(node, ir.BufferStore) and node.buffer is buffer:
            return True
        if isinstance(node, ir.Evaluate) and buffer in ir.collect(node, ir.Buffer):
            return True
        if not isinstance(node, ir.BlockRealize):
            stack += child_stmts(node)
    return False


class VisibleBox(NamedTuple):
    """A box that a writer may have written, in terms of the loops that it shares with the reader.

    Attributes:
        leaders: thread axes whose first thread alone sees the box.
    """

    box: tuple[ir.Range, ...]
    leaders: Sequence[LoopLevel] = ()


class VisibleWrites:
    """The writers of one buffer as seen by a block that reads it.

    Attributes:
        path: loops and thread axes around the reader, and thread axes of the writers along which
            each thread has its own copy of the buffer; all threads along these read.
    """

    def __init__(
        self,
        reader: BlockContext,
        buffer: ir.Buffer,
        writers: Sequence[Writer],
        analyzer: Analyzer,
    ) -> None:
        self.reader, self.buffer, self.writers, self.analyzer = reader, buffer, writers, analyzer
        self.path = (*reader.path, *self._axes_of_writers())
        self._boxes: dict[tuple[Writer, bool, bool], tuple[ir.Range, ...]] = {}

    def boxes(
        self, own: bool, *, everyone: bool = False, alone: Container[Writer] = frozenset()
    ) -> list[VisibleBox]:
        """The boxes of all writers that the reader may see.

        Args:
            own: whether the reader may have written the element itself.
            everyone: assume that all threads share one copy.
            alone: writers not followed by a barrier, so that a thread sees only its own writes.
        """
        return [
            VisibleBox(
                self._box(writer, everyone, writer in alone),
                self._only_in(self.reader, writer.context) if writer in alone else (),
            )
            for writer in self.writers
            if (runs_before(writer.context, self.reader) or (own and writer.context is self.reader))
            and self._may_meet(writer, everyone)
        ]

    def _axes_of_writers(self) -> list[LoopLevel]:
        result: dict[ir.Var, LoopLevel] = {}
        for writer in self.writers:
            if writer.context.kernel is not None and writer.context.kernel is self.reader.kernel:
                result |= {
                    level.var: level
                    for level in writer.context.path
                    if level.tag and not shares(self.buffer.scope, level.tag)
                }
        mine = {level.var for level in self.reader.path}
        return [level for var, level in result.items() if var not in mine]

    def _may_meet(self, writer: Writer, everyone: bool) -> bool:
        """Whether writer and reader may see the same copy: on-chip memory ends with its kernel."""
        same = writer.context.kernel is self.reader.kernel
        return same or everyone or self.buffer.scope == "global"

    def _box(self, writer: Writer, everyone: bool, alone: bool) -> tuple[ir.Range, ...]:
        key = (writer, everyone, alone)
        if key not in self._boxes:
            self._boxes[key] = self._find_box(writer, everyone, alone)
        return self._boxes[key]

    def _find_box(self, writer: Writer, everyone: bool, alone: bool) -> tuple[ir.Range, ...]:
        context = writer.context
        fixed = {x.var for x in self.path if self._in_step(x, context, everyone, alone)}
        domains = {x.var: x.dom for x in context.path if x.var not in fixed}
        if alone:  # only the first thread along these axes reads; it sees its own write
            mine = {level.tag for level in self.path}
            for level in self._shared_axes(context):
                if level.tag not in mine:
                    domains[level.var] = ir.Range(level.low, ir.const(1, level.extent.dtype))
        ranges = tuple(context.resolved(r) for r in writer.region.region)
        guards = ir.all_of(context.guards)
        predicate = None if ir.is_const_int(guards) else guards
        known = self.analyzer.copy()
        for level in self.path:
            if level.var in fixed:
                known.bind(level.var, level.dom)
        region = ir.BufferRegion(writer.region.buffer, ranges)
        return relax_region(region, domains, known, predicate).region

    def _in_step(self, level: LoopLevel, writer: BlockContext, everyone: bool, alone: bool) -> bool:
        """Whether the visible writes at a level are those of the same iteration."""
        around = [w for w in writer.path if w.var is level.var]
        if not around:
            return False
        if not level.tag:
            return around[0].stmt is level.stmt
        if everyone or writer.kernel is not self.reader.kernel:
            return False
        if alone and level.tag not in BLOCK_AXES:
            return True
        scope = self.buffer.scope
        return not shares(scope, level.tag) or (scope == "global" and level.tag in BLOCK_AXES)

    def _only_in(self, one: BlockContext, other: BlockContext) -> list[LoopLevel]:
        """Thread axes of one block but not of the other whose threads share the buffer."""
        tags = {level.tag for level in other.path}
        return [level for level in self._shared_axes(one) if level.tag not in tags]

    def _shared_axes(self, context: BlockContext) -> list[LoopLevel]:
        """Thread axes within a block of threads along which the threads share the buffer."""
        return [
            level
            for level in context.path
            if level.tag and level.tag not in BLOCK_AXES and shares(self.buffer.scope, level.tag)
        ]
