"""Whether results are those of PyTorch: type, shape and value."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

_RTOL = {torch.float64: 1e-7, torch.float32: 1.3e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
_ATOL = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 1e-5, torch.bfloat16: 1e-5}
_FACTOR = 4.0
"""How much further than PyTorch from a run in float64 a result may be."""
_ULPS = 8.0
"""Units in the last place that any result may be away from the run in float64."""


def leaves(value: Any) -> list[Any]:
    """Tensors and numbers of a structure of results, in order; None is left out."""
    return [leaf for leaf in pytree.tree_leaves(value) if leaf is not None]


def copied(value: Any) -> Any:
    """The structure with its tensors cloned, strides kept."""
    return pytree.tree_map_only(torch.Tensor, _clone, value)


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, unless elements share memory."""
    if tensor.is_contiguous() or any(
        n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        return tensor.detach().clone()
    result = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return result.copy_(tensor.detach())


def in_float64(value: Any) -> Any:
    """The structure with its floating tensors in float64."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.float64) if tensor.is_floating_point() else tensor.clone()

    return pytree.tree_map_only(torch.Tensor, change, value)


@contextmanager
def integers_become_float64() -> Generator[None, None, None]:
    """Inside, operators that turn integers into floats return float64: part of a run in float64."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two structures hold tensors of equal types, shapes and elements (NaN is NaN)."""
    ours, theirs = leaves(a), leaves(b)
    return len(ours) == len(theirs) and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(_settled(x), _settled(y))
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
        else x == y or (x != x and y != y)
        for x, y in zip(ours, theirs, strict=True)
    )


def _settled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with one value for every NaN, so that `torch.equal` takes them for equal."""
    if not tensor.is_floating_point():
        return tensor
    return torch.where(tensor.isnan(), torch.full_like(tensor, 0.5), tensor)


def kind_difference(actual: Any, expected: Any) -> str:
    """How the number, types or shapes of results differ; empty if they do not."""
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
    """How results differ from those of PyTorch; empty if they do not.

    Arguments:
        wide: results of the same computation in float64, where there are some.
        free: per result a mask of the elements that may hold anything.
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
    """Mask of the elements at most a few times as far from the exact result as PyTorch's are.

    Where the exact result is finite and PyTorch's is neither finite nor that result rounded to its
    type, a value on the way overflowed in PyTorch. Which of them do depends on the order of
    evaluation and on fused multiplications, so a result that is not finite is accepted there. A
    finite result must be near the exact one.
    """
    error = (theirs - wide).abs()
    finite = error[torch.isfinite(error)]
    largest = finite.max() if finite.numel() else torch.zeros((), dtype=torch.float64)
    allowed = _FACTOR * largest + _ULPS * info.eps * wide.abs() + info.tiny
    near = (ours - wide).abs() <= allowed
    # Where the exact result does not fit the type, so may any intermediate one.
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
