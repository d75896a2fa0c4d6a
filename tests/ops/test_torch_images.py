"""References of operators on images agree with PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from blockwright.ops.grid_sample import METHODS, PADDING_MODES
from blockwright.ops.table import OPERATORS

CASES = [
    (rank, method, padding, aligned)
    for rank in (2, 3)
    for method in METHODS
    for padding in PADDING_MODES
    for aligned in (True, False)
    if rank == 2 or method != "bicubic"
]


@pytest.mark.parametrize(("rank", "method", "padding", "aligned"), CASES)
def test_samples_are_those_of_pytorch(rank: int, method: str, padding: str, aligned: bool) -> None:
    rng = np.random.default_rng(rank)
    x = rng.standard_normal((2, 3, *(5, 4, 7)[:rank])).astype("float32")
    grid = rng.uniform(-2.5, 2.5, (2, *(3, 4, 2)[:rank], rank)).astype("float32")
    found = OPERATORS["image.grid_sample"].oracle(
        x, grid, method=method, padding_mode=padding, align_corners=aligned
    )
    wanted = F.grid_sample(torch.tensor(x), torch.tensor(grid), method, padding, aligned)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ceil", [True, False])
def test_positions_of_maxima_are_those_of_pytorch(ceil: bool) -> None:
    x = np.random.default_rng(0).integers(0, 4, (2, 3, 9, 8)).astype("float32")
    row = OPERATORS["nn.max_pool2d_positions"]
    attrs: dict[str, Any] = {"pool_size": 3, "strides": 2, "padding": 1, "ceil_mode": ceil}
    found = row.oracle(x, **{**row.attrs, **attrs})
    _, wanted = F.max_pool2d(torch.tensor(x), 3, 2, 1, ceil_mode=ceil, return_indices=True)
    np.testing.assert_array_equal(found, wanted.numpy())
