"""A strategy that raises an error of its own costs speed, not the compilation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.script.compute import Program
from blockwright.strategies import STRATEGIES
from blockwright.strategies.strategy import NoDecision, Plan, Strategy, try_strategies
from blockwright.support.codes import CODES
from blockwright.target import Target

torch = pytest.importorskip("torch")


class OtherPlan(Plan, frozen=True):
    """A plan for some sizes."""


def broken(sch: Schedule, target: Target, plan: Plan) -> None:
    raise IndexError("tuple index out of range")


def broken_for_some(sch: Schedule, target: Target, plan: Plan) -> None:
    if plan != NoDecision():
        raise IndexError("tuple index out of range")


def doubled() -> ir.PrimFunc:
    p = Program("doubled")
    x = p.param("X", (8, 4), "float32")
    return p.finish([p.compute("Y", (8, 4), lambda i, j: x[i, j] + x[i, j])])


def match_by_fault(func: ir.PrimFunc, target: Target) -> ir.PrimFunc:
    raise KeyError("n")


def matches(func: ir.PrimFunc, target: Target) -> ir.PrimFunc:
    return func


SOME = [(ir.const(True, "bool"), OtherPlan())]
FAULTY: dict[str, Strategy[Any, Any]] = {
    "apply": Strategy("faulty", matches, broken),
    "match": Strategy("faulty", match_by_fault, broken),
    "variant": Strategy("faulty", matches, broken_for_some, variants=lambda *_: SOME),
}


@pytest.mark.parametrize("kind", FAULTY)
def test_the_next_strategy_takes_the_program(kind: str) -> None:
    found = try_strategies([FAULTY[kind], *STRATEGIES], doubled(), Target("native"))
    assert found.strategy == ("faulty" if kind == "variant" else "elementwise")
    ((name, fault),) = found.faults
    assert name == "faulty"
    assert "test_strategy_faults.py:" in fault
    assert fault.startswith(("IndexError", "KeyError"))


def test_a_compilation_goes_on_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    strategies = (FAULTY["apply"], *STRATEGIES)
    monkeypatch.setattr("blockwright.strategies.STRATEGIES", strategies)
    x = torch.randn(8, 40)
    with pytest.warns(bw.BlockwrightWarning, match="BW645.*faulty") as told:
        exe = bw.compile(torch.nn.Softmax(-1), (x,))
    (warning,) = {w.message for w in told if isinstance(w.message, bw.BlockwrightWarning)}
    assert warning.code == "BW645"
    assert "BW645" in CODES
    assert any(
        "strategy faulty for" in note and "failed: IndexError" in note for note in exe.context.notes
    )
    np.testing.assert_allclose(exe(x.numpy()), torch.softmax(x, -1).numpy(), rtol=1e-5, atol=1e-7)
