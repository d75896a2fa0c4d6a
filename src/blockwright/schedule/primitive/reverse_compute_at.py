"""reverse_compute_at: a consumer moves to where its producers are."""

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
    """Move a consumer into a loop around its producers; it then handles what an iteration of
    that loop produces.

    Args:
        block: the consumer.
        loop: a loop around producers of the block; other producers stand before the loop.
        preserve_unit_loops: keep loops that run once.
        index: place among the statements of the loop: -1 the last legal one, -2 the first.

    Requires:
    - block and loop stand in one scope, with only loops in between (BW310, BW351);
    - the block is complete or a reduction, and its loops reach its whole domain (BW314, BW315,
      BW361); afterwards each instance still runs, terms of a reduction once (BW358, BW315);
    - some producers are inside the loop, all others before it (BW322);
    - what an iteration produces tells which instances can run in it: the index is a one-to-one
      map of iterators, or the whole dimension is produced (BW358);
    - the results are complete in each iteration: the loop drives no reduction of a producer, and
      halos that other iterations produce are not read (BW316);
    - the terms of a reduction whose combination needs their order run in it (BW330);
    - nothing between the two places uses what the block writes, or writes what it reads (BW316).

    The additions of a reduction that moves are made in the order of the producers' loops.

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
        require_reads_inside(state, block, moved)
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
        """The producers inside the loop; the others must come before it."""
        realize = state.tree.realize(block)
        inside = set(state.tree.child_blocks(loop))
        producers = flow.producers(block)
        result = [p for p in producers if p in inside]
        if not producers:
            state.fail(
                f"no block of the scope writes what block {block.name} reads",
                code="BW322",
                guilty=[realize],
                help="move its consumers instead, or bring the block itself to a "
                "consumer: compute_at",
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
        """Nobody writes what the block reads, or uses what it writes, between the two places."""
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
        """What the producers write in one iteration, as domains of the consumer's iterators."""
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
                    f"which instances of block {block.name} an iteration of loop "
                    f"{loop.loop_var.name} can run does not follow from its index of "
                    f"{read.buffer.name}",
                    code="BW358",
                    guilty=[state.tree.realize(block), loop],
                    help="choose a loop in which the whole dimension is produced",
                )
        return result


def _reached(
    read: ir.BufferRegion,
    made: Sequence[Sequence[ir.Range]],
    iterators: Domains,
    analyzer: Analyzer,
) -> tuple[Domains, bool]:
    """Domains in which a block reads what any of its producers made, and whether some dimension
    that is not made as a whole tells nothing of an iterator."""
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
    """Where a block can go when the loop chosen does not hold what it reads."""
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
        f"what of {what} an iteration of {name} produces would decide what of block "
        f"{block.name} it runs, and block {producer.name} stands outside of it"
    )
    ways = [f"{result[-1]} goes with block {producer.name}"] if result else []
    others = [b for b in state.tree.child_blocks(loop) if b is not block][:1]
    shared = one_loop(state, [*others, block], f'get_loops("{block.name}")') if others else ""
    if shared:
        merged = shared.rsplit(", then ", 1)[0]
        ways.append(f"{merged} brings it beside block {others[0].name}")
    return (
        why
        + "; "
        + (
            "; or ".join(ways)
            or f"bring both into one loop first, or leave block {block.name} where it is"
        )
    )
