"""Numbers, and tensors of one element, beside half precision: what PyTorch rounds, and what not.

Its kernels round a number to the half type first, except a factor or divisor on the right, which
they take in float32. Sizes are multiples of a vector, as the kernels treat the rest differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import blockwright as bw

Tensor = torch.Tensor
Function = Callable[[Tensor, Tensor, Tensor], Tensor]
HALF_TYPES = (torch.float16, torch.bfloat16)

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "eq": torch.eq,
}
UNARY: dict[str, Callable[[Tensor], Any]] = {
    "0.3 // x": lambda x: 0.3 // x,
    "0.3 - x": lambda x: 0.3 - x,
    "0.3 / x": lambda x: 0.3 / x,
    "0.1 ** x": lambda x: 0.1**x,
    "|x| ** 0.3": lambda x: x.abs() ** 0.3,
    "x + 2049": lambda x: x + 2049,
    "x * 2049": lambda x: x * 2049,
    "remainder_": lambda x: (x + 0).remainder_(0.3),
    "fmod": lambda x: torch.fmod(x, -0.7),
    "logit": lambda x: torch.logit(x.sigmoid(), 0.1),
    "logit 0.7": lambda x: torch.logit(x.sigmoid(), 0.7),
    "softshrink": lambda x: functional.softshrink(x, 0.1),
    "hardshrink": lambda x: functional.hardshrink(x, 0.7),
}
OF_TWO: dict[str, Function] = {
    "lerp": lambda x, y, c: torch.lerp(x, y, 0.3),
    "lerp of a tensor": lambda x, y, c: torch.lerp(x, y, c),
    "logaddexp": lambda x, y, c: torch.logaddexp(x, c),
    "huber": lambda x, y, c: functional.huber_loss(x, y, delta=1.7, reduction="none"),
    "smooth_l1": lambda x, y, c: functional.smooth_l1_loss(x, y, beta=0.3, reduction="none"),
    "trunc of tensors": lambda x, y, c: torch.div(x * 30, y, rounding_mode="trunc"),
    "trunc by one": lambda x, y, c: torch.div(x * 30, y[:1], rounding_mode="trunc"),
    "product with an int": lambda x, y, c: x * (c * 7000).to(torch.int64),
    "add alpha": lambda x, y, c: torch.add(x, y, alpha=3),
    "sub alpha": lambda x, y, c: torch.sub(x, y, alpha=0.3),
    "rsub alpha of a number": lambda x, y, c: torch.rsub(x, 5.3, alpha=0.3),
}


def functions(dtype: torch.dtype) -> Iterator[tuple[str, Function]]:
    for name, fn in BINARY.items():
        yield f"{name} of a number", lambda x, y, c, fn=fn: fn(x, 0.3)
        if dtype is torch.float16:
            yield f"{name} of a tensor of one", lambda x, y, c, fn=fn: fn(x, c)
    yield "product of one and a tensor", lambda x, y, c: c * y
    yield "quotient of one and a tensor", lambda x, y, c: c / y
    for name, of_one in UNARY.items():
        yield name, lambda x, y, c, fn=of_one: fn(x)
    yield from OF_TWO.items()


class Every(torch.nn.Module):
    def __init__(self, fns: list[Function]) -> None:
        super().__init__()
        self.fns = fns

    def forward(self, x: Tensor, y: Tensor, c: Tensor) -> tuple[Any, ...]:
        return tuple(fn(x, y, c) for fn in self.fns)


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_numbers_are_rounded_where_pytorch_rounds_them(dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(123) * 3, torch.tensor([2.1, -2.1, 0.7, 1.4, 0.1])]).to(dtype)
    y = x.flip(0).roll(3)
    inputs = (x, torch.where(y.abs() < 0.1, torch.ones_like(y), y), torch.tensor(0.3))
    names, fns = zip(*functions(dtype), strict=True)
    model = Every(list(fns))
    found, expected = bw.compile(model, inputs)(*inputs), model(*inputs)
    wrong = [
        name
        for name, a, b in zip(names, found, expected, strict=True)
        if a.dtype != b.dtype or not torch.equal(a, b)
    ]
    assert not wrong


def test_results_in_numbers() -> None:
    """Samples whose results do not depend on what PyTorch does today."""
    x = torch.tensor([-2.1, 2.1, -0.7, 0.7, 1.4], dtype=torch.float16)
    tenth = torch.tensor([0.1], dtype=torch.bfloat16)

    class Model(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return x % -0.7, torch.div(x, 0.1, rounding_mode="trunc"), 0.3 // y, x // self.c

        c = torch.tensor(0.1)

    rest, trunc, floor, kept = bw.compile(Model(), (x, tenth))(x, tenth)
    torch.testing.assert_close(
        rest.float(), torch.tensor([-0.6992, -0.0010, -0.0, 0.0, 0.0]), rtol=0, atol=5e-5
    )
    assert trunc[1] == 20
    assert floor == 3
    assert kept[1] == 20
