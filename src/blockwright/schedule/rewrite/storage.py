"""Buffer ownership, footprint of an iteration, and redirection of accesses to another buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.analysis import BlockScope
from blockwright.arith import Analyzer, IntervalSet, union
from blockwright.schedule.engine.forwarding import AccessRewrite
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.buffer_uses import require_elements, require_in_blocks
from blockwright.schedule.legality.buffers import accessed_buffer, accesses_to, home
from blockwright.schedule.legality.try_remedies import called, first_legal


def require_owned(
    state: StepState, scope: ir.Block, block: ir.Block, buffer_index: int | str
) -> tuple[ir.Buffer, ir.Block]:
    """The buffer that a block writes, and the block that allocates it.

    Requires that the buffer is accessed only by loads and stores of elements, and only in `scope`.
    """
    buffer = accessed_buffer(state, block, buffer_index, "write")
    owner = home(state, buffer)
    if owner is None:
        state.fail(
            f"{buffer.name} is a parameter of the function",
            code="BW321",
            guilty=[state.realize(block)],
            help=f'cache_write("{block.name}", "{buffer.name}", "global") first, then '
            f"{state.step_name} on block {block.name} again, which then writes an "
            "intermediate buffer",
        )
    if buffer.strides or buffer.offset is not None or buffer.axis_separators:
        state.fail(
            f"{buffer.name} has an explicit layout",
            code="BW328",
            guilty=[state.realize(block)],
            help="apply the step before the buffer gets strides, an offset or axis separators",
        )
    if len(accesses_to(owner.body, buffer)) != len(accesses_to(scope.body, buffer)):
        state.fail(
            f"{buffer.name} is also used outside block {scope.name}",
            code="BW322",
            guilty=[owner, scope],
            help="apply the step to a block whose scope contains all uses of the buffer",
        )
    require_in_blocks(state, scope, buffer)
    require_elements(state, owner.body, buffer)
    return buffer, owner


def users_below(
    state: StepState, flow: BlockScope, buffer: ir.Buffer, loop: ir.For
) -> tuple[list[ir.Block], list[ir.Block]]:
    """Writers and readers of a buffer; requires that all of them are inside the loop."""
    writers, readers = flow.writers.get(buffer, []), flow.readers.get(buffer, [])
    for user in (*writers, *readers):
        realize = state.tree.realize(user)
        if not state.tree.is_below(realize, loop):
            state.fail(f"block {user.name} uses {buffer.name} and is not inside loop "
                       f"{loop.loop_var.name}", code="BW322", guilty=[realize, loop],
help=_into(state, user, loop, buffer))  # fmt: skip
    return writers, readers


def _into(state: StepState, user: ir.Block, loop: ir.For, buffer: ir.Buffer) -> str:
    """Help text: the step that moves a user of the buffer into the loop."""
    name = called(state, loop)
    moves = [f'{step}("{user.name}", {name})' for step in ("compute_at", "reverse_compute_at")]
    way = first_legal(state, moves)
    if way:
        return f"{way} first"
    return f"choose a loop around all uses of {buffer.name}; no step moves {user.name} into {name}"


def touched_box(
    state: StepState,
    flow: BlockScope,
    buffer: ir.Buffer,
    fixed: Sequence[ir.For],
    analyzer: Analyzer,
) -> list[ir.Range]:
    """The bounding box of all accesses to a buffer in one iteration of the `fixed` loops."""
    boxes: list[tuple[ir.Range, ...]] = []
    for block in flow.blocks:
        for region in (*block.writes, *block.reads):
            if region.buffer is buffer:
                boxes.append(flow.region_under(fixed, block, region, analyzer, tight=False).region)
    hull: list[ir.Range] = []
    for parts in zip(*boxes, strict=True):
        result = union([IntervalSet.of_range(p) for p in parts], analyzer).range(analyzer)
        assert result is not None
        hull.append(ir.Range(analyzer.simplify(result.min), analyzer.simplify(result.extent)))
    return hull


def moved_accesses(
    stmt: ir.Stmt,
    buffer: ir.Buffer,
    fresh: ir.Buffer,
    index: Callable[[int, ir.Expr], ir.Expr],
    forward: dict[ir.Block, ir.Block],
    whole: int | None = None,
) -> Any:
    """The statement with accesses of `buffer` redirected to `fresh`, each index mapped by `index`.

    Signatures of blocks inside are recomputed, and the blocks recorded in `forward`. In dimension
    `whole`, regions of more than one element are widened to the whole dimension.
    """
    return _Moved(buffer, fresh, index, forward, whole)(stmt)


class _Moved(AccessRewrite):
    def __init__(
        self,
        buffer: ir.Buffer,
        fresh: ir.Buffer,
        index: Callable[[int, ir.Expr], ir.Expr],
        forward: dict[ir.Block, ir.Block],
        whole: int | None,
    ) -> None:
        super().__init__(forward)
        self.buffer, self.fresh, self.index, self.whole = buffer, fresh, index, whole

    def _indices(self, indices: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
        return tuple(self.index(dim, e) for dim, e in enumerate(indices))

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> Any:
        new = self.descend(node)
        if node.buffer is not self.buffer:
            return new
        return new.replace(buffer=self.fresh, indices=self._indices(new.indices))

    def rewrite_BufferStore(self, node: ir.BufferStore) -> Any:
        new = self.descend(node)
        if node.buffer is not self.buffer:
            return new
        return new.replace(buffer=self.fresh, indices=self._indices(new.indices))

    def restated(self, block: ir.Block) -> ir.Block:
        return block.replace(
            reads=tuple(map(self._stated, block.reads)),
            writes=tuple(map(self._stated, block.writes)),
        )

    def _stated(self, region: ir.BufferRegion) -> ir.BufferRegion:
        dim = self.whole
        if (
            dim is None
            or region.buffer is not self.fresh
            or ir.is_const_int(region.region[dim].extent, 1)
        ):
            return region
        ranges = list(region.region)
        ranges[dim] = ir.full_region(self.fresh).region[dim]
        return ir.BufferRegion(region.buffer, tuple(ranges))
