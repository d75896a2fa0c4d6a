"""sample_perfect_tile: sample tile factors whose product is the extent of a loop."""

from __future__ import annotations

import math
from typing import ClassVar

from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.rewrite.sampling import (
    constant_extent,
    draw_tile,
    require_decision,
    require_parts,
)


class SamplePerfectTile(Primitive, frozen=True, eq=False):
    """Sample uniformly among all factor tuples whose product is the extent of a loop.

    Args:
        loop: the loop.
        n: number of factors, outermost first.
        max_innermost_factor: upper limit of the last factor; -1 for no limit.
        decision: the factors to use instead of sampling.

    Requires:
    - the extent is a constant (BW354);
    - a decision has `n` factors with the extent as product (BW318).

    Before::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(128, i)
                    B[vi] = A[vi] + 1.0

    Steps::

        (i,) = sch.get_loops("B")
        sch.split(i, sch.sample_perfect_tile(i, 2, decision=[16, 8]))

    After::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i_0, i_1 in T.grid(16, 8):
                with T.block("B"):
                    vi = T.axis.spatial(128, i_0 * 8 + i_1)
                    B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "sample_perfect_tile"
    pure: ClassVar[bool] = True
    returns: ClassVar[Returns] = "numbers"

    loop: LoopRV
    n: int
    max_innermost_factor: int = 16
    decision: tuple[int, ...] | None = None

    def apply(self, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        require_parts(state, self.n)
        extent, largest = constant_extent(state, loop), self.max_innermost_factor
        if largest == 0 or largest < -1:
            state.fail(
                f"max_innermost_factor={largest} allows no factor",
                code="BW304",
                help="use a limit of at least 1, or -1 for no limit",
            )
        if self.decision is None:
            drawn = draw_tile(state.random, extent, self.n, lambda d: largest == -1 or d <= largest)
        else:
            drawn = list(self.decision)
            fits = len(drawn) == self.n and math.prod(drawn) == extent and min(drawn) > 0
            require_decision(
                state, loop, drawn, fits, f"{self.n} factors whose product is {extent}"
            )
        return StepResult(state.func, results=tuple(drawn), decision=tuple(drawn))
