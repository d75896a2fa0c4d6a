"""Compiles torch modules and compares them with PyTorch, which also runs in double precision."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

if find_spec("torch") is None:
    collect_ignore_glob = ["test_torch_*.py"]
else:
    import torch

    torch.set_num_threads(1)  # threads that wait by spinning are slow where others compute too
    EPSILON = torch.finfo(torch.float32).eps

import blockwright as bw


def leaves(value: Any) -> list[Any]:
    """Tensors of a nested result, in order."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def structure(value: Any) -> Any:
    """The same nesting with a mark in place of every tensor."""
    if isinstance(value, dict):
        return {key: structure(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(structure(item) for item in value)
    return "tensor"


def rounded_at_random(x: Any) -> Any:
    """Numbers in float64, each moved up or down by the distance of float32 numbers there."""
    if not x.is_floating_point():
        return x
    signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(7)) * 2 - 1
    return x.double() * (1 + EPSILON * signs)


def compare(exe: Any, model: Any, inputs: Sequence[Any]) -> None:
    """`exe` answers like `model`, in structure, type and value.

    Both round in float32, in different orders. What counts is the distance to the same model in
    float64: ours may be four times PyTorch's, plus, for results which PyTorch happens to hit
    exactly, 16 roundings of the largest value and 16 times what a rounding of every input would
    change (a sum whose terms cancel is smaller than its error). Integers and booleans must agree
    exactly.
    """
    double = copy.deepcopy(model).double()
    with torch.inference_mode():
        expected = model(*inputs)
        precise = double(*(x.double() if x.is_floating_point() else x for x in inputs))
        nearby = double(*map(rounded_at_random, inputs))
    found = exe(*inputs)
    assert structure(found) == structure(expected)
    parts = zip(*map(leaves, (found, expected, precise, nearby)), strict=True)
    for ours, theirs, exact, moved in parts:
        assert type(ours) is torch.Tensor
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if not theirs.is_floating_point() or theirs.numel() == 0:
            assert torch.equal(ours, theirs)
            continue
        finite = torch.isfinite(theirs)
        assert torch.equal(ours[~finite].isnan(), theirs[~finite].isnan())
        distance = (ours.double() - exact)[finite].abs()
        allowed = 4 * (theirs.double() - exact)[finite].abs().max()
        allowed += 16 * EPSILON * exact[finite].abs().max()
        allowed += 16 * (moved - exact)[finite].abs().max()
        assert distance.max() <= allowed


@pytest.fixture
def compare_with_torch() -> Callable[..., None]:
    return compare


def agree(
    function: Callable[..., Any],
    *inputs: Any,
    shapes: Any = None,
    others: Sequence[Any] = (),
    tolerance: float = 1e-5,
) -> Any:
    """Compile a function of tensors and compare it with eager PyTorch, types and nesting included.

    `shapes` has the dynamic dimensions of each input, `others` more inputs to call it with.
    """

    class Model(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            return function(*tensors)

    exe = bw.compile(Model(), inputs, dynamic_shapes=None if shapes is None else (tuple(shapes),))
    for given in (inputs, *others):
        expected, found = function(*(t.clone() for t in given)), exe(*given)
        assert type(found) is type(expected)
        for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
            if theirs is None:
                assert ours is None
                continue
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            loose = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(theirs.dtype, tolerance)
            close = torch.isclose(ours, theirs, rtol=loose, atol=loose, equal_nan=True)
            assert close.all(), f"{ours}, not {theirs}"
    return exe


@pytest.fixture
def agrees() -> Callable[..., Any]:
    return agree


@pytest.fixture(scope="session")
def compile_torch() -> Callable[..., Any]:
    """`compile_torch(model, example inputs, dynamic_shapes, target)`: the executable."""

    def compile_(
        model: Any, inputs: Sequence[Any], shapes: Any = None, target: str = "native"
    ) -> Any:
        return bw.compile(model.eval(), inputs, dynamic_shapes=shapes, target=target)

    return compile_


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every run draws the same inputs and weights."""
    if find_spec("torch") is not None:
        torch.manual_seed(2024)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(2024)


@pytest.fixture(scope="session")
def encoder() -> Any:
    """A two-layer BERT-like encoder with random weights, masked pooling and normalisation."""
    if find_spec("transformers") is None:
        pytest.skip("needs transformers")
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        attn_implementation="sdpa",
    )

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel(config, add_pooling_layer=False)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask)
            weights = attention_mask.unsqueeze(-1).to(hidden.last_hidden_state.dtype)
            total = (hidden.last_hidden_state * weights).sum(dim=1)
            mean = total / weights.sum(dim=1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1)

    return Encoder().eval()


def encoder_shapes() -> Any:
    dynamic = {
        0: torch.export.Dim("batch", min=1, max=64),
        1: torch.export.Dim("sequence", min=2, max=64),
    }
    return {"input_ids": dynamic, "attention_mask": dynamic}


def tokens(rng: np.random.Generator, batch: int, sequence: int) -> tuple[Any, Any]:
    """Random ids, and a mask that keeps at least the first token of every text."""
    ids = torch.from_numpy(rng.integers(0, 100, (batch, sequence)))
    mask = torch.ones((batch, sequence), dtype=torch.int64)
    for row, length in enumerate(rng.integers(1, sequence + 1, batch)):
        mask[row, int(length) :] = 0
    return ids, mask


@pytest.fixture
def make_tokens(rng: np.random.Generator) -> Callable[[int, int], tuple[Any, Any]]:
    return lambda batch, sequence: tokens(rng, batch, sequence)


@pytest.fixture(scope="session")
def encoder_exe(encoder: Any, compile_torch: Any) -> Any:
    """The encoder, compiled for batches of 1-64 and sequences of 2-64 tokens."""
    ids = torch.ones((3, 7), dtype=torch.int64)
    return compile_torch(encoder, (ids, torch.ones_like(ids)), encoder_shapes())


@pytest.fixture(scope="session")
def encoder_artefact(encoder_exe: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("artefact") / "encoder.bwx"
    encoder_exe.save(path)
    return path


@pytest.fixture(scope="session")
def python() -> Callable[..., str]:
    """`python(code, *arguments)`: output of a fresh process that can import blockwright."""
    import subprocess

    def run(code: str, *arguments: Any) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run
