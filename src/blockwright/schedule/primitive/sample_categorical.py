"""sample_categorical: sample one of several numbers with given probabilities."""

from __future__ import annotations

import math
from typing import ClassVar

from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState


class SampleCategorical(Primitive, frozen=True, eq=False):
    """Sample one of several numbers with given probabilities.

    Args:
        candidates: the numbers.
        probs: weight of each candidate; the weights are normalized to sum 1.
        decision: position of the number to use instead of sampling.

    Requires:
    - as many weights as candidates, none negative, not all 0 (BW304);
    - a decision is a position among the candidates (BW304).

    Before::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(128, i)
                    B[vi] = A[vi] + 1.0

    Steps::

        (i,) = sch.get_loops("B")
        width = sch.sample_categorical([4, 8, 16], [0.2, 0.5, 0.3], decision=1)
        sch.split(i, [None, width])

    After::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i_0, i_1 in T.grid(16, 8):
                with T.block("B"):
                    vi = T.axis.spatial(128, i_0 * 8 + i_1)
                    B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "sample_categorical"
    pure: ClassVar[bool] = True
    returns: ClassVar[Returns] = "number"

    candidates: tuple[int, ...]
    probs: tuple[float, ...]
    decision: int | None = None

    def apply(self, state: StepState) -> StepResult:
        count = len(self.candidates)
        if count != len(self.probs):
            state.fail(
                f"{count} candidates have {len(self.probs)} weights",
                code="BW304",
                help="pass one weight per candidate",
            )
        if not all(0 <= p < math.inf for p in self.probs) or not 0 < sum(self.probs) < math.inf:
            state.fail(
                "the weights are not probabilities",
                code="BW304",
                help="pass finite nonnegative numbers, at least one positive",
            )
        chosen = self.decision
        if chosen is None:
            (chosen,) = state.random.choices(range(count), self.probs)
        if not 0 <= chosen < count:
            state.fail(
                f"decision={chosen} is not a position among {count} candidates",
                code="BW304",
                help=f"positions range from 0 to {count - 1}",
            )
        return StepResult(state.func, results=(self.candidates[chosen],), decision=chosen)
