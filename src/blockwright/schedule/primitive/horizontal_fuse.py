"""horizontal_fuse: fuse independent adjacent loops into disjoint ranges of one loop."""

from __future__ import annotations

import itertools
from typing import ClassVar

from blockwright import ir
from blockwright.analysis.dataflow.dependences import Boxes, conflicts
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import (
    require_only_blocks,
    require_whole,
)
from blockwright.schedule.legality.guards import guarded, require_lasting
from blockwright.schedule.legality.reduction import require_empty_sums
from blockwright.schedule.rewrite.loops import moved, resized, times_run


class HorizontalFuse(Primitive, frozen=True, eq=False):
    """Fuse independent loops into one loop whose disjoint ranges run their iterations.

    The extent of the new loop is the sum of the extents; each range runs the iterations of one
    loop. The loops may do unrelated work. If they are parallel, or the fused loop is made parallel,
    one launch does the work of several, so that small kernels fill the machine together.

    Args:
        loops: two or more adjacent loops, in program order.

    Requires:
    - the loops are in one sequence of statements (BW310) and of one kind without annotations:
      serial, parallel, or bound to the same blockIdx axis (BW312);
    - all statements in and between the loops are in blocks (BW313);
    - no block in one loop accesses what a block in another loop, or between them, writes (BW372);
      their bounds do not read what one of them writes (BW350);
    - if one of the loops is a reduction loop that may be empty, the fused loop may have more than
      one iteration and the blocks of that loop need no `if`; otherwise an empty reduction would
      lose its initial value (BW365).

    Bounds and predicates that divide or load are guarded by an `if`.

    Before::

        @T.prim_func
        def main(
            A: T.Buffer((24, 8), "float32"), B: T.Buffer((16,), "float32"),
            C: T.Buffer((24, 8), "float32"), D: T.Buffer((16,), "float32"),
        ):
            for i, j in T.grid(24, 8):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = A[vi, vj] * 2.0
            for k in range(16):
                with T.block("D"):
                    vk = T.axis.spatial(16, k)
                    D[vk] = B[vk] + 1.0

    Steps::

        i, j = sch.get_loops(sch.get_block("C"))
        (k,) = sch.get_loops(sch.get_block("D"))
        fused = sch.horizontal_fuse(i, k)
        sch.parallel(fused)

    After::

        @T.prim_func
        def main(
            A: T.Buffer((24, 8), "float32"), B: T.Buffer((16,), "float32"),
            C: T.Buffer((24, 8), "float32"), D: T.Buffer((16,), "float32"),
        ):
            for i_k_fused in T.parallel(40):
                for j in range(8):
                    with T.block("C"):
                        vi = T.axis.spatial(24, i_k_fused)
                        vj = T.axis.spatial(8, j)
                        T.where(i_k_fused < 24)
                        C[vi, vj] = A[vi, vj] * 2.0
                with T.block("D"):
                    vk = T.axis.spatial(16, i_k_fused - 24)
                    T.where(i_k_fused >= 24)
                    D[vk] = B[vk] + 1.0
    """

    method: ClassVar[str] = "horizontal_fuse"
    returns: ClassVar[Returns] = "loop"
    variadic: ClassVar[str] = "loops"

    loops: tuple[LoopRV, ...]

    def apply(self, state: StepState) -> StepResult:
        loops = [state.loop(handle) for handle in self.loops]
        parent = self._siblings(state, loops)
        self._alike(state, loops)
        first, last = (parent.seq.index(f) for f in (loops[0], loops[-1]))
        between = [s for s in parent.seq[first : last + 1] if s not in loops]
        for stmt in (*loops, *between):
            require_only_blocks(state, stmt)
        require_lasting(state, loops, [*loops, *between])
        _independent(state, loops, between)
        analyzer = state.loop_facts(loops[0])
        dtype = next(
            (f.loop_var.type for f in loops if f.loop_var.type.bits == 64), loops[0].loop_var.type
        )
        fused = ir.Var("_".join(f.loop_var.name for f in loops) + "_fused", dtype)
        ends: list[ir.Expr] = [ir.const(0, dtype)]
        for loop in loops:
            ends.append(analyzer.simplify(ends[-1] + ir.cast_to(times_run(loop, analyzer), dtype)))
        new = resized(loops[0].replace(loop_var=fused), ends[0], ends[-1], loops[0].body)
        analyzer.bind(fused, new.dom)
        parts: list[ir.Stmt] = []
        for k, loop in enumerate(loops):
            begin = ir.cast_to(loop.min, dtype)
            value = ir.cast_to(analyzer.simplify(fused - ends[k] + begin), loop.loop_var.type)
            part = moved(loop.body, loop.loop_var, value, analyzer)
            if k < len(loops) - 1:
                part = guarded(part, ir.LT(fused, ends[k + 1]), analyzer)
            if k:
                part = guarded(part, ir.GE(fused, ends[k]), analyzer)
            require_empty_sums(state, loop, part, {fused})
            parts.append(part)
        edit = Edit(state)
        edit.replace(loops[0], new.replace(body=ir.seq(parts)))
        for loop in loops[1:]:
            edit.replace(loop, None)
        return edit.finish(fused)

    @staticmethod
    def _siblings(state: StepState, loops: list[ir.For]) -> ir.SeqStmt:
        if len(loops) < 2 or len(set(loops)) < len(loops):
            state.fail(
                "pass two or more loops, each once",
                code="BW304",
                guilty=loops,
                help="pass one loop of each nest, in program order",
            )
        parents = {state.tree.parent.get(f) for f in loops}
        parent = parents.pop()
        if parents or not isinstance(parent, ir.SeqStmt):
            state.fail(
                "the loops are not adjacent: they are in different statement sequences",
                code="BW310",
                guilty=loops,
                help="choose loops of one sequence, such as the outermost ones",
            )
        if [f for f in parent.seq if f in loops] != loops:
            state.fail(
                "the loops are not given in program order",
                code="BW310",
                guilty=loops,
                help="pass the loops in program order, first nest first",
            )
        return parent

    @staticmethod
    def _alike(state: StepState, loops: list[ir.For]) -> None:
        for loop in loops:
            require_whole(state, loop)
            if loop.annotations:
                state.fail(
                    f"loop {loop.loop_var.name} is annotated with {', '.join(loop.annotations)}",
                    code="BW312",
                    guilty=[loop],
                    help="; ".join(
                        f'unannotate({loop.loop_var.name}, "{key}") first'
                        for key in loop.annotations
                    ),
                )
        tags = {(f.kind, f.thread.thread_tag if f.thread else "") for f in loops}
        kind, tag = next(iter(tags))
        free = kind in (ir.ForKind.SERIAL, ir.ForKind.PARALLEL) or tag.startswith("blockIdx")
        if len(tags) > 1 or not free:
            state.fail(
                "the loops are not all serial, all parallel, or all bound to one axis of "
                "thread blocks",
                code="BW312",
                guilty=loops,
                help="use horizontal_fuse on serial loops, and parallel or bind on the "
                "loop "
                "that it returns",
            )


def _independent(state: StepState, loops: list[ir.For], between: list[ir.Stmt]) -> None:
    """Require that no two loops conflict, nor a loop and a statement that it moves past."""
    flow = state.flow_at(loops[0])
    groups = [state.tree.child_blocks(f) for f in loops]
    groups.append([b for s in between for b in state.tree.child_blocks(s)])
    outer = state.tree.loops_above(loops[0])
    analyzer = state.analyzer(loops[0])

    boxes: Boxes = {}
    for k, group in enumerate(groups):
        others = [b for other in groups[:k] + groups[k + 1 :] for b in other]
        for a, b in itertools.product(group, others):
            for conflict in conflicts(a, b):
                if conflict.kind == "anti":  # the other order of the two finds it
                    continue
                if not flow.apart_within(outer, conflict, analyzer, boxes):
                    state.fail(
                        f"block {b.name} uses {conflict.mine.buffer.name}, which block "
                        f"{a.name} writes: their loops depend on one another",
                        code="BW372",
                        guilty=[*map(state.tree.realize, (a, b))],
                        help="fuse loops whose blocks use different buffers",
                    )
