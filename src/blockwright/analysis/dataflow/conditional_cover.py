"""Coverage of a box by boxes that are written only under conditions."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.arith import Analyzer, jointly_cover

Made = tuple[tuple[ir.Range, ...], list[ir.Expr]]
"""A box that a producer writes, and the conditions under which the producer runs."""


def covered_in_cases(
    made: list[Made], need: Sequence[ir.Range], analyzer: Analyzer, known: Analyzer
) -> bool:
    """Whether conditional boxes cover a box.

    An undecided condition is split into two cases; where it fails, its box is missing.
    """
    for _, conditions in made:
        for condition in conditions:
            against = ir.logical_not(condition)
            if known.prove(condition) or known.prove(against):
                continue
            for case, other in ((condition, against), (against, condition)):
                in_case = [x.copy() for x in (analyzer, known)]
                for x in in_case:
                    x.learn(case)
                if not covered_in_cases(_settled(made, case, other), need, *in_case):
                    return False
            return True
    boxes = [box for box, conditions in made if all(known.prove(c) for c in conditions)]
    return jointly_cover(boxes, need, analyzer)


def _settled(made: list[Made], holds: ir.Expr, fails: ir.Expr) -> list[Made]:
    """Remove a condition known to hold, and boxes that need a condition known to fail.

    An analyzer may be unable to prove what it has learned, so removing the condition guarantees
    progress.
    """
    return [
        (box, [c for c in conditions if not ir.structural_equal(c, holds)])
        for box, conditions in made
        if not any(ir.structural_equal(c, fails) for c in conditions)
    ]
