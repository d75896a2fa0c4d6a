"""sample_partitioned_tile: sample tile factors whose inner part is a multiple of a number."""

from __future__ import annotations

import math
from typing import ClassVar

from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.rewrite.sampling import (
    constant_extent,
    count_tiles,
    divisors,
    draw_tile,
    require_decision,
    require_parts,
)


class SamplePartitionedTile(Primitive, frozen=True, eq=False):
    """Sample factors of a loop's extent in two parts; the inner part is a multiple of a number.

    The inner tile then consists of whole vectors, or of whole tiles of a tensor intrinsic.

    Args:
        loop: the loop.
        n: number of factors, outermost first.
        partition_pos: position of the first factor of the inner part.
        innerpart_factor: the product of the inner part is a multiple of this.
        decision: the factors to use instead of sampling.

    Requires:
    - the extent is a constant (BW354) and a multiple of `innerpart_factor` (BW318);
    - `partition_pos` is the position of a factor (BW304);
    - a decision satisfies the same conditions (BW318).

    Before::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(128, i)
                    B[vi] = A[vi] + 1.0

    Steps::

        (i,) = sch.get_loops("B")
        sch.split(i, sch.sample_partitioned_tile(i, 3, 1, 16, decision=[2, 4, 16]))

    After::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i_0, i_1, i_2 in T.grid(2, 4, 16):
                with T.block("B"):
                    vi = T.axis.spatial(128, i_0 * 64 + i_1 * 16 + i_2)
                    B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "sample_partitioned_tile"
    pure: ClassVar[bool] = True
    returns: ClassVar[Returns] = "numbers"

    loop: LoopRV
    n: int
    partition_pos: int = 0
    innerpart_factor: int = 1
    decision: tuple[int, ...] | None = None

    def apply(self, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        require_parts(state, self.n)
        extent, at, unit = constant_extent(state, loop), self.partition_pos, self.innerpart_factor
        if not 0 <= at < self.n or unit < 1:
            state.fail(
                f"partition_pos={at} and innerpart_factor={unit} are not a valid part of "
                f"{self.n} factors",
                code="BW304",
                help="use the position of a factor, counted from 0, and a factor of at least 1",
            )
        if extent % unit:
            state.fail(
                f"the extent {extent} of loop {loop.loop_var.name} is not a multiple of {unit}",
                code="BW318",
                guilty=[loop],
                help="pad the loop first",
            )
        if self.decision is None:
            drawn = self._draw(state, extent)
        else:
            drawn = list(self.decision)
            fits = len(drawn) == self.n and min(drawn) > 0 and math.prod(drawn) == extent
            fits = fits and math.prod(drawn[at:]) % unit == 0
            require_decision(
                state,
                loop,
                drawn,
                fits,
                f"{self.n} factors whose product is {extent}, from position {at} on "
                f"a multiple of {unit}",
            )
        return StepResult(state.func, results=tuple(drawn), decision=tuple(drawn))

    def _draw(self, state: StepState, extent: int) -> list[int]:
        """Sample uniformly over all tiles.

        First samples the size of the inner part, weighted by its number of tiles, then the factors
        of both parts.
        """
        outside, inside = self.partition_pos, self.n - self.partition_pos
        sizes = [d for d in divisors(extent) if d % self.innerpart_factor == 0]
        weights = [count_tiles(extent // d, outside) * count_tiles(d, inside) for d in sizes]
        (size,) = state.random.choices(sizes, weights)
        outer = draw_tile(state.random, extent // size, outside) if outside else []
        return [*outer, *draw_tile(state.random, size, inside)]
