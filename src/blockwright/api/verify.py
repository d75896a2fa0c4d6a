"""Check well-formed programs for equivalence."""

from __future__ import annotations

from blockwright import ir
from blockwright import verify as validation
from blockwright.analysis.validate.well_formed import check_well_formed


def verify(before: ir.PrimFunc, after: ir.PrimFunc) -> validation.Verdict:
    """Check that `after` computes what `before` computes.

    Values are equal up to the freedom that docs/semantics.md allows: reductions may be regrouped.
    A proof holds for all inputs and for all sizes of at least 1 within the declared bounds.

    Args:
        before: a tensor program.
        after: a tensor program with the same parameters.

    Returns:
        A verdict: "proved"; "refuted", with a counterexample that was run; or "unknown", with what
        could not be decided. The verdict is the same on every run and machine.

    Raises:
        OptionError: BW926 if the solvers are not installed; BW902 if an argument is not a tensor
            program.
        ValidationError: a program is not well formed; see `bw.validate`.
    """
    for program in (before, after):
        if isinstance(program, ir.PrimFunc):  # pyright: ignore[reportUnnecessaryIsInstance]
            check_well_formed(program)
    return validation.verify(before, after)
