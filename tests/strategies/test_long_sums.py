"""Long sums lose no more accuracy than PyTorch's, along any axis, with sizes known or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import blockwright as bw

Tensor = torch.Tensor


class Function(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def data(shape: tuple[int, ...], kind: str, dtype: torch.dtype = torch.float32) -> Tensor:
    random = torch.Generator().manual_seed(1)
    if kind == "constant":
        return torch.full(shape, 1000.3, dtype=dtype)
    if kind == "large":
        return torch.randn(shape, generator=random).add(1000).to(dtype)
    return torch.rand(shape, generator=random).to(dtype)


def error(got: Tensor, exact: Tensor) -> float:
    return float(((got.double() - exact).abs() / exact.abs().max()).max())


def check(
    fn: Callable[..., Tensor],
    *args: Tensor,
    shapes: Any = None,
    calls: Any = None,
    floor: float = 4e-7,
) -> None:
    """The error to float64 is at most four times PyTorch's, or a few units in the last place."""
    model = bw.compile(Function(fn), args, dynamic_shapes=shapes)
    for call in calls or [args]:
        exact = fn(*(a.double() for a in call))
        limit = max(4 * error(fn(*call), exact), floor)
        assert error(model(*call), exact) <= limit


SUMS: list[tuple[tuple[int, ...], Any]] = [
    ((200_000,), 0),
    ((100_000, 4), 0),
    ((4, 200_000), 1),
    ((3000, 64), 0),
    ((3000, 33), 0),
    ((2, 5000, 20), 1),
    ((3, 4, 6000), 2),
    ((300, 200, 3), (0, 1)),
    ((3, 300, 1000), (1, 2)),
    ((300, 3, 200), (0, 2)),
    ((60, 4, 50, 10), (0, 2)),
    ((5, 300, 2, 300), (1, 3)),
    ((100_000, 1), 0),
    ((1000, 300), (0, 1)),
]


@pytest.mark.parametrize(("shape", "axis"), SUMS)
def test_sums_over_any_axis(shape: tuple[int, ...], axis: Any) -> None:
    def total(x: Tensor) -> Tensor:
        return x.sum(axis)

    model = bw.compile(Function(total), (data(shape, "large"),))
    for kind in ("large", "uniform", "constant"):
        x = data(shape, kind)
        exact = total(x.double())
        # Additions of equal terms all round one way, so errors add up; PyTorch is off by 4e-6 here.
        floor = 1e-6 if kind == "constant" else 4e-7
        assert error(model(x), exact) <= max(4 * error(total(x), exact), floor)


@pytest.mark.parametrize(
    ("shape", "view"),
    [
        ((40_000, 8), lambda x: x[::2, ::2].sum(0)),
        ((40_000, 8), lambda x: x.transpose(0, 1).contiguous().transpose(0, 1).sum(0)),
        ((2, 600, 80, 2, 6), lambda x: x[:, ::2, ::2, :, :3].sum((1, 2, 4))),
        ((2, 20_000, 4, 4), lambda x: x[:, :, ::2, ::2].sum((1, 2, 3))),
    ],
)
def test_sums_of_views(shape: tuple[int, ...], view: Callable[[Tensor], Tensor]) -> None:
    check(view, data(shape, "large"))


# A total of many block sums rounds many times at the size of the whole sum.
TOTALS: list[tuple[tuple[int, ...], Any]] = [
    ((200_000, 3), 0), ((20_011, 16), 0), ((100, 200, 3), (0, 1)), ((3, 65_536), 1),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), TOTALS)
def test_errors_of_sums_are_those_of_pytorch_on_average(shape: tuple[int, ...], axis: Any) -> None:
    def total(x: Tensor) -> Tensor:
        return x.sum(axis)

    model = bw.compile(Function(total), (torch.empty(shape),))
    random, squares = torch.Generator().manual_seed(1), torch.zeros(2, dtype=torch.float64)
    for _ in range(16):
        x = torch.rand(shape, generator=random) + 1000
        exact = total(x.double())
        for k, got in enumerate((model(x), total(x))):
            squares[k] += ((got.double() - exact) / exact).square().mean()
    ours, theirs = squares.div(16).sqrt().tolist()
    assert ours <= max(1.6 * theirs, 6e-8)


def test_the_mean_of_a_million_numbers() -> None:
    def mean(x: Tensor) -> Tensor:
        return x.mean(0)

    check(mean, data((1_000_000, 4), "large"))


def centred(x: Tensor) -> Tensor:
    return (x - x.mean(0, keepdim=True)).square().mean(0)


def norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=1)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(0)


def normalised(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[1:])


@pytest.mark.parametrize("fn", [centred, norm, softmax, normalised])
@pytest.mark.parametrize("shape", [(50_000, 4), (4, 50_000)])
def test_composed_reductions(fn: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    check(fn, data(shape, "uniform"), floor=1e-6)


@pytest.mark.parametrize(
    ("shape", "axis"), [((4000, 3), 0), ((3, 40_000), 1), ((2, 4000, 5), 1), ((40_000,), 0)]
)
def test_lengths_that_calls_decide(shape: tuple[int, ...], axis: int) -> None:
    def total(x: Tensor) -> Tensor:
        return x.sum(axis)

    lengths = [1, 3, 100, 1023, 1025, 8191, 9000, 200_001]
    calls = [(data((*shape[:axis], n, *shape[axis + 1 :]), "large"),) for n in lengths]
    sizes = ({axis: torch.export.Dim("n", min=1, max=1 << 20)},)
    check(total, data(shape, "large"), shapes={"args": sizes}, calls=calls)


def test_a_long_product_is_not_taken_in_blocks() -> None:
    """A block of the large factors alone would overflow, and give inf * 0."""

    def whole(x: Tensor) -> Tensor:
        return x.prod()

    x = torch.linspace(0.5, 1.5, 20_000)
    assert bw.compile(Function(whole), (x,))(x) == whole(x) == 0


@pytest.mark.parametrize(("shape", "axis"), [((100_000,), 0), ((4, 20_000), 1), ((20_000, 4), 0)])
@pytest.mark.parametrize("kind", ["uniform", "large", "constant"])
def test_running_sums(shape: tuple[int, ...], axis: int, kind: str) -> None:
    def running(x: Tensor) -> Tensor:
        return x.cumsum(axis)

    check(running, data(shape, kind))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_summed_in_float32(dtype: torch.dtype) -> None:
    def mean(x: Tensor) -> Tensor:
        return x.mean(0)

    check(mean, data((20_000, 4), "uniform", dtype), floor=2.0**-8)


@pytest.mark.parametrize("rows", [(20_000, 64), (100_003, 5)])
def test_blocks_of_columns_keep_their_rule(rows: tuple[int, int]) -> None:
    def total(x: Tensor) -> Tensor:
        return x.sum(0)

    compiled = bw.compile(Function(total), (data(rows, "uniform"),))
    text = compiled.show("schedule")
    assert "rfactor" in text
    assert "fallback" not in text
    assert np.isfinite(compiled(data(rows, "uniform")).numpy()).all()
