"""The operators that are compared with peers, as a table.

Names of the kinds follow the literature on tensor compilers: C1D, C2D and C3D are convolutions, DEP
depthwise, DIL dilated, GRP grouped, T2D transposed, GMM a matrix product. Convolutions have "same"
padding unless stated otherwise, no bias, and constant weights.
"""

from __future__ import annotations

import math
from typing import Any

from benchmarks.cases import Case, Input

FLOAT = 4


def convolution(
    name: str,
    extent: tuple[int, ...],
    channels: tuple[int, int],
    kernel: int,
    *,
    batch: int = 1,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    transposed: bool = False,
    limit: float | None = None,
) -> Case:
    """A convolution over as many axes as ``extent`` has."""
    inner, outer = channels
    if transposed:
        padding = (kernel - stride) // 2
        out = tuple(size * stride for size in extent)
    else:
        padding = dilation * (kernel - 1) // 2
        out = tuple((s + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for s in extent)
    points = math.prod(extent if transposed else out)
    weights = inner * outer // groups * kernel ** len(extent)
    elements = batch * (inner * math.prod(extent) + outer * math.prod(out)) + weights
    settings: dict[str, Any] = {
        "axes": len(extent), "channels": channels, "kernel": kernel, "stride": stride,
        "padding": padding, "dilation": dilation, "groups": groups, "transposed": transposed,
    }  # fmt: skip
    return Case(
        name if batch == 1 else f"{name} b{batch}",
        "operators.convolution",
        (Input((batch, inner, *extent)),),
        settings,
        flops=2.0 * batch * points * weights,
        moved=FLOAT * elements,
        constant=True,
        formats=("contiguous",) if len(extent) == 1 else ("contiguous", "channels_last"),
        limit=limit,
    )


def product(name: str, rows: int, inner: int, columns: int, *, constant: bool) -> Case:
    """rows × inner times inner × columns; the second operand may be a weight."""
    second, settings = Input((inner, columns)), {"inner": inner, "columns": columns}
    return Case(
        name,
        "operators.weight_product" if constant else "operators.product",
        (Input((rows, inner)),) if constant else (Input((rows, inner)), second),
        settings if constant else {},
        flops=2.0 * rows * inner * columns,
        moved=FLOAT * (rows * inner + inner * columns + rows * columns),
        constant=constant,
    )


def attention(heads: int, length: int, size: int, *, causal: bool) -> Case:
    """Scaled dot-product attention; the causal form needs about half of the products."""
    one = Input((1, heads, length, size))
    pairs = length * (length + 1) // 2 if causal else length * length
    return Case(
        f"attention {heads}x{length}" + (" causal" if causal else ""),
        "operators.attention",
        (one, one, one),
        {"causal": causal},
        flops=4.0 * heads * pairs * size,
        moved=FLOAT * 4 * heads * length * size,
    )


def rowwise(kind: str, rows: int, columns: int, flops: float) -> Case:
    """An operator along the last axis that does ``flops`` operations per element."""
    return Case(
        f"{kind} {rows}x{columns}",
        f"operators.{kind}",
        (Input((rows, columns)),),
        {"columns": columns},
        flops=flops * rows * columns,
        moved=FLOAT * 2 * rows * columns,
    )


WINOGRAD = 0.8
"""Bound on ours / best peer of dense 3×3 convolutions of stride 1, which Winograd computes with
fewer multiplications."""

CASES: tuple[Case, ...] = (
    *(
        case
        for b in (1, 16)
        for case in (
            convolution("C1D 256x64-128 k3s2", (256,), (64, 128), 3, stride=2, batch=b),
            convolution("C2D 56x64-64 k3", (56, 56), (64, 64), 3, batch=b, limit=WINOGRAD),
            convolution("C2D 7x512-512 k3", (7, 7), (512, 512), 3, batch=b, limit=WINOGRAD),
            convolution("C2D 14x1024-256 k1", (14, 14), (1024, 256), 1, batch=b),
            convolution("DEP 112x32 k3", (112, 112), (32, 32), 3, groups=32, batch=b),
            convolution("DEP 14x512 k3", (14, 14), (512, 512), 3, groups=512, batch=b),
        )
    ),
    convolution("C3D 8x28x64-64 k3", (8, 28, 28), (64, 64), 3),
    convolution("DIL 56x64-64 k3d2", (56, 56), (64, 64), 3, dilation=2),
    convolution("GRP 56x64-128 g4k3", (56, 56), (64, 128), 3, groups=4),
    convolution("T2D 4x512-256 k4s2", (4, 4), (512, 256), 4, stride=2, transposed=True),
    convolution("T2D 8x256-128 k4s2", (8, 8), (256, 128), 4, stride=2, transposed=True),
    product("GMM 1024", 1024, 1024, 1024, constant=False),
    product("GMM 1024 constant", 1024, 1024, 1024, constant=True),
    product("GMM 512x4096x1024", 512, 4096, 1024, constant=False),
    product("GMM 512x4096x1024 constant", 512, 4096, 1024, constant=True),
    Case(
        "BMM 12x128x64x128",
        "operators.product",
        (Input((12, 128, 64)), Input((12, 64, 128))),
        flops=2.0 * 12 * 128 * 64 * 128,
        moved=FLOAT * 12 * (128 * 64 + 64 * 128 + 128 * 128),
    ),
    *(attention(12, n, 64, causal=causal) for n in (128, 1024) for causal in (False, True)),
    rowwise("softmax", 1536, 128, flops=5.0),
    rowwise("layer_norm", 128, 1024, flops=8.0),
    product("GEMV 4096", 1, 4096, 4096, constant=True),
)
