"""Records of runs say when and where they were made, and are never half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import harness, record


def test_targets_and_threads_have_records_of_their_own() -> None:
    assert record.name_of("cliffs", 2) == "cliffs-2-threads"
    assert record.name_of("cliffs", 1, "x86-64-v3") == "cliffs-1-threads-x86-64-v3"


def test_a_record_that_fails_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    before = harness.machine()
    record.write("small", before, {"lines": [1.5]})
    with pytest.raises(TypeError):
        record.write("small", before, {"lines": [object()]})
    left = json.loads((tmp_path / "results/small.json").read_text())
    assert (left["case"], left["lines"]) == ("small", [1.5])
    assert left["machine"].keys() == {*before, "load_after"}
    assert left["time"] > "2026"
