"""From a proof attempt to a verdict: a failed proof is tested by running both programs."""

from __future__ import annotations

from collections.abc import Mapping

from blockwright import ir
from blockwright.interp import Limit
from blockwright.support import BlockwrightError
from blockwright.support.stack import deep
from blockwright.verify.normalize.guards_on_sizes import choices
from blockwright.verify.normalize.tensor_intrinsics import with_meanings
from blockwright.verify.prove.proof import Claim
from blockwright.verify.prove.replay import ITERATIONS, counterexample, default_sizes
from blockwright.verify.verdict import Counterexample, Mismatch, Unknown, Verdict


@deep
def decide(before: ir.PrimFunc, after: ir.PrimFunc) -> Verdict:
    """Prove equivalence, else refute it, else report what is unknown."""
    if ir.structural_equal(before, after):
        return Verdict("proved")
    stated = [with_meanings(func) for func in (before, after)]
    if stated != [before, after] and _is_proved(*stated):
        return Verdict("proved")
    parts = list(choices(after))
    if len(parts) > 1 and all(_is_proved(before, part) for part in parts):
        return Verdict("proved")
    claim = Claim(before, after)
    sizes: dict[str, int] = {}
    try:
        claim.prove()
    except Mismatch as problem:
        why = str(problem)
        sizes = {
            claim.symbols[name].name: value
            for name, value in problem.sizes.items()
            if name in claim.symbols
        }
    except Unknown as problem:
        why = str(problem)
    else:
        return Verdict("proved")
    limit = Limit(ITERATIONS)
    for known in (sizes, {}) if sizes else ({},):
        result = _run(before, after, known, limit)
        if result is not None:
            return Verdict("refuted", f"{result.difference} ({why})", result)
    return Verdict("unknown", why)


def _is_proved(before: ir.PrimFunc, after: ir.PrimFunc) -> bool:
    try:
        Claim(before, after).prove()
    except (Mismatch, Unknown):
        return False
    return True


def _run(
    before: ir.PrimFunc, after: ir.PrimFunc, sizes: Mapping[str, int], limit: Limit
) -> Counterexample | None:
    """Run both programs; None if they agree or one of them cannot be run."""
    try:
        return counterexample(before, after, default_sizes(before, sizes), limit=limit)
    except BlockwrightError:
        return None
