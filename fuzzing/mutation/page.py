"""The page of the results, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from fuzzing.mutation.nets import Catch

ARGUED = Path(__file__).with_name("argued.json")
"""Key of a fault that nothing catches → why it does no harm, or cannot be reached."""


class Result(msgspec.Struct, frozen=True):
    """A fault and what became of it."""

    key: str
    module: str
    kind: str
    catch: Catch

    @property
    def settled(self) -> bool:
        """Whether a net held it, and there is nothing left to do about it."""
        return not self.left and not self.catch.missed

    @property
    def left(self) -> str:
        """Which of `LEFT` it belongs to; empty when a net held it."""
        if self.catch.caught:
            return ""
        if not self.catch.tried:
            return "not reached"
        return "survives" if self.catch.reached else "no effect"


LEFT = ("survives", "no effect", "not reached")
"""What may become of a fault that no net holds: the programs that came out with it were other ones
and all right; the same came out as without it; no use runs through its place."""


_HEAD = """# The safety net, tested

Generated; do not edit. `make mutation` renews the page: {command}

Faults are put into the schedule room mechanically, from the syntax trees of its sources, in memory:
each precondition (`state.fail`, `require_…`) left out, each start and extent of a range one off in
both directions, each pair of bindings swapped, each initial value, predicate and side of a
conjunction dropped, each inverse map one off. No primitive places barriers, so there is none to
drop here; `fuzzing.mutants` drops statements of programs. A precondition is tried on
uses that it refuses, other faults on uses that run through their line; uses come from random
programs under random steps and from the tests of the room.

- **legality**: another precondition refused, the step raised an error, or the program that came out
  is not well formed (`verify="full"`), not legal (`bw.validate`), not what its text says, or has
  blocks that promise more than they do (`testing.moves.slack`: regions that the body does not
  touch, domains whose end the loops do not reach; no random step leaves such);
- **proof**: `bw.verify` of the programs before and after refuted, or could not prove what it proves
  without the fault (`refuted` counts the former alone);
- **interpreter**: the programs compute different results on random inputs;
- **tests**: of what the nets above let through, what makes tests fail that took these steps (they
  expect the refusal, or exactly the program);
- **no effect**: on all uses the same program came out as without the fault;
- **not reached**: no use was found that runs through the place.

A fault may be caught by several. A precondition that is left out, and whose programs all turn out
right, is a survivor too: it refuses more than it must, or keeps something other than the meaning.
What no net catches is argued at the end, one by one, or `make mutation` fails: of a fault without
effect why none can have one, of a place that nothing reaches why it stands there.

"""


def page(
    results: Sequence[Result], argued: Mapping[str, str], tests: Sequence[str], programs: int
) -> str:
    """The tables, and the survivors with their reasons."""
    command = f"`python -m fuzzing.mutation --programs {programs} --tests {' '.join(tests)}`."
    lines = [_HEAD.format(command=command).rstrip(), ""]
    lines += ["## By kind", "", *_table(results, lambda r: r.kind)]
    lines += ["", "## By file", "", *_table(results, lambda r: r.module)]
    missed = [r for r in results if r.catch.missed]
    lines += ["", f"Programs that differ on the interpreter and were proved: {len(missed)}.", ""]
    if missed:
        lines += [*(f"- `{r.key}`" for r in missed), ""]
    for left in LEFT:
        row = [r for r in results if r.left == left]
        lines += [f"## {left.capitalize()}", ""]
        for reason in sorted({argued.get(r.key, "") for r in row}):
            lines += [f"**{reason or 'Not argued yet.'}**", ""]
            lines += [f"- `{r.key}`" for r in row if argued.get(r.key, "") == reason]
            lines.append("")
        if not row:
            lines += ["None.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(results: Sequence[Result], of: Callable[[Result], str]) -> list[str]:
    lines = [
        "| | faults | legality | proof | refuted | interpreter | tests | survive | "
        "no effect | not reached |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows: dict[str, list[Result]] = {}
    for result in results:
        rows.setdefault(of(result).removeprefix("blockwright.schedule."), []).append(result)
    for name, row in [*sorted(rows.items()), ("all", list(results))]:
        catches = [r.catch for r in row]
        numbers = [
            len(row),
            sum(c.legality for c in catches),
            sum(c.proof for c in catches),
            sum(c.refuted > 0 for c in catches),
            sum(c.differs > 0 for c in catches),
            sum(c.tests > 0 for c in catches),
            *(sum(r.left == left for r in row) for left in LEFT),
        ]
        lines.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    return lines


def problems(results: Sequence[Result], argued: Mapping[str, str], whole: bool) -> list[str]:
    """Faults that no net holds and that are not argued, arguments without such a fault, and proofs
    that are wrong."""
    open_ = {r.key: r.left for r in results if r.left}
    result = [
        f"{left}, and is not argued: {key}"
        for key, left in sorted(open_.items())
        if key not in argued
    ]
    if whole:
        result += [f"argued, and caught: {key}" for key in sorted(argued.keys() - open_.keys())]
    result += [
        f"proved, and differs: {r.key}\n{r.catch.example}" for r in results if r.catch.missed
    ]
    twice = [key for key, n in Counter(r.key for r in results).items() if n > 1]
    return result + [f"two faults of one name: {key}" for key in twice]
