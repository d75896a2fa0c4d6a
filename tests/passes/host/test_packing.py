"""Packing values of incomparable sizes: no overlap, and offsets of bounded complexity."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.passes.host.packing import Item, pack
from blockwright.passes.host.size_order import SizeOrder
from blockwright.passes.host.size_text import size_text
from blockwright.runtime.sizes import evaluate_size


def order_of(symbols: list[ir.Var]) -> SizeOrder:
    builder = GraphBuilder()
    for symbol in symbols:
        builder.param(f"x_{symbol.name}", ir.TensorInfo((symbol,), ir.dtype_of("float32")))
    return SizeOrder(builder.finish("main", builder.params[0]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [5, 60])
def test_values_alive_together_do_not_overlap(seed: int, count: int) -> None:
    rng = random.Random(seed * 100 + count)
    symbols = [ir.var(f"n{k}", "int64") for k in range(6)]
    order = order_of(symbols)
    items: list[Item] = []
    for _ in range(count):
        elements = ir.mul(rng.choice(symbols), ir.add(rng.choice(symbols), rng.choice(symbols)))
        size = order.of(ir.mul(elements, ir.const(64, "int64")))
        first = rng.randrange(40)
        items.append(Item(size, size, first, first + rng.randrange(8)))
    packing = pack(items, (), order)
    texts = [size_text(order.expr(p.offset)) for p in packing.placements]
    assert all(len(str(text)) < 50_000 for text in texts)
    for _ in range(20):
        point = {symbol.name: rng.randrange(1, 50) for symbol in symbols}
        ends = evaluate_size(size_text(order.expr(packing.total)), point)
        spans: list[tuple[int, int, Item]] = []
        for item, text in zip(items, texts, strict=True):
            start = evaluate_size(text, point)
            end = start + evaluate_size(size_text(order.expr(item.size)), point)
            assert 0 <= start <= end <= ends
            spans.append((start, end, item))
        for (a, b, x), (c, d, y) in combinations(spans, 2):
            if x.first <= y.last and y.first <= x.last:
                assert b <= c or d <= a
