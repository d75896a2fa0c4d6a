"""Slices and indices as in Python, read and assigned to; sizes that are expressions."""

# Lambdas take tensors; what reads them does not say so.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim

STARTS = (None, 0, 2, 5, 9, -1, -5, -7)


def test_starts_and_ends_are_limited_to_the_axis(agrees: Any) -> None:
    def slices(x: torch.Tensor) -> Any:
        return [x[a:b:step] for a in STARTS for b in STARTS for step in (1, 2)]

    agrees(slices, torch.arange(5.0))


def test_assignments_are_limited_to_the_axis(agrees: Any) -> None:
    def written(x: torch.Tensor) -> Any:
        out: list[torch.Tensor] = []
        for number, (a, b, step) in enumerate(
            (a, b, s) for a in STARTS[::2] for b in STARTS[1::2] for s in (1, 2)
        ):
            y = x.clone()
            y[:, a:b:step] = float(number)
            out.append(y)
        return out

    agrees(written, torch.zeros(2, 5))


def test_slices_of_symbolic_sizes(agrees: Any) -> None:
    def parts(x: torch.Tensor) -> Any:
        y = x.clone()
        y[-7:-1] = 1.0
        y[::2] = y[::2] * 3
        y[:, -1] = 5.0
        return x[-3:], x[-4:-1], x[1::2], x[:, x.shape[0] - 8], x[x.shape[0] - 8], y

    n = Dim("n", min=8, max=16)
    agrees(parts, torch.randn(10, 9), shapes=[{0: n}], others=[(torch.randn(16, 9),)])


def test_indices_on_any_axes(agrees: Any) -> None:
    def chosen(x: torch.Tensor) -> Any:
        i, j = torch.tensor([[0, 2], [1, -1]]), torch.tensor([1, 0])
        return x[i], x[:, i], x[:, :, j], x[i, j], x[:, i, j], x[i, :, j], x[0, j], x[j, None]

    agrees(chosen, torch.randn(3, 4, 5))


def test_numbers_through_masks(agrees: Any) -> None:
    def masked(x: torch.Tensor) -> Any:
        y, z = x.clone(), x.clone()
        y[y > 0] = 2
        z[z[:, 0] > 0] = -1.0
        return y, z

    agrees(masked, torch.randn(4, 5))


def test_sizes_that_are_multiples_of_a_symbol(agrees: Any) -> None:
    agrees(
        lambda x: (x.view(-1, 8), x.chunk(2), torch.nn.functional.glu(x, 0)),
        torch.randn(40),
        shapes=[{0: 8 * Dim("m", min=1, max=9)}],
        others=[(torch.randn(24),)],
    )


def test_parts(agrees: Any) -> None:
    agrees(
        lambda x: (x.unbind(1), x.narrow(0, 1, 2), x.split(2), x.tensor_split(2), x.diff(dim=0)),
        torch.randn(5, 3),
    )
    agrees(
        lambda x: x.split([2, x.shape[0] - 2]),
        torch.randn(6, 3),
        shapes=[{0: Dim("n", min=4, max=30)}],
        others=[(torch.randn(12, 3),)],
    )
