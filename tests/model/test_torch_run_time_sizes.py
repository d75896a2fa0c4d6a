"""PyTorch models with results of sizes known only at run time: unique, nonzero, masks, item()."""

# Lambdas are the models.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import blockwright as bw

CHECK: Any = vars(torch)["_check"]
X = torch.tensor([[3.0, 1.0, -2.0], [1.0, 0.0, 2.0], [3.0, -2.0, 0.0]])


class Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def bounded_item(x: torch.Tensor, n: torch.Tensor) -> Any:
    u: Any = n.item()
    CHECK(u >= 0)
    CHECK(u <= x.shape[0])
    return x[:u] * 2, torch.zeros(u, 2) + x[0, 0], torch.arange(u), torch.full((2,), u)


MODELS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "unique": (lambda x: torch.exp(torch.unique(x)), (X,)),
    "unique_with_places": (
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        (torch.cat([X, torch.full((2, 3), float("nan"))]),),
    ),
    "unique_slices": (
        lambda x: (
            *torch.unique(x, dim=1, return_inverse=True, return_counts=True),
            torch.unique(x > 0, dim=0),
        ),
        (torch.cat([X, X[:, 1:], X[:, :1]], 1),),
    ),
    "runs": (
        lambda x: (torch.unique_consecutive(x), torch.unique_consecutive(x > 0, dim=0)),
        (torch.cat([X, X[-1:], X[-1:]]),),
    ),
    "runs_with_places": (
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        (torch.cat([X > 0, X > 1]),),
    ),
    "first_places": (
        lambda x: (torch.nonzero_static(x, size=3), torch.nonzero_static(x, size=9, fill_value=7)),
        (X,),
    ),
    "nonzero": (lambda x: (torch.nonzero(x), torch.nonzero(x > 0).float() * 2), (X,)),
    "masks": (
        lambda x: (torch.masked_select(x, x > 0).sum(), x[x > 0.5], x[x[:, 0] > 1], x[:, x[0] > 0]),
        (X,),
    ),
    "copies": (lambda x: x[x[:, 0] > 1].repeat(2, 1), (X,)),
    "item_as_size": (bounded_item, (X, torch.tensor(2))),
    "item_as_number": (lambda x, n: x * n.item(), (X, torch.tensor(-3))),
}
"""Each mask that occurs twice has the same size; the exporter knows that."""


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_are_those_of_pytorch(dynamic: bool) -> None:
    programs: dict[str, Any] = {}
    for name, (function, args) in MODELS.items():
        row = torch.export.Dim("n", min=1)
        shapes = tuple({0: row} if a.dim() else None for a in args) if dynamic else None
        programs[name] = torch.export.export(
            Model(function), args, dynamic_shapes=(shapes,) if shapes else None
        )
    exe = bw.compile(programs)
    for name, (function, args) in MODELS.items():
        torch.testing.assert_close(exe[name](*args), function(*args), equal_nan=True)
        if dynamic:
            more = tuple(torch.cat([a, a[:1]]) if a.dim() else a for a in args)
            torch.testing.assert_close(exe[name](*more), function(*more), equal_nan=True)


def test_what_the_model_checks_about_a_size_is_checked() -> None:
    args = X, torch.tensor(2)
    shapes = {0: torch.export.Dim("n", min=1)}, None
    exe = bw.compile(torch.export.export(Model(bounded_item), args, dynamic_shapes=(shapes,)))
    assert exe(X, torch.tensor(0))[2].shape == (0,)
    for size in (-1, 4):
        with pytest.raises(bw.ArgumentError) as caught:
            exe(X, torch.tensor(size))
        assert caught.value.code in ("BW708", "BW719")


def test_numbers_from_floats_are_refused() -> None:
    program = torch.export.export(Model(lambda x: x * x[0].item()), (X[0],))
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.compile(program)
    assert caught.value.code in ("BW507", "BW501")


def test_positions_as_often_as_data_says() -> None:
    """As for lengths of sounds; numbers that PyTorch rejects are rejected."""

    def function(x: torch.Tensor, times: torch.Tensor, kinds: torch.Tensor) -> Any:
        known = torch.repeat_interleave(x, times, dim=0, output_size=6)
        counted = torch.bincount(kinds), torch.bincount(kinds, x[:, 0], minlength=3)
        return torch.repeat_interleave(x, times, dim=0) * 2, known, *counted

    model, x = Model(function), torch.randn(4, 3)
    examples = torch.tensor([2, 0, 1, 3]), torch.tensor([0, 2, 2, 5])
    exe = bw.compile(model, (x, *examples), options={"fallback": "error"})
    for times, kinds in (examples, (torch.tensor([0, 6, 0, 0]), torch.tensor([1, 0, 1, 9]))):
        torch.testing.assert_close(exe(x, times, kinds), model(x, times, kinds))
    negative = torch.tensor([3, -1, 3, 1])
    for times, kinds in (
        (negative, examples[1]),
        (examples[1], examples[1]),
        (examples[0], negative),
    ):
        with pytest.raises(bw.BlockwrightError) as caught:
            exe(x, times, kinds)
        assert caught.value.code == "BW719"


def checked(x: torch.Tensor) -> Any:
    vars(torch)["_assert_async"]((x < 9).all(), "100 % below 9")
    return torch.nn.functional.one_hot(x, 5)


def test_places_that_elements_name() -> None:
    x = torch.tensor([[1, 3, 0], [4, 2, 2]])
    rows = torch.export.Dim("rows", min=1)
    exe = bw.compile(Model(checked), (x,), dynamic_shapes=(({0: rows},),))
    for given in (x, x[:1], 4 - torch.cat([x, x])):
        torch.testing.assert_close(exe(given), checked(given))
    for wrong, words in ((x - 1, "negative"), (x + 1, "num_classes"), (x + 9, "100 % below 9")):
        with pytest.raises(bw.ArgumentError, match=words) as caught:
            exe(wrong)
        assert caught.value.code == "BW719"


def test_elements_that_the_model_reads_must_exist() -> None:
    """The exporter knows that a mask selects as many as the model reads."""

    def function(x: torch.Tensor, mask: torch.Tensor) -> Any:
        chosen = x[mask]
        return (
            chosen[0],
            chosen[-1],
            chosen[1],
            chosen.sort().values[0],
            chosen.amax(0),
            chosen.median(),
        )

    x, mask = torch.randn(6), torch.tensor([True, False, True, True, False, True])
    exe = bw.compile(Model(function), (x, mask), options={"fallback": "error"})
    for given in (mask, torch.tensor([True, True, False, False, False, False])):
        torch.testing.assert_close(exe(x, given), function(x, given))
    for few in (torch.zeros(6, dtype=torch.bool), torch.arange(6) == 3):
        with pytest.raises(bw.ArgumentError) as caught:
            exe(x, few)
        assert caught.value.code == "BW708"


def test_the_largest_of_no_elements() -> None:
    x = torch.randn(6)
    largest, middle = (lambda x: x[x > 0].amax(0)), (lambda x: x[x > 0].median())
    for function in (largest, middle):
        exe = bw.compile(Model(function), (x.abs(),), options={"fallback": "error"})
        torch.testing.assert_close(exe(x.abs()), function(x.abs()))
        with pytest.raises(bw.ArgumentError) as caught:
            exe(-x.abs())
        assert caught.value.code == "BW708"
