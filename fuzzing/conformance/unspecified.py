"""Elements of results that PyTorch leaves unspecified."""

from __future__ import annotations

from typing import Any

import torch

from fuzzing.conformance.samples import OperatorSample
from fuzzing.eager.compare import leaves

_CONVERSIONS = {"to", "type_as", "int", "long", "short", "char", "byte", "item", "_to_copy"}
"""Operators that convert floats to integers: PyTorch defines no value for floats out of range."""

_AXIS = {"sort": 1, "argsort": 1, "topk": 2, "kthvalue": 2, "mode": 1}
"""Operators that return positions, any of several for equal elements → the argument `dim`."""

_NAN_AT_INFINITY = {"i0", "i1", "polygamma"}
"""Operators that have a value there; PyTorch's kernels multiply infinity by 0."""


def free_elements(
    name: str, sample: OperatorSample, result: Any, expected: Any
) -> list[Any] | None:
    """Per result, a mask of the elements that may have any value; None if there are none.

    These are integers converted from floats that do not fit, positions of elements that equal the
    element at PyTorch's position, and results of infinity where PyTorch's are NaN by mistake.
    """
    base = name.split(".")[0]
    source = sample.args[0] if sample.args else None
    if not isinstance(source, torch.Tensor):
        return None
    if base in _CONVERSIONS and source.is_floating_point():
        return [_out_of_range(source, wanted) for wanted in leaves(expected)]
    if name.removeprefix("special.").split(".")[0] in _NAN_AT_INFINITY:
        source = source.double()
        poles = (source < 0) & (source == source.round())  # of polygamma; PyTorch's are finite
        free = poles if "polygamma" in name else torch.zeros_like(poles)
        return [free | (source.isinf() & wanted.isnan()) for wanted in leaves(expected)]
    if base == "mode" and bool(source.isnan().any()):  # PyTorch sorts NaN among the numbers
        return [torch.ones_like(wanted, dtype=torch.bool) for wanted in leaves(expected)]
    if base in _AXIS and not sample.kwargs.get("stable"):
        place = _AXIS[base]
        given = sample.args[place] if len(sample.args) > place else sample.kwargs.get("dim", -1)
        ours, theirs = leaves(result), leaves(expected)
        return [None] * (len(ours) - 1) + [_ties(source, given, ours[-1], theirs[-1])]
    return None


def _out_of_range(source: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor | None:
    if wanted.dtype.is_floating_point or wanted.dtype is torch.bool:
        return None
    ends, wide = torch.iinfo(wanted.dtype), source.to(torch.float64)
    return ~((wide > float(ends.min) - 1) & (wide < float(ends.max) + (ends.bits < 64)))


def _ties(source: torch.Tensor, dim: int, ours: Any, theirs: Any) -> torch.Tensor | None:
    """Mask of our positions where the element is that of PyTorch, and no position repeats."""
    if not isinstance(theirs, torch.Tensor) or theirs.dtype is not torch.int64 or not source.ndim:
        return None
    if ours.shape != theirs.shape or not ours.numel():
        return None
    if theirs.ndim < source.ndim:  # one position for each line
        mask = _ties(source, dim, ours.unsqueeze(dim), theirs.unsqueeze(dim))
        return None if mask is None else mask.squeeze(dim)
    if bool(((ours < 0) | (ours >= source.shape[dim])).any()):
        return None
    in_order = ours.sort(dim).values
    if bool((in_order.diff(dim=dim) == 0).any()):
        return None
    a, b = source.gather(dim, ours), source.gather(dim, theirs)
    return (a == b) | ((a != a) & (b != b))
