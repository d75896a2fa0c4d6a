"""ChooseWinograd: select the fastest algorithm for dense 3×3 convolutions with stride 1.

Before:  y = R.nn.conv2d(x, W, padding=1, data_layout="NHWC")
After:   y = R.nn.conv2d(x, W, padding=1, data_layout="NHWC", winograd=4)

`winograd` is the edge of the output tiles; without it the convolution is computed directly. The
model of `strategies/cpu/winograd_cost.py` compares both for the target. Weights must be constants,
because their transform is computed at compile time. Image sizes must be constants; the batch size
may be symbolic. A call with an explicit `winograd=…` is left alone. The option `winograd=False`, or
disabling the strategy of this name, keeps all convolutions direct.
"""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.ops.common import accumulator
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS
from blockwright.ops.window import by_letter, numbers
from blockwright.ops.winograd import TAPS
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import map_calls
from blockwright.passes.select.weight_residency import constants_are_uncached
from blockwright.strategies.cpu.micro_kernel import micro_kernel
from blockwright.strategies.cpu.winograd import STRATEGY
from blockwright.strategies.cpu.winograd_cost import Convolution, best_grouping, direct_cycles
from blockwright.target import Target

ACCURATE = (2, 4)
"""Tile sizes whose rounding error is at most ten times that of the direct sum; 6 exceeds it."""

_GAIN = 0.9  # a less accurate method must take less than this fraction of the predicted time


@graph_pass
def choose_winograd(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Set `winograd` where the cost model predicts a gain."""
    forbidden = STRATEGY.name in ctx.options.get("disabled_strategies", ())
    if forbidden or not ctx.options.get("winograd", True) or ctx.target.kind != "cpu":
        return module

    uncached = constants_are_uncached(module, ctx.target)

    def chosen(name: str, call: ir.GraphCall) -> ir.GraphCall:
        conv = None if "winograd" in call.attrs else convolution_of(call, uncached)
        info = call.info
        dtype = info.dtype if isinstance(info, ir.TensorInfo) else None
        if conv is None or _has_dot_product(ctx.target, dtype):
            return call
        size = best_size(ctx.target, conv)
        _say(ctx, name, conv, size)
        return call.replace(attrs={**call.attrs, "winograd": size}) if size else call

    return map_calls(module, "nn.conv2d", chosen)


def _say(ctx: PassContext, name: str, conv: Convolution, size: int) -> None:
    """Record the choice and the predicted times of all methods for `show`."""
    expected = {f"{m}×{m} tiles": best_grouping(ctx.target, conv, m).cycles for m in ACCURATE}
    expected["direct sum"] = direct_cycles(ctx.target, conv)
    chosen = f"Winograd, {size}×{size} tiles" if size else "direct sum"
    times = ", ".join(
        f"{how} {cycles / ctx.target.core.frequency_hz * 1e6:.0f} µs"
        for how, cycles in expected.items()
    )
    line = f"{name}: {chosen}; predicted: {times}"
    ctx.decisions.setdefault("choose_winograd", []).append(line)


def best_size(target: Target, conv: Convolution) -> int:
    """Tile size of the Winograd algorithm for a convolution; 0 for the direct sum.

    Larger tiles are less accurate and fetch more filter bytes, which takes longer than predicted if
    other programs use the memory too. Each must therefore beat the smaller ones by `_GAIN`.
    """
    best, smallest = 0, direct_cycles(target, conv)
    for m in sorted(ACCURATE):
        cycles = best_grouping(target, conv, m).cycles
        if cycles < _GAIN * smallest:
            best, smallest = m, cycles
    return best


def convolution_of(call: ir.GraphCall, uncached: bool = False) -> Convolution | None:
    """Extents of a convolution that Winograd tiles can compute; None for other calls.

    `uncached`: the filters are in no cache when the call begins.
    """
    attrs: dict[str, Any] = {**OPERATORS["nn.conv2d"].attrs, **call.attrs}
    ctx = OpContext("nn.conv2d")
    weight, out = call.args[1], call.info
    if not isinstance(weight, ir.Constant) or not isinstance(out, ir.TensorInfo):
        return None
    plain = all(numbers(ctx, key, attrs[key], 2, 1) == (1, 1) for key in ("strides", "dilation"))
    shape = [ir.const_int(d) for d in out.shape or ()]
    if not plain or attrs["groups"] != 1 or len(shape) != 4 or out.dtype is None:
        return None
    y = by_letter(attrs["out_layout"] or attrs["data_layout"], shape)
    batch, height, width = y["N"], y["H"], y["W"]
    if batch == 0 or not height or not width:  # empty, or images of symbolic size
        return None
    taps = by_letter(attrs["kernel_layout"], weight.data.shape)
    if (taps["H"], taps["W"]) != (TAPS, TAPS) or min(taps["I"], taps["O"]) < 2:
        return None
    if not out.dtype.is_float or out.dtype is not weight.tensor_info.dtype:
        return None
    bits = accumulator(out.dtype).bits
    return Convolution(batch, height, width, taps["I"], taps["O"], bits, uncached)


def _has_dot_product(target: Target, dtype: ir.DType | None) -> bool:
    """Whether an instruction sums products of this type, which makes the direct sum faster."""
    kernel = dtype and micro_kernel(target, dtype, dtype, accumulator(dtype))
    return bool(kernel and kernel.dot)
