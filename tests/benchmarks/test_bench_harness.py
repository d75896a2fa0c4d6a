"""The harness times peers in turns, checks their answers, and says who failed and why."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.harness import Peer, PeerError, Settings, Timing, compare
from benchmarks.minilm import padded_batch
from benchmarks.worker import Worker, flat, timed_calls

if TYPE_CHECKING:
    from pathlib import Path

CASE = """
import os, time
import numpy as np

class Sleeper:
    def __init__(self, options):
        self.seconds = options["seconds"]
        print("noise that must not reach the protocol")
    def about(self):
        return {"pid": os.getpid()}
    def prepare(self, point):
        if point.get("fail"):
            raise ValueError("no such point")
        assert not point.get("assert")
        if point.get("sleep"):
            time.sleep(60)
        if point.get("die"):
            os._exit(3)
        def call():
            time.sleep(self.seconds)
            return np.full(3, self.seconds if point.get("differ") else 1.0)
        return call

PEERS = {"fast": Sleeper, "slow": Sleeper}
"""
QUICK = Settings(rounds=3, budget_s=0.02, min_calls=2, pause_s=0.01, warmup_s=0.0)
PEERS = [Peer("fast", {"seconds": 0.001}), Peer("slow", {"seconds": 0.008})]


@pytest.fixture
def case(tmp_path: Path) -> str:
    (tmp_path / "sleepers").mkdir()
    (tmp_path / "sleepers" / "__init__.py").write_text("")
    (tmp_path / "sleepers" / "case.py").write_text(CASE)
    return str(tmp_path)


def test_peers_live_in_their_own_processes_and_ratios_are_right(case: str) -> None:
    results, about = compare("sleepers.case", PEERS, [{"n": 1}], settings=QUICK, path=[case])
    assert about["fast"]["pid"] != about["slow"]["pid"]
    (result,) = results
    assert len(result.timings["fast"].rounds) == QUICK.rounds
    assert 2 < result.ratio("slow", "fast") < 9
    assert result.timings["fast"].idle_share < 0.5
    assert result.as_json()["peers"]["slow"]["median"] >= 0.008


def test_a_busy_neighbour_is_noticed(case: str) -> None:
    endless = "import os\nwhile True: os.getpid()"
    with subprocess.Popen([sys.executable, "-c", endless]) as neighbour:
        ((result,), _) = compare("sleepers.case", PEERS, [{}], settings=QUICK, path=[case])
        neighbour.kill()
    assert result.disturbed


def test_disagreeing_answers_stop_the_comparison(case: str) -> None:
    with pytest.raises(PeerError, match=r"differ by 0\.007"):
        compare("sleepers.case", PEERS, [{"differ": True}], settings=QUICK, path=[case])


def test_a_failing_peer_is_named_with_its_traceback(case: str) -> None:
    with pytest.raises(PeerError, match=r"(?s)'fast' failed in 'prepare'.*no such point"):
        compare("sleepers.case", PEERS, [{"fail": True}], settings=QUICK, path=[case])


def test_an_error_without_a_message_names_its_line(case: str) -> None:
    with pytest.raises(PeerError) as caught:
        compare("sleepers.case", PEERS, [{"assert": True}], settings=QUICK, path=[case])
    assert caught.value.title == "fast"
    assert caught.value.reason.startswith("AssertionError: assert not point.get")


def test_a_peer_that_takes_too_long_is_ended(case: str) -> None:
    settings = replace(QUICK, limit_s=3.0)
    with pytest.raises(PeerError, match="'prepare' took longer than 3 s"):
        compare("sleepers.case", PEERS, [{"sleep": True}], settings=settings, path=[case])


def test_a_process_times_hot_caches_after_cold_ones() -> None:
    worker = Worker(lambda _: None)  # pyright: ignore[reportArgumentType]
    worker.call = lambda: None
    flushed: list[int] = []
    worker.flush = lambda: flushed.append(1)  # pyright: ignore[reportAttributeAccessIssue]
    request = {"budget_s": 0.0, "min_calls": 1, "clock": "wall"}
    worker.measure({**request, "flush": 1})
    before = len(flushed)
    assert before
    worker.measure({**request, "flush": 0})
    assert len(flushed) == before


def test_caches_are_flushed_outside_the_time_of_a_call() -> None:
    waits: list[float] = []

    def flush() -> None:
        time.sleep(0.01)
        waits.append(0.01)

    seconds = timed_calls(lambda: None, 0.0, 3, flush=flush)
    assert len(waits) == len(seconds) == 3
    assert max(seconds) < 0.01


def test_several_results_become_one_array() -> None:
    assert flat((np.ones((2, 2)), np.zeros(1))).tolist() == [1, 1, 1, 1, 0]


def test_a_dead_peer_is_reported(case: str) -> None:
    with pytest.raises(PeerError, match="'fast' died during 'prepare'"):
        compare("sleepers.case", PEERS, [{"die": True}], settings=QUICK, path=[case])


def test_spread_is_relative_to_the_median() -> None:
    assert Timing((1.0, 2.0, 4.0), calls=3, idle_share=0.0).spread == pytest.approx(0.75)


def test_padded_batches_are_reproducible_and_ragged() -> None:
    ids, mask = padded_batch(8, 64)
    again, _ = padded_batch(8, 64)
    assert (ids == again).all()
    assert mask[0].all()
    assert mask.sum(axis=1).min() >= 32
    assert (ids[mask == 0] == 0).all()
