"""Transposed convolutions, one dense block per stride phase, without inserting zeros.

Result position o = stride·q + r of phase r has a contribution from tap k only if
dilation·k ≡ r + before (mod stride). These are every `step`-th tap, with
step = stride / gcd(stride, dilation), and they read adjacent input elements. So each phase is an
ordinary convolution with a subset of the kernel that writes every stride-th result position:

    out[n, co, stride·q + r] = Σ padded[n, ci, q + first + j·gap] · W[ci, co, last - j·step]

A phase without taps is 0. With several axes there is a block for each combination of their phases.
If the stride divides kernel and result and the dilation is 1, the phases of an axis have equal
numbers of taps and positions; then r is an iterator, and one block computes all phases as a batch
of products. Otherwise each block has its own result, and copies interleave these: the schedules of
matrix products cannot write strided positions. Depthwise blocks are not matrix products and write
to the final positions directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product as combinations
from math import gcd
from typing import Any

import msgspec
import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    ONE,
    ZERO,
    accumulator,
    as_dim,
    finish_rounded,
    inputs,
    result,
    unknown,
    wide,
)
from blockwright.ops.convolution import (
    Layouts,
    channels_first,
    conv_attrs,
    conv_case,
    groups_of,
    layouts_of,
    operands,
    out_type,
    product_block,
    product_of,
)
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, known_dtype
from blockwright.ops.samples import floats
from blockwright.ops.window import (
    Window,
    by_letter,
    in_order,
    letters_of,
    numbers,
    padding_of,
    windows_of,
    with_border,
)
from blockwright.script.compute import Program, Tensor


class OutputPhase(msgspec.Struct, frozen=True):
    """Result positions `stride`·q + `offset` along one axis, 0 ≤ q < `steps`.

    Tap j of `taps` is kernel element `last` - j·`step` and reads input element q + `first` +
    j·`gap`, which may lie outside of the input. If `count` > 1, it represents that many phases,
    r = 0, 1, …, with the smallest `first` and the largest `last` of them.
    """

    offset: int
    steps: ir.Expr
    taps: int
    first: int
    gap: int
    last: int
    step: int
    count: int = 1
    before: int = 0

    def at(self, r: ir.Expr | None) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Offset, first and last of phase `r`."""
        if r is None:
            return as_dim(self.offset), as_dim(self.first), as_dim(self.last)
        place = ir.add(r, as_dim(self.before))
        wrapped = ir.floormod(place, as_dim(self.step))
        last = ir.add(wrapped, as_dim((self.taps - 1) * self.step))
        return r, ir.sub(ir.floordiv(place, as_dim(self.step)), as_dim(self.taps - 1)), last


class TransposedAxis(msgspec.Struct, frozen=True):
    """One spatial axis: input and result extents, and the phases with any positions."""

    extent: ir.Expr
    size: ir.Expr
    stride: int
    phases: tuple[OutputPhase, ...]

    def border(self, ctx: OpContext) -> tuple[ir.Expr, ir.Expr]:
        """Padding before and after the input that the taps read."""
        before, after = 0, ZERO
        for phase in self.phases:
            if phase.taps == 0:
                continue
            before = max(before, -phase.first)
            furthest = phase.first + (phase.taps - 1) * phase.gap
            if phase.count > 1:
                furthest = (phase.count - 1 + phase.before) // phase.step
            end = ir.add(phase.steps, as_dim(furthest))
            over = ctx.analyzer.simplify(ir.sub(end, self.extent))
            if not ctx.analyzer.prove(ir.compare(ir.LE, over, after)):
                after = ctx.analyzer.simplify(ir.maximum(after, over))
        return as_dim(before), after


def _result_size(ctx: OpContext, extent: ir.Expr, window: Window, extra: int) -> ir.Expr:
    moved = ir.mul(ir.sub(extent, ONE), as_dim(window.stride))
    rest = ir.add(window.reach, as_dim(extra - window.before - window.after))
    size = ctx.analyzer.simplify(ir.add(moved, rest))
    if isinstance(size, ir.IntImm) and size.value < 0 and not ir.is_const_int(extent, 0):
        raise ctx.error(f"the padding {window.before} + {window.after} removes the whole result")
    return size


def _axis(ctx: OpContext, extent: ir.Expr, window: Window, extra: int) -> TransposedAxis:
    size = _result_size(ctx, extent, window, extra)
    taps = ir.const_int(window.size)
    if taps is None:
        raise ctx.error("the kernel's size is symbolic", "use a constant kernel size")
    stride = window.stride
    whole = ctx.analyzer.prove_equal(ir.floormod(size, as_dim(stride)), ZERO)
    if stride > 1 and window.dilation == 1 and taps % stride == 0 and whole and window.before >= 0:
        first = window.before // stride - (taps // stride - 1)
        steps = ctx.analyzer.simplify(ir.floordiv(size, as_dim(stride)))
        together = OutputPhase(
            0, steps, taps // stride, first, 1, taps - 1, stride, stride, window.before
        )
        return TransposedAxis(extent, size, stride, (together,))
    phases: list[OutputPhase] = []
    for offset in range(stride):
        steps = ir.floordiv(
            ir.sub(ir.add(size, as_dim(stride - 1)), as_dim(offset)), as_dim(stride)
        )
        steps = ctx.analyzer.simplify(steps)
        if not ir.is_const_int(steps, 0):
            phases.append(_phase(window, taps, offset, steps))
    return TransposedAxis(extent, size, stride, tuple(phases))


def _phase(window: Window, taps: int, offset: int, steps: ir.Expr) -> OutputPhase:
    shared = gcd(window.stride, window.dilation)
    step, gap = window.stride // shared, window.dilation // shared
    place = offset + window.before
    used = [k for k in range(taps) if (place - k * window.dilation) % window.stride == 0]
    if not used:
        return OutputPhase(offset, steps, 0, 0, gap, 0, step)
    first = (place - used[-1] * window.dilation) // window.stride
    return OutputPhase(offset, steps, len(used), first, gap, used[-1], step)


class _Call(msgspec.Struct, frozen=True):
    """Geometry of a call: layouts, groups, dimensions by letter, spatial axes."""

    layouts: Layouts
    groups: int
    x: dict[str, ir.Expr]
    w: dict[str, ir.Expr]
    axes: dict[str, TransposedAxis]

    @property
    def depthwise(self) -> bool:
        """Whether a result element reads a single channel, so blocks are not matrix products."""
        return self.groups > 1 and ir.is_const_int(self.x["C"], self.groups)

    @property
    def shape(self) -> dict[str, Any]:
        """Dimensions of the result by letter."""
        sizes = {letter: axis.size for letter, axis in self.axes.items()}
        return {"N": self.x["N"], "C": ir.mul(self.w["O"], as_dim(self.groups)), **sizes}


def _read(
    ctx: OpContext, attrs: Attrs, data: Sequence[ir.Expr], weight: Sequence[ir.Expr]
) -> _Call:
    rank = len(data) - 2
    layouts = layouts_of(ctx, attrs, rank)
    x, w = by_letter(layouts.data, data), by_letter(layouts.kernel, weight)
    groups = attrs["groups"]
    per_group = ctx.analyzer.simplify(ir.floordiv(w["I"], as_dim(groups)))
    groups = groups_of(ctx, attrs, w["I"], per_group)
    ctx.require_equal(x["C"], w["I"], "input channels of data and kernel differ")
    space = letters_of(rank)
    windows = windows_of(ctx, attrs, [w[letter] for letter in space], attrs["strides"])
    extra = numbers(ctx, "output_padding", attrs["output_padding"], rank, 0)
    axes = {a: _axis(ctx, x[a], windows[a], more) for a, more in zip(space, extra, strict=True)}
    return _Call(layouts, groups, x, w, axes)


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs, rank: int) -> ir.Info:
    matches, dtype = operands(ctx, infos, attrs, rank)
    layouts = layouts_of(ctx, attrs, rank)
    if matches[0].shape is None or matches[1].shape is None:
        return unknown(matches, out_type(attrs, dtype), rank + 2)
    call = _read(ctx, attrs, matches[0].shape, matches[1].shape)
    shape = in_order(layouts.out, call.shape)
    return result(matches, [ctx.analyzer.simplify(d) for d in shape], out_type(attrs, dtype))


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = out_type(attrs, known_dtype(ctx, infos[0], 0))
    assert dtype is not None
    inner = accumulator(dtype)
    program = Program(ctx.name)
    data, weight = inputs(ctx, program, infos)
    call = _read(ctx, attrs, data.shape, weight.shape)
    border = {letter: axis.border(ctx) for letter, axis in call.axes.items()}
    zero = ir.const(0, data.dtype)
    data = with_border(ctx, program, data, call.layouts.data, border, zero)
    name = "out" if inner is dtype else "product"
    shape = in_order(call.layouts.out, call.shape)
    total = program.alloc(name, [ctx.analyzer.simplify(d) for d in shape], inner)
    several = list(combinations(*(axis.phases for axis in call.axes.values())))
    for phases in several:
        at = dict(zip(call.axes, phases, strict=True))
        if len(several) == 1 or call.depthwise:
            _phase_block(ctx, program, call, at, border, data, weight, total, whole=True)
            continue
        sizes = {a: p.steps if p.count == 1 else call.axes[a].size for a, p in at.items()}
        shape = in_order(call.layouts.out, {**call.shape, **sizes})
        part = program.alloc("part", [ctx.analyzer.simplify(d) for d in shape], inner)
        _phase_block(ctx, program, call, at, border, data, weight, part, whole=False)
        _put(program, call, at, part, total)
    return finish_rounded(program, total, dtype)


def _phase_block(
    ctx: OpContext,
    program: Program,
    call: _Call,
    phases: Mapping[str, OutputPhase],
    border: Mapping[str, tuple[ir.Expr, ir.Expr]],
    data: Tensor,
    weight: Tensor,
    made: Tensor,
    *,
    whole: bool,
) -> None:
    """Add the convolution block of one combination of phases.

    It writes to the final result if `whole`, otherwise to a tensor of its own positions.
    """
    taps = {letter: as_dim(phase.taps) for letter, phase in phases.items()}
    steps: dict[str, Any] = {letter: phase.steps for letter, phase in phases.items()}
    shape = {**call.shape, **steps}
    per_group = ctx.analyzer.simplify(ir.floordiv(call.w["I"], as_dim(call.groups)))
    counts = {letter: phase.count for letter, phase in phases.items() if phase.count > 1}
    block = product_of(call.layouts, call.groups, shape, taps, per_group, counts)

    def term(*index: Any) -> Any:
        at = block.place(index)
        of_x, of_w = {"N": at["n"], "C": at["xc"]}, {"I": at["xc"], "O": at["co"]}
        for letter, phase in phases.items():
            tap, step = at["k" + letter.lower()], at["o" + letter.lower()]
            _, first, last = phase.at(at.get("r" + letter.lower()))
            moved = ir.add(step, ir.mul(tap, as_dim(phase.gap)))
            of_x[letter] = ir.add(moved, ir.add(border[letter][0], first))
            of_w[letter] = ir.sub(last, ir.mul(tap, as_dim(phase.step)))
        left = ir.cast_to(data[in_order(call.layouts.data, of_x)], made.dtype)
        right = ir.cast_to(weight[in_order(call.layouts.kernel, of_w)], made.dtype)
        return ir.mul(left, right)

    def place(*index: Any) -> tuple[Any, ...]:
        at = block.place(index)
        where = {"N": at["n"], "C": at["oc"]}
        for letter, phase in phases.items():
            step = at["o" + letter.lower()]
            if whole or phase.count > 1:
                moved = ir.mul(step, as_dim(call.axes[letter].stride))
                step = ir.add(moved, phase.at(at.get("r" + letter.lower()))[0])
            where[letter] = step
        return in_order(call.layouts.out, where)

    name = "_".join(["phase", *(str(phase.offset) for phase in phases.values())])
    product_block(program, name, block, term, made.dtype, (made, place))


def _put(
    program: Program, call: _Call, phases: Mapping[str, OutputPhase], part: Tensor, total: Tensor
) -> None:
    """Copy the result of a combination of phases to its final positions."""
    letters = call.layouts.out

    def place(*index: Any) -> tuple[Any, ...]:
        where = list(index)
        for letter, phase in phases.items():
            if phase.count == 1:
                at = letters.index(letter)
                moved = ir.mul(where[at], as_dim(call.axes[letter].stride))
                where[at] = ir.add(moved, as_dim(phase.offset))
        return tuple(where)

    program.compute("put", part.shape, lambda *i: part[i], into=(total, place))


# ------------------------------------------------------------------------------------------ oracle
def _oracle(x: Array, w: Array, **attrs: Any) -> Array:
    """Scatter form: each input element adds its multiple of the kernel to the result."""
    rank = x.ndim - 2
    ctx, space = OpContext("conv_transpose"), letters_of(rank)
    layouts = layouts_of(ctx, attrs, rank)
    target = x.dtype if attrs["out_dtype"] is None else ir.dtype_of(attrs["out_dtype"]).numpy()
    data = wide(channels_first(x, layouts.data, "NC" + space))
    kernel = wide(channels_first(w, layouts.kernel, "IO" + space))
    groups: int = attrs["groups"]
    stride, gap, more = (
        np.broadcast_to(attrs[key], rank) for key in ("strides", "dilation", "output_padding")
    )
    pads = padding_of(ctx, attrs["padding"], rank)
    size = [
        max(0, (data.shape[2 + a] - 1) * stride[a])
        + (kernel.shape[2 + a] - 1) * gap[a]
        + 1
        + more[a]
        for a in range(rank)
    ]
    channels = kernel.shape[1] * groups
    full = np.zeros((data.shape[0], channels, *size), np.float64)
    parts = np.split(data, groups, 1), np.split(kernel, groups, 0)
    for tap in np.ndindex(kernel.shape[2:]):
        pieces = [np.tensordot(d, k[(..., *tap)], (1, 0)) for d, k in zip(*parts, strict=True)]
        added = np.moveaxis(np.concatenate(pieces, -1), -1, 1)
        where = tuple(
            slice(t * gap[a], t * gap[a] + (data.shape[2 + a] - 1) * stride[a] + 1, stride[a])
            for a, t in enumerate(tap)
        )
        full[(..., *where)] += added
    cut = tuple(slice(low, size[a] - high) for a, (low, high) in enumerate(pads))
    return channels_first(full[(..., *cut)].astype(target), "NC" + space, layouts.out)


_NHWC: dict[str, Any] = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
_SAMPLES: dict[int, tuple[Sample, ...]] = {
    1: (
        conv_case(floats(2, 3, 7), floats(3, 5, 3), strides=2, padding=1, output_padding=1),
        conv_case(floats(1, 4, 5), floats(4, 3, 2), strides=3),
        conv_case(floats(1, 3, 5), floats(3, 2, 3), strides=4, dilation=2, padding=(0, 1)),
        conv_case(floats(1, 5, 4), floats(3, 4, 2), padding=1, data_layout="NWC",
                  kernel_layout="WIO"),
    ),
    2: (
        conv_case(floats(1, 5, 4, 4), floats(5, 3, 4, 4), strides=2, padding=1),
        conv_case(floats(2, 3, 4, 3), floats(3, 2, 3, 3)),
        conv_case(floats(1, 3, 3, 4), floats(3, 2, 3, 2), strides=(3, 2), padding=(0, 1, 1, 0)),
        conv_case(floats(1, 4, 3, 3), floats(4, 3, 3, 3), strides=2, padding=1, groups=2,
                  output_padding=1),
        conv_case(floats(1, 4, 3, 3), floats(4, 1, 4, 4), strides=2, padding=1, groups=4),
        conv_case(floats(1, 2, 4, 5), floats(2, 2, 3, 3), strides=2, dilation=3, padding=2),
        conv_case(floats(1, 4, 3, 3), floats(3, 3, 3, 2), strides=2, padding=1, **_NHWC),
        conv_case(floats(1, 2, 3, 3, dtype="float16"), floats(2, 2, 2, 2, dtype="float16"),
                  strides=2, absolute=4e-3),
    ),
    3: (
        conv_case(floats(1, 2, 3, 2, 3), floats(2, 3, 2, 3, 2), strides=2, padding=(1, 0, 1)),
        conv_case(floats(1, 2, 3, 2, 4), floats(2, 2, 2, 1, 4), strides=(1, 2, 1), groups=2,
                  data_layout="NDHWC", kernel_layout="DHWOI"),
    ),
}  # fmt: skip


def _row(rank: int) -> OpRow:
    return OpRow(
        f"nn.conv{rank}d_transpose",
        ("data", "weight"),
        lambda ctx, infos, attrs: _deduce(ctx, infos, attrs, rank),
        _lower,
        _oracle,
        {**conv_attrs(rank, "IO"), "output_padding": 0},
        (f"aten.conv_transpose{rank}d" + (".input" if rank > 1 else ".default"),),
        ("ConvTranspose",),
        _SAMPLES[rank],
        f"Transposed convolution over {rank} spatial axes; kernel axis `I` has all input channels.",
        layout="convolution",
    )


ROWS: tuple[OpRow, ...] = tuple(map(_row, (1, 2, 3)))
