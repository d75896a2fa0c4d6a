"""Translation validation: check that one tensor program computes the same as another.

`verify(before, after)` proves two programs equivalent, refutes equivalence with a counterexample,
or reports what it could not decide. It knows nothing about schedules. It shares no code with the
legality checks of the schedule primitives (`schedule`) or with the arithmetic and analyses behind
them; it relies on an integer set library instead. `docs/verification.md` describes the decidable
class.

Steps of a proof:

1. `model/program` (with `instance_sets`, `affine`, `lanes`, `privatization`) reads a function as
   statements with instance sets.
2. `model/reaching_stores` finds the stores that reach each read.
3. `model/evaluate` turns results into terms over the inputs.
4. `prove/lemmas` finds buffers with the same content in both programs; `prove/safety` checks bounds
   and races.
5. `prove/match` compares the terms. If that fails, `prove/replay` runs both programs.

`intrinsics` compares tensor intrinsics with their meaning when they are registered.
"""

from __future__ import annotations

import importlib.util

from blockwright import ir
from blockwright.intrin import TensorIntrin
from blockwright.support import OptionError
from blockwright.verify.intrinsics import compare
from blockwright.verify.verdict import Counterexample, Verdict

__all__ = ["Counterexample", "TensorIntrin", "Verdict", "require_solvers", "verify"]

TensorIntrin.compare_with(compare)


def require_solvers() -> None:
    """Raise OptionError BW926 if the solvers are not installed."""
    for name, package in (("islpy", "islpy"), ("z3", "z3-solver")):
        if importlib.util.find_spec(name) is None:
            raise OptionError(
                f"proofs need {package}, which is not installed",
                code="BW926",
                help='pip install "blockwright[prove]"',
            )


def verify(before: ir.PrimFunc, after: ir.PrimFunc) -> Verdict:
    """Compare two programs as `blockwright.api.verify` documents; they must be well formed.

    Raises: OptionError BW926 if the solvers are not installed; BW902 if an argument is not a tensor
        program.
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
