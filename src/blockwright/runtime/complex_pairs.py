"""Views between complex arrays and the pairs (real part, imaginary part) that code computes with.

Code has no complex types: a complex tensor of shape s is a real one of shape (*s, 2).
"""

from __future__ import annotations

import sys
from typing import Any, cast

import numpy as np

from blockwright.runtime.arrays import as_numpy, is_torch
from blockwright.runtime.artefact import COMPLEX

_PARTS = {whole: part for part, whole in COMPLEX.items()}


def to_pairs(value: Any) -> Any:
    """Complex numbers as pairs, in the same memory where that is possible.

    Values that are not complex are returned as they are: pairs are taken too, and the code rejects
    the others.
    """
    if is_torch(value):
        torch: Any = sys.modules["torch"]
        return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    array = cast("Any", value if isinstance(value, np.ndarray) else as_numpy(value))
    part = _PARTS.get(str(getattr(array, "dtype", "")))
    return array if part is None else array[..., None].view(part)


def to_complex(value: Any) -> Any:
    """Pairs as complex numbers, in the same memory; a new array in frameworks without views."""
    if is_torch(value):
        torch: Any = sys.modules["torch"]
        return torch.view_as_complex(value)
    array: Any = value
    if isinstance(value, np.ndarray):
        return array.view(COMPLEX[array.dtype.name])[..., 0]
    return array[..., 0] + 1j * array[..., 1]
