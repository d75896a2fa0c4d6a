"""Gather operators, which read at computed positions: take, embedding, gather, index.

A position outside of the table fails the call with BW708. `take` and `index` count negative
positions from the end; `embedding` and `gather` reject them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    checked_position,
    inputs,
    require_kind,
    result,
    tensors,
    unknown,
)
from blockwright.ops.row import (
    Array,
    Attrs,
    OpContext,
    OpRow,
    Sample,
    broadcast_index,
    broadcast_shapes,
    known_dtype,
    normalize_axis,
    positions_of,
)
from blockwright.ops.samples import bools, floats, ints
from blockwright.script.compute import Program


def _rank_sum(*ranks: int, less: int = 0) -> int:
    return -1 if min(ranks) < 0 else sum(ranks) - less


def _deduce_take(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, index = matches = tensors(ctx, infos, 2, 2)
    require_kind(ctx, index.dtype, "int")
    if x.shape is None or index.shape is None:
        return unknown(matches, x.dtype, _rank_sum(x.rank, index.rank, less=1))
    axis = normalize_axis(ctx, attrs.get("axis", 0), x.rank)
    return result(matches, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)


def _lower_take(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    x, index = inputs(ctx, program, infos)
    axis = normalize_axis(ctx, attrs.get("axis", 0), len(x.shape))
    from_end = attrs.get("from_end", False)
    rank = len(index.shape)

    def element(*i: Any) -> Any:
        where = checked_position(index[i[axis : axis + rank]], x.shape[axis], from_end=from_end)
        return x[(*i[:axis], where, *i[axis + rank :])]

    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    return program.finish([program.compute("out", shape, element)])


def _deduce_embedding(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    weight = tensors(ctx, infos, 2, 2)[0]
    if weight.rank not in (-1, 2):
        raise ctx.error(f"the weight has rank {weight.rank}, not 2", "use take for other ranks")
    return _deduce_take(ctx, infos, attrs)


def _deduce_gather(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, index = matches = tensors(ctx, infos, 2, 2)
    require_kind(ctx, index.dtype, "int")
    if x.rank >= 0 and index.rank >= 0 and x.rank != index.rank:
        raise ctx.error(f"ranks {x.rank} and {index.rank} differ")
    axis = normalize_axis(ctx, attrs["axis"], x.rank) if x.rank >= 0 else None
    if index.shape is None:
        return unknown(matches, x.dtype, max(x.rank, index.rank))
    for number, (size, limit) in enumerate(zip(index.shape, x.shape or (), strict=False)):
        if number != axis:
            larger = f"dimension {number} of the indices is larger than that of the tensor"
            ctx.require(ir.compare(ir.LE, size, limit), larger)
    return result(matches, index.shape, x.dtype)


def _lower_gather(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    x, index = inputs(ctx, program, infos)
    axis = normalize_axis(ctx, attrs["axis"], len(x.shape))

    def element(*i: Any) -> Any:
        where = checked_position(index[i], x.shape[axis], from_end=False)
        return x[(*i[:axis], where, *i[axis + 1 :])]

    return program.finish([program.compute("out", index.shape, element)])


def _indexed_axes(ctx: OpContext, attrs: Attrs, rank: int, count: int) -> tuple[int, ...]:
    """The axes that the index tensors index; they must be adjacent."""
    given = attrs["axes"]
    axes = (
        tuple(range(count))
        if given is None
        else tuple(normalize_axis(ctx, axis, rank) for axis in given)
    )
    if len(axes) != count or count > rank or not axes:
        raise ctx.error(f"{count} index tensors for axes {axes} of rank {rank}")
    if axes != tuple(range(axes[0], axes[0] + count)):
        raise ctx.error(f"indexed axes {axes} are not adjacent", "permute_dims first")
    return axes


def _deduce_index(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, *indices = matches = tensors(ctx, infos, 2, 1 << 10)
    for index in indices:
        require_kind(ctx, index.dtype, "int")
    shapes = [index.shape for index in indices if index.shape is not None]
    if x.shape is None or len(shapes) < len(indices):
        ranks = [index.rank for index in indices]
        rank = -1 if min(ranks) < 0 else max(ranks)
        return unknown(matches, x.dtype, _rank_sum(x.rank, rank, less=len(indices)))
    axes = _indexed_axes(ctx, attrs, x.rank, len(indices))
    shape = (*x.shape[: axes[0]], *broadcast_shapes(ctx, shapes), *x.shape[axes[-1] + 1 :])
    return result(matches, shape, x.dtype)


def _lower_index(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    known_dtype(ctx, infos[0], 0)
    program = Program(ctx.name)
    x, *indices = inputs(ctx, program, infos)
    axes = _indexed_axes(ctx, attrs, len(x.shape), len(indices))
    common = broadcast_shapes(ctx, [t.shape for t in indices])
    first, rank = axes[0], len(common)

    def element(*i: Any) -> Any:
        here = i[first : first + rank]
        where = [
            checked_position(t[broadcast_index(t.shape, here)], x.shape[axis], from_end=True)
            for t, axis in zip(indices, axes, strict=True)
        ]
        return x[(*i[:first], *where, *i[first + rank :])]

    shape = (*x.shape[:first], *common, *x.shape[axes[-1] + 1 :])
    return program.finish([program.compute("out", shape, element)])


def _gather(x: Array, indices: Array, axis: int) -> Array:
    kept = tuple(
        slice(None) if a == axis % x.ndim else slice(n) for a, n in enumerate(indices.shape)
    )
    places = positions_of(indices, x.shape[axis], from_end=False)
    return np.take_along_axis(x[kept], places, axis)


def _take(x: Array, indices: Array, axis: int | None, from_end: bool) -> Array:
    size = x.size if axis is None else x.shape[axis]
    return np.take(x, positions_of(indices, size, from_end=from_end), axis=axis)


def _rows(weight: Array, indices: Array) -> Array:
    return weight[positions_of(indices, len(weight), from_end=False)]


def _index(x: Array, *indices: Array, axes: Any) -> Array:
    first = 0 if axes is None else axes[0] % x.ndim
    sizes = x.shape[first : first + len(indices)]
    places = (positions_of(i, size, from_end=True) for i, size in zip(indices, sizes, strict=True))
    return x[(slice(None),) * first + tuple(places)]


ROWS: tuple[OpRow, ...] = (
    OpRow(
        "take",
        ("x", "indices"),
        _deduce_take,
        _lower_take,
        _take,
        {"axis": 0, "from_end": True},
        ("aten.index_select.default",),
        ("Gather",),
        (
            Sample((floats(7, 3), ints(5, low=-7, high=7)), {}, 0.0),
            Sample((floats(3, 7, 2), ints(2, 3, dtype="int64", low=0, high=7)), {"axis": -2}, 0.0),
            Sample((ints(5), ints(low=0, high=5)), {}, 0.0),
            Sample((floats(7), ints(0)), {}, 0.0),
            Sample((floats(7, 3), ints(5, low=0, high=7)), {"from_end": False}, 0.0),
        ),
        "Slices along an axis at the given positions; `from_end` allows negative positions.",
        kinds={"axis": "int"},
    ),
    OpRow(
        "embedding",
        ("weight", "indices"),
        _deduce_embedding,
        _lower_take,
        _rows,
        {},
        ("aten.embedding.default",),
        (),
        (
            Sample((floats(17, 5), ints(3, 7, dtype="int64", low=0, high=17)), {}, 0.0),
            Sample((floats(1, 3, dtype="float16"), ints(4, low=0, high=1)), {}, 0.0),
        ),
        "Rows of a table.",
    ),
    OpRow(
        "gather",
        ("x", "indices"),
        _deduce_gather,
        _lower_gather,
        _gather,
        {"axis": 0},
        ("aten.gather.default",),
        ("GatherElements",),
        (
            Sample(
                (ints(1, 17, dtype="int64"), ints(1, 7, dtype="int64", low=0, high=17)),
                {"axis": 1},
                0.0,
            ),
            Sample((floats(3, 5, 4), ints(3, 2, 4, low=0, high=5)), {"axis": -2}, 0.0),
            Sample((floats(5, 7), ints(3, 4, low=0, high=5)), {"axis": 0}, 0.0),
        ),
        "Element i of the result is x[i] with one coordinate replaced by indices[i].",
        kinds={"axis": "int"},
        conditional=True,
    ),
    OpRow(
        "index",
        ("x", "indices*"),
        _deduce_index,
        _lower_index,
        _index,
        {"axes": None},
        ("aten.index.Tensor",),
        (),
        (
            Sample(
                (
                    bools(3, 7),
                    ints(3, 1, 1, 1, dtype="int64", low=0, high=3),
                    ints(1, 1, 1, 7, dtype="int64", low=0, high=7),
                ),
                {},
                0.0,
            ),
            Sample((floats(5, 3), ints(4, dtype="int64", low=-5, high=5)), {}, 0.0),
            Sample(
                (floats(2, 5, 3, 2), ints(4, 1, low=0, high=5), ints(3, low=0, high=3)),
                {"axes": (1, 2)},
                0.0,
            ),
        ),
        "NumPy indexing of adjacent axes by integer tensors that broadcast together.",
        kinds={"axes": "tuple"},
    ),
)
