"""Run one fault on its uses and record which checks catch it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.analysis import find_violations
from blockwright.analysis.validate.well_formed import find_problems
from blockwright.schedule import ScheduleError
from blockwright.support import BlockwrightError
from blockwright.testing.check import Reference
from blockwright.testing.moves.checks import check_meaning, check_text
from blockwright.testing.moves.slack import slack
from blockwright.verify import verify
from fuzzing.mutation.bank import Use, run_tests
from fuzzing.mutation.sites import Mutant
from fuzzing.mutation.switch import switched_on

TESTS = 150
"""Maximum number of tests to run, until one fails, if no other check catches a fault."""
USES = 14
"""Maximum number of uses per fault whose result differs from that without the fault."""


class Catch(msgspec.Struct):
    """Results of the uses of a fault.

    Attributes:
        tried: uses run.
        unchanged: those that produced the same program as without the fault.
        refused: those that another precondition refused, or whose program is not well formed, not
            legal, does not round-trip through its text, or has too large signatures (`slack`).
        crashed: those whose step raised an error that is not a refusal.
        differs: those whose program computes something else on the interpreter.
        refuted, unknown, proved: verdicts on the resulting programs.
        tests: 1 if nothing else caught it and a test of such steps now fails.
        missed: programs that differ on the interpreter but were proved: a fault of the prover.
        example: if nothing caught it, the step and the program.
    """

    tried: int = 0
    unchanged: int = 0
    refused: int = 0
    crashed: int = 0
    differs: int = 0
    refuted: int = 0
    unknown: int = 0
    proved: int = 0
    tests: int = 0
    missed: int = 0
    example: str = ""

    @property
    def legality(self) -> bool:
        return self.refused + self.crashed > 0

    @property
    def proof(self) -> bool:
        """Whether a proof was attempted and failed."""
        return self.refuted + self.unknown > 0

    @property
    def caught(self) -> bool:
        return self.legality or self.proof or self.differs + self.tests > 0

    @property
    def reached(self) -> bool:
        return self.tried > self.unchanged


def examine(mutant: Mutant, uses: list[Use], tests: Sequence[str] = ()) -> Catch:
    """Run uses with a fault until interpreter and prover have both caught it.

    Args:
        uses: empty if the steps produce no program or too large a one; then only the tests run.
            Uses without effect do not count towards the limit `USES`.
        tests: tests to run if no other check catches it.
    """
    catch = Catch()
    for use in uses:
        if use.refused or use.repeats():
            _examine(catch, mutant, use)
        if (catch.differs and catch.refuted) or catch.tried - catch.unchanged == USES:
            break
    if tests and not catch.caught:
        catch.tried += not uses
        with switched_on(mutant):
            catch.tests = int(not run_tests(tests[:TESTS], "-x"))
    return catch


def _examine(catch: Catch, mutant: Mutant, use: Use) -> None:
    catch.tried += 1
    try:
        with switched_on(mutant):
            after = use.again()
    except ScheduleError as error:
        wrong = not error.code.startswith("BW3") or error.code == "BW309"
        catch.crashed += wrong
        catch.refused += not wrong
        return
    except Exception:  # noqa: BLE001  any other error: no program results
        catch.crashed += 1
        return
    same = use.func if use.after is None else use.after
    if after is same or ir.structural_equal(after, same):
        catch.unchanged += 1
        return
    catch.refused += (
        _illegal(use.func, after)
        or (not _readable(after) and _readable(same))
        or bool(slack(use.func, after) and not slack(use.func, same))
    )
    wrong = differs(use.func, after)
    catch.differs += wrong
    verdict = _verdict(use.func, after)
    if verdict == "unknown" and use.after is not None:
        usual = _verdict(use.func, use.after)
        verdict = verdict if usual == "proved" else "beyond it, as without the fault"
    catch.refuted += verdict == "refuted"
    catch.unknown += verdict == "unknown"
    catch.proved += verdict == "proved"
    catch.missed += wrong and verdict == "proved"
    if not catch.example or (wrong and verdict == "proved"):
        catch.example = f"{use.record!r}\n--- before\n{use.func!r}\n--- after\n{after!r}"


def _illegal(before: ir.PrimFunc, after: ir.PrimFunc) -> bool:
    if find_problems(after):
        return True
    return bool(find_violations(after)) and not find_violations(before)


def _readable(func: ir.PrimFunc) -> bool:
    """Whether the program round-trips through its text."""
    try:
        check_text(func)
    except (AssertionError, BlockwrightError):
        return False
    return True


def _verdict(before: ir.PrimFunc, after: ir.PrimFunc) -> str:
    try:
        return verify(before, after).verdict
    except BlockwrightError:
        return "unknown"


def differs(before: ir.PrimFunc, after: ir.PrimFunc) -> bool:
    """Whether the programs differ on the interpreter by more than rounding."""
    for seed in range(3):
        try:
            reference = Reference(before, seed=seed)
        except BlockwrightError:
            return False  # the original program is not valid for this input
        try:
            check_meaning(reference, after, exact=False)
        except (AssertionError, BlockwrightError):
            return True
    return False
