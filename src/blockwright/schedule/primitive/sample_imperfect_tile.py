"""sample_imperfect_tile: sample inner tile sizes that need not divide the extent."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.rewrite.sampling import require_decision, require_parts

_UNBOUNDED = 64
"""The largest factor sampled if the extent has no known upper bound."""


class SampleImperfectTile(Primitive, frozen=True, eq=False):
    """Sample the inner factors of a tile; `split` infers the outermost factor, passed as None.

    Factors are powers of two, or three times a power of two. They are sampled innermost first, each
    at most the remaining extent. For a symbolic extent, its upper bound is used.

    Args:
        loop: the loop.
        n: number of factors of the tile; n - 1 are sampled.
        max_innermost_factor: upper limit of the last factor.
        decision: the inner factors to use instead of sampling.

    Requires:
    - at least two factors, and a limit of at least 1 (BW304);
    - a decision has n - 1 positive factors (BW318).

    Before::

        @T.prim_func
        def main(A: T.Buffer((100,), "float32"), B: T.Buffer((100,), "float32")):
            for i in range(100):
                with T.block("B"):
                    vi = T.axis.spatial(100, i)
                    B[vi] = A[vi] + 1.0

    Steps::

        (i,) = sch.get_loops("B")
        sch.split(i, [None, *sch.sample_imperfect_tile(i, 2, decision=[16])])

    After::

        @T.prim_func
        def main(A: T.Buffer((100,), "float32"), B: T.Buffer((100,), "float32")):
            for i_0, i_1 in T.grid(7, 16):
                with T.block("B"):
                    vi = T.axis.spatial(100, i_0 * 16 + i_1)
                    T.where(i_0 * 16 + i_1 < 100)
                    B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "sample_imperfect_tile"
    pure: ClassVar[bool] = True
    returns: ClassVar[Returns] = "numbers"

    loop: LoopRV
    n: int
    max_innermost_factor: int = 16
    decision: tuple[int, ...] | None = None

    def apply(self, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        require_parts(state, self.n, minimum=2)
        if self.max_innermost_factor < 1:
            state.fail(
                f"max_innermost_factor={self.max_innermost_factor} allows no factor",
                code="BW304",
                help="use a limit of at least 1",
            )
        if self.decision is None:
            drawn = self._draw(state, loop)
        else:
            drawn = list(self.decision)
            require_decision(
                state,
                loop,
                drawn,
                len(drawn) == self.n - 1 and min(drawn) > 0,
                f"{self.n - 1} positive factors",
            )
        return StepResult(state.func, results=tuple(drawn), decision=tuple(drawn))

    def _draw(self, state: StepState, loop: ir.For) -> list[int]:
        rest = _largest(state.analyzer(loop), loop.extent)
        drawn: list[int] = []
        for _ in range(self.n - 1):
            largest = _UNBOUNDED if rest is None else max(rest, 1)
            if not drawn:
                largest = min(largest, self.max_innermost_factor)
            powers = [1 << k for k in range(largest.bit_length())]
            sizes = [s for p in powers for s in (p, 3 * p) if s <= largest]
            drawn.insert(0, state.random.choice(sizes))
            rest = None if rest is None else -(-rest // drawn[0])
        return drawn


def _largest(analyzer: Analyzer, extent: ir.Expr) -> int | None:
    """Return the constant upper bound of an extent, if it has one."""
    return analyzer.const_bounds(extent)[1]
