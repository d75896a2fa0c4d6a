"""compute_at: move a producer into a loop of its consumers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.analysis import BlockScope
from blockwright.analysis.kernels import fills_together
from blockwright.arith.condition import conjuncts
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.remedies import loop_names, one_loop
from blockwright.schedule.legality.try_remedies import called, legal
from blockwright.schedule.rewrite.motion import (
    neighbours,
    require_final_inputs,
    require_movable,
    require_quiet,
    require_sound,
    run_domains,
)
from blockwright.schedule.rewrite.move import (
    Domains,
    body_parts,
    merge,
    nest_for,
    part_positions,
    place,
    solve,
)


class ComputeAt(Primitive, frozen=True, eq=False):
    """Move a producer into a loop around its consumers.

    The producer then computes only what one iteration of that loop needs. The buffer keeps its
    shape in the program. If it is used only inside the loop, lowering (`compact_buffers`) shrinks
    it to the box that one iteration uses; `explain_compute_at` reports that box.

    Args:
        block: the producer.
        loop: a loop around all consumers of the block.
        preserve_unit_loops: keep loops of extent 1.
        index: position among the statements of the loop: -1 the last legal one, -2 the first.

    Requires:
    - block and loop are in one scope, with only loops in between (BW310, BW351);
    - the block is idempotent: complete, or a reduction that its loops run starting at the initial
      value, and no other block updates its result (BW314, BW315). It may then be recomputed, which
      happens if iterations of the loop need overlapping parts (halos);
    - the terms of a reduction whose reducer is order-dependent stay in order (BW330);
    - it writes no output of the scope, and all its consumers are inside the loop (BW322);
    - its loops and predicate cover all points of a box (BW356, BW361);
    - nothing it reads is written between its old and its new position, counting all iterations
      of loops around only one of them (BW316);
    - consumers still read only elements that are written in the loops they share with the block
      (BW316); parallel iterations have private buffers or use disjoint parts (BW317).

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
    siblings: ClassVar[bool] = True

    block: BlockRV
    loop: LoopRV
    preserve_unit_loops: bool = False
    index: int = -1

    def apply(self, state: StepState) -> StepResult:
        block, loop = state.block(self.block), state.loop(self.loop)
        return computed_at(state, block, loop, self.preserve_unit_loops, self.index)


def computed_at(
    state: StepState,
    block: ir.Block,
    loop: ir.For,
    preserve_unit_loops: bool = False,
    index: int = -1,
) -> StepResult:
    """Return the step that computes the block in the loop; fails if it is not legal."""
    flow = require_movable(state, block, loop)
    realize = state.tree.realize(block)
    if flow.is_output(block):
        state.fail(
            f"block {block.name} writes an output of the scope",
            code="BW322",
            guilty=[realize],
            help=f'cache_write("{block.name}", 0, "global") first and compute_at that '
            "block, so that the copy keeps writing the output",
        )
    consumers = flow.consumers(block)
    if not consumers:
        state.fail(
            f"nothing reads what block {block.name} writes",
            code="BW322",
            guilty=[realize],
            help="use reverse_compute_at, which moves a consumer into a loop of its producer",
        )
    for carried in flow.carried_readers(block):
        state.fail(
            f"block {carried.name} reads what block {block.name} wrote in an earlier iteration",
            code="BW316",
            guilty=[state.tree.realize(carried), realize],
            help="move the block before the loop is pipelined, or give the reader a private copy",
        )
    for consumer in consumers:
        if not state.tree.is_below(state.tree.realize(consumer), loop):
            state.fail(
                f"block {consumer.name} reads what block {block.name} writes and is "
                f"not inside loop {loop.loop_var.name}",
                code="BW322",
                guilty=[state.tree.realize(consumer), loop],
                help=_around_all(state, block, consumers),
            )
    reached = run_domains(state, block)
    around = neighbours(state, flow, block, loop)
    earlier = [b for b in around if flow.position[b] < flow.position[block]]
    later = [b for b in around if flow.position[b] > flow.position[block]]
    require_final_inputs(state, flow, block, earlier)
    require_quiet(state, flow, block, writers=later, users=earlier)
    domains = needed_domains(state, flow, block, loop, consumers)
    when = _needed_when(state, consumers, loop)
    nest = nest_for(state, block, loop, domains, preserve_unit_loops, reached=reached, when=when)
    before = part_positions(state, body_parts(loop), consumers)
    step = place(state, block, loop, 0, min(before), index, nest)
    require_sound(state, step, block, block, consumers, loop)
    return step


def _needed_when(state: StepState, consumers: list[ir.Block], loop: ir.For) -> ir.Expr | None:
    """Return the conditions on `loop` and its outer loops that all consumers share; None if none.

    If the result does not hold, no consumer runs.
    """
    around = {f.loop_var for f in [*state.tree.loops_above(loop), loop]}
    below = {f.loop_var for f in ir.collect(loop.body, ir.For)}
    shared: list[ir.Expr] = []
    for position, consumer in enumerate(consumers):
        parts = [
            c
            for c in conjuncts(state.tree.realize(consumer).predicate)
            if ir.uses_var(c, around) and not ir.uses_var(c, below)
        ]
        shared = (
            parts
            if position == 0
            else [c for c in shared if any(ir.structural_equal(c, p) for p in parts)]
        )
    return ir.all_of(shared) if shared else None


def needed_domains(
    state: StepState, flow: BlockScope, block: ir.Block, loop: ir.For, consumers: list[ir.Block]
) -> Domains:
    """Return the domains of the block's iterators that one iteration of the loop reads."""
    around = [*state.tree.loops_above(loop), loop]
    analyzer = state.analyzer(loop.body)
    iterators = {it.var: it.dom for it in block.iter_vars}
    result: Domains = {}
    whole: set[ir.Var] = set()
    for write in block.writes:
        # Threads fill a shared-memory buffer cooperatively: one copy serves all of them.
        fixed = [f for f in around if not fills_together(f, write.buffer)]
        for consumer in consumers:
            for read in consumer.reads:
                if read.buffer is not write.buffer:
                    continue
                box = flow.region_under(fixed, consumer, read, analyzer, tight=False)
                solved, lost = solve(write.region, box.region, iterators, analyzer)
                whole |= lost
                for var, rng in solved.items():
                    merge(result, var, rng, analyzer)
    return {v: r for v, r in result.items() if v not in whole}


def _around_all(state: StepState, block: ir.Block, consumers: Sequence[ir.Block]) -> str:
    """Suggest a loop that contains all readers of a block, or a way to create one."""
    above = [state.tree.loops_above(c) for c in consumers]
    common = [f for f in above[0] if all(f in other for other in above[1:])]
    names = " and ".join(c.name for c in consumers)
    if common:
        steps = {f'compute_at("{block.name}", {called(state, f)})': f for f in common}
        result = legal(state, steps)
        good = [steps[s] for s in result] or common
        which = f"choose a loop around all its readers ({names}): {loop_names(good)}"
        return f"{which}; the innermost: {result[-1]}" if result else which
    created = ", ".join(r.buffer.name for r in block.writes)
    shared = one_loop(state, consumers, f'compute_at("{block.name}", loop)')
    apart = f"{names} read {created} and share no loop"
    return (
        f"{apart}; make them share one: {shared}"
        if shared
        else f"{apart}, and none of their loops can be merged: first split them into outer loops "
        "of equal extent and merge these; or leave block "
        f"{block.name} where it is"
    )
