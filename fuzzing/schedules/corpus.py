"""The corpus: progress of the runs, and one script per failure."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec

from blockwright.testing.moves import Tally
from fuzzing.schedules.play import Failure, Played

_PER_SYMPTOM = 3
"""Scripts kept per symptom."""
_SECONDS = 120


class CorpusEntry(msgspec.Struct):
    """A failure in the corpus: its script, symptom, number of occurrences, whether it is fixed."""

    file: str
    symptom: str
    seed: int
    count: int = 1
    mended: bool = False


class Progress(msgspec.Struct):
    """Content of `state.json`; seeds below `next` and the chunks in `beyond` are done."""

    next: int = 0
    beyond: list[int] = []
    native: int = 0
    lowered: int = 0
    accepted: dict[str, int] = {}
    refused: dict[str, dict[str, int]] = {}
    found: list[CorpusEntry] = []


class Corpus:
    """A folder with a state and scripts, created if missing.

    Args:
        folder: path of the folder.
        seed: first seed of a new corpus.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self._file = folder / "state.json"
        folder.mkdir(parents=True, exist_ok=True)
        if self._file.is_file():
            self.state = msgspec.json.decode(self._file.read_bytes(), type=Progress)
        else:
            self.state = Progress(next=seed)

    # ------------------------------------------------------------------ progress
    def done(self, first: int) -> bool:
        """Whether the chunk that starts with this seed is done."""
        return first < self.state.next or first in self.state.beyond

    def note(self, first: int, count: int, played: Played) -> None:
        """Record the results of a chunk."""
        state = self.state
        state.beyond.append(first)
        while state.next in state.beyond:
            state.beyond.remove(state.next)
            state.next += count
        state.native += played.native
        state.lowered += played.lowered
        for name, number in played.tally.accepted.items():
            state.accepted[name] = state.accepted.get(name, 0) + number
        for name, codes in played.tally.refused.items():
            mine = state.refused.setdefault(name, {})
            for code, number in codes.items():
                mine[code] = mine.get(code, 0) + number
        for failure in played.failures:
            self._keep(failure)
        self.save()

    def save(self) -> None:
        """Write the state atomically."""
        part = self._file.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(self.state)))
        part.replace(self._file)

    @property
    def tally(self) -> Tally:
        """Steps accepted and refused in all runs."""
        tally = Tally()
        tally.accepted.update(self.state.accepted)
        for name, codes in self.state.refused.items():
            for code, number in codes.items():
                tally.refuse(name, code, number)
        return tally

    # ------------------------------------------------------------------ failures
    @property
    def open(self) -> list[CorpusEntry]:
        """Failures not known to be fixed."""
        return [result for result in self.state.found if not result.mended]

    def _keep(self, failure: Failure) -> None:
        alike = [f for f in self.state.found if f.symptom == failure.symptom]
        if len(alike) >= _PER_SYMPTOM:
            alike[-1].count += 1
            return
        word = re.sub(r"\W+", "_", failure.symptom).strip("_").lower()
        name = f"{word}_{failure.seed}.py"
        (self.folder / name).write_text(failure.script, encoding="utf-8")
        self.state.found.append(CorpusEntry(name, failure.symptom, failure.seed))

    def try_again(self) -> None:
        """Run the scripts of known failures, and mark each as mended or open.

        A failure is mended if its script passes, or if its steps are now refused.
        """
        for result in self.state.found:
            path = self.folder / result.file
            try:
                done = subprocess.run(
                    [sys.executable, str(path)],
                    capture_output=True,
                    check=False,
                    timeout=_SECONDS,
                    text=True,
                )
                result.mended = done.returncode == 0 or _refused(done.stderr, result.symptom)
            except subprocess.TimeoutExpired:
                result.mended = False
        self.save()


def _refused(stderr: str, symptom: str) -> bool:
    """Whether a script ended with the refusal of a step that is not part of its symptom."""
    codes = re.findall(r"ScheduleError: error\[(BW3\d\d)\]", stderr)
    return bool(codes) and codes[-1] != "BW309" and codes[-1] not in symptom
