"""distribute: split a loop over several statements into one loop per statement."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import (
    require_known_kind,
    require_only_blocks,
    require_plain_loop,
    with_own_buffers,
)
from blockwright.schedule.legality.guards import require_lasting
from blockwright.schedule.legality.interleaving import require_legal_interleaving


class Distribute(Primitive, frozen=True, eq=False):
    """Split a loop over several statements into one loop per statement (loop fission).

    This is the inverse of `merge`. The parts can then be scheduled separately: one of them is
    vectorized, another is reordered or moved into a different loop.

    Args:
        loop: the loop; its body is a sequence of blocks and nests.

    Returns: the loops of the statements, in program order.

    Requires:
    - the loop is serial and not annotated (BW312), has at least two statements (BW310), all of them
      in blocks (BW313), and its bounds are not loaded from memory that it writes (BW350);
    - its blocks are complete or reductions (BW314);
    - if two blocks of different statements access the same element and one of them writes it, they
      do so in the same iteration (BW316);
    - a buffer private to each iteration of an inner parallel loop stays private (BW317).

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32"),
                 C: T.Buffer((16,), "float32")):
            for i in range(16):
                for j in range(8):
                    with T.block("B"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        B[vi, vj] = A[vi, vj] + 1.0
                with T.block("C"):
                    vi = T.axis.spatial(16, i)
                    C[vi] = B[vi, 0] * 2.0

    Steps::

        of_b, of_c = sch.distribute(sch.get_loops("C")[0])
        sch.vectorize(of_c)

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32"),
                 C: T.Buffer((16,), "float32")):
            for i0, j in T.grid(16, 8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i0, j])
                    B[vi, vj] = A[vi, vj] + 1.0
            for i1 in T.vectorized(16):
                with T.block("C"):
                    vi = T.axis.spatial(16, i1)
                    C[vi] = B[vi, 0] * 2.0
    """

    method: ClassVar[str] = "distribute"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "loops"

    loop: LoopRV

    def apply(self, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        require_plain_loop(state, loop)
        name = loop.loop_var.name
        if not isinstance(loop.body, ir.SeqStmt):
            state.fail(
                f"the body of loop {name} is a single statement",
                code="BW310",
                guilty=[loop],
                help="pass a loop over several blocks or nests, or use loop_partition to cut the "
                "range of this one",
            )
        groups = [require_only_blocks(state, part) for part in loop.body.seq]
        require_lasting(state, [loop], [loop])
        flow = state.flow_at(loop)
        for block in (b for group in groups for b in group):
            require_known_kind(state, flow, block)
        require_legal_interleaving(
            state,
            state,
            groups,
            [loop],
            help=f"distribute a loop inside {name}, whose iterations exchange values",
        )
        edit = Edit(state)
        fresh: list[ir.Var] = []
        parts: list[ir.Stmt] = []
        for position, part in enumerate(loop.body.seq):
            var = ir.Var(f"{name}{position}", loop.loop_var.type)
            body = edit.substitute(part, {loop.loop_var: var})
            parts.append(loop.replace(loop_var=var, body=body))
            fresh.append(var)
        edit.replace(loop, ir.seq(parts))
        return with_own_buffers(state, loop, edit.finish(*fresh))
