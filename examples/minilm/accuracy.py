"""Differences of embeddings from PyTorch's, and of both from a float64 run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from examples.minilm.model import Inputs, SentenceEmbedder, as_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

PROBES = ((1, 2), (1, 16), (3, 37), (8, 64), (64, 5), (2, 512))


def random_inputs(batch: int, sequence: int, seed: int = 0) -> Inputs:
    """Return random token ids with rows of different lengths, at least one token each."""
    random = np.random.default_rng((batch, sequence, seed))
    lengths = random.integers(1, sequence, size=batch, endpoint=True)
    mask = (np.arange(sequence)[None, :] < lengths[:, None]).astype(np.int64)
    return random.integers(1000, 30_000, size=(batch, sequence)) * mask, mask


def run_torch(module: SentenceEmbedder, inputs: Inputs) -> NDArray[np.floating]:
    """Run the PyTorch module eagerly on one padded batch."""
    with torch.inference_mode():
        return module(*as_tensors(inputs)).numpy()


@dataclass(frozen=True)
class Distances:
    """Largest absolute differences over a set of batches."""

    to_torch: float
    to_float64: float
    torch_to_float64: float

    @property
    def relative(self) -> float:
        """Our distance to the float64 run, relative to PyTorch's."""
        return self.to_float64 / self.torch_to_float64


def measure(
    embed: Callable[[Inputs], torch.Tensor],
    module: SentenceEmbedder,
    reference: SentenceEmbedder,
    batches: Sequence[Inputs],
) -> Distances:
    """Compare ``embed`` with the float32 ``module`` and the float64 ``reference``."""
    ours = theirs = apart = 0.0
    for inputs in batches:
        found = embed(inputs).numpy().astype(np.float64)
        single = run_torch(module, inputs).astype(np.float64)
        exact = run_torch(reference, inputs)
        # np.max propagates NaN, so that a broken result cannot pass as a small difference
        apart = float(np.max([apart, np.abs(found - single).max()]))
        ours = float(np.max([ours, np.abs(found - exact).max()]))
        theirs = float(np.max([theirs, np.abs(single - exact).max()]))
    return Distances(to_torch=apart, to_float64=ours, torch_to_float64=theirs)
