"""`torch.func.vmap` in a model: evaluated by PyTorch's rewriting, with fixed and dynamic sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockwright as bw


class Mapped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: Any, y: Any) -> Any:
        scaled = torch.func.vmap(lambda a, b: self.layer(a) * b.sum(), in_dims=(0, 1))
        return scaled(x, y), torch.vmap(lambda a: a.cumsum(0).flip(0))(x)


class Nested(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        def one(a: Any, b: Any) -> Any:
            return a * torch.where(a.sum() > b.sum(), 1.0, -1.0)

        return (torch.vmap(torch.vmap(one, in_dims=(0, None)))(x.unflatten(0, (-1, 1)), y.t()),)


@pytest.mark.parametrize("kind", [Mapped, Nested])
@pytest.mark.parametrize("dynamic", [False, True])
def test_mapped_functions(kind: Any, dynamic: bool) -> None:
    model = kind().eval()
    n = torch.export.Dim("n", min=2, max=64)
    shapes = {"dynamic_shapes": ({0: n}, {1: n})} if dynamic else {}
    executable = bw.compile(model, (torch.randn(5, 4), torch.randn(2, 5)), **shapes)
    for size in (5, 2, 64) if dynamic else (5,):
        given = torch.randn(size, 4), torch.randn(2, size)
        for found, wanted in zip(_listed(executable(*given)), model(*given), strict=True):
            torch.testing.assert_close(torch.as_tensor(found), wanted)


def _listed(results: Any) -> Any:
    return results if isinstance(results, (list, tuple)) else (results,)


class Derived(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.func.grad(lambda a: (a**2).sum())(x)


def test_gradients_whose_export_fails_are_refused() -> None:
    with pytest.raises(bw.ImporterError, match=r"BW509.*torch\.func\.grad"):
        bw.compile(Derived(), (torch.randn(4),))
