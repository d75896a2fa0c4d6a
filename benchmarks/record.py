"""Records of runs: `results/NAME.json`, with the time of the run and its machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.built_for import NATIVE

if TYPE_CHECKING:
    from collections.abc import Mapping

RESULTS = Path(__file__).resolve().parent / "results"


def name_of(case: str, threads: int, target: str = NATIVE) -> str:
    """CASE-2-threads[-TARGET], so that records of other threads and targets are kept."""
    return f"{case}-{threads}-threads" + ("" if target == NATIVE else f"-{target}")


def write(name: str, before: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Write the results of a run atomically: on failure the earlier record stays.

    Args:
        before: `harness.machine()` when the run began.
    """
    record = {
        "case": name,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "machine": {**before, "load_after": harness.machine()["load"]},
        **content,
    }
    RESULTS.mkdir(exist_ok=True)
    part = RESULTS / f"{name}.part"
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(RESULTS / f"{name}.json")
