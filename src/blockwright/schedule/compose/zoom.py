"""zoom: schedule the inside of a block or loop as a schedule of its own."""

from __future__ import annotations

from typing import Any, Self, cast

from blockwright import ir
from blockwright.ir.printer import script
from blockwright.schedule.compose.methods import Compose
from blockwright.schedule.display import Shown
from blockwright.schedule.engine.handle import BlockRV, Handle, LoopRV
from blockwright.schedule.engine.instruction import Instruction
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.remap_handles import used_handles
from blockwright.schedule.engine.state import StepState, explained
from blockwright.schedule.primitive.cache_read import CacheRead
from blockwright.schedule.primitive.cache_write import CacheWrite
from blockwright.schedule.primitive.get_block import GetBlock
from blockwright.schedule.serialize.python import call_text, short_value
from blockwright.support import ScheduleError


class Zoom(Compose, Shown):
    """A view of a schedule restricted to the inside of a block or loop.

    Names resolve to blocks inside, `get_loops` returns the loops inside, and printing shows the
    inside. In a zoomed loop, `cache_read` and `cache_write` place their copies inside the loop, so
    that each iteration copies its part. Steps apply to the outer schedule and are recorded in its
    trace; handles are valid inside and outside.

        with sch.zoom(sch.loops("C").j0) as inner:
            inner.cache_read("C", "A", "local")
            inner.tile("C", "i1 j1 k -> k i1 j1")

    Args:
        outer: the schedule, or a zoomed part of it.
        target: a loop, or a block (or the name of a block) that contains blocks.
    """

    def __init__(self, outer: Compose, target: BlockRV | LoopRV | str) -> None:
        handle = outer.get_block(target) if isinstance(target, str) else target
        self._outer = outer
        self._session = outer._session
        self.target: BlockRV | LoopRV = handle
        self._start = len(self._session.steps)
        node = outer.get(handle)
        if isinstance(node, ir.Block) and not self._state().tree.child_blocks(node):
            self._state().fail(
                f"block {node.name} contains no blocks: there is nothing inside to schedule",
                code="BW307",
                guilty=[node],
                help="zoom into one of its loops, or blockize them first",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    # ------------------------------------------------------------------ view
    @property
    def node(self) -> ir.Block | ir.For:
        """The current node of the block or loop."""
        return self._outer.get(self.target)

    @property
    def steps(self) -> tuple[Instruction, ...]:
        """The steps applied to the schedule since the zoom."""
        return tuple(self._session.steps[self._start :])

    def text(self) -> str:
        """Return the inside as script text, which `show` prints."""
        return script(self.node)

    def zoom(self, target: BlockRV | LoopRV | str) -> Zoom:
        """Zoom further, into a block or loop of this part."""
        handle = self.get_block(target) if isinstance(target, str) else target
        self._require_inside("zoom", handle)
        return Zoom(self, handle)

    def _state(self) -> StepState:
        entry = self._session.entry(self.target, "zoom")
        return self._session.state(entry.function, "zoom")

    def _inside(self, handle: Handle) -> bool:
        if not isinstance(handle, (BlockRV, LoopRV)):
            return True  # numbers and symbols have no position
        return self._state().tree.is_below(self._outer.get(handle), self.node)

    def _require_inside(self, step: str, handle: Handle) -> None:
        if handle == self.target or self._inside(handle):
            return
        assert isinstance(handle, (BlockRV, LoopRV))
        node = self._outer.get(handle)
        name = node.name if isinstance(node, ir.Block) else node.loop_var.name
        kind = "block" if isinstance(node, ir.Block) else "loop"
        state = self._state()
        state.step_name = step
        state.fail(
            f"{kind} {name} lies outside the zoomed part",
            code="BW308",
            guilty=[node],
            help="apply this step to the schedule itself",
        )

    # ------------------------------------------------------------------ steps
    def _run(self, record: Primitive) -> Any:
        """Apply a step whose handles lie inside; return only the result handles inside."""
        if isinstance(record, GetBlock):
            return self._find(record.name)
        for handle in used_handles(record):
            if isinstance(handle, (BlockRV, LoopRV)):
                self._require_inside(record.path(), handle)
        if isinstance(record, (CacheRead, CacheWrite)) and isinstance(self.target, LoopRV):
            return self._copy(record, self.target)
        result = self._outer._run(record)
        if isinstance(result, list):
            return [h for h in cast("list[Handle]", result) if self._inside(h)]
        return result

    def _find(self, name: str) -> BlockRV:
        """Return the block of this name inside, by queries that a trace can replay."""
        state, inside = self._state(), self.node
        named = [b for b in state.tree.blocks if b.name == name and state.tree.is_below(b, inside)]
        if not named and isinstance(inside, ir.Block) and inside.name == name:
            named = [inside]
        if len(named) != 1:
            known = sorted({b.name for b in state.tree.blocks if state.tree.is_below(b, inside)})
            what = f"{len(named)} blocks inside are" if named else "no block inside is"
            code = "BW303" if named else "BW302"
            raise ScheduleError(
                f"get_block: {what} named {name!r}",
                code=code,
                help=f"use one of the blocks inside: {', '.join(known)}",
            )
        if sum(b.name == name for b in state.tree.blocks) == 1:
            return self._outer.get_block(name)
        return self._descend(self.target, named[0])

    def _descend(self, start: BlockRV | LoopRV, wanted: ir.Block) -> BlockRV:
        """Return the handle of a block below `start`, by `get_child_blocks` on each level."""
        tree = self._state().tree
        for child in self._outer.get_child_blocks(start):
            node = self._outer.get(child)
            if node is wanted:
                return child
            if tree.is_below(wanted, node):
                return self._descend(child, wanted)
        raise AssertionError(wanted.name)

    def _copy(self, record: CacheRead | CacheWrite, loop: LoopRV) -> BlockRV:
        """Cache a buffer and move the copy into the zoomed loop."""
        name = record.method
        with self.as_one_call(call_text(record, short_value)), explained(f"zoom: {name}"):
            copy: BlockRV = self._outer._run(record)
            if not self._inside(copy):
                if isinstance(record, CacheRead):
                    self._outer.compute_at(copy, loop)
                else:
                    self._outer.reverse_compute_at(copy, loop)
            return copy
