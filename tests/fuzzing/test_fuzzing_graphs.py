"""Random graph functions against NumPy: a few fixed seeds, and faults that are put in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from fuzzing.graphs import judge as judge_file
from fuzzing.graphs.campaign import CAMPAIGN, play
from fuzzing.graphs.draw import draw
from fuzzing.graphs.judge import as_script, judge, reduced
from fuzzing.graphs.operands import OPERATORS


def test_random_graphs_compute_what_numpy_does() -> None:
    assert [play(seed).verdict.what for seed in range(6)] == ["passed"] * 6


def test_seeds_stand_for_programs() -> None:
    """Equal seeds give equal programs, and a hundred of them contain every operator."""
    texts = [draw(seed).text() for seed in range(100)]
    assert texts[:5] == [draw(seed).text() for seed in range(5)]
    named = "\n".join(texts)
    for words in (
        "R.match_cast",
        "cls.extended",
        "R.split",
        "R.slice_scatter",
        "[1][0]",
    ):
        assert words in named
    assert len(OPERATORS) > 30
    calls = [draw(seed).calls for seed in range(20)]
    assert sum(len(c) == 3 for c in calls) > 10


class _Wrong:
    """A compiler whose integer results are one too high."""

    def __init__(self, executable: Any) -> None:
        self.executable = executable

    def __call__(self, *arguments: Any) -> Any:
        found = self.executable(*arguments)
        found = found if isinstance(found, tuple) else (found,)
        return tuple(x + x.dtype.type(1) if x.dtype.kind == "i" else x for x in found)


def test_a_wrong_result_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = bw.compile

    def wrong(program: Any) -> Any:
        return _Wrong(compiled(program))

    monkeypatch.setattr(judge_file.bw, "compile", wrong)
    graphs = (draw(seed, steps=5) for seed in range(20))
    graph = next(g for g in graphs if any(x.dtype.kind == "i" for x in g.expected(*g.calls[0])))
    assert judge(graph).what == "wrong"
    small = reduced(graph, lambda g: judge(g).what == "wrong")
    assert len(small.outputs) == 1
    assert len(small.bindings) < len(graph.bindings)
    assert len(small.calls) == 1
    monkeypatch.undo()
    assert judge(small).what == "passed"
    script = as_script(small, judge(small), 0)
    exec(compile(script, "script", "exec"), {})
    off = script.replace("zip(found if", "zip([1 + x for x in found] if")
    with pytest.raises(AssertionError):
        exec(compile(off, "script", "exec"), {})


def test_a_campaign_reports_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def dies(program: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(judge_file.bw, "compile", dies)
    assert CAMPAIGN.run(1, None, 0, 1, tmp_path) == 1
    assert "internal ZeroDivisionError" in capfd.readouterr().out
    assert len(list(tmp_path.glob("seed_*.py"))) == 10


def test_expected_results_are_those_of_numpy() -> None:
    graph = draw(0)
    sizes, arguments = graph.calls[0]
    results = graph.expected(sizes, arguments)
    assert len(results) == len(graph.outputs)
    assert all(isinstance(x, np.ndarray) for x in results)
