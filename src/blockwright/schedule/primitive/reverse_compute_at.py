"""reverse_compute_at: move a consumer into a loop of its producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.analysis import BlockScope
from blockwright.arith import Analyzer, hull
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.remedies import one_loop
from blockwright.schedule.legality.try_remedies import called, legal
from blockwright.schedule.rewrite.motion import (
    neighbours,
    require_everywhere,
    require_movable,
    require_quiet,
    require_reads_inside,
    require_sound,
)
from blockwright.schedule.rewrite.move import (
    Domains,
    body_parts,
    merge,
    narrow,
    nest_for,
    part_positions,
    place,
    solve,
)


class ReverseComputeAt(Primitive, frozen=True, eq=False):
    """Move a consumer into a loop around its producers.

    The consumer then processes what one iteration of that loop produces.

    Args:
        block: the consumer.
        loop: a loop around producers of the block; other producers are before the loop.
        preserve_unit_loops: keep loops of extent 1.
        index: position among the statements of the loop: -1 the last legal one, -2 the first.

    Requires:
    - block and loop are in one scope, with only loops in between (BW310, BW351);
    - the block is complete or a reduction, and its loops cover its whole domain (BW314, BW315,
      BW361); afterwards each instance still runs, terms of a reduction once (BW358, BW315);
    - some producers are inside the loop, all others before it (BW322);
    - the region that an iteration produces determines the instances that run in it: the index is an
      injective map of iterators, or the whole dimension is produced (BW358);
    - the inputs are complete in each iteration: the loop drives no reduction of a producer, and
      the block does not read halos that other iterations produce (BW316);
    - the terms of a reduction whose reducer is order-dependent stay in order (BW330);
    - no statement between the old and the new position uses what the block writes, or writes what
      it reads (BW316).

    A moved reduction accumulates in the order of the producers' loops.

    Before::

        @T.prim_func
        def main(A: T.Buffer((64, 64), "float32"), C: T.Buffer((64, 64), "float32")):
            B = T.alloc_buffer((64, 64), "float32")
            for i, j in T.grid(64, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * 2.0
            for i, j in T.grid(64, 64):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vi, vj] + 1.0

    Steps::

        i, j = sch.get_loops(sch.get_block("B"))
        sch.reverse_compute_at(sch.get_block("C"), i)

    After::

        @T.prim_func
        def main(A: T.Buffer((64, 64), "float32"), C: T.Buffer((64, 64), "float32")):
            B = T.alloc_buffer((64, 64), "float32")
            for i in range(64):
                for j in range(64):
                    with T.block("B"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        B[vi, vj] = A[vi, vj] * 2.0
                for ax1 in range(64):
                    with T.block("C"):
                        vi, vj = T.axis.remap("SS", [i, ax1])
                        C[vi, vj] = B[vi, vj] + 1.0
    """

    method: ClassVar[str] = "reverse_compute_at"
    siblings: ClassVar[bool] = True

    block: BlockRV
    loop: LoopRV
    preserve_unit_loops: bool = False
    index: int = -1

    def apply(self, state: StepState) -> StepResult:
        block, loop = state.block(self.block), state.loop(self.loop)
        flow = require_movable(state, block, loop)
        require_everywhere(state, block)
        producers = self._producers(state, flow, block, loop)
        moved = {region.buffer for producer in producers for region in producer.writes}
        require_reads_inside(state, block, moved, partly=True)
        self._undisturbed(state, flow, block, loop)
        domains = self._domains(state, flow, block, loop, producers)
        nest = nest_for(state, block, loop, domains, self.preserve_unit_loops)
        parts = body_parts(loop)
        after = part_positions(state, parts, producers)
        step = place(state, block, loop, max(after) + 1, len(parts), self.index, nest)
        require_sound(state, step, block, block, flow.consumers(block), loop, everywhere=True)
        return step

    @staticmethod
    def _producers(
        state: StepState, flow: BlockScope, block: ir.Block, loop: ir.For
    ) -> list[ir.Block]:
        """Return the producers inside the loop; fails unless the others come before it."""
        realize = state.tree.realize(block)
        inside = set(state.tree.child_blocks(loop))
        producers = flow.producers(block)
        result = [p for p in producers if p in inside]
        if not producers:
            state.fail(
                f"no block of the scope writes what block {block.name} reads",
                code="BW322",
                guilty=[realize],
                help="move its consumers instead, or use compute_at to move the block "
                "itself to a consumer",
            )
        for producer in producers:
            late = result and flow.position[producer] > flow.position[result[0]]
            if producer not in inside and (late or not result):
                state.fail(
                    f"block {producer.name} writes what block {block.name} reads and is "
                    f"not inside loop {loop.loop_var.name}",
                    code="BW322",
                    guilty=[state.tree.realize(producer), loop],
                    help=_elsewhere(state, block, producer, loop),
                )
        return result

    @staticmethod
    def _undisturbed(state: StepState, flow: BlockScope, block: ir.Block, loop: ir.For) -> None:
        """Require no conflicting accesses between the old and the new position of the block."""
        around = neighbours(state, flow, block, loop)
        here = flow.position[block]
        first = min(flow.position[b] for b in state.tree.child_blocks(loop))
        inside = set(state.tree.child_blocks(loop))
        result = {b for b in flow.producers(block) if b in inside or flow.position[b] < first}
        writers = [b for b in around if b not in result]
        users = [b for b in around if flow.position[b] < here]
        require_quiet(state, flow, block, writers=writers, users=users)

    @staticmethod
    def _domains(
        state: StepState, flow: BlockScope, block: ir.Block, loop: ir.For, producers: list[ir.Block]
    ) -> Domains:
        """Return the domains of the consumer's iterators that one iteration produces inputs for."""
        fixed = [*state.tree.loops_above(loop), loop]
        analyzer = state.analyzer(loop.body)
        iterators = {it.var: it.dom for it in block.iter_vars}
        result: Domains = {}
        for read in block.reads:
            created = [
                flow.region_under(fixed, producer, write, analyzer, tight=False).region
                for producer in producers
                for write in producer.writes
                if write.buffer is read.buffer
            ]
            solved, unclear = _reached(read, created, iterators, analyzer)
            for var, rng in solved.items():
                narrow(result, var, rng, analyzer)
            if unclear:
                state.fail(
                    f"the index of {read.buffer.name} in block {block.name} does not determine "
                    f"which instances an iteration of loop {loop.loop_var.name} can run",
                    code="BW358",
                    guilty=[state.tree.realize(block), loop],
                    help="choose a loop in which the whole dimension is produced",
                )
        return {v: _full_step(rng, iterators[v], analyzer) for v, rng in result.items()}


def _full_step(rng: ir.Range, dom: ir.Range, analyzer: Analyzer) -> ir.Range:
    """Return a range of constant extent if the range is cut short only by the end of the domain.

    The predicate that the iterator is inside its domain then cuts it: `[4 * i, min(4 * i + 4, 50))`
    of `[0, 50)` becomes `[4 * i, 4 * i + 4)`. Iterations of one size are easily shown to reach the
    whole domain.
    """
    if ir.const_int(rng.extent) is not None:
        return rng
    most = analyzer.const_bounds(rng.extent)[1]
    if most is None:
        return rng
    full = ir.const(most, rng.extent.dtype)
    end = dom.min + dom.extent
    cut = ir.minimum(*ir.match_types(rng.min + full, end))
    same = analyzer.prove_equal(*ir.match_types(cut, rng.min + rng.extent))
    return ir.Range(rng.min, full) if same else rng


def _reached(
    read: ir.BufferRegion,
    made: Sequence[Sequence[ir.Range]],
    iterators: Domains,
    analyzer: Analyzer,
) -> tuple[Domains, bool]:
    """Return the iterator domains that read what any producer wrote, and whether some are unknown.

    They are unknown if a dimension that is not written as a whole does not determine an iterator.
    """
    result: Domains = {}
    free: set[ir.Var] = set()
    hulls: list[ir.Range] = []
    for box in made:
        solved, lost = solve(read.region, box, iterators, analyzer)
        for var, rng in solved.items():
            merge(result, var, rng, analyzer)
        free |= lost
        hulls = [hull(a, b, analyzer) for a, b in zip(hulls or box, box, strict=True)]
    unclear = any(
        not free.isdisjoint(ir.free_vars(access.min)) and not _is_whole(rng, dim, analyzer)
        for dim, access, rng in zip(read.buffer.shape, read.region, hulls, strict=False)
    )
    return {var: rng for var, rng in result.items() if var not in free}, unclear


def _is_whole(rng: ir.Range, dim: ir.Expr, analyzer: Analyzer) -> bool:
    from_start = analyzer.prove(ir.LE(*ir.match_types(rng.min, 0)))
    return from_start and analyzer.prove(ir.GE(*ir.match_types(rng.min + rng.extent, dim)))


def _elsewhere(state: StepState, block: ir.Block, producer: ir.Block, loop: ir.For) -> str:
    """Suggest where to move a block if the chosen loop does not contain a producer."""
    name = loop.loop_var.name
    what = ", ".join(
        dict.fromkeys(
            r.buffer.name for r in block.reads for w in producer.writes if r.buffer is w.buffer
        )
    )
    result = legal(
        state,
        (
            f'reverse_compute_at("{block.name}", {called(state, f)})'
            for f in state.tree.loops_above(producer)
        ),
    )
    why = (
        f"the part of {what} that an iteration of {name} produces determines the instances of "
        f"block {block.name} that it runs, and block {producer.name} is outside the loop"
    )
    ways = [f"{result[-1]} moves it to block {producer.name}"] if result else []
    others = [b for b in state.tree.child_blocks(loop) if b is not block][:1]
    shared = one_loop(state, [*others, block], f'get_loops("{block.name}")') if others else ""
    if shared:
        merged = shared.rsplit(", then ", 1)[0]
        ways.append(f"{merged} moves it next to block {others[0].name}")
    return (
        why
        + "; "
        + (
            "; or ".join(ways)
            or f"move both into one loop first, or leave block {block.name} where it is"
        )
    )
