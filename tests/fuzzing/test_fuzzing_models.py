"""The survey of architectures: its catalog, one trial by each outcome, its page."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fuzzing.eager.outcome import Outcome
from fuzzing.models.architecture import Architecture
from fuzzing.models.catalog import CATALOG
from fuzzing.models.page import page
from fuzzing.models.trial import Trial, attempt, dynamic_shapes


def made(function: Any) -> Architecture:
    """An architecture of one input of two axes."""

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"y": function(x)}

    def inputs(sizes: Any) -> Any:
        return {"x": torch.randn(sizes["batch"], 4)}

    return Architecture("made up", "test", Model, inputs, {"batch": 2}, {"batch": 3})


def test_the_catalog_has_all_families() -> None:
    families = {each.family for each in CATALOG.values()}
    assert len(CATALOG) > 140
    assert {"language model", "vision", "detection", "sound", "recurrent"} <= families


def test_axes_that_differ_are_dynamic() -> None:
    small, large = (
        {"x": torch.ones(2, 4), "m": torch.ones(3)},
        {"x": torch.ones(5, 4), "m": torch.ones(3)},
    )
    assert dynamic_shapes([small, large]) == {"x": {0: torch.export.Dim.AUTO}, "m": {}}


@pytest.mark.parametrize("route", ["static", "dynamic"])
def test_an_architecture_that_runs(route: str) -> None:
    trial = attempt(made(lambda x: torch.relu(x) + 1), route)
    assert trial.outcome == Outcome("passed")
    assert trial.error <= 1e-6


def test_other_outcomes() -> None:
    refused = attempt(made(torch.linalg.svdvals), "static").outcome
    assert (refused.what, refused.code) == ("refused", "BW501")
    rejected = attempt(made(lambda x: x @ x), "static").outcome
    assert (rejected.what, rejected.code) == ("eager", "RuntimeError")
    constant = attempt(made(lambda x: x * 2 if int(x.shape[0]) == 2 else x), "dynamic").outcome
    assert constant.what == "export"


def test_the_page() -> None:
    name = next(iter(CATALOG))
    text = page([
        Trial(name, "static", Outcome("passed"), 2e-7),
        Trial(name, "dynamic", Outcome("refused", "BW501", "operator a|b is not covered")),
    ])  # fmt: skip
    assert f"| {name} | {CATALOG[name].family} | 2e-07 | refused BW501 |  |" in text
    assert f"- {name}, dynamic: refused: BW501 operator a\\|b is not covered" in text
    assert "static: 1 passed; dynamic: 1 refused." in text
