"""Translation validation: is one tensor program right in the place of another?

`verify(before, after)` proves that two programs compute the same, refutes it with arguments for
which they differ, or says what it could not decide. It knows nothing of schedules: it shares no
code with the checks of the primitives (`schedule`), nor with the arithmetic and analyses that these
rest on, and works with a library for integer sets instead. `docs/verification.md` says what can be
decided.

The road of a proof: `program` (and `frame`, `affine`, `lanes`, `owners`) reads a function as
statements with instances; `flow` finds which stores a read sees; `values` turns results into terms
over inputs; `lemmas` finds buffers that hold the same in both, `safety` checks bounds and races;
`match` compares; `replay` runs both programs where that failed.
"""

from __future__ import annotations

import importlib.util

from blockwright import ir
from blockwright.support import OptionError
from blockwright.verify.verdict import Counterexample, Verdict

__all__ = ["Counterexample", "Verdict", "require_solvers", "verify"]


def require_solvers() -> None:
    """Raises: OptionError BW926 when the solvers are not installed."""
    for name, package in (("islpy", "islpy"), ("z3", "z3-solver")):
        if importlib.util.find_spec(name) is None:
            raise OptionError(
                f"proofs need {package}, which is not installed",
                code="BW926",
                help='pip install "blockwright[prove]"',
            )


def verify(before: ir.PrimFunc, after: ir.PrimFunc) -> Verdict:
    """Whether `after` computes what `before` computes.

    Values are equal up to the freedom that docs/semantics.md gives: reductions may be regrouped.
    A proof holds for all sizes of at least one within declared bounds, and for all inputs.

    Args:
        before: a tensor program.
        after: one with the same parameters.

    Returns:
        A verdict: "proved"; "refuted" with a counter-example that was run; "unknown" with what
        could not be decided. The same on every run and machine.

    Raises:
        OptionError: BW926 when the solvers are not installed, BW902 for anything but two tensor
            programs.
    """
    for program in (before, after):
        if not isinstance(program, ir.PrimFunc):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(
                f"cannot verify a {type(program).__name__}",
                code="BW902",
                help="pass two tensor programs",
            )
    require_solvers()
    from blockwright.verify.prove.decide import decide

    return decide(before, after)
