"""reverse_compute_at: a consumer moves to where its producers are."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import Scope
from blockwright.analysis.regions import block_access_regions
from blockwright.arith import Analyzer
from blockwright.schedule.handle import BlockRV, LoopRV
from blockwright.schedule.move import (
    Domains,
    body_parts,
    merge,
    nest_for,
    part_positions,
    place,
    require_movable,
    require_sound,
    solve_dimension,
)
from blockwright.schedule.record import Primitive
from blockwright.schedule.state import State, Step


class ReverseComputeAt(Primitive, frozen=True, eq=False):
    """Move a consumer into a loop around its producers; it then handles what an iteration of
    that loop produces.

    Args:
        block: the consumer.
        loop: a loop around all producers of the block.
        preserve_unit_loops: keep loops that run once.
        index: place among the statements of the loop: -1 the last legal one, -2 the first.

    Requires:
    - block and loop stand in one scope, in which all blocks are complete or reductions and every
      consumer is covered by its producers;
    - the block is complete or a reduction, and all its producers are inside the loop;
    - what it reads of a producer is an element per iteration, or the iteration produces the whole
      dimension;
    - the results are complete in each iteration: the loop drives no reduction of a producer.

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

    block: BlockRV
    loop: LoopRV
    preserve_unit_loops: bool = False
    index: int = -1

    def apply(self, state: State) -> Step:
        block, loop = state.block(self.block), state.loop(self.loop)
        flow = require_movable(state, block, loop)
        realize = state.tree.realize(block)
        producers = flow.producers(block)
        if not producers:
            state.fail(f"no block of the scope writes what block {block.name} reads", code="BW322",
                       guilty=[realize])  # fmt: skip
        for producer in producers:
            if not state.tree.is_below(state.tree.realize(producer), loop):
                state.fail(f"block {producer.name} writes what block {block.name} reads and is "
                           f"not inside loop {loop.loop_var.name}", code="BW322",
                           guilty=[state.tree.realize(producer), loop])  # fmt: skip
        self._inside(state, block, producers)
        self._free_outputs(state, flow, block, producers[-1])
        domains = self._domains(state, flow, block, loop, producers)
        nest = nest_for(state, block, loop, domains, self.preserve_unit_loops)
        parts = body_parts(loop)
        after = part_positions(state, parts, producers)
        before = part_positions(state, parts, flow.consumers(block))
        last = min(before, default=len(parts))
        step = place(state, block, loop, max(after) + 1, last, self.index, nest)
        require_sound(state, step, block, flow.consumers(block))
        return step

    @staticmethod
    def _inside(state: State, block: ir.Block, producers: list[ir.Block]) -> None:
        """Every instance reads an element that exists.

        An instance whose read lies outside the buffer, under a guard as in padding, belongs to no
        iteration of the producer's loop and would be lost by the move.
        """
        moved = {region.buffer for producer in producers for region in producer.writes}
        analyzer = state.analyzer(block)
        for it in block.iter_vars:
            analyzer.bind(it.var, it.dom)
        for read in block_access_regions(block, analyzer)[0]:
            if read.buffer not in moved:
                continue
            for rng, size in zip(read.region, read.buffer.shape, strict=True):
                low = analyzer.prove(ir.GE(*ir.match_types(rng.min, 0)))
                high = analyzer.prove(ir.LE(*ir.match_types(rng.min + rng.extent, size)))
                if not (low and high):
                    state.fail(
                        f"block {block.name} may read outside of {read.buffer.name}; such "
                        "instances belong to no iteration of the loop",
                        code="BW323",
                        guilty=[state.tree.realize(block)],
                        help="inline or pad the read first",
                    )

    @staticmethod
    def _free_outputs(state: State, flow: Scope, block: ir.Block, start: ir.Block) -> None:
        """What the block writes is not used between its new place and the old one."""
        low, high = flow.position[start], flow.position[block]
        for region in block.writes:
            users = [*flow.readers.get(region.buffer, ()), *flow.writers.get(region.buffer, ())]
            for user in users:
                if low < flow.position[user] < high:
                    state.fail(
                        f"block {user.name} uses {region.buffer.name} before block "
                        f"{block.name} writes it",
                        code="BW316",
                        guilty=[state.tree.realize(user), state.tree.realize(block)],
                    )

    @staticmethod
    def _domains(
        state: State, flow: Scope, block: ir.Block, loop: ir.For, producers: list[ir.Block]
    ) -> Domains:
        """What the producers write in one iteration, as domains of the consumer's iterators."""
        fixed = [*state.tree.loops_above(loop), loop]
        analyzer = state.analyzer(loop.body)
        iters = {it.var for it in block.iter_vars}
        found: Domains = {}
        for read in block.reads:
            for producer in producers:
                for write in producer.writes:
                    if write.buffer is not read.buffer:
                        continue
                    made = flow.region_under(fixed, producer, write, analyzer, tight=False)
                    for dim, access, rng in zip(
                        read.buffer.shape, read.region, made.region, strict=True
                    ):
                        solved = solve_dimension(access, rng, iters, analyzer)
                        if solved is not None:
                            merge(found, *solved, analyzer)
                        elif iters & set(ir.free_vars(access.min)) and not _is_whole(
                            rng, dim, analyzer
                        ):
                            state.fail(
                                f"which instances of block {block.name} an iteration of loop "
                                f"{loop.loop_var.name} can run does not follow from its index of "
                                f"{read.buffer.name}", code="BW323",
                                guilty=[state.tree.realize(block), loop],
                                help="choose a loop in which the whole dimension is "
                                "produced")  # fmt: skip
        return found


def _is_whole(rng: ir.Range, dim: ir.Expr, analyzer: Analyzer) -> bool:
    from_start = analyzer.prove(ir.LE(*ir.match_types(rng.min, 0)))
    return from_start and analyzer.prove(ir.GE(*ir.match_types(rng.min + rng.extent, dim)))
