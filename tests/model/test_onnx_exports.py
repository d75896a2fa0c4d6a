"""Models that PyTorch exports to ONNX run for all sizes of their dynamic axes."""

from __future__ import annotations

import io

import pytest
import torch

import blockwright as bw

pytest.importorskip("onnx")


class Attention(torch.nn.Module):
    """Causal self-attention and a head, whose shapes the exporter computes from the input's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 32)
        self.qkv = torch.nn.Linear(32, 96)
        self.head = torch.nn.Linear(32, 5)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(tokens)
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mask = torch.full((n, n), -1e9).triu(1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5 + mask, -1)
        x = x + (weights @ v).transpose(1, 2).reshape(b, n, -1)
        x = torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (32,)))
        return self.head(x), x.mean(1)


@pytest.mark.filterwarnings("ignore")
def test_attention_of_any_batch_and_length() -> None:
    model, file = Attention().eval(), io.BytesIO()
    axes = {"tokens": {0: "batch", 1: "length"}}
    torch.onnx.export(
        model,
        (torch.zeros(2, 7, dtype=torch.int64),),
        file,
        dynamo=False,
        opset_version=17,
        input_names=["tokens"],
        dynamic_axes=axes,
    )
    exe = bw.compile(file.getvalue())
    assert set(exe.signature.dims) == {"batch", "length"}
    for shape in ((2, 7), (3, 11), (1, 1)):
        tokens = torch.randint(0, 50, shape)
        for found, wanted in zip(exe(tokens), model(tokens), strict=True):
            torch.testing.assert_close(found, wanted.detach(), rtol=1e-4, atol=1e-5)
