"""Sizes computed from symbols: their ranges, and operators that halve one that is even."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sympy
import torch

import blockwright as bw
from blockwright.frontend.torch.symbols import SymbolTable

Tensor = torch.Tensor


class Function(torch.nn.Module):
    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


def gated(x: Tensor) -> Tensor:
    return torch.nn.functional.glu(x, 0)


def second_chunk(x: Tensor) -> Tensor:
    return x.chunk(2)[1] * 2


def thirds(x: Tensor) -> Tensor:
    return x.chunk(3)[0] + 1


def second_half(x: Tensor) -> Tensor:
    return x.split(x.shape[0] // 2)[1] + 1


def unbound(x: Tensor) -> Tensor:
    first, second = x.view(2, -1, 4).unbind(0)
    return first - second


@pytest.mark.parametrize("fn", [gated, second_chunk, thirds, second_half, unbound])
def test_parts_of_twice_a_symbol(fn: Callable[[Tensor], Tensor]) -> None:
    sizes: Any = {"x": {0: 2 * torch.export.Dim("n", min=2, max=64)}}
    model = bw.compile(Function(fn), (torch.randn(8, 4),), dynamic_shapes=sizes)
    for rows in (4, 6, 10, 20):
        if fn is thirds and rows == 4:  # has two parts: the export assumed three
            with pytest.raises(bw.ArgumentError, match=r"x.size\(\)\[0\] = 4"):
                model(torch.randn(rows, 4))
            continue
        x = torch.randn(rows, 4)
        torch.testing.assert_close(model(x), fn(x))


def eights(x: Tensor) -> Tensor:
    return x.view(-1, 8) + 1


def same(x: Tensor) -> Tensor:
    return x * 2


def beyond_two(x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] > 5 else x - 1


def halves(x: Tensor) -> Tensor:
    return x.chunk(2, 0)[0] + 1


ONE = torch.export.Dim("m", min=1, max=16)
NONE = torch.export.Dim("z", min=0, max=16)
DERIVED = [  # function, rows, example, sizes that are right, sizes that are not and their code
    (eights, 8 * ONE, 24, (8, 16, 128), {0: "BW708", 12: "BW704", 136: "BW708"}),
    (same, 2 * ONE + 1, 7, (3, 5, 33), {1: "BW708", 35: "BW708"}),
    (same, ONE + 1, 4, (2, 3, 17), {1: "BW708", 18: "BW708"}),
    (same, NONE + 3, 8, (3, 4, 19), {2: "BW708", 0: "BW708"}),
    (same, 2 * NONE, 8, (0, 2, 32), {34: "BW708"}),
    (halves, 2 * ONE, 8, (4, 32), {0: "BW708", 2: "BW719"}),  # the export assumed no part of 1
    (beyond_two, 2 * ONE, 8, (6, 32), {2: "BW708", 4: "BW708"}),
]


@pytest.mark.parametrize(("fn", "rows", "example", "right", "wrong"), DERIVED)
def test_ranges_of_computed_sizes_are_those_declared(
    fn: Callable[[Tensor], Tensor],
    rows: Any,
    example: int,
    right: tuple[int, ...],
    wrong: dict[int, str],
) -> None:
    model = bw.compile(Function(fn), (torch.randn(example, 4),), dynamic_shapes=({0: rows},))
    for count in right:
        x = torch.randn(count, 4)
        torch.testing.assert_close(model(x), fn(x))
    for count, code in wrong.items():
        with pytest.raises(bw.ArgumentError) as caught:
            model(torch.randn(count, 4))
        assert caught.value.code == code


def test_a_symbol_in_several_sizes_is_bounded_by_each() -> None:
    symbol = sympy.Symbol("s2")

    def bounds(ranges: Mapping[Any, tuple[float, float]], *sizes: Any) -> dict[str, dict[str, int]]:
        declared = {e: types.SimpleNamespace(lower=a, upper=b) for e, (a, b) in ranges.items()}
        table = SymbolTable(declared, {})
        for size in sizes:
            table.dim(size)
        return table.bounds(sizes)

    own = {symbol: (2, math.inf)}
    twice, next_, square = 2 * symbol, symbol + 1, symbol**2
    sizes = {twice: (2, 9), next_: (1, 8)}
    low, high = "tir_var_lower_bound", "tir_var_upper_bound"
    assert bounds({**sizes, **own}, twice, next_) == {low: {"s2": 1}, high: {"s2": 4}}
    assert bounds({twice: (3, 9), **own}, twice) == {low: {"s2": 2}, high: {"s2": 4}}
    assert bounds({next_: (-5, math.inf), **own}, next_) == {low: {"s2": 0}}
    assert bounds({twice: (2, 9), **own}, twice, symbol) == {low: {"s2": 2}}, "an input's size"
    assert bounds({square: (1, 9), **own}, square) == {low: {"s2": 2}}, "not linear"
    narrowed = {twice: (2, 32), symbol: (3, 12)}  # by what the model assumed
    assert bounds(narrowed, twice) == {low: {"s2": 3}, high: {"s2": 12}}
