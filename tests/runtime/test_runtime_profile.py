"""What a profile says of the readings it was made from: parts, sums, limits, the table."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from blockwright.runtime.profile import (
    AFTER,
    BEFORE,
    KernelCall,
    Profile,
    TimedRun,
    middle_half,
    timed_parts,
)
from blockwright.runtime.roofline import Roofline
from blockwright.runtime.sizes import bind_symbols

CALLS = (
    KernelCall("f", ("linear",), 0, 0, 2_000_000, 30_000, 10_000, 25_000),
    KernelCall("g", ("exp",), 0, 0, 1_000, 8_000, 4_000),
    KernelCall("f", ("linear",), 0, 0, 2_000_000, 30_000, 10_000, 25_000),
)
LINE = Roofline(2, 1e11, ((1_000, 1e11), (100_000, 5e10), (10_000_000, 1e10)), 5e9)


def run(begin: int, *steps: int) -> TimedRun:
    """A run from the lengths of its parts in order."""
    readings = [begin]
    for step in steps:
        readings.append(readings[-1] + step)
    return TimedRun(begin, readings[1:-1], readings[-1])


STEADY = run(1_000, 400, 100, 50, 20, 30_000, 1_000, 28_000, 300)


def test_nothing_of_a_run_is_left_out() -> None:
    calls, overhead = timed_parts(CALLS, [STEADY])
    assert [call.duration for call in calls] == [30_000, 1_000, 28_000]
    assert [part.name for part in overhead] == [*BEFORE, AFTER]
    assert [part.duration for part in overhead] == [400, 100, 50, 20, 300]
    whole = sum(part.duration for part in (*calls, *overhead))
    assert whole == STEADY.end - STEADY.begin
    ordered = sorted((*calls, *overhead), key=lambda part: part.start)
    for part, later in itertools.pairwise(ordered):
        assert part.start + part.duration == later.start


def test_interrupted_runs_do_not_count_and_sums_still_hold() -> None:
    """Of four runs the shortest and the longest are left out; parts of the others are averaged."""
    runs = [
        STEADY,
        run(0, 500, 100, 50, 20, 32_000, 1_000, 29_000, 400),
        run(0, 400, 100, 50, 20, 9_000_000, 1_000, 28_000, 300),
        run(0, 1, 1, 1, 1, 1, 1, 1, 1),
    ]
    calls, overhead = timed_parts(CALLS, runs)
    assert calls[0].duration == 31_000
    middle = [runs[0], runs[1]]
    whole = sum(part.duration for part in (*calls, *overhead))
    assert whole == pytest.approx(sum(r.end - r.begin for r in middle) / 2)


def test_the_middle_half() -> None:
    assert middle_half([5, 1, 4, 2, 3], float) == [2, 3, 4]
    assert middle_half([7], float) == [7]
    assert middle_half([1, 9], float) == [1, 9]


def profile(latency: float = 60e-6, roofline: Roofline | None = LINE) -> Profile:
    calls, overhead = timed_parts(CALLS, [STEADY])
    return Profile(calls, ("4×20",), 1, 0, overhead, latency, roofline)


def test_kernels_and_overhead_are_held_against_the_latency() -> None:
    found = profile()
    assert found.seconds == pytest.approx(59e-6)
    assert found.overhead_seconds == pytest.approx(0.87e-6)
    assert found.cover == pytest.approx((59 + 0.87) / 60)
    assert "kernels 98.5% and overhead 1.5% of a timed call's 0.060 ms" in str(found)
    assert "an uninstrumented call takes 0.060 ms" in str(found)


def test_shares_are_of_one_whole_also_where_reading_clocks_costs_much() -> None:
    """The latency is measured apart: a call may be shorter than its parts between clocks."""
    found = profile(latency=20e-6)
    shares = [row.share for row in found.kernels()]
    assert sum(shares) + found.overhead_seconds / found.timed_seconds == pytest.approx(1)
    printed = [float(text) for text in re.findall(r"([\d.]+)% │ ", str(found))]
    assert len(printed) == len(shares) + len(found.overhead)
    assert sum(printed) == pytest.approx(100, abs=0.5)
    told = re.search(r"kernels ([\d.]+)% and overhead ([\d.]+)%", str(found))
    assert told is not None
    assert float(told[1]) + float(told[2]) == pytest.approx(100, abs=0.11)


def test_kernels_are_held_against_the_roofline() -> None:
    """f: 4e6 operations at 1e11 a second take 40 µs, which is more than its bytes take."""
    first, second = profile().kernels()
    assert (first.kernel, second.kernel) == ("f", "g")
    assert first.limit == pytest.approx(40e-6)
    assert second.limit == pytest.approx(8_000 / LINE.bandwidth(8_000))
    assert f"{40 / 58:.0%}" in str(profile())
    assert profile(roofline=None).kernels()[0].limit is None


def test_what_the_cost_model_expects_stands_beside_the_time(tmp_path: Path) -> None:
    first, second = profile().kernels()
    assert (first.predicted, second.predicted) == (pytest.approx(50e-6), None)
    assert "0.058 │     0.050 │" in str(profile())
    profile().save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    told = [e["args"]["predicted_us"] for e in events if e.get("cat") == "kernel"]
    assert told == [25.0, 0.0, 25.0]


def test_every_part_stands_in_the_table_and_in_the_trace(tmp_path: Path) -> None:
    found = profile()
    text = str(found)
    assert all(name in text for name in (*BEFORE, AFTER))
    found.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [span["cat"] for span in spans].count("overhead") == len(BEFORE) + 1
    ends = [span["ts"] + span["dur"] for span in spans]
    assert ends[:-1] == pytest.approx([span["ts"] for span in spans[1:]])


def test_bandwidth_falls_from_cache_to_cache() -> None:
    assert LINE.bandwidth(10) == LINE.bandwidth(1_000) == 1e11
    assert LINE.bandwidth(10_000) == pytest.approx(7.5e10)  # half-way, in powers
    assert LINE.bandwidth(100_000) == pytest.approx(5e10)
    assert LINE.bandwidth(1 << 40) == 1e10


def test_writes_to_memory_have_a_speed_of_their_own() -> None:
    assert LINE.seconds(0, 20_000_000) == pytest.approx(2e-3)
    assert LINE.seconds(0, 10_000_000, 10_000_000) == pytest.approx(3e-3)
    assert LINE.seconds(1e9, 20_000_000) == pytest.approx(10e-3)


def test_symbols_inside_sizes_are_solved_for() -> None:
    assert bind_symbols([(("n", 4), (3, 4))]) == {"n": 3}
    assert bind_symbols([(("2*n + 1",), (9,))]) == {"n": 4}
    assert bind_symbols([(("n * m", "n"), (12, 3))]) == {"n": 3, "m": 4}
    assert bind_symbols([(("n + m", "m - k", "k"), (10, 2, 1))]) == {"k": 1, "m": 3, "n": 7}
    assert bind_symbols([(("2*n",), (9,))]) == {}
    assert bind_symbols([(("n // 2", "n * n"), (4, 64))]) == {}
