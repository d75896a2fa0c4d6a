"""Planned memory is measured memory, exactly, for small models of all the usual kinds."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.memory import MODELS, SMALL, over_calls, rows
from benchmarks.symbolic import Model

# A sample; `python -m benchmarks.memory` takes all models.
SAMPLE = [m for m in SMALL if m.name in ("MiniLM", "MobileNetV2")]


@pytest.mark.parametrize("model", SAMPLE, ids=lambda model: model.name)
def test_a_call_takes_exactly_what_is_planned(model: Model) -> None:
    """At five sizes. Results take their memory from the start of a call; apart from that, values
    share memory as well as any allocator without a plan could."""
    found = rows(model)
    for row in found:
        assert row.measured == row.planned, row.sizes
        assert row.error < 1e-4
        assert row.use.planned <= 1.2 * row.use.live
        assert row.use.planned <= row.use.pooled <= row.use.unshared
    planned, pooled = over_calls(found)
    assert planned < pooled


def test_the_small_models_are_those_of_the_command() -> None:
    assert {model.name for model in SMALL} == {model.name for model in MODELS}
    assert len(SMALL) == 12
