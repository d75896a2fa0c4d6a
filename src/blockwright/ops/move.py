"""Slicing, flipping, concatenating, splitting, repeating: blocks that copy elements."""

# Rows are tables of short lambdas over scalar expressions, whose types `OpRow` declares.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    ONE,
    ZERO,
    as_dim,
    axes_of,
    copy_program,
    inputs,
    result,
    same_dtype,
    tensors,
    unknown,
)
from blockwright.ops.row import (
    REQUIRED,
    Array,
    Attrs,
    OpContext,
    OpRow,
    Sample,
    TorchCall,
    dims_text,
    known_shape,
    normalize_axis,
)
from blockwright.ops.samples import bools, exact, floats, ints
from blockwright.script.compute import Program, Tensor


# ---------------------------------------------------------------------------- slicing, flipping
def _clamped(ctx: OpContext, value: ir.Expr, low: ir.Expr, high: ir.Expr) -> ir.Expr:
    """`value` clamped to [low, high], without bounds that provably hold."""
    if not ctx.analyzer.prove(ir.compare(ir.GE, value, low)):
        value = ir.maximum(value, low)
    if not ctx.analyzer.prove(ir.compare(ir.LE, value, high)):
        value = ir.minimum(value, high)
    return ctx.analyzer.simplify(value)


def _slice_bounds(ctx: OpContext, attrs: Attrs, size: ir.Expr) -> tuple[ir.Expr, ir.Expr, int]:
    """Start, number of elements and step of a slice along a dimension of `size`.

    Negative bounds count from the end. A bound that is an expression must have the same sign for
    all sizes: calls check it.
    """
    step = attrs["step"]
    if not isinstance(step, int) or step < 1:
        raise ctx.error(f"step {step!r} is not a positive number", "use flip for reverse order")
    ends: list[ir.Expr] = []
    for value, default in ((attrs["begin"], ZERO), (attrs["end"], size)):
        if value is None:
            ends.append(default)
            continue
        dim = as_dim(value)
        if ctx.analyzer.prove(ir.compare(ir.LT, dim, ZERO)):
            dim = ir.add(size, dim)
        elif ctx.equal(ir.add(size, dim), ZERO):  # -n of an axis of n, which may be empty
            dim = ZERO
        else:
            said = dims_text(dim)
            ctx.require(ir.compare(ir.GE, dim, ZERO), f"the bound {said} of a slice is negative")
        ends.append(_clamped(ctx, dim, ZERO, size))
    begin, end = ends
    length = ctx.analyzer.simplify(ir.sub(end, begin))
    if not ctx.analyzer.prove(ir.compare(ir.GE, length, ZERO)):
        length = ir.maximum(length, ZERO)
    return begin, ctx.analyzer.simplify(ir.ceildiv(length, as_dim(step))), step


def _deduce_slice(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    if x.shape is None:
        return unknown(matches, x.dtype, x.rank)
    axis = normalize_axis(ctx, attrs["axis"], x.rank)
    _, count, _ = _slice_bounds(ctx, attrs, x.shape[axis])
    return result(matches, (*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype)


def _lower_slice(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    shape = known_shape(ctx, infos[0], 0)
    axis = normalize_axis(ctx, attrs["axis"], len(shape))
    begin, count, step = _slice_bounds(ctx, attrs, shape[axis])

    def element(x: Tensor, dims: Sequence[ir.Expr], i: Sequence[Any]) -> Any:
        where = ir.add(ir.mul(i[axis], as_dim(step)), begin)
        return x[(*i[:axis], where, *i[axis + 1 :])]

    return copy_program(ctx, infos, lambda x: (*shape[:axis], count, *shape[axis + 1 :]), element)


def _slice_oracle(x: Array, axis: int, begin: Any, end: Any, step: int) -> Array:
    return x[(slice(None),) * (axis % x.ndim) + (slice(begin, end, step),)]


def _deduce_scatter(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, part = matches = tensors(ctx, infos, 2, 2)
    if same_dtype(ctx, matches) is None or x.shape is None or part.shape is None:
        return unknown(matches, x.dtype, x.rank)
    axis = normalize_axis(ctx, attrs["axis"], x.rank)
    for position, (a, b) in enumerate(zip(x.shape, part.shape, strict=True)):
        if position != axis:
            ctx.require_equal(a, b, f"dimension {position} differs")
    return result(matches, x.shape, x.dtype)


def _lower_scatter(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    x, part = inputs(ctx, program, infos)
    axis = normalize_axis(ctx, attrs["axis"], len(x.shape))
    begin, step = as_dim(attrs["begin"]), as_dim(attrs["step"])

    def element(*i: Any) -> Any:
        offset = ir.sub(i[axis], begin)
        place = ir.floordiv(offset, step)
        inside = [
            ir.compare(ir.GE, offset, ZERO),
            ir.compare(ir.LT, place, part.shape[axis]),
            ir.compare(ir.EQ, ir.floormod(offset, step), ZERO),
        ]
        return ir.if_then_else(ir.all_of(inside), part[(*i[:axis], place, *i[axis + 1 :])], x[i])

    return program.finish([program.compute("out", x.shape, element)])


def _scatter_oracle(x: Array, part: Array, axis: int, begin: int, step: int) -> Array:
    out = x.copy()
    end = begin + step * part.shape[axis]
    out[(slice(None),) * (axis % x.ndim) + (slice(begin, end, step),)] = part
    return out


def _deduce_same(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    if x.shape is None:
        return unknown(matches, x.dtype, x.rank)
    axes_of(ctx, attrs["axis"], x.rank)
    return result(matches, x.shape, x.dtype)


def _lower_flip(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    shape = known_shape(ctx, infos[0], 0)
    axes = axes_of(ctx, attrs["axis"], len(shape))

    def element(x: Tensor, dims: Sequence[ir.Expr], i: Sequence[Any]) -> Any:
        return x[
            tuple(ir.sub(ir.sub(shape[a], ONE), v) if a in axes else v for a, v in enumerate(i))
        ]

    return copy_program(ctx, infos, lambda x: x.shape, element)


# --------------------------------------------------------------- joining, splitting, repeating
def _joined(infos: Sequence[ir.Info]) -> list[ir.Info]:
    """The arguments, with tuples flattened."""
    return [f for i in infos for f in (i.fields if isinstance(i, ir.TupleInfo) else (i,))]


def _deduce_concat(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    matches = tensors(ctx, _joined(infos), 1, 1 << 20)
    dtypes = {t.dtype for t in matches}
    if len(dtypes) > 1:
        raise ctx.error(
            f"element types differ: {', '.join(sorted(map(str, dtypes)))}",
            "convert with astype first",
        )
    ranks = {t.rank for t in matches if t.rank >= 0}
    if len(ranks) > 1 or ranks == {0}:
        raise ctx.error(f"tensors of ranks {sorted(ranks)} cannot be concatenated")
    shapes = [t.shape for t in matches if t.shape is not None]
    if len(shapes) < len(matches):
        return unknown(matches, matches[0].dtype, next(iter(ranks), -1))
    return result(matches, _joined_shape(ctx, shapes, attrs), matches[0].dtype)


def _joined_shape(
    ctx: OpContext, shapes: Sequence[tuple[ir.Expr, ...]], attrs: Attrs
) -> tuple[ir.Expr, ...]:
    first = shapes[0]
    axis = normalize_axis(ctx, attrs["axis"], len(first))
    total = first[axis]
    for shape in shapes[1:]:
        total = ir.add(total, shape[axis])
        for position, (a, b) in enumerate(zip(first, shape, strict=True)):
            if position != axis:
                ctx.require_equal(a, b, f"dimension {position} differs")
    return (*first[:axis], ctx.analyzer.simplify(total), *first[axis + 1 :])


def _lower_concat(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    parts = inputs(ctx, program, infos)
    axis = normalize_axis(ctx, attrs["axis"], len(parts[0].shape))
    starts: list[ir.Expr] = [ZERO]
    for part in parts:
        starts.append(ctx.analyzer.simplify(ir.add(starts[-1], part.shape[axis])))

    shape = _joined_shape(ctx, [p.shape for p in parts], attrs)
    filled = [
        (part, start)
        for part, start in zip(parts, starts, strict=False)
        if not ir.is_const_int(part.shape[axis], 0)
    ]
    if not filled:  # the result has no elements
        return program.finish([program.compute("out", shape, lambda *i: parts[0][i])])
    out = program.alloc("out", shape, parts[0].dtype)
    for part, start in filled:
        extents = [d if a == axis else shape[a] for a, d in enumerate(part.shape)]

        def place(*i: ir.Expr, start: ir.Expr = start) -> list[ir.Expr]:
            return [ir.add(v, start) if a == axis else v for a, v in enumerate(i)]

        program.compute("out_part", extents, lambda *i, part=part: part[i], into=(out, place))
    return program.finish([out])


def _cuts(ctx: OpContext, attrs: Attrs, size: ir.Expr) -> list[ir.Expr]:
    """Boundaries of the parts: equal sections for a number, else the given inner boundaries."""
    given = attrs["indices_or_sections"]
    if not isinstance(given, int):
        return [ZERO, *(as_dim(cut) for cut in given), size]
    if given < 1 or not ctx.equal(ir.floormod(size, as_dim(given)), ZERO):
        raise ctx.error(
            f"dimension {dims_text(size)} is not known to be divisible into {given} equal parts"
        )
    part = ctx.analyzer.simplify(ir.floordiv(size, as_dim(given)))
    return [ctx.analyzer.simplify(ir.mul(part, as_dim(n))) for n in range(given)] + [size]


def _part_shapes(ctx: OpContext, attrs: Attrs, shape: Sequence[ir.Expr]) -> list[tuple[Any, ...]]:
    axis = normalize_axis(ctx, attrs["axis"], len(shape))
    cuts = _cuts(ctx, attrs, shape[axis])
    out: list[tuple[Any, ...]] = []
    for begin, end in pairwise(cuts):
        size = ctx.analyzer.simplify(ir.sub(end, begin))
        if isinstance(size, ir.IntImm) and size.value < 0:
            raise ctx.error(
                f"boundaries {attrs['indices_or_sections']} do not fit {dims_text(shape[axis])}"
            )
        out.append((*shape[:axis], size, *shape[axis + 1 :]))
    return out


def _deduce_split(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    if x.shape is None:
        given = attrs["indices_or_sections"]
        count = given if isinstance(given, int) else len(given) + 1
        return ir.TupleInfo((unknown(matches, x.dtype, x.rank),) * count)
    return ir.TupleInfo(
        tuple(result(matches, s, x.dtype) for s in _part_shapes(ctx, attrs, x.shape))
    )


def _lower_split(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    (x,) = inputs(ctx, program, infos)
    axis = normalize_axis(ctx, attrs["axis"], len(x.shape))
    cuts = _cuts(ctx, attrs, x.shape[axis])
    parts: list[Tensor] = []
    for number, shape in enumerate(_part_shapes(ctx, attrs, x.shape)):
        begin = cuts[number]
        parts.append(
            program.compute(
                f"out{number}",
                shape,
                lambda *i, begin=begin: x[(*i[:axis], ir.add(i[axis], begin), *i[axis + 1 :])],
            )
        )
    return program.finish(parts)


def _split_oracle(x: Array, indices_or_sections: Any, axis: int) -> list[Array]:
    given = indices_or_sections
    return np.split(x, given if isinstance(given, int) else list(given), axis=axis)


def _repeated(ctx: OpContext, attrs: Attrs, shape: Sequence[ir.Expr]) -> list[ir.Expr]:
    axis, times = normalize_axis(ctx, attrs["axis"], len(shape)), as_dim(attrs["repeats"])
    return [ir.mul(d, times) if a == axis else d for a, d in enumerate(shape)]


def _deduce_repeat(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    if x.shape is None:
        return unknown(matches, x.dtype, x.rank)
    return result(matches, _repeated(ctx, attrs, x.shape), x.dtype)


def _lower_repeat(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    shape = known_shape(ctx, infos[0], 0)
    axis, times = normalize_axis(ctx, attrs["axis"], len(shape)), as_dim(attrs["repeats"])

    def element(x: Tensor, dims: Sequence[ir.Expr], i: Sequence[Any]) -> Any:
        return x[(*i[:axis], ir.floordiv(i[axis], times), *i[axis + 1 :])]

    return copy_program(ctx, infos, lambda x: _repeated(ctx, attrs, shape), element)


def _lower_triangle(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    def element(x: Tensor, dims: Sequence[ir.Expr], i: Sequence[Any]) -> Any:
        edge = ir.add(i[-2], as_dim(attrs["k"]))
        kept = i[-1] <= edge if ctx.name == "tril" else i[-1] >= edge
        return ir.select(kept, x[tuple(i)], ir.const(0, x.dtype))

    return copy_program(ctx, infos, lambda x: x.shape, element)


def _deduce_triangle(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    if 0 <= x.rank < 2:
        raise ctx.error(f"needs a matrix, got rank {x.rank}")
    return (
        unknown(matches, x.dtype, x.rank) if x.shape is None else result(matches, x.shape, x.dtype)
    )


_TRIANGLES = exact((floats(3, 5), {}), (floats(2, 4, 3), {"k": 1}), (bools(3, 3), {"k": -1}))

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "slice",
        ("x",),
        _deduce_slice,
        _lower_slice,
        _slice_oracle,
        {"axis": 0, "begin": None, "end": None, "step": 1},
        ("aten.slice.Tensor",),
        (),
        exact(
            (floats(7, 3), {"begin": 1, "end": 5}),
            (floats(3, 17), {"axis": -1, "begin": -5, "step": 2}),
            (floats(7), {"end": 100}),
            (floats(7), {"begin": 5, "end": 2}),
            (floats(7), {"begin": -9, "end": -1}),
            (floats(7), {"step": 3}),
        ),
        "Elements begin, begin + step, … below end along an axis, clamped as in Python.",
        layout="axis",
        kinds={"axis": "int"},
        conditional=True,
    ),
    OpRow(
        "slice_scatter",
        ("x", "part"),
        _deduce_scatter,
        _lower_scatter,
        _scatter_oracle,
        {"axis": 0, "begin": 0, "step": 1},
        (),
        (),
        (
            Sample((floats(7, 3), floats(3, 3)), {"begin": 1, "step": 2}, 0.0),
            Sample((floats(3, 17), floats(3, 6)), {"axis": -1, "step": 3}, 0.0),
            Sample((ints(5), ints(2)), {"begin": 3}, 0.0),
        ),
        "x with `part` stored at begin, begin + step, … along an axis.",
        kinds={"axis": "int", "step": "size"},
    ),
    OpRow(
        "flip",
        ("x",),
        _deduce_same,
        _lower_flip,
        lambda x, axis: np.flip(x, axis),
        {"axis": None},
        ("aten.flip.default",),
        (),
        exact(
            (floats(3, 5), {}),
            (floats(3, 5), {"axis": -1}),
            (floats(3, 1, 5), {"axis": (0, 2)}),
            (floats(3, 5), {"axis": ()}),
        ),
        "Elements in reverse order along axes.",
        TorchCall({"dims": "axis"}, empty_axes=True),
        layout="axis",
    ),
    OpRow(
        "concat",
        ("tensors*",),
        _deduce_concat,
        _lower_concat,
        lambda *xs, axis: np.concatenate(xs, axis),
        {"axis": 0},
        ("aten.cat.default", "aten.concat.default"),
        ("Concat",),
        (
            Sample((floats(3, 5), floats(1, 5), floats(7, 5)), {}, 0.0),
            Sample((floats(3, 5), floats(3, 2)), {"axis": -1}, 0.0),
            Sample((ints(3),), {}, 0.0),
            Sample((floats(0, 2), floats(3, 2)), {}, 0.0),
        ),
        "Tensors concatenated along an axis.",
        layout="concat",
        kinds={"axis": "int"},
    ),
    OpRow(
        "split",
        ("x",),
        _deduce_split,
        _lower_split,
        _split_oracle,
        {"indices_or_sections": REQUIRED, "axis": 0},
        (),
        ("Split",),
        exact(
            (floats(6, 5), {"indices_or_sections": 3}),
            (floats(3, 7), {"indices_or_sections": (2, 2, 5), "axis": -1}),
        ),
        "A tuple of parts: equal sections, or parts between boundaries.",
        kinds={"axis": "int"},
    ),
    OpRow(
        "repeat",
        ("x",),
        _deduce_repeat,
        _lower_repeat,
        lambda x, repeats, axis: np.repeat(x, repeats, axis),
        {"repeats": REQUIRED, "axis": 0},
        ("aten.repeat_interleave.self_int",),
        (),
        exact((floats(3, 5), {"repeats": 2}), (floats(2, 3, 1), {"repeats": 3, "axis": 1})),
        "Each element along an axis repeated several times in a row.",
        layout="axis",
        kinds={"axis": "int"},
    ),
    OpRow(
        "tril",
        ("x",),
        _deduce_triangle,
        _lower_triangle,
        lambda x, k: np.tril(x, k),
        {"k": 0},
        ("aten.tril.default",),
        (),
        _TRIANGLES,
        "The lower triangle of each matrix, up to k above the diagonal; 0 elsewhere.",
        TorchCall({"diagonal": "k"}),
    ),
    OpRow(
        "triu",
        ("x",),
        _deduce_triangle,
        _lower_triangle,
        lambda x, k: np.triu(x, k),
        {"k": 0},
        ("aten.triu.default",),
        (),
        _TRIANGLES,
        "The upper triangle of each matrix, from k above the diagonal; 0 elsewhere.",
        TorchCall({"diagonal": "k"}),
    ),
)
