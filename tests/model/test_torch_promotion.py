"""Types of operands: PyTorch's rules, for tensors with axes, tensors without and numbers."""

# Lambdas take tensors; what reads them does not say so.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import blockwright as bw
from blockwright import ir
from blockwright.frontend.torch.operands import torch_dtype
from blockwright.frontend.torch.promotion import common_type, number_in
from blockwright.graph import constant

TYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
NUMBERS = (True, 3, 2.5)


def both(dtype: torch.dtype, *shape: int) -> tuple[torch.Tensor, ir.GraphExpr]:
    return torch.ones(shape, dtype=dtype), constant(np.ones(shape, torch_dtype(dtype).numpy()))


@pytest.mark.parametrize("first", TYPES)
def test_common_types_are_those_of_pytorch(first: torch.dtype) -> None:
    for second, a, b in itertools.product(TYPES, ((2,), ()), ((2,), ())):
        (x, ours), (y, other) = both(first, *a), both(second, *b)
        assert common_type((ours, other)) is torch_dtype(torch.result_type(x, y))
    for number, shape in itertools.product(NUMBERS, ((2,), ())):
        x, ours = both(first, *shape)
        wanted = torch_dtype(torch.result_type(x, number))
        assert common_type((ours, number)) is wanted
        assert common_type((number, ours)) is wanted


@pytest.mark.parametrize("dtype", TYPES[1:6])
@pytest.mark.parametrize("number", [0, -1, 300, -200, 2**31, -(2**63), 2**63 - 1])
def test_whole_numbers_wrap_as_in_pytorch(dtype: torch.dtype, number: int) -> None:
    wanted = torch.tensor(number).to(dtype).item()
    assert number_in(number, torch_dtype(dtype)) == wanted


def test_operators_on_mixed_operands(agrees: Any) -> None:
    i, u = torch.randint(-5, 9, (3, 4)), torch.randint(0, 255, (3, 4), dtype=torch.uint8)
    b, x, half = i > 2, torch.randn(3, 4), torch.randn(3, 4).half()
    agrees(
        lambda i, u, b, x: (
            1.5 - i,
            i**2.0,
            i**4,
            i**0,
            i * b,
            b * b,
            b + b,
            u + i,
            x * i[0, 0],
            i / 2,
            i // 2,
            i % 3,
            b.sum(),
            b.amax(1),
            b.amin(),
            ~b,
            ~i,
        ),
        i,
        u,
        b,
        x,
    )
    agrees(
        lambda u, half: (
            u < -1,
            u >= -1,
            u == 300,
            u + 300,
            u - 1,
            half == 0.1,
            half * 0.1,
            half + u,
            half.add(1, alpha=2),
            torch.where(half > 0, half, 1.5),
            torch.atan2(half, u),
            u.clamp(min=2.5),
            u.clamp(3, 9),
            u.cumsum(0),
            half[0, 0].cumsum(0),
        ),
        u,
        half,
    )
    agrees(
        lambda x, i, half: (
            torch.stack([x, i, half]),
            torch.cat([i, half]),
            torch.rsub(i, 2),
            torch.maximum(i, x),
            torch.div(i, 2, rounding_mode="trunc"),
            torch.div(x, 0.3, rounding_mode="floor"),
        ),
        x,
        i,
        half,
    )
    agrees(lambda b, i: (b**1, b ** i.abs(), i**True), b, i)


def test_operators_in_place_keep_the_type_of_self(agrees: Any) -> None:
    def changed(x: torch.Tensor, i: torch.Tensor) -> Any:
        single, narrow, truth, order = x * 1, i.to(torch.int32) * 1, x > 0, x * 1
        single.add_(torch.full((4,), 0.1, dtype=torch.float64))
        narrow.add_(i).mul_(3)
        truth.logical_or_(i)
        order.gt_(0.0)
        return single, narrow, truth, order

    agrees(changed, torch.randn(3, 4), torch.randint(-5, 9, (3, 4)))


def test_what_pytorch_refuses_is_refused() -> None:
    class Narrowing(torch.nn.Module):
        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return (i * 1).add_(0.5)

    import blockwright as bw

    with pytest.raises(bw.ImporterError) as caught:
        bw.compile(Narrowing(), (torch.arange(3),), options={"fallback": "error"})
    assert caught.value.code == "BW509"


def test_powers_whose_type_the_exporter_mistakes_are_refused() -> None:
    """`bool ** True` is a bool, and an integer for the exporter: so is all that is made of it."""

    class Power(torch.nn.Module):
        def forward(self, b: torch.Tensor) -> torch.Tensor:
            return (b**True) & b

    import blockwright as bw

    with pytest.raises(bw.ImporterError, match="states int64 for a power of bool") as caught:
        bw.compile(Power(), (torch.tensor([True, False]),))
    assert caught.value.code == "BW509"


def test_sizes_are_operands(agrees: Any) -> None:
    n = torch.export.Dim("n", min=1, max=50)
    agrees(
        lambda x: (x + x.shape[0], x.shape[0] - x, x.sum() * -x.shape[0], x > x.shape[0]),
        torch.randn(3, 4),
        shapes=[{0: n}],
        others=[(torch.randn(7, 4),)],
    )


def test_decompositions_that_change_the_type_are_refused() -> None:
    """PyTorch's decomposition of `bucketize` without boundaries gives zeros like its argument."""
    import blockwright as bw
    from blockwright.frontend.torch.decompose import with_known_operators
    from blockwright.frontend.torch.importer import is_known

    class Buckets(torch.nn.Module):
        def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return torch.bucketize(x, ends)

    program = torch.export.export(Buckets(), (torch.ones(2), torch.ones(0)))
    with pytest.raises(bw.ImporterError) as caught:
        with_known_operators(
            program, lambda node: is_known(node) and "bucketize" not in str(node.target)
        )
    assert caught.value.code == "BW509"
    assert "result of torch.int64 with 1 axes becomes one of torch.float32" in str(caught.value)


def test_the_factor_of_a_sum_of_booleans_is_a_boolean() -> None:
    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            operands = (True, False, y, y[0])
            same = [torch.add(x, b, alpha=a) for a in (-1, 2, 0, True, False) for b in operands]
            sized = [torch.add(x, b, alpha=x.shape[0]) for b in (True, y)]
            wider = [torch.add(x, 3, alpha=-1), torch.add(x.long(), y, alpha=-2)]
            bytes_ = torch.add(x.to(torch.uint8), True, alpha=-1)
            return *same, *sized, *wider, bytes_, torch.add(x.float(), True, alpha=0.5)

    x, y = (
        torch.tensor(values) for values in ([False, True] * 5, [True, True, False] * 3 + [False])
    )
    rows = torch.export.Dim("rows")
    exe = bw.compile(Sums(), (x, y), dynamic_shapes={"x": {0: rows}, "y": {0: rows}})
    for found, wanted in zip(exe(x, y), Sums()(x, y), strict=True):
        assert found.dtype is wanted.dtype
        assert torch.equal(found, wanted)
