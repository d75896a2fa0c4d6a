"""The rule for separable convolutions: a window for each channel and the product behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.build import build
from blockwright.script.compute import Program
from blockwright.strategies import apply_strategies
from blockwright.strategies.cpu.separable_conv_cost import Separable, lines_of_task, tile_of
from blockwright.target import Target

N, H = (ir.var(name, "int64") for name in "nh")


def separable(
    images: ir.Expr | int,
    size: tuple[Any, int],
    channels: int,
    filters: int,
    stride: int = 1,
    border: int = 1,
    residual: bool = False,
    middle: bool = True,
) -> ir.PrimFunc:
    """relu6 of a 3×3 window for each channel, a product with a matrix, a bias, a residual."""
    p = Program("separable")
    height, width = size
    x = p.param("X", (images, height, width, channels), "float32")
    taps = p.param("D", (3, 3, channels), "float32")
    w = p.param("W", (channels, filters), "float32")
    bias = p.param("bias", (filters,), "float32")
    if border:
        inside = x

        def element(n: Any, i: Any, j: Any, c: Any) -> ir.Expr:
            there = ir.all_of([i >= border, i < height + border, j >= border, j < width + border])
            return ir.if_then_else(there, inside[n, i - border, j - border, c], 0.0)

        x = p.compute(
            "padded", (images, height + 2 * border, width + 2 * border, channels), element
        )
    rows, columns = ((n + 2 * border - 3) // stride + 1 for n in (height, width))
    mid = p.reduce(
        "window",
        (images, rows, columns, channels),
        (3, 3),
        lambda n, i, j, c, a, b: x[n, i * stride + a, j * stride + b, c] * taps[a, b, c],
    )
    if middle:
        summed = mid
        mid = p.compute(
            "relu6",
            (images, rows, columns, channels),
            lambda n, i, j, c: ir.minimum(ir.maximum(summed[n, i, j, c], 0.0), 6.0),
        )
    shape = (images, rows, columns, filters)
    out = p.reduce("product", shape, (channels,), lambda n, i, j, f, c: mid[n, i, j, c] * w[c, f])
    product = out
    out = p.compute("biased", shape, lambda n, i, j, f: product[n, i, j, f] + bias[f])
    if residual:
        r, biased = p.param("R", shape, "float32"), out
        out = p.compute("sum", shape, lambda n, i, j, f: biased[n, i, j, f] + r[n, i, j, f])
    return p.finish([out])


TAKEN: dict[str, ir.PrimFunc] = {
    "one image": separable(1, (8, 6), 16, 16),
    "whole vectors, a residual": separable(2, (6, 4), 8, 24, residual=True),
    "half the lines": separable(1, (8, 10), 12, 9, stride=2),
    "no border": separable(1, (6, 7), 5, 3, border=0),
    "nothing between": separable(1, (4, 5), 8, 8, middle=False),
    "lines that do not share out": separable(1, (7, 7), 20, 18),
    "any batch": separable(N, (4, 6), 8, 8),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken(checks: Any, name: str) -> None:
    func = TAKEN[name]
    sizes = [{"n": 1}, {"n": 3}] if name == "any batch" else [{}]
    result = checks.taken_by("separable_conv", func, *sizes)
    kinds = checks.loop_kinds(result.func)
    assert {"parallel", "vectorized", "unrolled"} <= set(kinds)


@pytest.mark.parametrize("name", TAKEN)
def test_native(checks: Any, name: str) -> None:
    """One kernel computes what the rules for the parts make of it."""
    func = TAKEN[name]
    rng = np.random.default_rng(0)
    shapes = [[ir.const_int(d) or 2 for d in b.shape] for b in func.buffers]
    *inputs, out = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    one, parts = np.zeros_like(out), np.zeros_like(out)
    checks.native(func)(*inputs, one)
    apart = apply_strategies(func, Target("native"), disabled=("separable_conv",))
    assert apart.strategy != "separable_conv"
    build(apart.func)[func.name](*inputs, parts)
    np.testing.assert_allclose(one, parts, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "lines"),
    [
        (Separable(1, 56, 56, 96, 24, 32), 1),  # a line is a whole number of tiles
        (Separable(1, 14, 14, 384, 64, 32), 7),  # one of 14 pixels leaves a tile half empty
    ],
)
def test_pixels_of_several_lines_are_cut_into_tiles_together(shape: Separable, lines: int) -> None:
    two = Target("x86-64-v3", num_threads=2)
    assert lines_of_task(two, shape) == lines
    tile = tile_of(two, shape, lines)
    pixels = lines * shape.width
    assert -(-pixels // tile.rows) * tile.rows <= 1.05 * pixels


def lines_and_channels() -> ir.PrimFunc:
    """A window along pixels alone."""
    p = Program("lines")
    x, taps = p.param("X", (1, 6, 8, 8), "float32"), p.param("D", (3, 8), "float32")
    w = p.param("W", (8, 8), "float32")
    mid = p.reduce(
        "window", (1, 6, 6, 8), (3,), lambda n, i, j, c, b: x[n, i, j + b, c] * taps[b, c]
    )
    return p.finish(
        [p.reduce("product", (1, 6, 6, 8), (8,), lambda n, i, j, f, c: mid[n, i, j, c] * w[c, f])]
    )


def turned() -> ir.PrimFunc:
    """What the product reads is turned by a quarter."""
    p = Program("turned")
    x, taps = p.param("X", (1, 8, 8, 8), "float32"), p.param("D", (3, 3, 8), "float32")
    w = p.param("W", (8, 8), "float32")
    shape = (1, 6, 6, 8)
    mid = p.reduce(
        "window", shape, (3, 3), lambda n, i, j, c, a, b: x[n, i + a, j + b, c] * taps[a, b, c]
    )
    other = p.compute("turned", shape, lambda n, i, j, c: mid[n, j, i, c])
    return p.finish(
        [p.reduce("product", shape, (8,), lambda n, i, j, f, c: other[n, i, j, c] * w[c, f])]
    )


REFUSED: dict[str, ir.PrimFunc] = {
    "sizes are symbolic": separable(1, (H, 6), 8, 8),
    "an operand is a vector": separable(1, (6, 6), 8, 1),
    "a line has one pixel": separable(1, (9, 1), 8, 8),
    "along axes other": lines_and_channels(),
    "permutes": turned(),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(checks: Any, reason: str) -> None:
    assert reason in checks.refusal("separable_conv", REFUSED[reason])


def test_it_can_be_disabled() -> None:
    func = TAKEN["one image"]
    assert (
        apply_strategies(func, Target("native"), disabled=("separable_conv",)).strategy
        != "separable_conv"
    )
