"""Every element-wise and reducing operator beside PyTorch at the ends of each type it takes.

One model per element type holds all operators of a kind, so that there are few compilations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import blockwright as bw
from blockwright.ops.row import REQUIRED, OpRow
from blockwright.ops.table import OPERATORS

Tensor = torch.Tensor
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
LEFT_OUT = {
    "sin", "cos", "tan",  # of large numbers they are another matter than of special ones
    "ones", "zeros",  # take sizes, not elements
    "digamma",  # 1.5 is next to its zero
    "gelu",  # PyTorch's own of infinity is NaN, and far from zero it has lost digits
}  # fmt: skip
EITHER_ZERO = {
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "relu",
    "clip",
    "i1",
    "i1e",
}  # of 0.0 and -0.0 either
# PyTorch's remainder of the largest by the smallest number, and I0 and I1 of infinity, are NaN
OVERFLOWS = {"fmod", "remainder", "i0", "i1"}


def specials(dtype: str) -> Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    if dtype == "bool":
        return torch.tensor([True, False])
    if not kind.is_floating_point:
        info = torch.iinfo(kind)
        ends = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2]
        return torch.tensor([*ends, 0, 1, 2, 3, 7, *([-1, -2, -3, -8] if info.min else [])]).to(
            kind
        )
    info = torch.finfo(kind)
    nan, inf = float("nan"), float("inf")
    ends = [info.max, info.min, info.tiny, -info.tiny, info.tiny / 2, info.eps]
    common = [0.5, -0.5, 1.5, 2.5, -2.5, 1.0, -1.0, 3.0, -3.0, 6.0, 0.1, -7.3, 20.0, -40.0]
    return torch.tensor([nan, inf, -inf, 0.0, -0.0, *ends, *common], dtype=torch.float64).to(kind)


class Several(torch.nn.Module):
    def __init__(self, functions: list[Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: Any) -> list[Any]:
        return [function(*args) for function in self.functions]


def overload(name: str) -> Callable[..., Any]:
    _, base, kind = name.split(".")
    return getattr(getattr(torch.ops.aten, base), kind)


def works(fn: Callable[..., Any], *args: Tensor) -> bool:
    try:
        return isinstance(fn(*args), Tensor)
    except (RuntimeError, TypeError, IndexError, ValueError):
        return False


def rows_of(count: int) -> list[OpRow]:
    found: list[OpRow] = []
    for row in OPERATORS.values():
        plain = all(value is not REQUIRED for value in row.attrs.values())
        if len([a for a in row.args if not a.endswith("*")]) == count and row.torch and plain:
            found.append(row)
    return found


def operators(*args: Tensor) -> dict[tuple[str, str], Callable[..., Any]]:
    """Rows and their overloads that take these tensors, and nothing else."""
    found: dict[tuple[str, str], Callable[..., Any]] = {}
    for row in rows_of(len(args)):
        for name in row.torch:
            fn = overload(name)
            if row.name not in LEFT_OUT and works(fn, *args):
                found[row.name, name] = fn
    return found


def differences(got: Tensor, want: Tensor, zeros: bool, overflows: bool) -> str:
    """The first elements that differ by more than rounding."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {tuple(got.shape)}, not {want.dtype} {tuple(want.shape)}"
    if not want.is_floating_point():
        bad = got != want
    else:
        g, w = got.double(), want.double()
        eps, tiny = torch.finfo(want.dtype).eps, torch.finfo(want.dtype).tiny
        bad = ~(
            (g == w) | (g.isnan() & w.isnan()) | ((g - w).abs() <= 16 * eps * w.abs() + 2 * tiny)
        )
        if overflows:
            bad &= ~w.isnan()
        if zeros:
            bad |= (w == 0) & (g == 0) & (g.signbit() != w.signbit())
    places = bad.reshape(-1).nonzero().reshape(-1).tolist()[:4]
    return ", ".join(
        f"[{k}] {got.reshape(-1)[k].item()!r} not {want.reshape(-1)[k].item()!r}" for k in places
    )


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.parametrize("count", [1, 2])
def test_operators_of_special_values(dtype: str, count: int) -> None:
    x = specials(dtype)
    pairs = x.repeat_interleave(len(x)), x.repeat(len(x))
    args = (x,) if count == 1 else pairs
    found = operators(*args)
    assert len(found) > 20
    model = bw.compile(Several(list(found.values())), args)
    wrong: list[str] = []
    for ((row, name), fn), got in zip(found.items(), model(*args), strict=True):
        text = differences(got, fn(*args), row not in EITHER_ZERO, row in OVERFLOWS)
        wrong += [f"{name}: {text}"] if text else []
    assert not wrong, "\n".join(wrong)


F = torch.nn.functional
WITH_NUMBER: list[Callable[[Tensor, float], Tensor]] = [
    lambda x, n: torch.clamp(x, min=n), lambda x, n: torch.clamp(x, max=n),
    lambda x, n: torch.clamp(x, n, n), lambda x, n: F.hardtanh(x, n, math.inf),
    lambda x, n: F.elu(x, n), lambda x, n: F.leaky_relu(x, n),
    lambda x, n: F.threshold(x, n, 5.0), lambda x, n: F.threshold(x, 0.5, n),
    lambda x, n: F.softplus(x, 1.0, n), lambda x, n: x + n, lambda x, n: x * n,
    lambda x, n: x == n, lambda x, n: x != n, lambda x, n: x < n, lambda x, n: x >= n,
    lambda x, n: torch.nan_to_num(x, n), lambda x, n: x.masked_fill(x > 0, n),
    lambda x, n: torch.where(x > n, x, n), lambda x, n: torch.add(x, x, alpha=n),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numbers_that_are_no_finite_ones(dtype: str) -> None:
    x = specials(dtype)
    found = [partial(f, n=n) for n in (math.nan, math.inf, -math.inf) for f in WITH_NUMBER]
    model = bw.compile(Several(found), (x,))
    for place, (fn, got) in enumerate(zip(found, model(x), strict=True)):
        text = differences(got, fn(x), zeros=False, overflows=False)
        assert not text, f"{place % len(WITH_NUMBER)} of {fn.keywords}: {text}"


def reductions(x: Tensor) -> list[Tensor]:
    lines = [x.amax(1), x.amin(1), x.argmax(1), x.argmin(1), (x != 0).any(1), x.any(1), x.all(1)]
    return [*lines, *([x.sum(1), x.softmax(1)] if x.is_floating_point() else [x.sum(1), x.prod(1)])]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_reductions_of_special_values(dtype: str) -> None:
    """Rows of pairs: NaN counts as the extreme, of equal elements the first is found."""
    x = specials(dtype)
    rows = torch.stack([x.repeat_interleave(len(x)), x.repeat(len(x))], 1)
    model = bw.compile(Several([reductions]), (rows,))
    for number, (got, want) in enumerate(zip(model(rows)[0], reductions(rows), strict=True)):
        text = differences(got, want, zeros=False, overflows=False)
        assert not text, f"reduction {number}: {text}"


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, "bool"])
def test_casts_of_special_values(source: str) -> None:
    """Floats that an integer type holds are cut off; the others C leaves open."""
    x = specials(source)
    targets = [*FLOATS, *INTEGERS, "bool"]
    if x.is_floating_point():
        targets = [*FLOATS, "bool"]

    def casts(x: Tensor) -> list[Tensor]:
        return [x.to(getattr(torch, name)) for name in targets]

    model = bw.compile(Several([casts]), (x,))
    for name, got, want in zip(targets, model(x)[0], casts(x), strict=True):
        text = differences(got, want, zeros=True, overflows=False)
        assert not text, f"to {name}: {text}"
