"""Random ONNX graphs against ONNX Runtime: a few fixed seeds, and a fault that is put in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from fuzzing.onnx_graphs import judge as judge_file
from fuzzing.onnx_graphs.campaign import as_script, play
from fuzzing.onnx_graphs.draw import draw
from fuzzing.onnx_graphs.evaluate import expected
from fuzzing.onnx_graphs.judge import judge, reduced
from fuzzing.onnx_graphs.operators import OPERATORS
from fuzzing.onnx_graphs.program import OnnxProgram


def test_random_graphs_compute_what_onnx_runtime_does() -> None:
    assert [play(seed).verdict.what for seed in range(4)] == ["passed"] * 4


def test_seeds_stand_for_programs() -> None:
    """Equal seeds give equal programs; two hundred contain most of the operators of ONNX."""
    programs = [draw(seed) for seed in range(200)]
    assert programs[3].model() == draw(3).model()
    assert len({node.op for p in programs for node in p.nodes}) > 110
    assert sum(len(p.calls) == 2 for p in programs) > 80
    assert len(OPERATORS) > 60


def test_results_are_exact_unless_an_operator_rounds() -> None:
    programs = [draw(seed) for seed in range(30)]
    found = [expected(p, p.calls[0]) for p in programs]
    allowed = [float(a.max(initial=0)) for e in found for a in e.allowed]
    assert 0 < sum(a == 0 for a in allowed) < len(allowed)
    assert max(allowed) < 100


class _Wrong:
    """A compiler whose integer results are one too high."""

    def __init__(self, executable: Any) -> None:
        self.executable = executable

    def __call__(self, *arguments: Any) -> Any:
        found = self.executable(*arguments)
        return [x + x.dtype.type(1) if x.dtype.kind == "i" else x for x in found]


def test_a_wrong_result_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = bw.compile
    monkeypatch.setattr(judge_file.bw, "compile", lambda program: _Wrong(compiled(program)))

    def fails(program: OnnxProgram) -> bool:
        return judge(program, interpret=False).what == "wrong"

    program = next(p for p in map(draw, range(40)) if _has_integers(p) and len(p.nodes) < 9)
    assert fails(program)
    small = reduced(program, fails)
    assert len(small.nodes) < len(program.nodes)
    assert len(small.outputs) == len(small.calls) == 1
    monkeypatch.undo()
    verdict = judge(small, interpret=True)
    assert verdict.what == "passed"
    script = as_script(small, verdict, 0)
    exec(compile(script, "script", "exec"), {})
    off = script.replace("zip(found if", "zip([1 + x for x in found] if")
    with pytest.raises(AssertionError):
        exec(compile(off, "script", "exec"), {})


def _has_integers(program: OnnxProgram) -> bool:
    results = expected(program, program.calls[0]).results
    return any(r.dtype.kind == "i" and np.size(r) for r in results)
