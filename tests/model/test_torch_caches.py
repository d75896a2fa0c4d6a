"""Caches of `transformers`: models take and return them as objects of their class."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import blockwright as bw

transformers = pytest.importorskip("transformers")
AUTO = torch.export.Dim.AUTO


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=99,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.GPT2LMHeadModel(config).eval().requires_grad_(False)


def cache(length: int) -> Any:
    result = transformers.DynamicCache()
    for layer in range(2):
        result.update(torch.randn(2, 4, length, 8), torch.randn(2, 4, length, 8), layer)
    return result


def close(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-4, atol=1e-5)
    ours, theirs = found.past_key_values, wanted.past_key_values
    assert type(ours) is transformers.DynamicCache
    for layer, other in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(layer.keys, other.keys, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.values, other.values, rtol=1e-4, atol=1e-5)


def test_a_step_appends_to_a_cache_of_any_length(model: Any, tmp_path: Path) -> None:
    ids, axes = torch.randint(3, 99, (2, 1)), {2: AUTO}
    exe = bw.compile(
        model,
        example_kwargs={"input_ids": ids, "past_key_values": cache(7)},
        dynamic_shapes={"input_ids": None, "past_key_values": [[axes, axes], [axes, axes]]},
    )
    exe.save(tmp_path / "step.bw")
    for each in (exe, bw.load(tmp_path / "step.bw")):
        for length in (7, 11):
            past = cache(length)
            wanted = model(input_ids=ids, past_key_values=copy.deepcopy(past))
            close(each(input_ids=ids, past_key_values=past), wanted)
            assert past.get_seq_length() == length
    with pytest.raises(bw.BlockwrightError, match="past_key_values") as caught:
        exe(input_ids=ids, past_key_values=[cache(7)])
    assert caught.value.code in ("BW701", "BW702")


def test_a_whole_text_gives_a_cache(model: Any) -> None:
    ids = torch.randint(3, 99, (2, 7))
    close(bw.compile(model, example_kwargs={"input_ids": ids})(input_ids=ids), model(input_ids=ids))
