"""Control flow of PyTorch: branches and loops, and regions without gradients or of another type."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_over
from torch.export import Dim

import blockwright as bw

N = Dim("n", min=2, max=50)


class Layer(torch.nn.Module):
    """A layer, and a function of it and the inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = torch.nn.Linear(4, 4), function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self.linear, *inputs)


def check(function: Any, *calls: torch.Tensor, shapes: Any = None, tolerance: float = 1e-5) -> Any:
    """Compile for the first input, and compare all of them with eager mode."""
    model = Layer(function)
    dynamic = None if shapes is None else ((shapes,),)
    exe = bw.compile(model, calls[:1], dynamic_shapes=dynamic, options={"fallback": "error"})
    for x in calls:
        torch.testing.assert_close(exe(x), model(x), rtol=tolerance, atol=tolerance)
    return exe


def refused(function: Any, x: torch.Tensor, shapes: Any = None) -> str:
    with pytest.raises(bw.BlockwrightError) as caught:
        check(function, x, shapes=shapes)
    assert caught.value.code == "BW507"
    return caught.value.message


@torch.library.custom_op("control::positive_ones", mutates_args=())
def positive_ones(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@positive_ones.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


POSITIVE, NEGATIVE = torch.rand(3, 4) + 0.1, -torch.rand(5, 4)


class TestBranches:
    def test_depend_on_data(self) -> None:
        def function(layer: Any, x: torch.Tensor) -> Any:
            def then(x: torch.Tensor) -> Any:
                return layer(x).relu_() + 1, torch.special.xlogy(x, x.abs() + 1)

            def other(x: torch.Tensor) -> Any:
                inner = torch.cond(x.amin() < -0.5, lambda x: x * 2, lambda x: x * 3, (x,))
                return inner, x.logsumexp(0, keepdim=True) + x

            return torch.cond(x.sum() > 0, then, other, (x,))

        check(function, POSITIVE, NEGATIVE, 0.1 * NEGATIVE, shapes={0: N})

    def test_depend_on_sizes(self) -> None:
        def function(layer: Any, x: torch.Tensor) -> Any:
            return torch.cond(x.shape[0] > 4, lambda x: x.sum(0), lambda x: x.amax(0), (x,))

        check(function, POSITIVE, NEGATIVE, shapes={0: N})

    def test_may_give_different_sizes(self) -> None:
        def function(layer: Any, x: torch.Tensor) -> Any:
            y = torch.cond(x.sum() > 0, lambda x: x[:2] + 1, lambda x: x[:1] - 1, (x,))
            return y.sum(0), y * 2

        check(function, POSITIVE, -POSITIVE)


class TestLoops:
    def test_that_end_by_a_condition(self) -> None:
        def function(layer: Any, x: torch.Tensor) -> Any:
            def more(i: torch.Tensor, x: torch.Tensor) -> Any:
                return x.abs().amax() < 3

            return while_loop(more, lambda i, x: (i + 1, layer(x) + 2 * x), (torch.tensor(0), x))

        check(function, POSITIVE, NEGATIVE, 10 * NEGATIVE, shapes={0: N}, tolerance=1e-4)

    def test_over_an_axis(self) -> None:
        def function(layer: Any, x: torch.Tensor) -> Any:
            running = scan(lambda c, y: (c + layer(y), c * y), torch.zeros(4), x)
            return running, map_over(lambda y: y.cumsum(0) * 2, x)

        check(function, POSITIVE)

    def test_over_an_axis_of_any_length(self) -> None:
        def function(layer: Any, x: torch.Tensor) -> Any:
            bias, count = x.mean(0), x.shape[0]
            running = scan(lambda c, y: (c * 0.5 + layer(y), c * y + bias), torch.zeros(4), x)
            return running, map_over(lambda y: y.cumsum(0) * count, x)

        long = torch.randn(1200, 4, generator=torch.Generator().manual_seed(0))
        check(function, POSITIVE, long, long[:1], shapes={0: Dim("rows")}, tolerance=1e-4)

    def test_inside_loops_of_any_length(self) -> None:
        def repeated(x: torch.Tensor) -> Any:
            return while_loop(lambda x: x.abs().sum() < 10, lambda x: (x * 1.5 + 1,), (x,))[0]

        def running(layer: Any, x: torch.Tensor) -> Any:
            def step(c: torch.Tensor, y: torch.Tensor) -> Any:
                total = repeated(c * 0.1 + y)
                return total, total * 2

            return scan(step, torch.zeros(4), x)

        def function(layer: Any, x: torch.Tensor) -> Any:
            return map_over(repeated, layer(x))

        for loop in (running, function):
            check(loop, POSITIVE, NEGATIVE, torch.rand(20, 4), shapes={0: N}, tolerance=1e-4)

    def test_inside_loops_may_call_the_framework(self) -> None:
        def function(layer: Any, x: torch.Tensor) -> Any:
            def more(x: torch.Tensor) -> Any:
                return (torch.special.airy_ai(x) + x + 1,)

            return map_over(lambda x: while_loop(lambda x: x.sum() < 10, more, (x,))[0], x)

        model = Layer(function)
        with pytest.warns(bw.BlockwrightWarning, match="run in the framework"):
            exe = bw.compile(model, (POSITIVE,), dynamic_shapes=(({0: N},),))
        torch.testing.assert_close(exe(-NEGATIVE), model(-NEGATIVE))

    def test_inside_loops_of_any_length_have_results_of_known_size(self) -> None:
        def function(layer: Any, x: torch.Tensor) -> Any:
            def more(x: torch.Tensor) -> Any:
                return (x + 1 + positive_ones(x).sum(),)

            return map_over(lambda x: while_loop(lambda x: x.sum() < 10, more, (x,))[0], x)

        with pytest.raises(bw.ImporterError, match="the body of a loop has an operator") as caught:
            bw.compile(Layer(function), (POSITIVE,), dynamic_shapes=(({0: N},),))
        assert caught.value.code == "BW501"

    def test_over_an_axis_of_known_length(self) -> None:
        def function(layer: Any, x: torch.Tensor) -> Any:
            products = associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")
            return scan(lambda c, y: (c + y, layer(c * y)), torch.zeros(4), x), products

        check(function, torch.rand(40, 4) + 0.5)

    def test_of_many_steps(self) -> None:
        def function(layer: Any, x: torch.Tensor) -> Any:
            return while_loop(lambda i: i < 30000, lambda i: (i + 1,), (x.sum().long(),))

        check(function, 1000 * POSITIVE, NEGATIVE[:3])

    def test_with_random_numbers_are_refused(self) -> None:
        def function(layer: Any, x: torch.Tensor) -> Any:
            return while_loop(
                lambda i, x: i < 3, lambda i, x: (i + 1, x + torch.rand(4)), (torch.tensor(0), x)
            )

        assert "a random operator in a loop" in refused(function, POSITIVE)


def test_regions() -> None:
    def function(layer: Any, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = layer(x)
            with torch.enable_grad():
                z = layer(y).mul_(2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = layer(x).relu_()
            with torch.no_grad():
                weights = torch.softmax(half, -1)
        return y + z, half, weights

    check(function, POSITIVE, NEGATIVE, shapes={0: N}, tolerance=1e-2)


class Gradients(torch.nn.Module):
    """A model whose results come out of regions."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = torch.nn.Linear(4, 4), function
        self.register_buffer("total", torch.zeros(3, 4))

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def one(model: Any, x: torch.Tensor) -> Any:
    return model.linear(x)


def same(model: Any, x: torch.Tensor) -> Any:
    return x


def several(model: Any, x: torch.Tensor) -> Any:
    y = model.linear(x)
    with torch.enable_grad():
        z = y.relu() + 1
    return y, {"z": z}, y, x, None


def changed(model: Any, x: torch.Tensor) -> Any:
    model.total.add_(x)
    with torch.enable_grad():
        model.total.mul_(2)
        return model.total, model.linear(x).relu_(), model.total.sum()


def changed_argument(model: Any, x: torch.Tensor) -> Any:
    x.mul_(2)
    return x, x + 1


def typed(model: Any, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.enable_grad():
            y = model.linear(x)
        return y, y


def branches(model: Any, x: torch.Tensor) -> Any:
    def then(x: torch.Tensor) -> Any:
        with torch.enable_grad():
            return (model.linear(x),)

    return torch.cond(x.sum() > 0, then, lambda x: (x * 2,), (x,))


@pytest.mark.parametrize(
    "function",
    [one, same, several, changed, changed_argument, typed, branches],
)
def test_regions_whose_results_are_results_of_the_model(function: Any) -> None:
    model = Gradients(function).eval()
    before = copy.deepcopy(model)
    models = (model, torch.export.export(model, (POSITIVE.clone(),)))
    for given, args in zip(models, ((POSITIVE.clone(),), None), strict=True):
        exe = bw.compile(given, args, options={"fallback": "error"})
        eager = copy.deepcopy(before)
        for x in (POSITIVE, -POSITIVE):
            mine, theirs = x.clone(), x.clone()
            torch.testing.assert_close(exe(mine), eager(theirs), rtol=1e-2, atol=1e-2)
            torch.testing.assert_close(mine, theirs)
