"""The models that are compared with peers, as a table.

Weights are random: time does not depend on them, and nothing is downloaded. PyTorch counts the
operations.
"""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Case, Input

MINILM: dict[str, Any] = {"layers": 6, "width": 384, "heads": 12, "hidden": 1536}
BASE: dict[str, Any] = {"layers": 12, "width": 768, "heads": 12, "hidden": 3072}
LARGE: dict[str, Any] = {"layers": 24, "width": 1024, "heads": 16, "hidden": 4096}
BERT_WORDS, GPT2_WORDS = 30522, 50257
BOTH = ("contiguous", "channels_last")
CONVOLUTIONAL = 0.9
CODE = 3_000_000
"""Bound on the bytes of object code of a model with equal layers."""


def text_encoder(
    name: str, batch: int, length: int, settings: dict[str, Any], code_limit: int | None = None
) -> Case:
    """A BERT over unpadded text, with its mask."""
    inputs = Input((batch, length), below=BERT_WORDS), Input((batch, length), ones=True)
    return Case(
        f"{name} {batch}x{length}",
        "transformer.bert",
        inputs,
        settings,
        constant=True,
        model=True,
        code_limit=code_limit,
    )


def image(
    name: str, build: str, batch: int, formats: tuple[str, ...], limit: float | None = None
) -> Case:
    """A classifier of 224×224 images."""
    inputs = (Input((batch, 3, 224, 224)),)
    return Case(
        f"{name} b{batch}", build, inputs, constant=True, formats=formats, limit=limit, model=True
    )


CASES: tuple[Case, ...] = (
    text_encoder("MiniLM", 1, 16, {**MINILM, "pooled": True}),
    text_encoder("MiniLM", 1, 128, {**MINILM, "pooled": True}),
    text_encoder("MiniLM", 32, 128, {**MINILM, "pooled": True}),
    text_encoder("BERT-base", 1, 128, BASE),
    text_encoder("BERT-large", 1, 128, LARGE, CODE),
    image("ViT-B/16", "transformer.vit", 1, ("contiguous",)),
    Case("GPT-2 prefill 128", "transformer.gpt2", (Input((1, 128), below=GPT2_WORDS),), BASE,
         constant=True, model=True),
    Case("GPT-2 decode 512", "transformer.gpt2_step",
         (Input((1, 1), below=GPT2_WORDS), Input((12, 2, 1, 12, 511, 64))), BASE, constant=True,
         model=True),
    image("ResNet-50", "convnets.resnet50", 1, BOTH, CONVOLUTIONAL),
    image("ResNet-50", "convnets.resnet50", 16, BOTH, CONVOLUTIONAL),
    image("MobileNetV2", "convnets.mobilenet_v2", 1, BOTH, CONVOLUTIONAL),
)  # fmt: skip
