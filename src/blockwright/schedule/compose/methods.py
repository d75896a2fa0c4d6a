"""Methods shared by `Schedule` and `Zoom`: handle lookup, axes, composite steps."""

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
    """The methods of the primitives, and composite methods built from them."""

    _session: Session

    # ------------------------------------------------------------------ handles
    @overload
    def get(self, handle: BlockRV) -> ir.Block: ...
    @overload
    def get(self, handle: LoopRV) -> ir.For: ...
    @overload
    def get(self, handle: ExprRV) -> int: ...
    def get(self, handle: Handle) -> ir.Block | ir.For | int:
        """Return the current node of a block or loop handle, or the sampled number."""
        if not isinstance(handle, (BlockRV, LoopRV, ExprRV)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScheduleError(
                f"get: expected a handle, got {handle!r}",
                code="BW304",
                help="pass a handle of this schedule",
            )
        entry = self._session.entry(handle, "get")
        state = self._session.state(entry.function, "get")
        if isinstance(entry.target, int):
            return entry.target
        assert not isinstance(handle, ExprRV)
        return state.block(handle) if isinstance(handle, BlockRV) else state.loop(handle)

    def alive(self, handle: Handle) -> bool:
        """Whether a handle is still valid."""
        require_kind(
            handle,
            (BlockRV, LoopRV, ExprRV),
            "alive: expected a handle",
            ScheduleError,
            "BW304",
            "pass a handle of this schedule",
        )
        result = self._session.entries.get(handle)
        return result is not None and not isinstance(result.target, (StaleHandle, SampledLocation))

    # ------------------------------------------------------------------ axes
    @ends_at_call
    def loops(self, block: BlockRV | str) -> Axes:
        """Return the loops around a block by name: `sch.loops("C").i`.

        The name of a block iterator also works if the iterator is bound to exactly one loop.
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
        """Return the loop around a block with this name, or the loop bound to this iterator."""
        require_kind(
            name,
            str,
            "axis: the name of a loop must be a string",
            ScheduleError,
            "BW304",
            'write sch.axis("C", "i")',
        )
        return self.loops(block)[name]

    # ------------------------------------------------------------------ composite rules
    @ends_at_call
    @composite
    def tile(self, block: BlockRV | str, notation: str, /, **sizes: Size) -> Axes:
        """Split, reorder and fuse the loops of a block into the nest given by a notation.

        Args:
            block: the block, or its name.
            notation: the existing axes, an arrow, and the new nest, outermost loop first; see
                `blockwright.schedule.compose.notation`.
            sizes: sizes of factors by name; one factor per axis may be omitted.

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
            "tile: the notation must be a string",
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
        """Move a consumer into a loop of its producer, so that it uses each tile right away.

        An alias of `reverse_compute_at`, the name recorded in traces. The counterpart of
        `compute_at`, which moves a producer into a loop of its consumers.
        """
        self.reverse_compute_at(block, loop, preserve_unit_loops, index)

    # ------------------------------------------------------------------ steps
    def as_one_call(self, text: str) -> AbstractContextManager[None]:
        """Return a context that records its steps as one call with this text.

        If a step fails, all steps of the context are undone.
        """
        return self._session.composite(text)

    def _block(self, block: BlockRV | str) -> BlockRV:
        return self.get_block(block) if isinstance(block, str) else block

    def _run(self, record: Primitive) -> Any:
        raise NotImplementedError
