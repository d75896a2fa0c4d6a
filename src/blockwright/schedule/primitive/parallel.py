"""parallel: run the iterations of a loop on several threads."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_parallel, require_unbound


class Parallel(Primitive, frozen=True, eq=False):
    """Parallelize a loop across the threads of the pool.

    Args:
        loop: the loop.

    Requires:
    - the loop is neither bound to a thread axis nor inside such a loop (BW312);
    - all statements below the loop are in blocks that are complete, reductions, updates, or consist
      of atomic updates only, with one operation per buffer and unused results;
    - the loop drives no reduction iterator, unless the update is atomic (`atomic_update`);
    - iterations write different elements, or buffers allocated inside the loop, or conflict in
      atomic updates only;
    - no iteration reads what another iteration writes.

    Before::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(128, i)
                    B[vi] = A[vi] + 1.0

    Steps::

        (i,) = sch.get_loops(sch.get_block("B"))
        sch.parallel(i)

    After::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i in T.parallel(128):
                with T.block("B"):
                    vi = T.axis.spatial(128, i)
                    B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "parallel"

    loop: LoopRV

    def apply(self, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        require_unbound(state, loop)
        require_parallel(state, loop)
        edit = Edit(state)
        edit.replace(loop, loop.replace(kind=ir.ForKind.PARALLEL))
        return edit.finish()
