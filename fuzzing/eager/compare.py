"""Compare results with those of PyTorch: type, shape and value."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

_RTOL = {torch.float64: 1e-7, torch.float32: 1.3e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
_ATOL = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 1e-5, torch.bfloat16: 1e-5}
_FACTOR = 4.0
"""Maximum error of a result relative to float64, as a multiple of PyTorch's own."""
_ULPS = 8.0
"""Error relative to float64 that is always accepted, in units in the last place."""


def leaves(value: Any) -> list[Any]:
    """Tensors and numbers of a nested result, in order, without None."""
    return [leaf for leaf in pytree.tree_leaves(value) if leaf is not None]


def copied(value: Any) -> Any:
    """Clone the tensors of a nested structure, keeping strides."""
    return pytree.tree_map_only(torch.Tensor, _clone, value)


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides; contiguous if elements share memory."""
    if tensor.is_contiguous() or any(
        n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        return tensor.detach().clone()
    result = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return result.copy_(tensor.detach())


def in_float64(value: Any) -> Any:
    """Copies of the tensors of a nested structure, floating-point ones in float64."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return tensor.to(torch.complex128, copy=True)
        return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()

    return pytree.tree_map_only(torch.Tensor, change, value)


@contextmanager
def integers_become_float64() -> Generator[None, None, None]:
    """In this context, operators that turn integers into floats return float64."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two structures hold tensors of equal types, shapes and elements (NaN equals NaN)."""
    ours, theirs = leaves(a), leaves(b)
    return len(ours) == len(theirs) and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(_settled(x), _settled(y))
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
        else x == y or (x != x and y != y)
        for x, y in zip(ours, theirs, strict=True)
    )


def _settled(tensor: torch.Tensor) -> torch.Tensor:
    """Replace every NaN by one number, so that `torch.equal` compares them as equal."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point():
        return tensor
    return torch.where(tensor.isnan(), torch.full_like(tensor, 0.5), tensor)


def kind_difference(actual: Any, expected: Any) -> str:
    """Describe how the number, types or shapes of results differ; empty if they do not."""
    ours, theirs = leaves(actual), leaves(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, want {len(theirs)}"
    for number, (x, y) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(y, torch.Tensor):
            continue
        if not isinstance(x, torch.Tensor):
            return f"result {number} is a {type(x).__name__}, want a tensor"
        if x.dtype != y.dtype:
            return f"result {number} has type {x.dtype}, want {y.dtype}"
        if x.shape != y.shape:
            return f"result {number} has shape {tuple(x.shape)}, want {tuple(y.shape)}"
    return ""


def difference(
    actual: Any, expected: Any, wide: Any = None, free: Sequence[Any] | None = None
) -> str:
    """Describe how results differ from those of PyTorch; empty if they do not.

    Arguments:
        wide: results of the same computation in float64, if any.
        free: per result, a mask of the elements to ignore.
    """
    text = kind_difference(actual, expected)
    if text:
        return text
    ours, theirs, exact = leaves(actual), leaves(expected), leaves(wide)
    for number, (x, y) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(y, torch.Tensor):
            if x != y and not (x != x and y != y):
                return f"result {number} is {x}, want {y}"
            continue
        reference = exact[number] if len(exact) == len(theirs) else None
        bad = _wrong(x, y, reference)
        if free is not None and free[number] is not None:
            bad &= ~free[number]
        if bad.any():
            return _words(number, bad, x, y)
    return ""


def _wrong(x: torch.Tensor, y: torch.Tensor, wide: Any) -> torch.Tensor:
    """Mask of the elements that differ by more than rounding explains."""
    if y.is_complex():
        parts = [torch.view_as_real(t.resolve_conj()) for t in (x, y)]
        same = isinstance(wide, torch.Tensor) and wide.is_complex()
        exact = torch.view_as_real(wide.resolve_conj()) if same else None
        return _wrong(parts[0], parts[1], exact).any(-1)
    if not y.is_floating_point():
        return x != y
    a, b = x.to(torch.float64), y.to(torch.float64)
    rtol, atol = _RTOL.get(y.dtype, 1e-2), _ATOL.get(y.dtype, 1e-5)
    close = torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    close |= torch.isnan(a) & torch.isnan(b)
    if isinstance(wide, torch.Tensor) and wide.shape == y.shape and wide.is_floating_point():
        close |= _as_exact(a, b, wide.to(torch.float64), torch.finfo(y.dtype))
    return ~close


def _as_exact(
    ours: torch.Tensor, theirs: torch.Tensor, wide: torch.Tensor, info: Any
) -> torch.Tensor:
    """Mask of the elements whose error is at most a few times PyTorch's largest one.

    If the exact result is finite, and PyTorch's is neither finite nor the exact one rounded to its
    type, an intermediate value overflowed in PyTorch. Whether that happens depends on evaluation
    order and fused multiply-adds, so a non-finite result is accepted there. A finite result must be
    close to the exact one.
    """
    error = (theirs - wide).abs()
    finite = error[torch.isfinite(error)]
    largest = finite.max() if finite.numel() else torch.zeros((), dtype=torch.float64)
    allowed = _FACTOR * largest + _ULPS * info.eps * wide.abs() + info.tiny
    near = (ours - wide).abs() <= allowed
    # If the exact result does not fit the type, intermediate ones may overflow too.
    beyond = wide.abs() > info.max
    near |= torch.isinf(ours) & beyond & (wide.sign() == ours.sign())
    rounded = torch.isinf(theirs) & beyond & (wide.sign() == theirs.sign())
    overflowed = torch.isfinite(wide) & ~torch.isfinite(theirs) & ~rounded
    return near | (overflowed & ~torch.isfinite(ours))


def _words(number: int, bad: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> str:
    places = bad.nonzero()
    place = tuple(int(n) for n in places[0])
    return (
        f"result {number} differs in {len(places)} of {bad.numel()} elements, at "
        f"{list(place)}: {x[place].item()!r}, want {y[place].item()!r} ({str(y.dtype)[6:]})"
    )
