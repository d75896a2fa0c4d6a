"""Judge one operator in all its types, and record the outcomes of its samples."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from fuzzing.conformance.batch import Prepared, SampleOutcome, judged, prepared
from fuzzing.conformance.samples import (
    DTYPES,
    OperatorSample,
    dynamic_samples_of,
    samples_of,
)
from fuzzing.schedules.isolate import Death, isolated

_SECONDS = 60
"""Time limit of a sample in a separate process."""


class SampleFinding(msgspec.Struct, frozen=True):
    """A sample with a wrong result or an internal error."""

    dtype: str
    label: str
    what: str
    code: str
    words: str


class Row(msgspec.Struct):
    """Outcomes of the samples of one type: counts, and refusals by code."""

    dtype: str
    passed: int = 0
    wrong: int = 0
    internal: int = 0
    export: int = 0
    refused: dict[str, int] = {}

    @property
    def tried(self) -> int:
        """Number of samples judged, without those that PyTorch cannot export."""
        return self.passed + self.wrong + self.internal + sum(self.refused.values())

    @property
    def is_uncovered(self) -> bool:
        """Whether the importer lacks the operator of every sample."""
        return self.tried > 0 and self.refused.get("BW501") == self.tried

    def note(self, outcome: SampleOutcome) -> None:
        if outcome.what == "refused":
            self.refused[outcome.code] = self.refused.get(outcome.code, 0) + 1
        else:
            setattr(self, outcome.what, getattr(self, outcome.what) + 1)


class Record(msgspec.Struct):
    """An operator's rows and findings, and one message per code of refusal.

    Attributes:
        covered: false if all samples of the first type end in BW501: the importer lacks the
            operator, and other types are not tried.
        digest: digest of the sources that produced the record.
        seconds: processor time.
    """

    operator: str
    digest: str
    covered: bool = True
    seconds: float = 0.0
    rows: list[Row] = []
    findings: list[SampleFinding] = []
    reasons: dict[str, str] = {}

    def note(self, row: Row, label: str, outcome: SampleOutcome) -> None:
        row.note(outcome)
        if outcome.what in ("wrong", "internal"):
            self.findings.append(
                SampleFinding(row.dtype, label, outcome.what, outcome.code, outcome.words)
            )
        elif outcome.code:
            self.reasons.setdefault(outcome.code, outcome.words)


def types_of(op: Any, names: Sequence[str]) -> list[str]:
    """The given types that PyTorch supports for an operator."""
    known = op.supported_dtypes("cpu")
    return [name for name in names if DTYPES[name] in known]


def record_of(
    op: Any,
    names: Sequence[str],
    most: int,
    digest: str,
    before: Record | None = None,
    alone: bool = False,
) -> Record:
    """Judge an operator in some of its types.

    Arguments:
        most: samples per type of `MAIN`, before variants; see `samples_of`.
        before: record of other types, to extend.
        alone: run every sample in a separate process, after a common process has died.
    """
    record = Record(op.full_name, digest)
    begin = time.process_time()
    rows = [Row(name) for name in names]
    record.rows = rows[:1]
    _note(record, op, rows[:1], most, False, alone)
    record.covered = before is not None or not any(row.is_uncovered for row in record.rows)
    if record.covered:
        record.rows = rows
        _note(record, op, rows[1:], most, False, alone)
        _note(record, op, rows, most, True, alone)
    record.seconds = round(time.process_time() - begin, 2)
    return record if before is None else _joined(before, record)


def _joined(before: Record, now: Record) -> Record:
    """Merge two records of an operator with different types; keep the digest of the earlier one."""
    order = list(DTYPES)
    rows = sorted([*before.rows, *now.rows], key=lambda row: order.index(row.dtype))
    return Record(
        now.operator,
        before.digest,
        True,
        round(before.seconds + now.seconds, 2),
        rows,
        [*before.findings, *now.findings],
        {**now.reasons, **before.reasons},
    )


def _note(record: Record, op: Any, rows: list[Row], most: int, dynamic: bool, alone: bool) -> None:
    """Judge the samples of some types as one module and record the outcomes."""
    batches = [_batch(op, DTYPES[row.dtype], most, dynamic, alone) for row in rows]
    samples = [one for batch in batches for one in batch]
    judge = _one_by_one if alone else judged
    outcomes = iter(judge(samples, dynamic) if samples else [])
    for row, batch in zip(rows, batches, strict=True):
        for one in batch:
            record.note(row, one.sample.label, next(outcomes))


def _batch(op: Any, dtype: torch.dtype, most: int, dynamic: bool, alone: bool) -> list[Prepared]:
    try:
        draw = dynamic_samples_of if dynamic else samples_of
        samples = draw(op, dtype, most)
    except Exception:  # noqa: BLE001  OpInfo cannot draw samples of some operators here
        return []
    if alone:  # some samples crash PyTorch itself
        samples = [s for s in samples if _lives(op.name, s)]
    result = [prepared(op.name, s, str(dtype)) for s in samples]
    return [p for p in result if p is not None]


def _lives(name: str, sample: OperatorSample) -> bool:
    done = isolated(lambda: prepared(name, sample) is not None, _SECONDS)
    return done is True


def _one_by_one(batch: list[Prepared], dynamic: bool) -> list[SampleOutcome]:
    outcomes: list[SampleOutcome] = []
    for one in batch:
        done = isolated(lambda one=one: judged([one], dynamic)[0], _SECONDS)
        outcomes.append(
            SampleOutcome("internal", done.why, "the process died")
            if isinstance(done, Death)
            else done
        )
    return outcomes
