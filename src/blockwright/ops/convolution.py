"""Convolutions over 1, 2 or 3 spatial axes: a padding block if needed, then one product block.

    out[n, g·O + co, o…] = Σ padded[n, g·I + ci, o·stride + k·dilation …] · W[g·O + co, ci, k…]

Every index is affine in the block's iterators; with groups, the group is a separate iterator.
Iterators are in the order of the layouts: (n, g, co, o… | ci, k…) for channels first,
(n, o…, g, co | k…, ci) for channels last. Tap and within-group channel iterators of extent 1 are
omitted: a depthwise convolution has one channel iterator and reduces over the taps only, and a
convolution with one tap is a matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from blockwright import ir
from blockwright.analysis import Pattern
from blockwright.ops.common import (
    ZERO,
    accumulator,
    as_dim,
    factor_dtype,
    finish_rounded,
    fold,
    inputs,
    require_kind,
    result,
    tensors,
    unknown,
    wide,
)
from blockwright.ops.row import (
    Array,
    Attrs,
    Implementation,
    OpContext,
    OpRow,
    Parameters,
    Sample,
    dims_text,
    known_dtype,
)
from blockwright.ops.samples import floats, ints
from blockwright.ops.window import (
    Window,
    by_letter,
    checked_layout,
    in_order,
    letters_of,
    numbers,
    numpy_windows,
    padding_of,
    windows_of,
    with_border,
)
from blockwright.ops.winograd import TAPS, TileSize, winograd
from blockwright.script.compute import Into, Program, Tensor

Roles = list[tuple[str, ir.Expr]]


class Layouts(msgspec.Struct, frozen=True):
    """Layouts of input, kernel and result."""

    data: str
    kernel: str
    out: str

    @property
    def channels_last(self) -> bool:
        return self.out.endswith("C")


def conv_attrs(rank: int, kernel: str) -> dict[str, Any]:
    """Attributes common to all convolutions of a rank; `kernel` has the kernel channel letters."""
    space = letters_of(rank)
    return {
        "strides": 1,
        "padding": 0,
        "dilation": 1,
        "groups": 1,
        "data_layout": "NC" + space,
        "kernel_layout": kernel + space,
        "out_layout": None,
        "out_dtype": None,
    }


def layouts_of(ctx: OpContext, attrs: Attrs, rank: int) -> Layouts:
    """The layouts of a call; the result has the input layout unless `out_layout` is given."""
    space = letters_of(rank)
    data = checked_layout(ctx, attrs["data_layout"], "NC" + space)
    kernel = checked_layout(ctx, attrs["kernel_layout"], "OI" + space)
    out = data if attrs["out_layout"] is None else attrs["out_layout"]
    return Layouts(data, kernel, checked_layout(ctx, out, "NC" + space))


def out_type(attrs: Attrs, dtype: ir.DType | None) -> ir.DType | None:
    return dtype if attrs["out_dtype"] is None else ir.dtype_of(attrs["out_dtype"])


def groups_of(ctx: OpContext, attrs: Attrs, channels: ir.Expr, per_group: ir.Expr) -> int:
    """The number of groups; checks that it divides `channels` into `per_group` each."""
    groups = attrs["groups"]
    if not isinstance(groups, int) or groups < 1:
        raise ctx.error(f"groups={groups!r} is not a positive number")
    parts = ir.mul(per_group, as_dim(groups))
    ctx.require_equal(channels, parts, "input channels and kernel × groups differ")
    return groups


def operands(
    ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs, rank: int
) -> tuple[list[ir.TensorInfo], ir.DType | None]:
    """Input and kernel annotations, of rank `rank` + 2, and their type; see `factor_dtype`."""
    matches = tensors(ctx, infos, 2, 2)
    dtype = factor_dtype(ctx, matches, attrs["out_dtype"])
    require_kind(ctx, dtype, "number")
    for position, info in enumerate(matches):
        if info.rank not in (-1, rank + 2):
            raise ctx.error(f"argument {position} has rank {info.rank}, not {rank + 2}")
    return matches, dtype


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs, rank: int) -> ir.Info:
    matches, dtype = operands(ctx, infos, attrs, rank)
    layouts = layouts_of(ctx, attrs, rank)
    if matches[0].shape is None or matches[1].shape is None:
        return unknown(matches, out_type(attrs, dtype), rank + 2)
    x, w = by_letter(layouts.data, matches[0].shape), by_letter(layouts.kernel, matches[1].shape)
    groups = groups_of(ctx, attrs, x["C"], w["I"])
    if groups > 1 and not ctx.equal(ir.floormod(w["O"], as_dim(groups)), ZERO):
        counts = f"{dims_text(w['O'])} output channels"
        raise ctx.error(f"{counts} are not divisible into {groups} groups")
    shape = result_dims(ctx, attrs, x, w)
    return result(matches, in_order(layouts.out, shape), out_type(attrs, dtype))


def result_dims(
    ctx: OpContext, attrs: Attrs, x: dict[str, Any], w: dict[str, Any]
) -> dict[str, Any]:
    """Dimensions of the result by letter."""
    windows = _windows(ctx, attrs, w)
    steps = {letter: window.steps(ctx, x[letter]) for letter, window in windows.items()}
    return {"N": x["N"], "C": w["O"], **steps}


def _windows(ctx: OpContext, attrs: Attrs, w: dict[str, Any]) -> dict[str, Window]:
    sizes = [w[letter] for letter in letters_of(len(w) - 2)]
    return windows_of(ctx, attrs, sizes, attrs["strides"])


# ---------------------------------------------------------------------------------- product block
class ConvProduct(msgspec.Struct, frozen=True):
    """The product block of a convolution: iterators by role, and the index mapping.

    Roles are `n`, `g` (group), `co`, `ci` (channels within the group), `o.` (result position) and
    `k.` (tap) along each spatial letter.

    Attributes:
        spatial, reduce: roles with their extents, in loop order.
        of_x, of_w: channels per group, of the input and of the result.
    """

    spatial: Roles
    reduce: Roles
    of_x: ir.Expr
    of_w: ir.Expr

    @property
    def extents(self) -> tuple[list[ir.Expr], list[ir.Expr]]:
        return [e for _, e in self.spatial], [e for _, e in self.reduce]

    @property
    def axes(self) -> list[str]:
        """Names of the loops."""
        return [role for role, _ in (*self.spatial, *self.reduce)]

    def place(self, index: Sequence[Any]) -> dict[str, Any]:
        """Values of all roles, including omitted ones (0), and of the full channel indices."""
        at: dict[str, Any] = dict.fromkeys(("g", "co", "ci", "kd", "kh", "kw"), ZERO)
        at.update(zip(self.axes, index, strict=False))  # a result index has no taps
        at["xc"] = ir.add(ir.mul(at["g"], self.of_x), at["ci"])
        at["oc"] = ir.add(ir.mul(at["g"], self.of_w), at["co"])
        return at


def product_of(
    layouts: Layouts,
    groups: int,
    shape: dict[str, Any],
    taps: dict[str, ir.Expr],
    of_x: ir.Expr,
    phases: Mapping[str, int] | None = None,
) -> ConvProduct:
    """The iterators for a result of `shape` (by letter) with `taps` per spatial letter.

    Each letter in `phases` gets an additional iterator of that extent.
    """
    of_w = ir.floordiv(shape["C"], as_dim(groups))
    roles: dict[str, Roles] = {letter: [("o" + letter.lower(), shape[letter])] for letter in taps}
    for letter, count in (phases or {}).items():
        roles[letter].append(("r" + letter.lower(), as_dim(count)))
    roles["N"] = [("n", shape["N"])]
    roles["C"] = [("co", of_w)]
    if groups > 1:
        roles["C"] = [("g", as_dim(groups)), *([] if ir.is_const_int(of_w, 1) else roles["C"])]
    inner: Roles = [("ci", of_x)]
    along: Roles = [("k" + letter.lower(), size) for letter, size in taps.items()]
    along = [role for role in along if not ir.is_const_int(role[1], 1)]
    if along and groups > 1 and ir.is_const_int(of_x, 1):
        inner = []
    spatial = [role for letter in layouts.out for role in roles[letter]]
    return ConvProduct(
        spatial, [*along, *inner] if layouts.channels_last else [*inner, *along], of_x, of_w
    )


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs, rank: int) -> ir.PrimFunc:
    dtype = out_type(attrs, known_dtype(ctx, infos[0], 0))
    assert dtype is not None
    inner = accumulator(dtype)
    program = Program(ctx.name)
    data, weight = inputs(ctx, program, infos)
    layouts = layouts_of(ctx, attrs, rank)
    x, w = by_letter(layouts.data, data.shape), by_letter(layouts.kernel, weight.shape)
    windows = _windows(ctx, attrs, w)
    border = {letter: window.border(ctx, x[letter]) for letter, window in windows.items()}
    data = with_border(ctx, program, data, layouts.data, border, ir.const(0, data.dtype))
    shape = result_dims(ctx, attrs, x, w)
    taps = {letter: window.size for letter, window in windows.items()}
    product = product_of(layouts, attrs["groups"], shape, taps, w["I"])

    def term(*index: Any) -> Any:
        at = product.place(index)
        of_x = {"N": at["n"], "C": at["xc"]}
        of_w = {"O": at["oc"], "I": at["ci"]}
        for letter, window in windows.items():
            of_w[letter] = at["k" + letter.lower()]
            of_x[letter] = window.at(at["o" + letter.lower()], of_w[letter])
        left = ir.cast_to(data[in_order(layouts.data, of_x)], inner)
        return ir.mul(left, ir.cast_to(weight[in_order(layouts.kernel, of_w)], inner))

    name = "out" if inner is dtype else "product"
    into: Into | None = None
    if len(product.spatial) > rank + 2:  # group and channel iterators share one result axis

        def place(*index: Any) -> tuple[Any, ...]:
            at = product.place(index)
            where = {letter: at["o" + letter.lower()] for letter in windows}
            return in_order(layouts.out, {"N": at["n"], "C": at["oc"], **where})

        into = program.alloc(name, in_order(layouts.out, shape), inner), place
    total = product_block(program, name, product, term, inner, into)
    return finish_rounded(program, total, dtype)


def product_block(
    program: Program, name: str, product: ConvProduct, term: Any, dtype: ir.DType, into: Into | None
) -> Tensor:
    """The reduction block; 0 if the domain is known to be empty."""
    spatial, reduce = product.extents
    return fold(program, name, spatial, reduce, term, "sum", dtype, product.axes, into)


# ---------------------------------------------------------------------------------------- winograd
class WinogradTiles(Parameters, frozen=True):
    """Edge of the result tiles."""

    tile: TileSize


def _lower_winograd(
    ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs, tiles: WinogradTiles
) -> ir.PrimFunc:
    dtype = out_type(attrs, known_dtype(ctx, infos[0], 0))
    assert dtype is not None
    program = Program(ctx.name)
    data, weight = inputs(ctx, program, infos)
    layouts, padding = layouts_of(ctx, attrs, 2), padding_of(ctx, attrs["padding"], 2)
    order = (layouts.data, layouts.kernel, layouts.out)
    out = winograd(program, tiles.tile, data, weight, order, padding, dtype)
    return program.finish([out], {"compute_pattern": str(Pattern.OutputEwiseFusible)})


def _why_not_winograd(
    ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs, tiles: WinogradTiles
) -> str:
    if any(numbers(ctx, key, attrs[key], 2, 1) != (1, 1) for key in ("strides", "dilation")):
        return "it requires stride and dilation 1"
    if attrs["groups"] != 1:
        return "it requires one group"
    types = (infos[0].dtype, out_type(attrs, infos[0].dtype))
    if any(dtype is not None and not dtype.is_float for dtype in types):
        return "it requires a floating-point convolution"
    if infos[1].shape is None:
        return ""
    w = by_letter(layouts_of(ctx, attrs, 2).kernel, infos[1].shape)
    if not all(ir.is_const_int(w[letter], TAPS) for letter in "HW"):
        return f"it requires {TAPS} by {TAPS} kernels"
    if any(ir.is_const_int(w[letter], 1) for letter in "IO"):
        return "it requires more than one channel in the input and in the result"
    return ""


WINOGRAD = Implementation(
    "winograd",
    _lower_winograd,
    "Each result is rounded more often. For tiles of 2 and 4, the error is at most ten times that "
    "of the direct sum; for tiles of 6 it exceeds that.",
    WinogradTiles,
    _why_not_winograd,
    "Winograd's algorithm for 3 by 3 kernels, on square tiles of the result.",
)


# ------------------------------------------------------------------------------------------ oracle
def channels_first(x: Array, layout: str, wanted: str) -> Array:
    """Transpose an array from `layout` to the axis order `wanted`."""
    return np.transpose(x, [layout.index(letter) for letter in wanted])


def _oracle(x: Array, w: Array, **attrs: Any) -> Array:
    rank = x.ndim - 2
    ctx, space = OpContext("conv"), letters_of(rank)
    layouts = layouts_of(ctx, attrs, rank)
    target = x.dtype if attrs["out_dtype"] is None else ir.dtype_of(attrs["out_dtype"]).numpy()
    exact = np.float64 if ir.dtype_of(target).is_float else target
    data = wide(channels_first(x, layouts.data, "NC" + space)).astype(exact)
    kernel = wide(channels_first(w, layouts.kernel, "OI" + space)).astype(exact)
    data = np.pad(data, [(0, 0), (0, 0), *padding_of(ctx, attrs["padding"], rank)])
    views = numpy_windows(data, kernel.shape[2:], attrs["strides"], attrs["dilation"])
    groups: int = attrs["groups"]
    out: list[Array] = []
    for part, weights in zip(np.split(views, groups, 1), np.split(kernel, groups, 0), strict=True):
        axes = ((1, *range(2 + rank, 2 + 2 * rank)), tuple(range(1, rank + 2)))
        out.append(np.moveaxis(np.tensordot(part, weights, axes), -1, 1))
    value = np.concatenate(out, 1).astype(target)
    return channels_first(value, "NC" + space, layouts.out)


_SUM = "sums of products up to 9 in order cancel: the error scales with their number and sizes"


def conv_case(*args: Any, absolute: float = 1e-4, **attrs: Any) -> Sample:
    return Sample(args, attrs, 8.0, absolute, _SUM)


_NHWC: dict[str, Any] = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
_SAMPLES: dict[int, tuple[Sample, ...]] = {
    1: (
        conv_case(floats(2, 3, 17), floats(5, 3, 3), strides=2, padding=1),
        conv_case(floats(1, 4, 9), floats(6, 2, 3), groups=2, dilation=2, padding=(1, 3)),
        conv_case(
            floats(1, 9, 4), floats(3, 4, 5), data_layout="NWC", kernel_layout="WIO", padding=1
        ),
        conv_case(floats(2, 3, 5), floats(3, 1, 2), groups=3, out_layout="NWC"),
    ),
    2: (
        conv_case(floats(1, 3, 7, 9), floats(5, 3, 3, 3), padding=1),
        conv_case(floats(2, 4, 6, 5), floats(3, 4, 1, 1)),
        conv_case(floats(1, 2, 9, 8), floats(4, 2, 3, 2), strides=(2, 1), padding=(0, 1, 2, 0)),
        conv_case(floats(1, 2, 9, 9), floats(3, 2, 3, 3), dilation=2, padding=2),
        conv_case(floats(1, 6, 5, 5), floats(4, 3, 3, 3), groups=2, padding=1),
        conv_case(floats(1, 6, 5, 5), floats(6, 1, 3, 3), groups=6, padding=1, strides=2),
        conv_case(floats(1, 3, 5, 5), floats(6, 1, 3, 3), groups=3),
        conv_case(floats(1, 7, 5, 3), floats(3, 3, 3, 4), padding=1, **_NHWC),
        conv_case(floats(2, 5, 5, 6), floats(3, 3, 3, 4), groups=2, strides=2, **_NHWC),
        conv_case(
            floats(1, 5, 5, 4), floats(4, 3, 3, 1), groups=4, padding=(1, 1), data_layout="NHWC",
            kernel_layout="OHWI",
        ),
        conv_case(floats(0, 2, 5, 5), floats(3, 2, 3, 3)),
        conv_case(
            floats(2, 3, 6, 9), floats(4, 3, 3, 3), padding=1,
            implementation="winograd(tile=2)",
        ),
        conv_case(
            floats(1, 7, 9, 5), floats(3, 3, 5, 4), padding=(0, 1, 2, 0),
            implementation="winograd(tile=4)", **_NHWC,
        ),
        conv_case(
            floats(0, 6, 6, 2), floats(3, 3, 2, 3), implementation="winograd(tile=4)", **_NHWC,
        ),
        conv_case(
            floats(1, 2, 5, 5, dtype="float16"), floats(3, 2, 3, 3, dtype="float16"), padding=1,
            absolute=4e-3,
        ),
        conv_case(
            ints(1, 2, 5, 5, dtype="int8"), ints(3, 2, 3, 3, dtype="int8"), padding=1,
            out_dtype="int32",
        ),
        conv_case(
            ints(1, 9, 7, 5, dtype="uint8"), ints(3, 3, 5, 20, dtype="int8"), padding=1,
            out_dtype="int32", **_NHWC,
        ),
    ),
    3: (
        conv_case(floats(1, 2, 5, 6, 4), floats(3, 2, 3, 3, 3), padding=1, strides=(1, 2, 1)),
        conv_case(
            floats(1, 3, 5, 4, 3), floats(2, 3, 2, 3, 4), data_layout="NDHWC",
            kernel_layout="DHWIO", padding=(0, 1, 0, 1, 0, 1),
        ),
        conv_case(floats(1, 4, 3, 4, 4), floats(4, 1, 2, 2, 2), groups=4, dilation=(1, 2, 1)),
    ),
}  # fmt: skip


def _row(rank: int) -> OpRow:
    return OpRow(
        f"nn.conv{rank}d",
        ("data", "weight"),
        lambda ctx, infos, attrs: _deduce(ctx, infos, attrs, rank),
        lambda ctx, infos, attrs: _lower(ctx, infos, attrs, rank),
        _oracle,
        conv_attrs(rank, "OI"),
        (f"aten.conv{rank}d.default",),
        ("Conv",),
        _SAMPLES[rank],
        f"Convolution over {rank} spatial axes; padding lists all befores, then all afters.",
        layout="convolution",
        implementations=(WINOGRAD,) if rank == 2 else (),
        conditional=True,
    )


ROWS: tuple[OpRow, ...] = tuple(map(_row, (1, 2, 3)))
