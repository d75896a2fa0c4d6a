"""Special values of each type, at which results are most likely wrong."""

from __future__ import annotations

import torch


def special_values(dtype: torch.dtype) -> torch.Tensor:
    """±0, ±inf, NaN, denormals and limits of a floating-point type; limits of an integer type."""
    if dtype is torch.bool:
        return torch.tensor([True, False])
    if not dtype.is_floating_point:
        ends = torch.iinfo(dtype)
        result = {ends.min, ends.min + 1, ends.max - 1, ends.max, 0, 1, 2, 3, 7}
        if ends.min < 0:
            result |= {-1, -2, -3, -7}
        return torch.tensor(sorted(result), dtype=dtype)
    ends = torch.finfo(dtype)
    small = ends.smallest_normal
    ones = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 88.0]
    numbers = [0.0, float("inf"), small, small / 4, ends.max, ends.eps, *ones]
    return torch.tensor([float("nan"), *numbers, *[-x for x in numbers]], dtype=dtype)
