"""Mutated annotations: a fixed sample is refused with a code, or computes what it means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.script.ir import from_source
from fuzzing.annotations import oracle
from fuzzing.annotations.bank import scripts
from fuzzing.annotations.mutate import mutant
from fuzzing.annotations.run import fuzz_annotations
from fuzzing.annotations.trial import MutantVerdict, judged, tried


@pytest.fixture(scope="module")
def bank() -> dict[str, ir.IRModule]:
    return scripts()


def test_the_bank_is_valid_and_computes_what_it_means(bank: dict[str, ir.IRModule]) -> None:
    for name, module in bank.items():
        assert judged(module)[0].kind == "accepted", name
        verdict = tried(module, seed=3)
        assert verdict.kind == "ran", (name, verdict.text)
        assert "right" in verdict.text, name


def test_a_sample_of_mutants(bank: dict[str, ir.IRModule], fuzz_factor: int) -> None:
    outcome = fuzz_annotations(bank, 150 * fuzz_factor, first=7_000_000)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert outcome.kinds["refused"] > 50
    assert outcome.kinds["ran"] > 10


def test_nested_results_and_parameters_are_compared_with_their_structure() -> None:
    module: ir.IRModule = from_source("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tuple(R.Tensor(("n", "m"), "float32"), R.Tensor(("m",), "int64")),
             s: R.Shape(["k"])):
        m = T.int64()
        n = T.int64()
        k = T.int64()
        a = R.reshape(x[0], R.shape([m, n]))
        b = R.broadcast_to(R.sum(x[0]), s)
        return ((a, x[1]), b)
""")
    assert tried(module, seed=5) == MutantVerdict("ran", "right right")


def test_mutants_are_those_of_their_seed(bank: dict[str, ir.IRModule]) -> None:
    for seed in range(20):
        one, other = (mutant(bank["cast"], seed) for _ in range(2))
        assert one[1] == other[1]
        assert one[0].script() == other[0].script()


def test_what_is_believed_wrongly_would_be_found(
    bank: dict[str, ir.IRModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    def believed(*_: Any) -> bool:
        return True

    monkeypatch.setattr("blockwright.graph.check_annotations.implied", believed)
    monkeypatch.setattr("blockwright.graph.tir_calls._TirCall.compare", believed)
    outcome = fuzz_annotations(bank, 150, first=7_000_000)
    assert any(f.verdict.kind == "wrong" for f in outcome.findings)


def test_the_evaluation_looks_at_no_annotation(bank: dict[str, ir.IRModule]) -> None:
    x = np.arange(4, dtype="float32")
    found = oracle.Evaluation(bank["tir"]).run("main", [x])
    np.testing.assert_allclose(found, np.exp(x + 1).astype("float16"))
    with pytest.raises(oracle.CastFails):
        oracle.Evaluation(bank["cast"]).run("main", [np.ones((3, 4), "float32"), x])
