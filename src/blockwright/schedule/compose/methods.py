"""What is common to a schedule and to its zoomed parts: handles, axes, composite calls."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, overload

from blockwright import ir
from blockwright.schedule.compose.axes import Axes, axes_of
from blockwright.schedule.compose.rule import composite
from blockwright.schedule.compose.tile import Size, tile
from blockwright.schedule.engine.handle import BlockRV, ExprRV, Handle, LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import SampledLocation, underlined
from blockwright.schedule.engine.traceback_frames import ends_at_call
from blockwright.schedule.facade import Facade
from blockwright.schedule.session import Session, StaleHandle
from blockwright.support import ScheduleError
from blockwright.support.kinds import require_kind


class Compose(Facade):
    """The methods of the primitives, and those that are made of them."""

    _session: Session

    # ------------------------------------------------------------------ handles
    @overload
    def get(self, handle: BlockRV) -> ir.Block: ...
    @overload
    def get(self, handle: LoopRV) -> ir.For: ...
    @overload
    def get(self, handle: ExprRV) -> int: ...
    def get(self, handle: Handle) -> ir.Block | ir.For | int:
        """The node that a handle stands for now, or the number that was drawn."""
        if not isinstance(handle, (BlockRV, LoopRV, ExprRV)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScheduleError(
                f"get: expected a handle, got {handle!r}",
                code="BW304",
                help="give it one handle of this schedule",
            )
        entry = self._session.entry(handle, "get")
        state = self._session.state(entry.function, "get")
        if isinstance(entry.target, int):
            return entry.target
        assert not isinstance(handle, ExprRV)
        return state.block(handle) if isinstance(handle, BlockRV) else state.loop(handle)

    def alive(self, handle: Handle) -> bool:
        """Whether a handle still stands for something."""
        require_kind(
            handle,
            (BlockRV, LoopRV, ExprRV),
            "alive: expected a handle",
            ScheduleError,
            "BW304",
            "give it one handle of this schedule",
        )
        result = self._session.entries.get(handle)
        return result is not None and not isinstance(result.target, (StaleHandle, SampledLocation))

    # ------------------------------------------------------------------ axes
    @ends_at_call
    def loops(self, block: BlockRV | str) -> Axes:
        """The loops around a block by name: `sch.loops("C").i`.

        The name of a block iterator will do where the iterator is bound to one loop alone.
        """
        handle = self._block(block)
        result = {loop: self.get(loop) for loop in self.get_loops(handle)}
        node = self.get(handle)
        entry = self._session.entry(handle, "loops")
        tree = self._session.state(entry.function, "loops").tree
        realize = tree.parent.get(node)
        assert realize is None or isinstance(realize, ir.BlockRealize)
        return axes_of(realize, node, result)

    @ends_at_call
    def axis(self, block: BlockRV | str, name: str) -> LoopRV:
        """The loop of this name around a block, or the one that an iterator of this name is."""
        require_kind(
            name,
            str,
            "axis: the name of a loop is text",
            ScheduleError,
            "BW304",
            'write sch.axis("C", "i")',
        )
        return self.loops(block)[name]

    # ------------------------------------------------------------------ composite rules
    @ends_at_call
    @composite
    def tile(self, block: BlockRV | str, notation: str, /, **sizes: Size) -> Axes:
        """Split, reorder and fuse the loops of a block, written as the nest they shall become.

        Args:
            block: the block, or its name.
            notation: the axes there are, an arrow, and the new nest, outermost loop first; see
                `blockwright.schedule.compose.notation`.
            sizes: of factors by name; of each axis, one may be left out.

        Before::

            @T.prim_func
            def main(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")):
                for i, j in T.grid(64, 64):
                    with T.block("B"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        B[vi, vj] = A[vi, vj] + T.float32(1)

        Steps::

            sch.tile("B", "i j -> i0 j0 i1 j1", i1=16, j1=8)

        After::

            @T.prim_func
            def main(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")):
                for i0, j0, i1, j1 in T.grid(4, 8, 16, 8):
                    with T.block("B"):
                        vi = T.axis.spatial(64, i0 * 16 + i1)
                        vj = T.axis.spatial(64, j0 * 8 + j1)
                        B[vi, vj] = A[vi, vj] + T.float32(1)
        """
        require_kind(
            notation,
            str,
            "tile: the notation is text",
            ScheduleError,
            "BW304",
            'write sch.tile("C", "i j -> i0 j0 i1 j1", i1=16, j1=8)',
        )
        handle = self._block(block)
        axes = self.loops(handle)
        func = self._session.functions[self._session.entry(handle, "tile").function]
        with underlined(func, [self.get(loop) for loop in axes]):
            return tile(self, handle, axes, notation, sizes)

    @ends_at_call
    def consume_at(
        self,
        block: BlockRV | str,
        loop: LoopRV,
        preserve_unit_loops: bool = False,
        index: int = -1,
    ) -> None:
        """Let a consumer use each tile where it has just been produced.

        The counterpart of `compute_at`, which makes a tile where it is about to be used. Another
        name for the step `reverse_compute_at`, under which it stands in traces.
        """
        self.reverse_compute_at(block, loop, preserve_unit_loops, index)

    # ------------------------------------------------------------------ steps
    def as_one_call(self, text: str) -> AbstractContextManager[None]:
        """Steps taken inside count as one call of this text; when one fails, none is taken."""
        return self._session.composite(text)

    def _block(self, block: BlockRV | str) -> BlockRV:
        return self.get_block(block) if isinstance(block, str) else block

    def _run(self, record: Primitive) -> Any:
        raise NotImplementedError
