"""Signs, roots at the ends of float16, and operators whose decomposition ends in a primitive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import blockwright as bw

Tensor = torch.Tensor
INF, NAN = float("inf"), float("nan")
ENDS = (0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.25, -4.0, 3.0)
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "x ** 0.5": lambda x: x**0.5,
    "x ** -0.5": lambda x: x**-0.5,
    "elu -1": lambda x: functional.elu(x, -1.0),
    "elu nan": lambda x: functional.elu(x, NAN),
    "celu -1": lambda x: functional.celu(x, -1.0),
    "selu": functional.selu,
    "7 % x": lambda x: 7 % x,
    "copysign": lambda x: torch.copysign(x.roll(1), x),
    "copysign of a number": lambda x: torch.copysign(x, -0.0),
    "signbit": torch.signbit,
    "fmax": lambda x: torch.fmax(x, x.roll(3)),
    "fmin": lambda x: torch.fmin(x, x.roll(3)),
    "xlogy of a number": lambda x: torch.xlogy(x, 0.3),
}
WHOLE: dict[str, Callable[[Tensor], Any]] = {
    "7 % x": lambda x: 7 % x,
    "7 & x": lambda x: 7 & x,
    "7 << x": lambda x: 7 << x,
    "shift": lambda x: torch.bitwise_right_shift(x, 1),
    "copysign": lambda x: torch.copysign(x, -1),
    "signbit": torch.signbit,
    "fmax": lambda x: torch.fmax(x, x.roll(1)),
}


class Every(torch.nn.Module):
    def __init__(self, functions: dict[str, Callable[[Tensor], Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        return tuple(fn(x) for fn in self.functions.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_signs_and_ends(dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        x, functions = torch.tensor(ENDS * 8, dtype=dtype), FUNCTIONS
    else:
        x, functions = torch.tensor([3, -3, 1, 7, -8] * 8, dtype=dtype), WHOLE
    model = Every(functions)
    for name, a, b in zip(functions, bw.compile(model, (x,))(x), model(x), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}")
        numbers = ~b.isnan()
        assert torch.equal(a.signbit()[numbers], b.signbit()[numbers]), name
