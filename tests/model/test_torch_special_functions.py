"""Special functions, and operators composed for want of a row, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import blockwright as bw

Tensor = torch.Tensor


class Several(torch.nn.Module):
    def __init__(self, functions: list[Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: Tensor) -> list[Any]:
        return [function(*args) for function in self.functions]


S: Any = torch.special
FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    S.erfc, S.erfinv, S.gammaln, S.digamma, S.i0, S.i0e, S.i1, S.i1e,
    lambda x: S.polygamma(1, x), lambda x: S.polygamma(3, x), lambda x: torch.logcumsumexp(x, 0),
    lambda x: S.multigammaln(x.abs() + 1, 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_special_functions(dtype: torch.dtype) -> None:
    """As close to double precision as PyTorch; half types are computed in single precision."""
    x = (torch.linspace(-5, 12, 171, dtype=torch.float64) + 0.0127).to(dtype)
    functions = FUNCTIONS if dtype is not torch.float16 else FUNCTIONS[:8]
    results = bw.compile(Several(functions), (x,))(x)
    eps = torch.finfo(dtype).eps
    for number, (function, got) in enumerate(zip(functions, results, strict=True)):
        assert got.dtype == dtype
        exact, theirs = function(x.double()), function(x).double()
        known = exact.isfinite() & theirs.isfinite()
        assert torch.equal(got.isnan(), theirs.isnan()), number
        allowed = 4 * (theirs - exact).abs() + 16 * eps * exact.abs().clamp(min=1e-2)
        if dtype is torch.float64:  # near poles PyTorch's own has lost digits, of trigamma most
            allowed = exact.abs().clamp(min=1) * (1e-8 if number == 8 else 1e-12)
        assert bool(((got.double() - exact).abs() <= allowed)[known].all()), number


def test_integers_are_computed_as_floats() -> None:
    x = torch.arange(1, 9)
    results = bw.compile(Several(FUNCTIONS[2:6]), (x,))(x)
    for function, got in zip(FUNCTIONS[2:6], results, strict=True):
        torch.testing.assert_close(got, function(x), rtol=1e-6, atol=1e-6)


def test_cumulative_sums_of_exponentials_of_extreme_values() -> None:
    inf = float("inf")
    lines = torch.tensor([[-inf, -inf, 1.0], [1.0, inf, 2.0], [500.0, 501.0, -inf], [0, 0, 0]])

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.logcumsumexp(x, 1), torch.logcumsumexp(x[0, 2], 0)

    for got, want in zip(bw.compile(Several([both]), (lines,))(lines)[0], both(lines), strict=True):
        torch.testing.assert_close(got, want)


def test_most_frequent_elements() -> None:
    x = torch.randint(0, 3, (4, 9, 2), generator=torch.Generator().manual_seed(3))

    def found(x: Tensor) -> list[Any]:
        along = [torch.mode(x, dim) for dim in (0, 1, -1)]
        return [*along, torch.mode(x.float(), 1, keepdim=True), torch.mode(x[0, 0, 0])]

    for got, want in zip(bw.compile(Several([found]), (x,))(x)[0], found(x), strict=True):
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


def test_sums_of_products_of_matrices() -> None:
    c, a, b = torch.randn(3, 6), torch.randn(4, 3, 5), torch.randn(4, 5, 6)

    def summed(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.addbmm(c, a, b, beta=0.5, alpha=2)

    got = bw.compile(Several([summed]), (c, a, b))(c, a, b)[0]
    torch.testing.assert_close(got, summed(c, a, b))


def test_memory_without_values_has_its_shape() -> None:
    def made(x: Tensor) -> list[Tensor]:
        n = x.shape[0]
        strided = torch.empty_strided((n, 3), (3, 1)), x.new_empty_strided((2, n), (n, 1))
        return [*strided, torch.empty_permuted((n, 2), (1, 0))]

    x = torch.randn(5)
    shapes = ({0: torch.export.Dim("n", min=2, max=9)},)
    model = bw.compile(Several([made]), (x,), dynamic_shapes=(shapes,))
    assert [v.shape for v in model(torch.randn(7))[0]] == [(7, 3), (2, 7), (7, 2)]
