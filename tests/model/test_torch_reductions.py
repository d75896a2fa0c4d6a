"""Reductions of imported models: types that elements are converted to, axes, and empty axes."""

# Lambdas take tensors; what reads them does not say so.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

import blockwright as bw
from blockwright.frontend.torch.importer import from_exported_program

INT_MIN = torch.iinfo(torch.int32).min


def test_elements_become_bools_before_they_are_combined(agrees: Any) -> None:
    """0.5 + 0.25 is no zero as an int32, and 1 - 1 none as bools: the sum of bools is `any`."""
    fractions = torch.tensor([[0.5, 0.25, 0.125], [0.5, -0.0, 2.0], [0.0, 0.0, 0.0]])
    whole = torch.tensor([[1, -1, 0], [INT_MIN, INT_MIN, 1], [3, 0, -3]], dtype=torch.int32)
    agrees(
        lambda x, i: (
            torch.sum(x, 1, dtype=torch.bool),
            torch.sum(i, 1, dtype=torch.bool),
            torch.prod(x.double(), 1, dtype=torch.bool),
            torch.prod(i, 1, dtype=torch.bool),
            torch.cumsum(x, 1, dtype=torch.int64),
        ),
        fractions,
        whole,
    )


def test_empty_tuples_of_axes(agrees: Any) -> None:
    """`any` and `all` reduce along no axis then, all others along every axis; `flip` turns none."""
    x = torch.tensor([[1.5, 0.0], [-0.0, torch.nan]])
    agrees(
        lambda x: (
            torch.any(x, dim=()),
            torch.all(x, dim=(), keepdim=True),
            torch.sum(x, dim=()),
            torch.amax(x, dim=(), keepdim=True),
            torch.flip(x, ()),
        ),
        x,
    )


EXTREMES: list[Any] = [
    lambda x: x.amin((0, 1)),
    lambda x: x.max(),
    lambda x: x.min(0)[1],
    lambda x: x.argmax(0),
]


class Extremes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return [fn(x) for fn in EXTREMES]


def test_extremes_of_no_elements_fail_the_call() -> None:
    shapes = ({0: Dim("rows", min=0, max=9), 1: Dim("columns", min=1, max=9)},)
    exe = bw.compile(Extremes(), (torch.randn(3, 4),), dynamic_shapes=shapes)
    x = torch.randn(1, 3)
    for ours, theirs in zip(exe(x), Extremes()(x), strict=True):
        torch.testing.assert_close(ours, theirs)
    for fn in EXTREMES:
        with pytest.raises((IndexError, RuntimeError)):
            fn(torch.randn(0, 3))
    with pytest.raises(bw.ArgumentError, match="dimension 0, which has no elements") as caught:
        exe(torch.randn(0, 3))
    assert caught.value.code == "BW708"
    assert caught.value.help
    assert "min=1" in caught.value.help


@pytest.mark.parametrize("fn", EXTREMES)
def test_each_extreme_asks_for_elements(fn: Any) -> None:
    class Alone(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return fn(x)

    def guards(least: int) -> int:
        shapes = ({0: Dim("rows", min=least, max=9)},)
        program = torch.export.export(Alone(), (torch.randn(3, 4),), dynamic_shapes=shapes)
        return str(from_exported_program(program)).count("which has no elements")

    assert guards(0) == 1
    assert guards(1) == 0


def test_extremes_along_an_axis_beside_an_empty_one(agrees: Any) -> None:
    agrees(
        lambda x: (x.amax(1), x.argmax(-1)),
        torch.randn(3, 4),
        shapes=[{0: Dim("rows", min=0, max=9)}],
        others=[(torch.randn(0, 4),)],
    )


def test_logsumexp_over_axes_that_are_empty_at_a_call(agrees: Any) -> None:
    """PyTorch's decomposition takes a maximum, which fails where `logsumexp` gives -inf."""
    extreme = torch.tensor([[torch.inf, -torch.inf, torch.nan, 3e38, -3e38]]).repeat(2, 1)
    agrees(
        lambda x: (
            x.logsumexp(0),
            x.logsumexp((0, -1)),
            x.logsumexp(1, keepdim=True),
            x.half().logsumexp(0),
            x.nan_to_num().clamp(-9, 9).int().logsumexp(0),
        ),
        torch.randn(6, 5),
        shapes=[{0: Dim("n", max=99)}],
        others=[(torch.zeros(0, 5),), (torch.randn(1, 5),), (extreme,)],
    )
