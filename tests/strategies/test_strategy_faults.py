"""A strategy that raises an error of its own costs speed, not the compilation."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.script.compute import Program
from blockwright.strategies import STRATEGIES
from blockwright.strategies.strategy import Strategy, Variant, try_strategies
from blockwright.support.codes import CODES
from blockwright.target import Target

torch = pytest.importorskip("torch")


def broken(sch: Schedule, target: Target) -> None:
    raise IndexError("tuple index out of range")


def doubled() -> ir.PrimFunc:
    p = Program("doubled")
    x = p.param("X", (8, 4), "float32")
    return p.finish([p.compute("Y", (8, 4), lambda i, j: x[i, j] + x[i, j])])


def refuses_by_fault(func: ir.PrimFunc, target: Target) -> str:
    raise KeyError("n")


@pytest.mark.parametrize("strategy", [
    Strategy("faulty", lambda *_: "", broken),
    Strategy("faulty", refuses_by_fault, broken),
    Strategy("faulty", lambda *_: "", lambda *_: None,
         variants=lambda *_: [Variant(ir.const(True, "bool"), broken)]),
], ids=["apply", "refuses", "variant"])  # fmt: skip
def test_the_next_rule_takes_the_program(strategy: Strategy) -> None:
    found = try_strategies([strategy, *STRATEGIES], doubled(), Target("native"))
    assert found.strategy == ("faulty" if strategy.apply is not broken else "elementwise")
    ((name, fault),) = found.faults
    assert name == "faulty"
    assert "test_strategy_faults.py:" in fault
    assert fault.startswith(("IndexError", "KeyError"))


def test_a_compilation_goes_on_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    strategies = (Strategy("faulty", lambda *_: "", broken), *STRATEGIES)
    monkeypatch.setattr("blockwright.strategies.STRATEGIES", strategies)
    x = torch.randn(8, 40)
    with pytest.warns(bw.BlockwrightWarning, match="BW645.*faulty") as told:
        exe = bw.compile(torch.nn.Softmax(-1), (x,))
    (warning,) = {w.message for w in told if isinstance(w.message, bw.BlockwrightWarning)}
    assert warning.code == "BW645"
    assert "BW645" in CODES
    assert any("strategy faulty failed: IndexError" in note for note in exe.context.notes)
    np.testing.assert_allclose(exe(x.numpy()), torch.softmax(x, -1).numpy(), rtol=1e-5, atol=1e-7)
