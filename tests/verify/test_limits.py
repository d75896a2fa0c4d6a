"""A verdict comes after a bounded number of operations, and leaves little memory behind."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

pytest.importorskip("islpy")

from blockwright import ir
from blockwright.interp import Limit, interpret
from blockwright.support import InterpretError
from blockwright.verify import isl, verify
from blockwright.verify.budget import Budget, Meter, begin_step, metered, price
from blockwright.verify.isl import library
from blockwright.verify.model.tuples import Combination, require_laws
from blockwright.verify.prove import proof
from blockwright.verify.verdict import Exhausted
from tests.verify.pairs import matmul, program, tiled


def test_long_steps_cost_more_than_many_short_ones() -> None:
    assert price(40_000) > 2 * 20 * price(1_000)


def _spend(context: isl.Context) -> None:
    for k in range(10_000):
        isl.Set(f"{{ [i] : 0 <= i < {k} }}", context)


def test_steps_are_charged_and_the_one_that_is_too_long_is_named() -> None:
    context, budget = isl.Context(), Budget(100_000, 20_000)
    meter = Meter(context, budget)
    with metered(meter):
        begin_step("a short one")
        isl.Set("{ [i] : 0 <= i < 7 }", context)
        begin_step("a long one")
        assert 90_000 < budget.left < 100_000
        with pytest.raises(isl.Error, match="operations"):
            _spend(context)
    assert "a long one" in str(meter.spent())
    assert budget.left < 90_000


def test_an_attempt_that_has_spent_its_share_ends_at_the_next_step() -> None:
    budget = Budget(2_000, 20_000)
    with metered(Meter(isl.Context(), budget)), pytest.raises(Exhausted):
        begin_step("one of many")
    assert budget.left > 0  # for another attempt


def test_what_z3_takes_is_charged_each_time() -> None:
    """A law that is remembered costs what it did, so that no verdict depends on others."""
    held, given = (ir.Var(name, ir.dtype_of("float32")) for name in "ax")
    largest = Combination((ir.Max(held, given),), (held,), (given,))
    least = [ir.const(float("-inf"), "float32")]
    spent: list[int] = []
    for _ in range(2):
        budget = Budget(1_000_000, 20_000)
        with metered(Meter(isl.Context(), budget)):
            before = budget.left
            require_laws("test", largest, least)
            spent.append(before - budget.left)
    assert spent[0] == spent[1] > 1_000
    with (
        metered(Meter(isl.Context(), Budget(2 * spent[0] - 2, 20_000))),
        pytest.raises(Exhausted, match="budget"),
    ):
        require_laws("test", largest, least)


@pytest.mark.usefixtures("objects_set_aside")
@pytest.mark.parametrize("units", [30_000, 60_000, 200_000, 400_000, 2_000_000])
def test_the_same_verdict_after_others(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "UNITS", units)
    found = [verify(matmul("n"), tiled("n")) for _ in range(2)]
    verify(program("A[8]; C[8]", "for i in range(8):\n    C[i] = A[i]"), matmul())
    found.append(verify(matmul("n"), tiled("n")))
    assert len({(v.verdict, v.why) for v in found}) == 1
    assert found[0].verdict == ("proved" if units == 2_000_000 else found[0].verdict)


def test_a_run_with_a_limit_of_iterations() -> None:
    import numpy as np

    func = program("A[8]; B[1]", "for i in range(8):\n    B[0] = B[0] * A[i] + A[i]")
    arrays = np.ones(8, np.float32), np.zeros(1, np.float32)
    limit = Limit(20)
    for _ in range(2):
        interpret(func, *arrays, limit=limit)
    with pytest.raises(InterpretError, match="limit on loop iterations") as caught:
        interpret(func, *arrays, limit=limit)
    assert caught.value.code == "BW757"


# ----------------------------------------------------------------------------------------- memory
PER_VERDICT = 4 << 10
"""Bytes: far more than is left behind, half of what islpy's own classes would leave."""


def _judge(times: int) -> None:
    n = "n"
    pairs = [
        (matmul(n), tiled(n)),
        (matmul(), tiled()),
        (matmul(), tiled(init=False)),
        (matmul(n), tiled(n, shift=" - 1")),
        (matmul("20"), matmul("n")),
    ]
    for k in range(times):
        verify(*pairs[k % len(pairs)])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.usefixtures("usual_collections")
def test_memory_of_many_verdicts() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    _judge(60)
    before = resident()
    _judge(240)
    assert resident() - before < 240 * PER_VERDICT


@pytest.mark.usefixtures("objects_set_aside")
@pytest.mark.parametrize("units", [30_000, 400_000, 2_000_000])
def test_nothing_of_a_verdict_stays(
    units: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proof, "UNITS", units)
    monkeypatch.setattr(library, "ON_ERROR", 0)  # isl says on stderr what is wrong
    _judge(5)
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o) is isl.Context]
    assert "not freed" not in capfd.readouterr().err
