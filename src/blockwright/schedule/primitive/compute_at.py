"""compute_at: a producer moves to where its consumers need it."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import Scope
from blockwright.analysis.kernels import fills_together
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


class ComputeAt(Primitive, frozen=True, eq=False):
    """Move a producer into a loop around its consumers; it then computes only what an iteration
    of that loop needs.

    Args:
        block: the producer.
        loop: a loop around all consumers of the block.
        preserve_unit_loops: keep loops that run once.
        index: place among the statements of the loop: -1 the last legal one, -2 the first.

    Requires:
    - block and loop stand in one scope, in which all blocks are complete or reductions and every
      consumer is covered by its producers;
    - the block is complete or a reduction, and no output of the scope;
    - all its consumers are inside the loop;
    - nothing it reads is written again between its old place and the new one.

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

        i, j = sch.get_loops(sch.get_block("C"))
        sch.compute_at(sch.get_block("B"), i)

    After::

        @T.prim_func
        def main(A: T.Buffer((64, 64), "float32"), C: T.Buffer((64, 64), "float32")):
            B = T.alloc_buffer((64, 64), "float32")
            for i in range(64):
                for ax1 in range(64):
                    with T.block("B"):
                        vi, vj = T.axis.remap("SS", [i, ax1])
                        B[vi, vj] = A[vi, vj] * 2.0
                for j in range(64):
                    with T.block("C"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        C[vi, vj] = B[vi, vj] + 1.0
    """

    method: ClassVar[str] = "compute_at"

    block: BlockRV
    loop: LoopRV
    preserve_unit_loops: bool = False
    index: int = -1

    def apply(self, state: State) -> Step:
        block, loop = state.block(self.block), state.loop(self.loop)
        flow = require_movable(state, block, loop)
        realize = state.tree.realize(block)
        if flow.is_output(block):
            state.fail(f"block {block.name} writes an output of the scope", code="BW322",
                       guilty=[realize], help="cache_write it first")  # fmt: skip
        consumers = flow.consumers(block)
        if not consumers:
            state.fail(f"nothing reads what block {block.name} writes", code="BW322",
                       guilty=[realize])  # fmt: skip
        for consumer in consumers:
            if not state.tree.is_below(state.tree.realize(consumer), loop):
                state.fail(f"block {consumer.name} reads what block {block.name} writes and is "
                           f"not inside loop {loop.loop_var.name}", code="BW322",
                           guilty=[state.tree.realize(consumer), loop])  # fmt: skip
        require_unchanged_reads(state, flow, block, consumers[0])
        domains = self._domains(state, flow, block, loop, consumers)
        nest = nest_for(state, block, loop, domains, self.preserve_unit_loops)
        parts = body_parts(loop)
        after = part_positions(state, parts, flow.producers(block))
        before = part_positions(state, parts, consumers)
        step = place(state, block, loop, max(after, default=-1) + 1, min(before), self.index, nest)
        require_sound(state, step, block, consumers)
        return step

    @staticmethod
    def _domains(
        state: State, flow: Scope, block: ir.Block, loop: ir.For, consumers: list[ir.Block]
    ) -> Domains:
        """What the consumers read in one iteration of the loop, as domains of the iterators."""
        around = [*state.tree.loops_above(loop), loop]
        analyzer = state.analyzer(loop.body)
        iters = {it.var for it in block.iter_vars}
        found: Domains = {}
        whole: set[ir.Var] = set()
        for write in block.writes:
            # What threads share on the chip they fill together: one copy serves all of them.
            fixed = [f for f in around if not fills_together(f, write.buffer)]
            for consumer in consumers:
                for read in consumer.reads:
                    if read.buffer is not write.buffer:
                        continue
                    needed = flow.region_under(fixed, consumer, read, analyzer, tight=False)
                    for access, rng in zip(write.region, needed.region, strict=True):
                        solved = solve_dimension(access, rng, iters, analyzer)
                        if solved is None:
                            whole |= iters & set(ir.free_vars(access.min))
                        else:
                            merge(found, *solved, analyzer)
        return {v: r for v, r in found.items() if v not in whole}


def require_unchanged_reads(state: State, flow: Scope, block: ir.Block, until: ir.Block) -> None:
    """Nothing that `block` reads is written between it and `until`."""
    start, end = flow.position[block], flow.position[until]
    for region in block.reads:
        for writer in flow.writers.get(region.buffer, ()):
            if start < flow.position[writer] <= end:
                state.fail(
                    f"block {writer.name} overwrites {region.buffer.name}, which block "
                    f"{block.name} reads",
                    code="BW316",
                    guilty=[state.tree.realize(writer), state.tree.realize(block)],
                )
