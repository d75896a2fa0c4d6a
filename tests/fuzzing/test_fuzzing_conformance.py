"""A fixed sample of what `make conformance` does: one type, one sample of every fourth operator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from fuzzing.conformance.batch import Prepared, importable, judged, prepared
from fuzzing.conformance.operator import Record, Row
from fuzzing.conformance.page import not_covered, page
from fuzzing.conformance.samples import (
    OperatorSample,
    dynamic_samples_of,
    few_samples_of,
    samples_of,
)
from fuzzing.conformance.store import Store
from fuzzing.eager.compare import difference

PARTS = 32
"""Every eighth of the parts is tried here: exporting a sample of every operator takes minutes."""


def _chosen() -> list[Any]:
    """The operators that are not listed as uncovered by the page, where there is one."""
    path = Path(__file__).parents[2] / "docs" / "conformance.md"
    absent = not_covered(path.read_text(encoding="utf-8")) if path.exists() else set[str]()
    return [op for name, op in {op.full_name: op for op in op_db}.items() if name not in absent]


def _sample(op: Any) -> Prepared | None:
    known = op.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in known else torch.int64
    if dtype not in known:
        return None
    try:
        samples = few_samples_of(op, dtype, 2)
    except Exception:  # noqa: BLE001  OpInfo makes no samples of some operators
        return None
    return prepared(op.name, samples[min(1, len(samples) - 1)]) if samples else None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(0, PARTS, 8))
def test_a_sample_of_every_eighth_operator(part: int) -> None:
    drawn = [p for op in _chosen()[part::PARTS] if (p := _sample(op)) is not None]
    problems = [importable(p) for p in drawn]
    batch = [p for p, problem in zip(drawn, problems, strict=True) if problem is None]
    outcomes = judged(batch)
    bad = [
        (p.name, p.sample.label, problem.code, problem.words)
        for p, problem in zip(drawn, problems, strict=True)
        if problem is not None and problem.what == "internal"
    ]
    bad += [
        (p.name, p.sample.label, o.code, o.words)
        for p, o in zip(batch, outcomes, strict=True)
        if o.what in ("wrong", "internal")
    ]
    assert not bad
    assert Counter(o.what for o in outcomes)["passed"] >= 3


def _one(function: Any, *args: Any) -> Prepared:
    found = prepared("made up", OperatorSample("sample", function, args, {}))
    assert found is not None
    return found


def test_samples_that_fail_are_told_from_those_that_pass() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.compiler.is_exporting() else x + 1.001

    def wrong_type(x: torch.Tensor) -> torch.Tensor:
        return x.double() if torch.compiler.is_exporting() else x

    x = torch.arange(6.0).reshape(2, 3)
    batch = [_one(f, x) for f in (torch.exp, wrong, torch.linalg.pinv, wrong_type, torch.neg)]
    found = judged(batch)
    assert [o.what for o in found] == ["passed", "wrong", "refused", "wrong", "passed"]
    assert found[2].code == "BW501"
    assert "differs in 6 of 6" in found[1].words
    assert "has type torch.float64" in found[3].words


def test_sizes_that_are_symbols_are_called_at_other_sizes() -> None:
    def wrong_when_large(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_exporting() or x.shape[0] < 4 else x * 3

    batch = [_one(f, torch.ones(3, 5)) for f in (torch.tanh, wrong_when_large)]
    assert [o.what for o in judged(batch, dynamic=False)] == ["passed", "passed"]
    assert [o.what for o in judged(batch, dynamic=True)] == ["passed", "wrong"]


def test_rounding_is_no_difference_and_special_values_are() -> None:
    x = torch.tensor([1.0, float("nan"), float("inf"), 0.0])
    assert not difference(x * (1 + 1e-7), x)
    assert difference(x * (1 + 1e-4), x)
    assert difference(torch.nan_to_num(x), x)
    assert difference(x[:3], x)
    assert difference(x.double(), x)


def test_variants_of_a_sample() -> None:
    op = next(op for op in op_db if op.name == "mul")
    kinds = {s.kind for s in samples_of(op, torch.float32, 6)}
    assert kinds == {"sample", "special", "strided", "empty", "in place"}
    assert {s.kind for s in dynamic_samples_of(op, torch.float32, 6)} == {"dynamic"}


def test_records_are_kept_for_the_same_sources_alone(tmp_path: Any) -> None:
    store = Store(tmp_path, "float32")
    rows = [Row("float32", passed=3, refused={"BW507": 1})]
    store.put(Record("mul", store.digest, rows=rows))
    assert store.get("mul") is not None
    assert Store(tmp_path, "int64").get("mul", any_digest=True) is None
    record = store.get("mul")
    assert record is not None
    reasons = {"BW501": "operator aten.x_y.default is not covered"}
    absent = [Record(name, store.digest, False, reasons=reasons) for name in ("svd", "fft.fft")]
    text = page([record, *absent], 12, ["imag"])
    assert r"- `svd`: BW501 operator aten.x\_y.default is not covered" in text
    assert "`imag`" in text.partition("## Without samples")[2]
    assert "| mul | f32 | 3 | BW507 1 | 0 | 0 |" in text
    assert not_covered(text) == {"svd", "fft.fft"}
    assert not not_covered(page([record], 12))
