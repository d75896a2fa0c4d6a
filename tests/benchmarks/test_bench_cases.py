"""The tables of operators and models hold what they say: work, sizes, names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode

from benchmarks import models, operators
from benchmarks.built_for import built_for, limits
from benchmarks.cases import Case, Input, selected
from benchmarks.environments import ENVIRONMENTS
from benchmarks.modules import build
from benchmarks.peers import DEFAULT, ENGINES, HELPERS
from benchmarks.peers.ours import Compiled
from benchmarks.peers.probes import Arithmetic
from blockwright import Target

ROOT = Path(__file__).resolve().parents[2]
COUNTED = [
    case
    for case in operators.CASES
    if case.build.split(".")[1] in ("convolution", "product", "weight_product")
]
# Published numbers of weights; BERT here has no pooler, and its words count once.
WEIGHTS = {
    "BERT-base 1x128": 109_482_240 - 590_592,
    "BERT-large 1x128": 335_141_888 - 1_049_600,
    "ViT-B/16 b1": 86_567_656,
    "GPT-2 prefill 128": 124_439_808,
    "ResNet-50 b1": 25_557_032,
    "MobileNetV2 b1": 3_504_872,
}


def sized(case: Case) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """Module and inputs that have shapes and no contents."""
    inputs = [torch.empty(one.shape, dtype=torch.float32) for one in case.inputs]
    with torch.device("meta"):
        return build(case), [one.to("meta") for one in inputs]


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: case.name)
def test_the_work_of_an_operator_is_what_pytorch_counts(case: Case) -> None:
    module, inputs = sized(case)
    with FlopCounterMode(display=False) as counter:
        result = module(*inputs)
    assert case.flops == counter.get_total_flops()
    weights = [*module.parameters()]
    assert case.moved == sum(4 * x.numel() for x in (*inputs, *weights, result))


@pytest.mark.parametrize("name", WEIGHTS)
def test_models_have_as_many_weights_as_those_they_are_named_after(name: str) -> None:
    (case,) = (case for case in models.CASES if case.name == name)
    with torch.device("meta"):
        module = build(case)
    assert sum(weight.numel() for weight in module.parameters()) == WEIGHTS[name]


def test_names_tell_cases_apart_and_select_them() -> None:
    for cases in (operators.CASES, models.CASES):
        names = [case.name for case in cases]
        assert len(set(names)) == len(names)
    chosen = selected(operators.CASES, ["t2d", "GEMV"])
    assert [case.name.split()[0] for case in chosen] == ["T2D", "T2D", "GEMV"]
    assert selected(models.CASES, []) == list(models.CASES)


def test_inputs_are_the_same_in_every_process() -> None:
    case = Case("any", "operators.product", (Input((2, 3)), Input((4,), below=7)))
    again = Case("any", "operators.product", (Input((2, 3)), Input((4,), below=7)))
    for one, other in zip(case.arrays(), again.arrays(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert case.arrays()[1].max() < 7


def test_every_engine_has_an_environment_of_pinned_packages() -> None:
    for engine in (*ENGINES.values(), *HELPERS.values()):
        assert engine.environment in {"own", *ENVIRONMENTS}
    assert set(DEFAULT) < set(ENGINES)
    for files in ENVIRONMENTS.values():
        for file, _ in files:
            lines = (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines()
            assert all("==" in line for line in lines if line and not line.startswith("#")), file


def test_code_for_older_instructions_is_made_for_the_caches_it_is_timed_on() -> None:
    older = built_for("x86-64-v3")
    assert (older.vector_bits, older.vector_registers) == (256, 16)
    assert older.caches == Target("native").caches


def test_the_peak_is_of_the_instructions_that_are_asked_for() -> None:
    """A vector that is half as long does half as much; none of it depends on how fast that is."""
    point = {"moved": 1 << 20}
    tasks = {}
    for name, lanes in (("x86-64-v3", 8), ("x86-64-v2", 4)):
        probe = Arithmetic({"threads": 1, "target": name})
        probe.prepare(point)()
        tasks[lanes] = probe.about()["operations"] / lanes
    assert tasks[8] == tasks[4]


def test_peers_that_know_of_a_target_are_limited_to_it() -> None:
    assert limits("x86-64-v3")["ATEN_CPU_CAPABILITY"] == "avx2"
    assert not limits("native")


def test_ours_is_built_for_the_target_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLOCKWRIGHT_CACHE_DIR", "")  # which it sets in the process of its own
    ours = Compiled({"threads": 1, "target": "x86-64-v2", "cache": str(tmp_path)})
    run = ours.prepare({"family": "operators", "case": "layer_norm 128x1024"})
    assert run().shape == (128, 1024)
    assert ours.about()["target"] == "x86-64-v2"
