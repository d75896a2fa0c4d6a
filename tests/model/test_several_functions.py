"""Several models in one library: prefill and decode of a language model with a growing cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import blockwright as bw

VOCABULARY, SIZE, HEADS = 128, 64, 2


class Prefill(nn.Module):
    """One block of a decoder; returns the logits of the last token, and keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(32, SIZE)
        self.qkv, self.out = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.norm = nn.LayerNorm(SIZE)

    def block(self, x: Tensor, past: Sequence[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        batch, length, _ = x.shape
        split = self.qkv(self.norm(x)).view(batch, length, 3, HEADS, SIZE // HEADS)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, SIZE))
        return self.norm(x[:, -1]) @ self.tokens.weight.T, [k, v]

    def forward(self, tokens: Tensor) -> Any:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.block(x, None)


class Decode(nn.Module):
    """The next token, given keys and values of those before it."""

    def __init__(self, model: Prefill) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, past: list[Tensor]) -> Any:
        place = torch.full((1,), past[0].shape[2])
        return self.model.block(self.model.tokens(token) + self.model.positions(place), past)


@pytest.fixture(scope="module")
def model() -> Prefill:
    return Prefill().eval()


@pytest.fixture(scope="module")
def compiled(model: Prefill) -> bw.CompiledModel:
    length = Dim("length", min=2, max=31)
    past = [torch.randn(1, HEADS, 5, SIZE // HEADS) for _ in range(2)]
    return bw.compile(
        {"prefill": model, "decode": Decode(model)},
        {
            "prefill": (torch.zeros(1, 5, dtype=torch.int64),),
            "decode": (torch.zeros(1, 1, dtype=torch.int64), past),
        },
        dynamic_shapes={
            "prefill": {"tokens": {1: length}},
            "decode": {"token": None, "past": [{2: length}] * 2},
        },
    )


def generated(prefill: Any, decode: Any, prompt: Tensor, count: int) -> list[int]:
    """Greedy decoding."""
    logits, past = prefill(prompt)
    result: list[int] = []
    for _ in range(count):
        token = logits.argmax(-1, keepdim=True)
        result.append(int(token))
        logits, past = decode(token, past)
    return result


def test_tokens_are_those_of_pytorch(model: Prefill, compiled: Any, tmp_path: Any) -> None:
    compiled.save(tmp_path / "decoder.bwx")
    loaded = bw.load(tmp_path / "decoder.bwx")
    for prompt in (torch.tensor([[3, 1, 4, 1]]), torch.tensor([[2, 7]])):
        with torch.no_grad():
            wanted = generated(model, Decode(model), prompt, 16)
        for exe in (compiled, loaded):
            assert generated(exe["prefill"], exe["decode"], prompt, 16) == wanted


def test_functions_share_weights(model: Prefill, compiled: Any) -> None:
    stored = sum(a.nbytes for a in compiled.lowered.attrs["constants"].values())
    table = model.tokens.weight  # gathered, and packed for the logits
    alone = 4 * (table.numel() + sum(p.numel() for p in model.parameters()))
    assert stored < 1.5 * alone  # two libraries store twice as much


def test_there_is_no_main_function(compiled: Any) -> None:
    assert compiled.names() == ("prefill", "decode")
    with pytest.raises(bw.ArgumentError) as caught:
        compiled(torch.zeros(1, 5, dtype=torch.int64))
    assert caught.value.code == "BW721"


@pytest.mark.parametrize("wrong", [{}, {"a b": nn.ReLU()}, {1: nn.ReLU()}])
def test_models_need_names(wrong: Any) -> None:
    with pytest.raises(bw.OptionError) as caught:
        bw.compile(wrong, {})
    assert caught.value.code == "BW902"


def test_inputs_are_given_by_name() -> None:
    with pytest.raises(bw.OptionError) as caught:
        bw.compile({"f": nn.ReLU()}, (torch.zeros(1),))
    assert caught.value.code == "BW908"
