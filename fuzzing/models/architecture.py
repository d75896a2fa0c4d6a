"""What the survey knows of an architecture, and how it makes small configurations."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

Sizes = Mapping[str, int]
Inputs = dict[str, torch.Tensor]


class Architecture(msgspec.Struct, frozen=True):
    """An architecture in a small configuration.

    Attributes:
        build: makes the module, with random weights.
        inputs: makes arguments by name for given sizes. Axes that differ between `small` and
            `large` are dynamic.
    """

    name: str
    family: str
    build: Callable[[], torch.nn.Module]
    inputs: Callable[[Sizes], Inputs]
    small: Sizes
    large: Sizes


TEXT_SIZES = ({"batch": 2, "length": 7}, {"batch": 3, "length": 12})
IMAGE_SIZES = ({"batch": 2, "image": 64}, {"batch": 3, "image": 96})
BATCHES = ({"batch": 2}, {"batch": 3})

# Small values of the sizes of a `transformers` configuration. A class takes those that it knows.
TEXT: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
DECODER: dict[str, Any] = {**TEXT, "num_key_value_heads": 2, "use_cache": False}
BOTH: dict[str, Any] = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 2, "use_cache": False,
}  # fmt: skip
VISION: dict[str, Any] = {
    "image_size": 64, "patch_size": 16, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip


def from_config(kind: str, class_: str = "", **values: Any) -> Callable[[], torch.nn.Module]:
    """Builder of the base model of a `transformers` configuration, or of one of its classes."""

    def build() -> torch.nn.Module:
        transformers: Any = importlib.import_module("transformers")
        config = transformers.AutoConfig.for_model(kind, **values)
        if class_:
            return getattr(transformers, class_)(config)
        return transformers.AutoModel.from_config(config)

    return build


def tokens(sizes: Sizes, vocabulary: int = 99) -> Inputs:
    shape = (sizes["batch"], sizes["length"])
    ids = torch.randint(3, vocabulary, shape)
    mask = torch.ones(shape, dtype=torch.int64)
    mask[-1, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def ids_alone(sizes: Sizes) -> Inputs:
    return {"input_ids": tokens(sizes)["input_ids"]}


def translation(sizes: Sizes) -> Inputs:
    decoder = torch.randint(3, 99, (sizes["batch"], 5))
    return {**tokens(sizes), "decoder_input_ids": decoder}


def images(sizes: Sizes) -> Inputs:
    side = sizes.get("image", 64)
    return {"pixel_values": torch.randn(sizes["batch"], 3, side, side)}


def samples(sizes: Sizes) -> Inputs:
    """Sound as samples."""
    return {"input_values": torch.randn(sizes["batch"], sizes["length"])}


def encoder(
    kind: str,
    class_: str = "",
    name: str = "",
    sizes: tuple[Sizes, Sizes] = TEXT_SIZES,
    without: str = "",
    inputs: Any = tokens,
    **values: Any,
) -> Architecture:
    """An encoder with the configuration `TEXT`, except the value that it is `without`."""
    config = {key: value for key, value in {**TEXT, **values}.items() if key != without}
    build = from_config(kind, class_, **config)
    return Architecture(name or kind, "text encoder", build, inputs, *sizes)


def decoder(
    kind: str, class_: str = "", name: str = "", inputs: Any = tokens, **values: Any
) -> Architecture:
    build = from_config(kind, class_, **{**DECODER, **values})
    return Architecture(name or kind, "language model", build, inputs, *TEXT_SIZES)


def sequence_to_sequence(kind: str, class_: str = "", **values: Any) -> Architecture:
    build = from_config(kind, class_, **{**BOTH, **values})
    return Architecture(kind, "encoder and decoder", build, translation, *TEXT_SIZES)


def vision(
    kind: str, class_: str = "", sizes: tuple[Sizes, Sizes] = BATCHES, name: str = "", **values: Any
) -> Architecture:
    build = from_config(kind, class_, **values)
    return Architecture(name or kind, "vision", build, images, *sizes)
