"""Architectures for sound, time series and tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fuzzing.models.architecture import (
    BATCHES,
    BOTH,
    TEXT,
    Architecture,
    Inputs,
    Sizes,
    from_config,
    samples,
    tokens,
)

_SOUND = ({"batch": 2, "length": 800}, {"batch": 3, "length": 1120})
_CONVOLUTIONS: dict[str, Any] = {
    "conv_dim": [16, 16, 16], "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 3],
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "vocab_size": 20,
}  # fmt: skip
_ENCODER = {**TEXT, **_CONVOLUTIONS}


def _speech(kind: str, class_: str = "", **values: Any) -> Architecture:
    build = from_config(kind, class_, **{**_ENCODER, **values})
    return Architecture(kind, "sound", build, samples, *_SOUND)


def _spectrum(sizes: Sizes) -> Inputs:
    decoder = torch.randint(3, 99, (sizes["batch"], 5))
    return {"input_features": torch.randn(sizes["batch"], 16, 60), "decoder_input_ids": decoder}


def _frames(sizes: Sizes) -> Inputs:
    return {"input_values": torch.randn(sizes["batch"], 64, 32)}


def _waves(sizes: Sizes) -> Inputs:
    return {"input_values": torch.randn(sizes["batch"], 1, sizes["length"])}


def _series(sizes: Sizes) -> Inputs:
    return {"past_values": torch.randn(sizes["batch"], 32, 3)}


class Lstm(nn.Module):
    """Embedding, a bidirectional LSTM of two layers, attention over its states."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(99, 16)
        self.layers = nn.LSTM(16, 12, 2, batch_first=True, bidirectional=True)
        self.score, self.head = nn.Linear(24, 1), nn.Linear(24, 5)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        states, _ = self.layers(self.table(input_ids))
        weights = self.score(states).softmax(1)
        return self.head((weights * states).sum(1))


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.GRU(3, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, past_values: torch.Tensor) -> torch.Tensor:
        states, last = self.layers(past_values)
        return self.head(states[:, -1] + last[0])


class Dlrm(nn.Module):
    """Embedding bags and a dense part, joined by products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode="sum") for _ in range(3))
        self.dense = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.head = nn.Sequential(nn.Linear(14, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        x = self.dense(numbers)
        vectors = [x, *(bag(categories[:, k]) for k, bag in enumerate(self.bags))]
        all_ = torch.stack(vectors, 1)
        rows, columns = torch.tril_indices(4, 4, -1)
        pairs = (all_ @ all_.transpose(1, 2))[:, rows, columns]
        return self.head(torch.cat([x, pairs], 1))


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 1)
        self.layers = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**k) for k in range(4))
        self.last = nn.Conv1d(8, 4, 1)

    def forward(self, input_values: torch.Tensor) -> torch.Tensor:
        x = self.first(input_values)
        total = torch.zeros_like(x)
        for k, layer in enumerate(self.layers):
            a, b = layer(nn.functional.pad(x, (2**k, 0))).chunk(2, 1)
            gated = a.tanh() * b.sigmoid()
            x, total = x + gated, total + gated
        return self.last(total.relu())


def _ids(sizes: Sizes) -> Inputs:
    return {"input_ids": torch.randint(0, 99, (sizes["batch"], 9))}


def _clicks(sizes: Sizes) -> Inputs:
    batch = sizes["batch"]
    return {"numbers": torch.rand(batch, 6), "categories": torch.randint(0, 50, (batch, 3, 4))}


_SPEECH_TO_TEXT = {**BOTH, "num_mel_bins": 16, "max_source_positions": 30,
                   "max_target_positions": 20}  # fmt: skip
_CODEC: dict[str, Any] = {"upsampling_ratios": [4, 2], "num_filters": 4, "hidden_size": 16,
                          "codebook_size": 32, "codebook_dim": 16,
                          "num_lstm_layers": 1}  # fmt: skip
_SERIES: dict[str, Any] = {"num_input_channels": 3, "context_length": 32, "patch_length": 8,
                           "patch_stride": 8, "d_model": 16, "num_hidden_layers": 2,
                           "num_attention_heads": 4, "ffn_dim": 32}  # fmt: skip

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("whisper", "sound", from_config(
        "whisper", "WhisperForConditionalGeneration", **_SPEECH_TO_TEXT), _spectrum, *BATCHES),
    _speech("wav2vec2", "Wav2Vec2ForCTC"),
    _speech("hubert"),
    _speech("wavlm"),
    _speech("unispeech"),
    _speech("data2vec-audio"),
    _speech("sew", squeeze_factor=1),
    _speech("wav2vec2-conformer", position_embeddings_type="rotary"),
    Architecture("audio-spectrogram-transformer", "sound", from_config(
        "audio-spectrogram-transformer", hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=48, num_mel_bins=32, max_length=64, patch_size=16),
        _frames, *BATCHES),
    Architecture("encodec", "sound", from_config("encodec", **_CODEC), _waves,
                 {"batch": 2, "length": 64}, {"batch": 3, "length": 96}),
    Architecture("vits", "sound", from_config(
        "vits", **TEXT, ffn_dim=48, flow_size=16, spectrogram_bins=9,
        upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4], upsample_initial_channel=16,
        wavenet_dilation_rate=1, posterior_encoder_num_wavenet_layers=2,
        prior_encoder_num_flows=2, prior_encoder_num_wavenet_layers=2, speaking_rate=1.0,
        noise_scale=0.0, noise_scale_duration=0.0), tokens, {"batch": 1, "length": 7},
        {"batch": 1, "length": 12}),
    Architecture("wavenet", "sound", WaveNet, _waves, {"batch": 2, "length": 40},
                 {"batch": 3, "length": 64}),
    Architecture("patchtst", "time series", from_config(
        "patchtst", "PatchTSTForPrediction", **_SERIES, prediction_length=8), _series, *BATCHES),
    Architecture("patchtsmixer", "time series", from_config(
        "patchtsmixer", "PatchTSMixerForPrediction", **_SERIES, prediction_length=8), _series,
        *BATCHES),
    Architecture("lstm", "recurrent", Lstm, _ids, *BATCHES),
    Architecture("gru", "recurrent", Gru, _series, *BATCHES),
    Architecture("dlrm", "recommendation", Dlrm, _clicks, *BATCHES),
)  # fmt: skip
