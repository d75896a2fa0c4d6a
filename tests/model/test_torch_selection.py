"""Sorting, assignment to computed positions, and operators composed of these."""

# Lambdas take tensors; what reads them does not say so.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

import blockwright as bw

N = Dim("n", min=4, max=25)
AT = torch.tensor([[0, 3, 1], [2, 2, 0]])
ROWS = torch.tensor([3, 0, 3])

FAMILIES: dict[str, Any] = {
    "sorted": lambda x: (*x.sort(0), *x.sort(1, descending=True), x.argsort(dim=0, stable=True),
                         x.msort(), *x.kthvalue(3, 0), x.median(), *x.median(0, keepdim=True)),
    "topk": lambda x: (*x.topk(3, 0), *x.topk(2, 1, largest=False), *x[0].topk(1)),
    "scatter": lambda x: (x.scatter(0, AT, x[:2] * 2), x.scatter(0, AT, 7.0),
                          x.scatter_add(0, AT, x[:2]),
                          x.scatter_reduce(0, AT, x[:2], "mean"),
                          x.scatter_reduce(0, AT, x[:2], "amax", include_self=False),
                          x.scatter_reduce(0, AT, x[:2], "prod")),
    "positions": lambda x: (x.index_put((ROWS,), x[1:4]), x.index_put((ROWS,), x[0], True),
                            x[:, None].index_put((ROWS, torch.tensor([0]), ROWS - 3), x[0, 0]),
                            x.index_add(0, ROWS, x[1:4], alpha=2), x.index_copy(0, ROWS, x[:3]),
                            x.index_fill(0, ROWS, 1.5)),
    "masks": lambda x: (x.masked_scatter(x > 0, x.flip(0)), x.masked_fill(x > 0, 2.0),
                        x.index_put((x > 0,), x[0, 0])),
    "distances": lambda x: (torch.cdist(x, x[:2]), torch.cdist(x, x, 1.0), F.pdist(x[:4])),
    "places": lambda x: (x.as_strided((3, 2), (5, 1), 4), x.put(torch.tensor([3, -1]), x[0, :2]),
                         F.embedding_bag(torch.tensor([1, 3, 0, 2]), x, torch.tensor([0, 1, 1])),
                         *x.cummax(0), *x.cummin(1), x.nanmedian(), *x.nanmedian(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_families_of_operators(name: str, agrees: Any) -> None:
    agrees(
        lambda x: [*FAMILIES[name](x)],
        torch.randn(5, 6),
        shapes=[{0: N}],
        others=[(torch.randn(9, 6),), (torch.randn(25, 6),)],
    )


def test_rows_of_a_cache_are_replaced_in_place(agrees: Any) -> None:
    def step(cache: Any, row: Any, at: Any) -> Any:
        cache.index_put_((at,), row)
        return cache.sum(0)

    agrees(step, torch.zeros(8, 4), torch.randn(1, 4), torch.tensor([5]))


def test_a_position_outside_fails_the_call() -> None:
    class Put(torch.nn.Module):
        def forward(self, x: Any, at: Any) -> Any:
            return x.index_put((at,), x[:1])

    exe = bw.compile(Put(), (torch.randn(4, 2), torch.tensor([1])))
    with pytest.raises(bw.BlockwrightError) as caught:
        exe(torch.randn(4, 2), torch.tensor([4]))
    assert caught.value.code == "BW708"
