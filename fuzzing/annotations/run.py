"""Judge many mutants; count the verdicts and collect the findings."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from blockwright import ir
from fuzzing.annotations.bank import WRITTEN
from fuzzing.annotations.mutate import mutant
from fuzzing.annotations.trial import MutantVerdict, judged, tried
from fuzzing.schedules.isolate import Death, in_processes, isolated

_TOGETHER = 8
_SECONDS = 120


class MutantFinding(msgspec.Struct, frozen=True):
    """A mutant with a wrong result, a crash, or an error without a code."""

    seed: int
    base: str
    change: str
    verdict: MutantVerdict
    text: str

    def __str__(self) -> str:
        head = f"seed {self.seed}: {self.base}: {self.change}: {self.verdict.kind}"
        return f"{head}\n{self.verdict.text}\n{self.text}\n"


class RunCounts(msgspec.Struct):
    """Verdicts of a run by kind and by code, and the findings."""

    kinds: Counter[str] = msgspec.field(default_factory=Counter[str])
    codes: Counter[str] = msgspec.field(default_factory=Counter[str])
    findings: list[MutantFinding] = []

    @property
    def mutants(self) -> int:
        return self.kinds.total()

    def table(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common())
        codes = ", ".join(f"{code} {n}" for code, n in self.codes.most_common())
        return f"{kinds}\n{codes}\n{len(self.findings)} findings"


class _Mutant(msgspec.Struct, frozen=True):
    seed: int
    base: str
    change: str
    module: ir.IRModule


def fuzz_annotations(
    bank: Mapping[str, ir.IRModule], count: int, first: int = 0, jobs: int = 1
) -> RunCounts:
    """Judge `count` mutants from the seed `first` on; each accepted program runs once."""
    outcome = RunCounts()
    batches = _batches(bank, range(first, first + count), outcome)
    for batch, answers in in_processes(_run, batches, jobs, _SECONDS):
        if isinstance(answers, Death):
            answers = [_alone(m) for m in batch]
        for one, verdict in zip(batch, answers, strict=True):
            _note(outcome, one, verdict)
    return outcome


def _batches(
    bank: Mapping[str, ir.IRModule], seeds: range, outcome: RunCounts
) -> Iterator[list[_Mutant]]:
    """Batches of accepted mutants; programs that are equal after normalization run only once."""
    # Imported modules take long to compile, so they are drawn less often.
    names = [n for n in sorted(bank) for _ in range(3 if n in WRITTEN else 1)]
    known, batch = set[str](), list[_Mutant]()
    for seed in seeds:
        chance = random.Random(seed)
        base = chance.choice(names)
        module, change = mutant(bank[base], seed)
        verdict, module = judged(module, by_text=chance.random() < 0.3)
        one = _Mutant(seed, base, change, module)
        if verdict.kind != "accepted":
            _note(outcome, one, verdict)
        elif verdict.text in known:
            outcome.kinds["equal to an earlier one"] += 1
        else:
            known.add(verdict.text)
            batch.append(one)
        if len(batch) == _TOGETHER:
            yield batch
            batch = []
    if batch:
        yield batch


def _run(batch: list[_Mutant]) -> list[MutantVerdict]:
    return [tried(one.module, one.seed) for one in batch]


def _alone(one: _Mutant) -> MutantVerdict:
    result = isolated(lambda: tried(one.module, one.seed), _SECONDS)
    return MutantVerdict("wrong", f"dies: {result.why}") if isinstance(result, Death) else result


def _note(outcome: RunCounts, one: _Mutant, verdict: MutantVerdict) -> None:
    outcome.kinds[verdict.kind] += 1
    if verdict.kind in ("wrong", "internal"):
        try:
            text = one.module.script()
        except Exception as error:  # noqa: BLE001  report the finding without its text
            text = f"(no text: {error!r})"
        outcome.findings.append(MutantFinding(one.seed, one.base, one.change, verdict, text))
    else:
        outcome.codes[verdict.text] += 1


def write_findings(outcome: RunCounts, folder: Path) -> None:
    """Write a file for each finding."""
    folder.mkdir(parents=True, exist_ok=True)
    for result in outcome.findings:
        (folder / f"annotation-{result.seed}.txt").write_text(str(result), encoding="utf-8")
