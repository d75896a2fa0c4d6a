"""One fault on its uses: which of the nets catch it."""

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
"""Tests that are run where nothing else catches a fault, until one fails."""
USES = 14
"""Uses of each fault that are looked at: those that come out otherwise than without it."""


class Catch(msgspec.Struct):
    """What became of the uses under a fault.

    Attributes:
        tried: uses that were run.
        unchanged: of these, where the same program came out as without the fault.
        refused: another precondition refused, or the program is not well formed, not legal, not
            what its text says, or its blocks promise more than they do (`slack`).
        crashed: the step raised what no refusal is.
        differs: the program computes something else on the interpreter.
        refuted, unknown, proved: verdicts on programs that came out.
        tests: where nothing else caught it, whether a test of such steps now fails.
        missed: programs that differ on the interpreter and were proved: the prover is at fault.
        example: where nothing caught it, the step and the program.
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
        """A proof was asked for and not given."""
        return self.refuted + self.unknown > 0

    @property
    def caught(self) -> bool:
        return self.legality or self.proof or self.differs + self.tests > 0

    @property
    def reached(self) -> bool:
        return self.tried > self.unchanged


def examine(mutant: Mutant, uses: list[Use], tests: Sequence[str] = ()) -> Catch:
    """Run uses under a fault until interpreter and prover have both caught it.

    Args:
        uses: none where steps make no program, or too large a one: then the tests alone are asked.
            Of those that have no effect all are run.
        tests: what is run when no net catches it.
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
    except Exception:  # noqa: BLE001  whatever it raises, no program comes out
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
    """Whether the program's text says all that it is."""
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
    """Whether the programs are seen to differ on the interpreter, rounding aside."""
    for seed in range(3):
        try:
            reference = Reference(before, seed=seed)
        except BlockwrightError:
            return False  # the first program has no meaning here
        try:
            check_meaning(reference, after, exact=False)
        except (AssertionError, BlockwrightError):
            return True
    return False
