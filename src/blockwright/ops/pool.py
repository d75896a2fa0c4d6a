"""Pooling over 1, 2 or 3 spatial axes: a padding block if needed, then one reduction block.

Windows are those of convolutions. With `ceil_mode` the last window may extend beyond the end. An
average is the sum over zero-padded input, divided by the number of counted taps: those inside the
input, or with `count_include_pad` those inside the input and its padding; or by `divisor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    I64,
    ONE,
    ZERO,
    accumulator,
    as_dim,
    fold,
    inputs,
    require_kind,
    result,
    tensors,
    unknown,
    wide,
)
from blockwright.ops.convolution import channels_first
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, known_dtype
from blockwright.ops.samples import floats, ints, values
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
from blockwright.script.compute import Program, Tensor

Letters = dict[str, Any]


def pool_layouts(ctx: OpContext, attrs: Attrs, rank: int) -> tuple[str, str]:
    letters = "NC" + letters_of(rank)
    data = checked_layout(ctx, attrs["layout"], letters)
    out = data if attrs["out_layout"] is None else attrs["out_layout"]
    return data, checked_layout(ctx, out, letters)


def _windows(ctx: OpContext, attrs: Attrs, rank: int) -> dict[str, Window]:
    sizes = numbers(ctx, "pool_size", attrs["pool_size"], rank, 1)
    strides = sizes if attrs["strides"] is None else attrs["strides"]
    return windows_of(ctx, attrs, [as_dim(size) for size in sizes], strides)


def pool_input(ctx: OpContext, infos: Sequence[ir.Info], rank: int, kind: str) -> ir.TensorInfo:
    (x,) = tensors(ctx, infos, 1, 1)
    require_kind(ctx, x.dtype, kind)
    if x.rank not in (-1, rank + 2):
        raise ctx.error(f"the input has rank {x.rank}, not {rank + 2}")
    return x


def lowest(dtype: ir.DType) -> ir.Expr:
    """The smallest value of a type: the identity of max."""
    return ir.const(float("-inf") if dtype.is_float else dtype.min_value, dtype)


class Steps(msgspec.Struct, frozen=True):
    """Iterators of a pool: result dimensions in the order of `layout`, then taps by letter."""

    layout: str
    shape: Letters
    taps: dict[str, ir.Expr]

    def place(self, index: Sequence[Any]) -> tuple[Letters, Letters]:
        """Result index and tap index by letter."""
        rank = len(self.layout)
        tap = dict.fromkeys(self.taps, ZERO)
        tap.update(zip(self._long, index[rank:], strict=False))  # a result index has no taps
        return by_letter(self.layout, index[:rank]), tap

    @property
    def _long(self) -> list[str]:
        """Letters of windows with more than one tap; at least one letter."""
        return [k for k, size in self.taps.items() if not ir.is_const_int(size, 1)] or ["W"]

    def domain(self) -> tuple[list[str], list[ir.Expr]]:
        """Names of all iterators, and the extents of the taps."""
        axes = [
            *("o" + k.lower() if k in self.taps else k.lower() for k in self.layout),
            *("k" + k.lower() for k in self._long),
        ]
        return axes, [self.taps.get(letter, ONE) for letter in self._long]  # kept axes have no taps

    def reduce(
        self,
        program: Program,
        name: str,
        combiner: str,
        dtype: ir.DType,
        term: Callable[[Letters, Letters], Any],
    ) -> Tensor:
        axes, over = self.domain()
        return fold(
            program,
            name,
            in_order(self.layout, self.shape),
            over,
            lambda *i: term(*self.place(i)),
            combiner,
            dtype,
            axes,
        )


def pool_info(
    ctx: OpContext,
    infos: Sequence[ir.Info],
    attrs: Attrs,
    rank: int,
    kind: str,
    shape: Callable[[OpContext, Attrs, Letters], Letters],
) -> ir.Info:
    """Result annotation of a pool of elements of a kind, "float" or "number".

    Args:
        shape: maps input dimensions to result dimensions by letter.
    """
    x = pool_input(ctx, infos, rank, kind)
    data, out = pool_layouts(ctx, attrs, rank)
    if x.shape is None:
        return unknown([x], x.dtype, rank + 2)
    return result([x], in_order(out, shape(ctx, attrs, by_letter(data, x.shape))), x.dtype)


# --------------------------------------------------------------------------------- fixed windows
def _shape(ctx: OpContext, attrs: Attrs, x: Letters) -> Letters:
    windows = _windows(ctx, attrs, len(x) - 2)
    return {**x, **{k: w.steps(ctx, x[k], attrs["ceil_mode"]) for k, w in windows.items()}}


class Pool(msgspec.Struct, frozen=True):
    """A pool over bordered input: what every result of its windows starts from."""

    layout: str
    """Layout of the input."""
    extents: Letters
    """Input dimensions by letter, without border."""
    data: Tensor
    """The input with its border."""
    windows: dict[str, Window]
    steps: Steps

    def at(self, step: Letters, tap: Letters) -> Letters:
        """Place in the bordered input of one tap of the window at a result position."""
        return {**step, **{k: w.at(step[k], tap[k]) for k, w in self.windows.items()}}

    def element(self, step: Letters, tap: Letters) -> Any:
        return self.data[in_order(self.layout, self.at(step, tap))]


def _pool(
    ctx: OpContext,
    program: Program,
    infos: Sequence[ir.TensorInfo],
    attrs: Attrs,
    rank: int,
    nothing: ir.Expr,
) -> Pool:
    """Declare the input and, if windows reach beyond it, the block that pads it with `nothing`."""
    (data,) = inputs(ctx, program, infos)
    layout, out = pool_layouts(ctx, attrs, rank)
    x = by_letter(layout, data.shape)
    windows = _windows(ctx, attrs, rank)
    border = {k: w.border(ctx, x[k], attrs["ceil_mode"]) for k, w in windows.items()}
    padded = with_border(ctx, program, data, layout, border, nothing)
    steps = Steps(out, _shape(ctx, attrs, x), {k: w.size for k, w in windows.items()})
    return Pool(layout, x, padded, windows, steps)


def _lower_max(
    ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs, rank: int
) -> ir.PrimFunc:
    dtype, program = known_dtype(ctx, infos[0], 0), Program(ctx.name)
    pool = _pool(ctx, program, infos, attrs, rank, lowest(dtype))
    return program.finish([pool.steps.reduce(program, "out", "max", dtype, pool.element)])


def _lower_average(
    ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs, rank: int
) -> ir.PrimFunc:
    dtype, program = known_dtype(ctx, infos[0], 0), Program(ctx.name)
    pool = _pool(ctx, program, infos, attrs, rank, ir.const(0, dtype))
    inner = accumulator(dtype)
    divided = ir.truediv if dtype.is_float else ir.Div  # integers are truncated

    def term(step: Letters, tap: Letters) -> Any:
        return ir.cast_to(pool.element(step, tap), inner)

    total = pool.steps.reduce(program, "total", "sum", inner, term)

    def mean(*index: Any) -> Any:
        step, _ = pool.steps.place(index)
        if attrs["divisor"] is not None:
            return divided(total[index], ir.const(attrs["divisor"], inner))
        count: Any = ONE
        for letter, window in pool.windows.items():
            extent = pool.extents[letter]
            count = ir.mul(count, _counted(ctx, attrs, window, extent, step[letter]))
        # A window in the padding has no elements: NaN, or 0 for integers.
        count = count if dtype.is_float else ir.maximum(count, ONE)
        return divided(total[index], ir.cast_to(count, inner))

    return program.finish([program.compute("out", total.shape, mean, dtype)])


def _lower_positions(
    ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs, rank: int
) -> ir.PrimFunc:
    """One reduction of (element, position) pairs; a tap in the padding has the last position."""
    dtype, program = known_dtype(ctx, infos[0], 0), Program(ctx.name)
    pool = _pool(ctx, program, infos, attrs, rank, lowest(dtype))

    def pair(*index: Any) -> tuple[ir.Expr, ir.Expr]:
        step, tap = pool.steps.place(index)
        at = pool.at(step, tap)
        place, inside = ZERO, list[ir.Expr]()
        for letter, window in pool.windows.items():
            extent = pool.extents[letter]
            here = ir.sub(at[letter], as_dim(window.before))
            inside += [ir.compare(ir.GE, here, ZERO), ir.compare(ir.LT, here, extent)]
            place = ir.add(ir.mul(place, extent), here)
        last = ir.const(I64.max_value, I64)
        return pool.element(step, tap), ir.select(ir.all_of(inside), place, last)

    axes, over = pool.steps.domain()
    shape = in_order(pool.steps.layout, pool.steps.shape)
    _, positions = program.reduce_tuple(
        ("best", "out"), shape, over, pair, "argmax", (dtype, I64), axes=axes
    )
    return program.finish([positions])


def _counted(ctx: OpContext, attrs: Attrs, window: Window, extent: ir.Expr, step: Any) -> ir.Expr:
    """Number of taps along one axis that an average counts, at a result position."""
    before, after = window.border(ctx, extent, attrs["ceil_mode"])
    padded = attrs["count_include_pad"]
    if ir.is_const_int(before, 0) and ir.is_const_int(after, 0):
        return window.size
    if padded and not attrs["ceil_mode"]:
        return window.size
    begin = ir.sub(ir.mul(step, as_dim(window.stride)), as_dim(window.before))
    low = as_dim(-window.before) if padded else ZERO
    high = ir.add(extent, as_dim(window.after)) if padded else extent
    gap = as_dim(window.dilation)
    first = ir.maximum(ir.ceildiv(ir.sub(low, begin), gap), ZERO)
    behind = ir.minimum(ir.ceildiv(ir.sub(high, begin), gap), window.size)
    return ctx.analyzer.simplify(ir.sub(behind, first))


# ----------------------------------------------------------------------------------------- oracles
def _oracle(x: Array, average: bool, attrs: Attrs) -> Array:
    rank = x.ndim - 2
    ctx, letters = OpContext("pool"), "NC" + letters_of(rank)
    layout, out = pool_layouts(ctx, attrs, rank)
    data = wide(channels_first(x, layout, letters))
    size, gap = (np.broadcast_to(attrs[key], rank) for key in ("pool_size", "dilation"))
    stride = size if attrs["strides"] is None else np.broadcast_to(attrs["strides"], rank)
    pads = padding_of(ctx, attrs["padding"], rank)
    hang: list[tuple[int, int]] = []
    for axis, (low, high) in enumerate(pads):
        length, reach = data.shape[2 + axis], (size[axis] - 1) * gap[axis] + 1
        room = length + low + high - reach
        more = -room % stride[axis] if attrs["ceil_mode"] else 0
        if more and room + more >= length + low:
            more -= stride[axis]
        hang.append((0, max(0, int(more))))
    lowest = -np.inf if data.dtype.kind == "f" else np.iinfo(data.dtype).min
    fill = 0 if average else lowest
    around = [(0, 0), (0, 0)]
    data = np.pad(
        np.pad(data, [*around, *pads], constant_values=fill), [*around, *hang], constant_values=fill
    )
    views = numpy_windows(data, list(size), stride, gap)
    taps = tuple(range(-rank, 0))
    if average:
        inside = np.ones((1, 1, *channels_first(x, layout, letters).shape[2:]))
        counted = np.pad(inside, [*around, *pads], constant_values=attrs["count_include_pad"])
        counts = numpy_windows(np.pad(counted, [*around, *hang]), list(size), stride, gap)
        value = views.sum(taps) / (attrs["divisor"] or counts.sum(taps))
    else:
        value = views.max(taps)
    return channels_first(value.astype(x.dtype), letters, out)


def _positions(x: Array, attrs: Attrs) -> Array:
    """For each window, the elements in order of position: the first that is the largest, or NaN."""
    rank, ctx = x.ndim - 2, OpContext("pool")
    layout, out = pool_layouts(ctx, attrs, rank)
    letters = "NC" + letters_of(rank)
    data = wide(channels_first(x, layout, letters))
    pooled = _oracle(x, False, {**attrs, "out_layout": letters})
    found = np.zeros(pooled.shape, np.int64)
    size, gap = (np.broadcast_to(attrs[key], rank) for key in ("pool_size", "dilation"))
    stride = size if attrs["strides"] is None else np.broadcast_to(attrs["strides"], rank)
    before = [low for low, _ in padding_of(ctx, attrs["padding"], rank)]
    for n, c, *step in np.ndindex(pooled.shape):
        along: list[Array] = []
        for k in range(rank):
            first = int(step[k]) * int(stride[k]) - before[k]
            taps = np.arange(int(size[k])) * int(gap[k]) + first
            along.append(taps[(taps >= 0) & (taps < data.shape[2 + k])])
        seen = data[n, c][np.ix_(*along)]
        best = np.unravel_index(int(np.argmax(seen)), seen.shape)
        place = tuple(int(taps[k]) for taps, k in zip(along, best, strict=True))
        found[(n, c, *step)] = np.ravel_multi_index(place, data.shape[2:])
    return channels_first(found, letters, out)


# -------------------------------------------------------------------------------------------- rows
_MEAN = "a sum in order, then one division: the terms bound the error"


def pool_case(*args: Any, tolerance: float = 0.0, absolute: float = 0.0, **attrs: Any) -> Sample:
    return Sample(args, attrs, tolerance, absolute, _MEAN)


def mean_case(*args: Any, **attrs: Any) -> Sample:
    return pool_case(*args, tolerance=8.0, absolute=4e-6, **attrs)


def _window_samples(rank: int, case: Callable[..., Sample]) -> tuple[Sample, ...]:
    if rank == 1:
        return (
            case(floats(2, 3, 11), pool_size=3, strides=2, padding=1),
            case(floats(1, 8, 2), pool_size=2, layout="NWC", ceil_mode=True, strides=3),
        )
    if rank == 3:
        return (
            case(floats(1, 2, 5, 4, 6), pool_size=2),
            case(
                floats(1, 4, 5, 5, 2),
                pool_size=(2, 3, 2),
                strides=1,
                padding=(0, 1, 0, 1, 1, 0),
                layout="NDHWC",
            ),
        )
    return (
        case(floats(1, 3, 8, 9), pool_size=3, strides=2, padding=1),
        case(floats(2, 2, 7, 7), pool_size=2),
        case(floats(1, 2, 8, 7), pool_size=3, strides=2, ceil_mode=True, padding=1),
        case(floats(1, 2, 5, 6), pool_size=(2, 3), strides=(2, 4), ceil_mode=True),
        case(floats(1, 2, 9, 8), pool_size=3, dilation=2, strides=1, padding=(1, 0, 0, 1)),
        case(floats(1, 7, 7, 3), pool_size=3, strides=2, padding=1, layout="NHWC"),
        case(floats(1, 2, 4, 4), pool_size=1, strides=2, out_layout="NHWC"),
        case(floats(0, 2, 4, 4), pool_size=2),
    )


_MORE: dict[bool, tuple[Sample, ...]] = {
    True: (
        mean_case(floats(1, 2, 5, 6), pool_size=3, strides=2, padding=1, count_include_pad=True),
        mean_case(floats(1, 2, 8, 7), pool_size=3, strides=2, padding=1, count_include_pad=True,
                   ceil_mode=True),
        mean_case(floats(1, 2, 5, 6), pool_size=3, strides=2, padding=1, divisor=-4),
        pool_case(floats(1, 2, 4, 4, dtype="float16"), pool_size=2, absolute=2e-3, tolerance=4.0),
        pool_case(ints(1, 2, 5, 6, low=-9, high=9), pool_size=(2, 3), padding=1),
        pool_case(ints(1, 2, 5, 5, low=-9, high=9), pool_size=2, divisor=-3, ceil_mode=True),
    ),
    False: (
        pool_case(ints(1, 2, 5, 5), pool_size=3, padding=1),
        pool_case(values(1.0, float("nan"), 2.0, float("-inf"), shape=(1, 1, 2, 2)), pool_size=2,
              padding=1, strides=1),
        pool_case(floats(1, 2, 4, 4, dtype="float16"), pool_size=2),
    ),
}  # fmt: skip


def _attributes(rank: int, average: bool) -> dict[str, Any]:
    own = {"count_include_pad": False, "divisor": None} if average else {}
    return {
        "pool_size": 1,
        "strides": None,
        "padding": 0,
        "dilation": 1,
        "ceil_mode": False,
        **own,
        "layout": "NC" + letters_of(rank),
        "out_layout": None,
    }


def _row(rank: int, average: bool) -> OpRow:
    word = "avg" if average else "max"

    def oracle(x: Array, **attrs: Any) -> Array:
        return _oracle(x, average, attrs)

    case = mean_case if average else pool_case
    return OpRow(
        f"nn.{word}_pool{rank}d",
        ("data",),
        lambda ctx, infos, attrs: pool_info(ctx, infos, attrs, rank, "number", _shape),
        lambda ctx, infos, attrs: (_lower_average if average else _lower_max)(
            ctx, infos, attrs, rank
        ),
        oracle,
        _attributes(rank, average),
        (f"aten.{word}_pool{rank}d.default",),
        ("AveragePool",) if average else ("MaxPool",),
        (*_window_samples(rank, case), *(_MORE[average] if rank == 2 else ())),
        f"{'Average' if average else 'Maximum'} of each window; the default stride is the window "
        "size." + (" `divisor` replaces the number of elements of a window." if average else ""),
        layout="pool",
        conditional=True,
    )


def _positions_row(rank: int) -> OpRow:
    def oracle(x: Array, **attrs: Any) -> Array:
        return _positions(x, attrs)

    def deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
        info = pool_info(ctx, infos, attrs, rank, "number", _shape)
        assert isinstance(info, ir.TensorInfo)
        return info.replace(dtype=I64)

    tied = ints(2, 2, *(5, 4, 3)[:rank], low=0, high=3)
    return OpRow(
        f"nn.max_pool{rank}d_positions",
        ("data",),
        deduce,
        lambda ctx, infos, attrs: _lower_positions(ctx, infos, attrs, rank),
        oracle,
        _attributes(rank, False),
        samples=(
            *_window_samples(rank, pool_case),
            *(_MORE[False] if rank == 2 else ()),
            pool_case(tied, pool_size=2, padding=(1,) * rank),
        ),
        doc="Position of the first maximum of each window, or of the first NaN, in the flattened "
        "spatial axes of its channel.",
        conditional=True,
    )


ROWS: tuple[OpRow, ...] = (
    *(_row(rank, avg) for rank in (1, 2, 3) for avg in (True, False)),
    *(_positions_row(rank) for rank in (1, 2, 3)),
)
