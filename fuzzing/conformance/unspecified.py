"""Elements of results that PyTorch leaves unspecified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzing.conformance.samples import OperatorSample
from fuzzing.eager.compare import leaves

_CONVERSIONS = {"to", "type_as", "int", "long", "short", "char", "byte", "item", "_to_copy"}
"""Operators that convert floats to integers: PyTorch defines no value for floats out of range."""

_AXIS = {"sort": 1, "argsort": 1, "topk": 2, "kthvalue": 2, "mode": 1}
"""Operators that return positions, any of several for equal elements → the argument `dim`."""

_LIMIT_AT_INFINITY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "i0": torch.abs,
    "i1": lambda x: x,
    "polygamma": torch.zeros_like,
}
"""Values at infinity of operators whose kernels in PyTorch multiply infinity by 0 there."""


def free_elements(
    name: str, sample: OperatorSample, result: Any, expected: Any
) -> list[Any] | None:
    """Per result, a mask of the elements that may have any value; None if there are none.

    These are integers converted from floats that do not fit, positions of elements that equal the
    element at PyTorch's position, results of infinity where PyTorch's are NaN by mistake, and
    frequencies that cancel or are not finite.
    """
    base = name.split(".")[0]
    if base in ("fft", "stft", "istft") or base.removeprefix("_").startswith("fft_"):
        finite = all(bool(x.isfinite().all()) for x in leaves(sample.args) if _is_tensor(x))
        pairs = zip(leaves(result), leaves(expected), strict=True)
        return [_spectral(ours, wanted, finite) for ours, wanted in pairs]
    source = sample.args[0] if sample.args else None
    if not isinstance(source, torch.Tensor):
        return None
    if base in _CONVERSIONS and source.is_floating_point():
        return [_out_of_range(source, wanted) for wanted in leaves(expected)]
    limit = _LIMIT_AT_INFINITY.get(name.removeprefix("special.").split(".")[0])
    if limit is not None:
        pairs = zip(leaves(result), leaves(expected), strict=True)
        return [_limits(source.double(), limit, ours, wanted) for ours, wanted in pairs]
    if base == "mode" and source.ndim:  # PyTorch sorts NaN among the numbers of a line
        given = {**dict(zip(("dim", "keepdim"), sample.args[1:], strict=False)), **sample.kwargs}
        dim = given.get("dim", -1)
        with_nan = source.isnan().any(dim, keepdim=given.get("keepdim", False))
        ties = _ties(source, dim, leaves(result)[-1], leaves(expected)[-1])
        return [with_nan, with_nan if ties is None else with_nan | ties]
    if base in _AXIS and not sample.kwargs.get("stable"):
        place = _AXIS[base]
        given = sample.args[place] if len(sample.args) > place else sample.kwargs.get("dim", -1)
        ours, theirs = leaves(result), leaves(expected)
        return [None] * (len(ours) - 1) + [_ties(source, given, ours[-1], theirs[-1])]
    return None


_SPECTRAL_ERROR = {torch.float32: 1e-6, torch.float64: 1e-14}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _spectral(ours: Any, wanted: Any, finite: bool) -> torch.Tensor | None:
    """Mask of elements whose error is small beside the largest one, or that are not finite.

    A transform rounds relative to the norm of its operand. Where an operand is not finite, its
    algorithm decides which parts of a frequency are infinite, NaN, or finite because a coefficient
    is exactly 0.
    """
    if not isinstance(ours, torch.Tensor) or ours.shape != wanted.shape or not ours.numel():
        return None
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    a, b = ours.to(wide), wanted.to(wide)
    size = b.abs()
    largest = size[size.isfinite()].max() if bool(size.isfinite().any()) else size.new_zeros(())
    allowed = _SPECTRAL_ERROR.get(wanted.real.dtype, 1e-2) * largest
    beyond = ~a.isfinite() & ~b.isfinite() if finite else ~a.isfinite() | ~b.isfinite()
    return ((a - b).abs() <= allowed) | beyond


def _limits(
    source: torch.Tensor, limit: Callable[[torch.Tensor], torch.Tensor], ours: Any, wanted: Any
) -> torch.Tensor | None:
    """Mask of right values where PyTorch's are wrong: at infinity, and at poles of polygamma."""
    if not isinstance(ours, torch.Tensor) or ours.shape != source.shape:
        return None
    at_infinity = source.isinf() & wanted.isnan() & (ours == limit(source))
    at_pole = (source < 0) & (source == source.round()) & ~ours.isfinite()
    return at_infinity | (at_pole & (limit is torch.zeros_like))


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
