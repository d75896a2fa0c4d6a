"""Offers for dense 3×3 convolutions with stride 1: Winograd's tiles, and the direct sum.

Weights must be constants, because their transform is computed at compile time. Image sizes must be
constants; the batch size may be symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.ops.common import accumulator
from blockwright.ops.convolution import WINOGRAD, WinogradTiles
from blockwright.ops.implementation import DEFAULT
from blockwright.ops.row import OpContext
from blockwright.ops.window import by_letter
from blockwright.ops.winograd import TileSize
from blockwright.strategies.cpu.micro_kernel import fastest_kernel
from blockwright.strategies.cpu.winograd_cost import Convolution, best_grouping, direct_seconds
from blockwright.strategies.offer import Candidate, Offer, OperatorCall
from blockwright.strategies.strategy import Refused
from blockwright.target import Target

ACCURATE: tuple[TileSize, ...] = (2, 4)
"""Tile sizes whose rounding error is at most ten times that of the direct sum; 6 exceeds it."""

# Larger tiles are less accurate and fetch more filter bytes, which takes longer than predicted if
# other programs use the memory too. Each must therefore beat the smaller ones by this factor.
_SHARE = 0.9


def _tiles(call: OperatorCall, target: Target) -> Sequence[Candidate] | Refused:
    conv = convolution_of(call, target)
    if isinstance(conv, Refused):
        return conv
    return [
        Candidate(best_grouping(target, conv, tile).seconds, WinogradTiles(tile))
        for tile in ACCURATE
    ]


def _direct(call: OperatorCall, target: Target) -> Sequence[Candidate] | Refused:
    conv = convolution_of(call, target)
    if isinstance(conv, Refused):
        return conv
    return [Candidate(direct_seconds(target, conv))]


def convolution_of(call: OperatorCall, target: Target) -> Convolution | Refused:
    """Extents of a convolution that Winograd tiles can compute; `Refused` for other calls."""
    attrs, out, weight = call.attrs, call.result, call.infos[1]
    if target.kind != "cpu":
        return Refused(f"{target} is not a CPU")
    if not call.constants[1]:
        return Refused("the weights are not known at compile time")
    ctx = OpContext(call.operator)
    if reason := WINOGRAD.why_not(ctx, call.infos, attrs, WinogradTiles(ACCURATE[0])):
        return Refused(reason)
    if not isinstance(out, ir.TensorInfo) or out.shape is None or weight.shape is None:
        return Refused("a shape is unknown")
    y = by_letter(attrs["out_layout"] or attrs["data_layout"], list(map(ir.const_int, out.shape)))
    w = by_letter(attrs["kernel_layout"], list(map(ir.const_int, weight.shape)))
    channels, filters = w["I"], w["O"]
    if y["N"] == 0 or not (channels and filters and y["H"] and y["W"]):
        return Refused("it is empty, or the size of the image is symbolic")
    return _of_floats(call, target, (y["N"], y["H"], y["W"], channels, filters))


def _of_floats(
    call: OperatorCall, target: Target, extents: tuple[int | None, int, int, int, int]
) -> Convolution | Refused:
    dtype = call.infos[1].dtype
    out = call.result.dtype if isinstance(call.result, ir.TensorInfo) else None
    if dtype is None or not dtype.is_float or out is not dtype:
        return Refused("it is not in one floating-point type")
    kernel = fastest_kernel(target, dtype, dtype, accumulator(dtype))
    if kernel is not None and kernel.dot:
        return Refused(f"the direct sum uses an instruction for dot products of {dtype}")
    return Convolution(*extents, accumulator(dtype).bits, call.uncached)


OFFERS = (
    Offer("nn.conv2d", DEFAULT, _direct, "winograd"),
    Offer("nn.conv2d", "winograd", _tiles, "winograd", _SHARE),
)
