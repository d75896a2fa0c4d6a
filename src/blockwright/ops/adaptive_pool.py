"""Adaptive pooling: each spatial axis is divided into `output_size` windows.

Window o covers ⌊o·size / n⌋ up to ⌈(o + 1)·size / n⌉ (exclusive); neighbors may share an element.
If n divides the size, all windows are equal; otherwise the last taps of shorter windows are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

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
    wide,
)
from blockwright.ops.convolution import channels_first
from blockwright.ops.pool import (
    Letters,
    Steps,
    lowest,
    mean_case,
    pool_case,
    pool_info,
    pool_layouts,
)
from blockwright.ops.row import REQUIRED, Array, Attrs, OpContext, OpRow, Sample, known_dtype
from blockwright.ops.samples import floats
from blockwright.ops.window import by_letter, in_order, letters_of
from blockwright.script.compute import Program


class _Cut(msgspec.Struct, frozen=True):
    """The division of an axis of `extent` elements into `parts` windows.

    Attributes:
        exact: whether the windows are of equal size and disjoint.
        longest: size of the longest window, or an upper bound if the extent is symbolic.
    """

    extent: ir.Expr
    parts: int
    exact: bool
    longest: ir.Expr

    def begin(self, part: Any) -> ir.Expr:
        if self.exact:
            return ir.mul(part, self.longest)
        return ir.floordiv(ir.mul(part, self.extent), as_dim(self.parts))

    def end(self, part: Any) -> ir.Expr:
        behind = ir.mul(ir.add(part, ONE), self.extent)
        return ir.floordiv(ir.add(behind, as_dim(self.parts - 1)), as_dim(self.parts))


def _cut(ctx: OpContext, extent: ir.Expr, parts: int) -> _Cut:
    count = as_dim(parts)
    if ctx.equal(ir.floormod(extent, count), ZERO):
        return _Cut(extent, parts, True, ctx.analyzer.simplify(ir.floordiv(extent, count)))
    size = ir.const_int(extent)
    if size is None:
        bound = ir.add(ir.floordiv(ir.sub(extent, ONE), count), as_dim(2))
        return _Cut(extent, parts, False, ctx.analyzer.simplify(bound))
    bounds = [(o * size // parts, -(-(o + 1) * size // parts)) for o in range(parts)]
    return _Cut(extent, parts, False, as_dim(max(end - begin for begin, end in bounds)))


def _wanted(ctx: OpContext, attrs: Attrs, x: Letters) -> Letters:
    """Result dimensions by letter; an `output_size` of None keeps the axis."""
    space = letters_of(len(x) - 2)
    given = attrs["output_size"]
    each = (given,) * len(space) if given is None or isinstance(given, int) else tuple(given)
    if len(each) == 1:
        each *= len(space)
    if len(each) != len(space) or any(
        v is not None and (not isinstance(v, int) or v < 1) for v in each
    ):
        raise ctx.error(f"output_size={given!r} must be {len(space)} positive numbers or None")
    result = {k: x[k] if v is None else as_dim(v) for k, v in zip(space, each, strict=True)}
    return {**x, **result}


def _lower(
    ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs, rank: int, average: bool
) -> ir.PrimFunc:
    dtype = known_dtype(ctx, infos[0], 0)
    inner = accumulator(dtype) if average else dtype
    program = Program(ctx.name)
    (data,) = inputs(ctx, program, infos)
    layout, out = pool_layouts(ctx, attrs, rank)
    x = by_letter(layout, data.shape)
    wanted = _wanted(ctx, attrs, x)
    cuts = {
        k: _cut(ctx, x[k], cast("int", ir.const_int(wanted[k])))
        for k in letters_of(rank)
        if wanted[k] is not x[k]
    }
    steps = Steps(out, wanted, {k: cut.longest for k, cut in cuts.items()})
    nothing = ir.const(0, inner) if average else lowest(inner)

    def term(step: Letters, tap: Letters) -> Any:
        at = dict(step)
        inside: list[ir.Expr] = []
        for letter, cut in cuts.items():
            at[letter] = ir.add(cut.begin(step[letter]), tap[letter])
            if not cut.exact:
                inside.append(at[letter] < cut.end(step[letter]))
        element = ir.cast_to(data[in_order(layout, at)], inner)
        return ir.if_then_else(ir.all_of(inside), element, nothing) if inside else element

    total = steps.reduce(
        program, "total" if average else "out", "sum" if average else "max", inner, term
    )
    if not average:
        return finish_rounded(program, total, dtype)

    def mean(*index: Any) -> Any:
        step, _ = steps.place(index)
        count: Any = ONE
        for letter, cut in cuts.items():
            size = ir.sub(cut.end(step[letter]), cut.begin(step[letter]))
            count = ir.mul(count, cut.longest if cut.exact else size)
        return ir.truediv(total[index], ir.cast_to(ctx.analyzer.simplify(count), inner))

    return program.finish([program.compute("out", total.shape, mean, dtype)])


def _oracle(x: Array, average: bool, attrs: Attrs) -> Array:
    rank = x.ndim - 2
    letters = "NC" + letters_of(rank)
    layout, out = pool_layouts(OpContext("pool"), attrs, rank)
    value = wide(channels_first(x, layout, letters))
    given = attrs["output_size"]
    each = (given,) * rank if given is None or isinstance(given, int) else tuple(given)
    for axis, parts in enumerate(each * rank if len(each) == 1 else each, 2):
        size = value.shape[axis]
        parts = size if parts is None else parts
        pieces: list[Any] = []
        for o in range(parts):
            part = np.take(value, range(o * size // parts, -(-(o + 1) * size // parts)), axis)
            pieces.append(part.mean(axis) if average else part.max(axis))
        value = np.stack(pieces, axis)
    return channels_first(value.astype(x.dtype), letters, out)


def _samples(rank: int, case: Callable[..., Sample]) -> tuple[Sample, ...]:
    if rank != 2:
        shape = (2, 3, 7) if rank == 1 else (1, 2, 4, 5, 3)
        return (case(floats(*shape), output_size=3), case(floats(*shape), output_size=1))
    return (
        case(floats(2, 3, 7, 7), output_size=1),
        case(floats(1, 2, 8, 6), output_size=(4, 3)),
        case(floats(1, 2, 7, 5), output_size=(3, 4)),
        case(floats(1, 2, 3, 5), output_size=(None, 2)),
        case(floats(1, 5, 7, 2), output_size=(2, 7), layout="NHWC"),
        case(floats(1, 1, 2, 2), output_size=3),
    )


def _overloads(word: str, rank: int) -> tuple[str, ...]:
    public = f"aten.adaptive_{word}_pool{rank}d.default"
    both = word == "avg" and rank > 1
    return (public, f"aten._adaptive_avg_pool{rank}d.default") if both else (public,)


def _row(rank: int, average: bool) -> OpRow:
    word, kind = ("avg", "float") if average else ("max", "number")

    def oracle(x: Array, **attrs: Any) -> Array:
        return _oracle(x, average, attrs)

    return OpRow(
        f"nn.adaptive_{word}_pool{rank}d",
        ("data",),
        lambda ctx, infos, attrs: pool_info(ctx, infos, attrs, rank, kind, _wanted),
        lambda ctx, infos, attrs: _lower(ctx, infos, attrs, rank, average),
        oracle,
        {"output_size": REQUIRED, "layout": "NC" + letters_of(rank), "out_layout": None},
        _overloads(word, rank),
        ("GlobalAveragePool",) if average else ("GlobalMaxPool",),
        _samples(rank, mean_case if average else pool_case),
        f"{'Average' if average else 'Maximum'} over `output_size` windows of each spatial axis.",
        layout="pool",
    )


ROWS: tuple[OpRow, ...] = tuple(_row(rank, avg) for rank in (1, 2, 3) for avg in (True, False))
