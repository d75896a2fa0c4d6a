"""rolling_buffer: keep a sliding window in a circular buffer and compute only new elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from blockwright import ir
from blockwright.analysis import BlockKind, BlockScope
from blockwright.analysis.kernels import shares
from blockwright.arith import Analyzer
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.rewrite.motion import (
    has_implied_predicate,
    require_alone,
    require_idempotent,
    require_straight,
)
from blockwright.schedule.rewrite.storage import moved_accesses, require_owned, users_below


class _Window(msgspec.Struct, frozen=True):
    """The window of one iteration of `loop` in the rolling dimension `dim`.

    It has `size` elements from `low` on; the last `step` of them are new.
    """

    loop: ir.For
    dim: int
    low: ir.Expr
    size: int
    step: int


class RollingBuffer(Primitive, frozen=True, eq=False):
    """Turn a buffer into a circular buffer that holds a sliding window.

    Each iteration computes only the elements that the previous one has not computed, and overwrites
    elements that are no longer needed. The rolling loop is the outermost loop shared by the block
    and all readers whose consecutive iterations have overlapping windows. In that dimension the
    buffer shrinks to the window size, and indices become modulo that size.

    Args:
        block: the producer, already computed in a loop of its consumers (see `compute_at`).
        buffer_index: position among the block's write regions, or the buffer's name.

    Requires:
    - the buffer is allocated in the program with its default layout (BW321, BW328), accessed
      element by element in blocks (BW359, BW313), and written by this block alone (BW322);
    - the block is idempotent (BW314, BW315), its predicate only bounds iterators to their domains
      (BW356), and its inputs do not change while the loop runs (BW316);
    - there is a serial loop, with no parallel loop around all uses inside it (BW312), whose
      iterations need windows of a fixed size that move by a smaller fixed step in one dimension, in
      which the block writes single elements (BW345);
    - all readers are in that loop (BW322), and each reads only elements of the same iteration's
      window (BW316).

    Apply it last: roll consumers before their producers, and parallelize outer loops first. After
    it, instances share elements and readers depend on earlier iterations, so steps that need
    independent instances or iterations are rejected.

    Before::

        @T.prim_func
        def main(A: T.Buffer((66, 64), "float32"), C: T.Buffer((64, 64), "float32")):
            B = T.alloc_buffer((66, 64), "float32")
            for i in range(64):
                for r, j in T.grid(3, 64):
                    with T.block("B"):
                        vi = T.axis.spatial(66, i + r)
                        vj = T.axis.spatial(64, j)
                        B[vi, vj] = A[vi, vj] * 2.0
                for j in range(64):
                    with T.block("C"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        C[vi, vj] = B[vi, vj] + B[vi + 2, vj]

    Steps::

        sch.rolling_buffer(sch.get_block("B"), 0)

    After::

        @T.prim_func
        def main(A: T.Buffer((66, 64), "float32"), C: T.Buffer((64, 64), "float32")):
            B = T.alloc_buffer((3, 64), "float32")
            for i in range(64):
                for r, j in T.grid(3, 64):
                    with T.block("B"):
                        vi = T.axis.spatial(66, i + r)
                        vj = T.axis.spatial(64, j)
                        T.where(r >= T.min(i * 2, 2))
                        B[vi % 3, vj] = A[vi, vj] * 2.0
                for j in range(64):
                    with T.block("C"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        T.reads(B[0:3, vj])
                        T.writes(C[vi, vj])
                        C[vi, vj] = B[vi % 3, vj] + B[(vi + 2) % 3, vj]
    """

    method: ClassVar[str] = "rolling_buffer"
    siblings: ClassVar[bool] = True

    block: BlockRV
    buffer_index: int | str

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        realize = state.realize(block)
        scope = state.scope(block)
        flow = state.data_flow(scope)
        buffer, owner = require_owned(state, scope, block, self.buffer_index)
        readers = flow.readers.get(buffer, [])
        require_straight(state, scope, [realize, *map(state.tree.realize, readers)])
        self._require_served(state, flow, block, buffer, readers)
        require_idempotent(state, flow, block)
        if not has_implied_predicate(state, block):
            state.fail(
                f"block {block.name} has a predicate beyond the domains of its iterators",
                code="BW356",
                guilty=[realize],
                help="choose factors that divide the loops, or cut the border "
                "off with loop_partition",
            )
        window = self._window(state, flow, block, buffer, readers)
        users_below(state, flow, buffer, window.loop)
        _require_steady(state, flow, block, window.loop)
        _require_own_windows(state, buffer, state.tree.loops_above(window.loop))
        _require_kept_windows(state, block, buffer, readers, window.loop)
        return self._roll(state, block, buffer, owner, readers, window)

    @staticmethod
    def _require_served(
        state: StepState,
        flow: BlockScope,
        block: ir.Block,
        buffer: ir.Buffer,
        readers: Sequence[ir.Block],
    ) -> None:
        """Require a single writer, and readers that read only elements of the same iteration."""
        others = [w for w in flow.writers[buffer] if w is not block]
        if others:
            state.fail(
                f"block {others[0].name} writes {buffer.name} too",
                code="BW322",
                guilty=[state.tree.realize(b) for b in (block, *others)],
                help="choose a buffer that only one block writes",
            )
        if not readers:
            state.fail(
                f"nothing reads what block {block.name} writes",
                code="BW322",
                guilty=[state.tree.realize(block)],
                help="use rolling_buffer on a producer, after compute_at has moved it "
                "into a loop of its consumer",
            )
        for reader in readers:
            region = next(r for r in reader.reads if r.buffer is buffer)
            before = flow.position[block] < flow.position[reader]
            if not before or not flow.covers([block], reader, region):
                state.fail(
                    f"in an iteration of the loops they share, block {block.name} has not "
                    f"written all of {buffer.name} that block {reader.name} reads",
                    code="BW316",
                    guilty=[state.tree.realize(b) for b in (reader, block)],
                    help="compute_at the block in a loop of its readers first",
                )

    @staticmethod
    def _window(
        state: StepState,
        flow: BlockScope,
        block: ir.Block,
        buffer: ir.Buffer,
        readers: Sequence[ir.Block],
    ) -> _Window:
        """Return the window of the outermost shared loop along which windows overlap."""
        shared = state.tree.loops_above(block)
        for reader in readers:
            common = state.tree.common_loops(block, reader)
            shared = [f for f in shared if f in common]
        region = next(r for r in block.writes if r.buffer is buffer)
        analyzer = state.analyzer(shared[-1].body if shared else None)
        box = flow.region_under(shared, block, region, analyzer, tight=False).region
        for position, loop in enumerate(shared):
            inner = {f.loop_var for f in shared[position + 1 :]}
            result = _overlap(region, box, loop, inner, analyzer)
            if result is not None:
                _require_rolling_loop(state, block, loop)
                return result
        return state.fail(
            f"no loop shared by block {block.name} and the readers of {buffer.name} moves a window "
            "of fixed size by a fixed smaller step",
            code="BW345",
            guilty=[state.tree.realize(block)],
            help="compute_at the block in a loop whose iterations need overlapping parts",
        )

    @staticmethod
    def _roll(
        state: StepState,
        block: ir.Block,
        buffer: ir.Buffer,
        owner: ir.Block,
        readers: Sequence[ir.Block],
        w: _Window,
    ) -> StepResult:
        realize = state.tree.realize(block)
        shape = list(buffer.shape)
        shape[w.dim] = ir.const(w.size, shape[w.dim].dtype)
        fresh: ir.Buffer = buffer.replace(shape=tuple(shape))

        def around(dim: int, index: ir.Expr) -> ir.Expr:
            return ir.floormod(index, w.size) if dim == w.dim else index

        region = next(r for r in block.writes if r.buffer is buffer)
        binding = {it.var: v for it, v in zip(block.iter_vars, realize.iter_values, strict=True)}
        row = ir.substitute(region.region[w.dim].min, binding)
        analyzer = state.initial_facts(realize)
        inside = analyzer.simplify(ir.sub(*ir.match_types(row, w.low)))
        kept = w.size - w.step
        passed = ir.sub(*ir.match_types(ir.cast_to(w.loop.loop_var, inside.dtype), w.loop.min))
        old = ir.minimum(analyzer.simplify(ir.mul(passed, kept)), ir.const(kept, inside.dtype))
        is_new = ir.GE(*ir.match_types(inside, old))
        edit = Edit(state)
        guarded = realize.replace(predicate=ir.logical_and(realize.predicate, is_new))
        edit.replace(realize, moved_accesses(guarded, buffer, fresh, around, edit.forward, w.dim))
        for reader in readers:
            at = state.tree.realize(reader)
            edit.replace(at, moved_accesses(at, buffer, fresh, around, edit.forward, w.dim))
        edit.free(owner, buffer)
        edit.allocate(owner, fresh)
        edit.refresh_signatures()
        return edit.finish()


def _overlap(
    region: ir.BufferRegion,
    box: Sequence[ir.Range],
    loop: ir.For,
    inner: set[ir.Var],
    analyzer: Analyzer,
) -> _Window | None:
    """Return the window of a loop, if it moves in one dimension and overlaps the previous one."""
    var = loop.loop_var
    moving = [k for k, rng in enumerate(box) if ir.uses_var(rng, var)]
    if len(moving) != 1:
        return None
    dim = moving[0]
    low, size = box[dim].min, ir.const_int(box[dim].extent)
    after = ir.substitute(low, {var: ir.add(var, 1)})
    step = ir.const_int(analyzer.simplify(ir.sub(after, low)))
    single = ir.is_const_int(region.region[dim].extent, 1)
    if size is None or step is None or not single or ir.uses_var(low, inner):
        return None
    if not 0 < step < size or analyzer.prove(
        ir.GE(*ir.match_types(ir.const(size, low.dtype), region.buffer.shape[dim]))
    ):
        return None
    return _Window(loop, dim, low, size, step)


def _require_rolling_loop(state: StepState, block: ir.Block, loop: ir.For) -> None:
    """Require serial iterations and inner loops with loop-invariant ranges."""
    if loop.kind not in (ir.ForKind.SERIAL, ir.ForKind.UNROLLED):
        state.fail(
            f"loop {loop.loop_var.name} is {loop.kind.value}: an iteration cannot use values "
            "of the previous one",
            code="BW312",
            guilty=[loop],
            help=_in_order(loop),
        )
    for inner in state.tree.loops_above(block):
        ranges = (inner.min, inner.extent)
        if inner is not loop and any(
            ir.uses_var(e, loop.loop_var) or ir.collect(e, ir.BufferLoad) for e in ranges
        ):
            state.fail(
                f"the range of loop {inner.loop_var.name} changes with {loop.loop_var.name}",
                code="BW350",
                guilty=[inner, loop],
                help="use compute_at on a loop whose iterations all need a range of the same size",
            )


def _in_order(loop: ir.For) -> str:
    """Suggest how to roll in a loop whose iterations are unordered."""
    name, kind = loop.loop_var.name, loop.kind.value
    return (
        f"the rolling loop must be serial, because the window is computed in order: leave {name} "
        f"serial; or split({name}, …) before it becomes {kind}, make the outer part {kind}, "
        "compute_at at the inner part and roll there, so that each strip has a separate window"
    )


def _require_own_windows(state: StepState, buffer: ir.Buffer, above: Sequence[ir.For]) -> None:
    """Require that concurrent iterations have private buffers.

    Iterations of an outermost parallel loop do, and so do threads with private memory.
    """
    for depth, loop in enumerate(above):
        shared = loop.kind is ir.ForKind.VECTORIZED or (
            loop.kind is ir.ForKind.PARALLEL and depth > 0
        )
        if loop.kind is ir.ForKind.THREAD_BINDING and loop.thread is not None:
            shared = shares(buffer.scope, loop.thread.thread_tag)
        if shared:
            way = "store_at inside the loop first"
            if loop.kind is ir.ForKind.THREAD_BINDING:
                way = f'set_scope(…, "local") first, so that each thread has its own {buffer.name}'
            state.fail(
                f"iterations of loop {loop.loop_var.name}, which is {loop.kind.value}, may "
                f"overwrite one another's values of {buffer.name}",
                code="BW312",
                guilty=[loop],
                help=way,
            )


def _require_kept_windows(
    state: StepState,
    block: ir.Block,
    buffer: ir.Buffer,
    readers: Sequence[ir.Block],
    rolling: ir.For,
) -> None:
    """Require that no parallel loop inside the rolling loop contains all uses of the buffer.

    The buffer would be private to its iterations, whose values end with each iteration of the
    rolling loop (docs/semantics.md, private buffers).
    """
    shared = state.tree.loops_above(block)
    for reader in readers:
        common = state.tree.common_loops(block, reader)
        shared = [f for f in shared if f in common]
    for loop in shared[shared.index(rolling) + 1 :]:
        if loop.kind is ir.ForKind.PARALLEL:
            name = loop.loop_var.name
            state.fail(
                f"{buffer.name} is private to the iterations of the parallel loop {name}, which "
                f"every iteration of loop {rolling.loop_var.name} runs again",
                code="BW312",
                guilty=[loop, rolling],
                help=f"leave {name} serial, or reorder it outside of {rolling.loop_var.name}",
            )


def _require_steady(state: StepState, flow: BlockScope, block: ir.Block, loop: ir.For) -> None:
    """Require that the inputs of a block have the same values in every iteration of the loop."""
    inside = state.tree.child_blocks(loop)
    done: set[ir.Block] = set()
    work = [block]
    while work:
        here = work.pop()
        done.add(here)
        require_alone(state, loop, here)
        for other in inside:
            if other is here or not any(
                read.buffer is write.buffer and not flow.apart((here, read), (other, write))
                for read in here.reads
                for write in other.writes
            ):
                continue
            known = flow.kind(other) in (BlockKind.COMPLETE, BlockKind.REDUCTION)
            if flow.position[other] > flow.position[here] or not known:
                state.fail(
                    f"block {other.name} changes what block {here.name} reads while loop "
                    f"{loop.loop_var.name} runs",
                    code="BW316",
                    guilty=[state.tree.realize(b) for b in (other, here)],
                    help="use cache_read before the loop, so that the block reads an "
                    "unchanged copy",
                )
            if other not in done:
                work.append(other)
