"""Scatter operators, which write at computed positions.

Updates are applied in order: the last one wins where positions repeat, and sums are deterministic.
A position outside of the tensor fails the call with BW708; `from_end` allows negative positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    I64,
    ONE,
    ZERO,
    as_dim,
    checked_position,
    inputs,
    require_kind,
    result,
    same_dtype,
    serial_nest,
    tensors,
    unknown,
    wide,
    widen,
)
from blockwright.ops.row import (
    Array,
    Attrs,
    Kind,
    OpContext,
    OpRow,
    OutOfRange,
    Sample,
    broadcast_index,
    broadcast_shapes,
    normalize_axis,
    positions_of,
)
from blockwright.ops.samples import bools, floats, ints, values
from blockwright.script.compute import Program, Tensor

_REDUCTIONS: tuple[str, ...] = ("update", "add", "mul", "max", "min", "mean")
_INDEX_REDUCTIONS: tuple[str, ...] = ("update", "add", "mul", "max", "min")
_ON_BOOLS: dict[str, Callable[[Any, Any], Any]] = {
    "add": ir.logical_or, "max": ir.logical_or, "mul": ir.logical_and, "min": ir.logical_and,
}  # fmt: skip
_ON_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": ir.add, "mean": ir.add, "mul": ir.mul, "max": ir.maximum, "min": ir.minimum,
}  # fmt: skip


def _combined(reduction: str, old: ir.Expr, new: ir.Expr) -> ir.Expr:
    """The element after an update; combined like `R.add` and its kin, and rounded at every step."""
    if reduction == "update":
        return new
    if old.dtype.is_bool:
        return _ON_BOOLS[reduction](old, new)
    return ir.cast_to(_ON_NUMBERS[reduction](widen(old), widen(new)), old.dtype)


def _neutral(reduction: str, dtype: ir.DType) -> ir.Expr:
    """The element that an update replaces, if the tensor's own element does not take part."""
    if dtype.is_bool:
        return ir.const(reduction in ("mul", "min"), dtype)
    if reduction in ("max", "min"):
        if dtype.is_float:
            return ir.const(-float("inf") if reduction == "max" else float("inf"), dtype)
        return ir.const(dtype.min_value if reduction == "max" else dtype.max_value, dtype)
    return ir.const(1 if reduction == "mul" else 0, dtype)


def _check(ctx: OpContext, attrs: Attrs, dtype: ir.DType | None) -> None:
    if attrs["reduction"] == "mean" and dtype is not None:
        require_kind(ctx, dtype, "number")


def _copied(program: Program, x: Tensor) -> Tensor:
    return program.compute("out", x.shape, lambda *i: x[i])


# --------------------------------------------------------------------------- along an axis
def _deduce_elements(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, index, updates = matches = tensors(ctx, infos, 3, 3)
    require_kind(ctx, index.dtype, "int")
    _check(ctx, attrs, same_dtype(ctx, [x, updates]))
    ranks = {m.rank for m in matches if m.rank >= 0}
    if len(ranks) > 1:
        raise ctx.error(f"ranks {x.rank}, {index.rank} and {updates.rank} differ")
    if x.shape is None or index.shape is None or updates.shape is None:
        return unknown(matches, x.dtype, x.rank)
    axis = normalize_axis(ctx, attrs["axis"], x.rank)
    sizes = zip(index.shape, updates.shape, x.shape, strict=True)
    for number, (size, updated, own) in enumerate(sizes):
        for what, limit in (("updates", updated), ("the tensor", own)):
            skipped = number == axis and what != "updates"
            if not skipped and ctx.analyzer.prove(ir.compare(ir.GT, size, limit)):
                raise ctx.error(f"dimension {number} of the indices is larger than that of {what}")
    return result(matches, x.shape, x.dtype)


def _lower_elements(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    x, index, updates = inputs(ctx, program, infos)
    axis = normalize_axis(ctx, attrs["axis"], len(x.shape))
    reduction, size = attrs["reduction"], x.shape[axis]
    out = _copied(program, x)
    counts = None
    if reduction == "mean":
        counts = program.compute("counts", x.shape, lambda *_: ZERO, I64)

    def inside(k: Sequence[ir.Expr], shape: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
        """The coordinates `k`, checked where the indices may have more elements than `shape`."""
        return tuple(
            i if ctx.equal(own, limit) else ir.call("checked_index", i, limit)
            for i, own, limit in zip(k, index.shape, shape, strict=True)
        )

    def each(update: Callable[..., ir.Stmt]) -> Callable[..., ir.Stmt]:
        """Visit the indices of a line in order."""

        def line(*around: Any) -> ir.Stmt:
            k = ir.Var("k", I64)
            here = (*around[:axis], k, *around[axis:])
            place = list(inside(here, (*x.shape[:axis], index.shape[axis], *x.shape[axis + 1 :])))
            place[axis] = checked_position(index[here], size, from_end=attrs["from_end"])
            return ir.For(k, ZERO, index.shape[axis], ir.ForKind.SERIAL, update(here, place))

        return line

    around = (*index.shape[:axis], *index.shape[axis + 1 :])
    if not attrs["include_self"] and reduction != "update":
        neutral = _neutral(reduction, x.dtype)

        def reset(here: Sequence[ir.Expr], place: Sequence[ir.Expr]) -> ir.Stmt:
            return ir.BufferStore(out.buffer, neutral, tuple(place))

        program.block("reset", around, each(reset))

    def update(here: Sequence[ir.Expr], place: Sequence[ir.Expr]) -> ir.Stmt:
        new = updates[inside(here, updates.shape)]
        value = _combined(reduction, out[tuple(place)], new)
        store = ir.BufferStore(out.buffer, value, tuple(place))
        if counts is None:
            return store
        more = ir.add(counts[tuple(place)], ONE)
        return ir.seq([store, ir.BufferStore(counts.buffer, more, tuple(place))])

    program.block("scatter", around, each(update))
    if counts is None:
        return program.finish([out])
    taken = int(attrs["include_self"])

    def mean(*i: Any) -> Any:
        number = ir.maximum(ir.add(counts[i], as_dim(taken)), ONE)
        total = widen(out[i])
        divide = ir.truediv if total.dtype.is_float else ir.floordiv
        return ir.cast_to(divide(total, ir.cast_to(number, total.dtype)), x.dtype)

    return program.finish([program.compute("means", x.shape, mean)])


_NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old | new if old.dtype == bool else old + new,
    "mean": lambda old, new: old + new,
    "mul": lambda old, new: old & new if old.dtype == bool else old * new,
    "max": np.maximum,
    "min": np.minimum,
}


def _apply(out: Array, place: tuple[Any, ...], reduction: str, new: Any) -> None:
    """Combine an element, in the wide type of its own type, and round it."""
    old, new = (wide(np.asarray(v, out.dtype)) for v in (out[place], new))
    out[place] = np.asarray(_NUMPY[reduction](old, new)).astype(out.dtype)


def _elements(
    x: Array,
    index: Array,
    updates: Array,
    *,
    axis: int,
    reduction: str,
    include_self: bool,
    from_end: bool,
) -> Array:
    out, counts = x.copy(), np.full(x.shape, int(include_self))
    axis %= x.ndim
    index = positions_of(index, x.shape[axis], from_end=from_end)
    places = [(k, (*k[:axis], int(index[k]), *k[axis + 1 :])) for k in np.ndindex(index.shape)]
    if not include_self and reduction != "update":
        first: Any = _neutral(reduction, ir.dtype_of(x.dtype))
        for _, place in places:
            out[place] = first.value
    for k, place in places:
        _apply(out, place, reduction, updates[k])
        counts[place] += 1
    if reduction != "mean":
        return out
    divided = wide(out) // np.maximum(counts, 1) if out.dtype.kind in "iu" else None
    means = wide(out) / np.maximum(counts, 1) if divided is None else divided
    return np.asarray(means).astype(x.dtype)


# --------------------------------------------------------------------------- by coordinates
def _update_shape(ctx: OpContext, x: ir.TensorInfo, index: ir.TensorInfo) -> list[ir.Expr]:
    """The shape of the updates of scatter_nd."""
    assert x.shape is not None
    assert index.shape is not None
    if not index.shape:
        raise ctx.error("the indices are a scalar", "their last axis lists coordinates")
    count = ir.const_int(index.shape[-1])
    if count is None:
        raise ctx.error("the number of coordinates, the indices' last dimension, is symbolic")
    if count > len(x.shape):
        raise ctx.error(f"{count} coordinates for a tensor of rank {len(x.shape)}")
    return [*index.shape[:-1], *x.shape[count:]]


def _deduce_nd(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, index, updates = matches = tensors(ctx, infos, 3, 3)
    require_kind(ctx, index.dtype, "int")
    same_dtype(ctx, [x, updates])
    if x.shape is None or index.shape is None or updates.shape is None:
        return unknown(matches, x.dtype, x.rank)
    wanted = _update_shape(ctx, x, index)
    if len(wanted) != len(updates.shape):
        raise ctx.error(f"updates of rank {len(updates.shape)}, expected {len(wanted)}")
    for number, (a, b) in enumerate(zip(updates.shape, wanted, strict=True)):
        ctx.require_equal(a, b, f"dimension {number} of the updates")
    return result(matches, x.shape, x.dtype)


def _loops(
    program: Program,
    out: Tensor,
    shape: Sequence[ir.Expr],
    element: Callable[[tuple[ir.Var, ...]], tuple[Sequence[ir.Expr], ir.Expr]],
    reduction: str,
) -> ir.PrimFunc:
    """Combine elements one after another: `element(i)` gives the place and the new value."""

    def update(i: tuple[ir.Var, ...]) -> ir.Stmt:
        place, new = element(i)
        value = _combined(reduction, out[tuple(place)], new)
        return ir.BufferStore(out.buffer, value, tuple(place))

    program.block("scatter", (), lambda: serial_nest(shape, update))
    return program.finish([out])


def _lower_nd(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    x, index, updates = inputs(ctx, program, infos)
    shape = _update_shape(ctx, infos[0], infos[1])
    count, rank = ir.const_int(index.shape[-1]) or 0, len(index.shape) - 1

    def element(i: tuple[ir.Var, ...]) -> tuple[Sequence[ir.Expr], ir.Expr]:
        coordinates = (index[(*i[:rank], as_dim(c))] for c in range(count))
        place = [
            checked_position(value, size, from_end=True)
            for value, size in zip(coordinates, x.shape[:count], strict=True)
        ]
        return (*place, *i[rank:]), updates[i]

    return _loops(program, _copied(program, x), shape, element, attrs["reduction"])


def _nd(x: Array, index: Array, updates: Array, *, reduction: str) -> Array:
    out = x.copy()
    sizes = x.shape[: index.shape[-1]]
    columns = [positions_of(index[..., c], n, from_end=True) for c, n in enumerate(sizes)]
    for k in np.ndindex(index.shape[:-1]):
        start = tuple(int(c[k]) for c in columns)
        for rest in np.ndindex(out.shape[len(start) :]):
            _apply(out, (*start, *rest), reduction, updates[(*k, *rest)])
    return out


# --------------------------------------------------------------------------- like NumPy's x[i] = v
def _indexed_axes(ctx: OpContext, attrs: Attrs, rank: int, count: int) -> int:
    """The first of the adjacent axes that the index tensors index."""
    first = 0 if attrs["axis"] is None else normalize_axis(ctx, attrs["axis"], rank)
    if not count or first + count > rank:
        raise ctx.error(f"{count} index tensors from axis {first} of rank {rank}")
    return first


def _target_shape(
    ctx: OpContext, attrs: Attrs, x: Sequence[ir.Expr], indices: Sequence[Sequence[ir.Expr]]
) -> tuple[ir.Expr, ...]:
    first = _indexed_axes(ctx, attrs, len(x), len(indices))
    return (*x[:first], *broadcast_shapes(ctx, indices), *x[first + len(indices) :])


def _deduce_put(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, new, *indices = matches = tensors(ctx, infos, 3, 1 << 10)
    for index in indices:
        require_kind(ctx, index.dtype, "int")
    same_dtype(ctx, [x, new])
    shapes = [index.shape for index in indices if index.shape is not None]
    if x.shape is None or new.shape is None or len(shapes) < len(indices):
        return unknown(matches, x.dtype, x.rank)
    target = _target_shape(ctx, attrs, x.shape, shapes)
    if len(new.shape) > len(target):
        raise ctx.error(f"values of rank {len(new.shape)} for a target of rank {len(target)}")
    for a, b in zip(reversed(new.shape), reversed(target), strict=False):
        if not ir.is_const_int(a, 1):
            ctx.require_equal(a, b, "the values do not broadcast to the indexed elements")
    return result(matches, x.shape, x.dtype)


def _lower_put(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    x, new, *indices = inputs(ctx, program, infos)
    first = _indexed_axes(ctx, attrs, len(x.shape), len(indices))
    shapes = [t.shape for t in indices]
    rank = len(broadcast_shapes(ctx, shapes))
    target = _target_shape(ctx, attrs, x.shape, shapes)

    def element(i: tuple[ir.Var, ...]) -> tuple[Sequence[ir.Expr], ir.Expr]:
        here = i[first : first + rank]
        sizes = x.shape[first : first + len(indices)]
        place = [
            checked_position(t[broadcast_index(t.shape, here)], size, from_end=True)
            for t, size in zip(indices, sizes, strict=True)
        ]
        return (*i[:first], *place, *i[first + rank :]), new[broadcast_index(new.shape, i)]

    reduction = "add" if attrs["accumulate"] else "update"
    return _loops(program, _copied(program, x), target, element, reduction)


def _put(x: Array, new: Array, *indices: Array, axis: Any, accumulate: bool) -> Array:
    out, first = x.copy(), 0 if axis is None else axis % x.ndim
    sizes = x.shape[first : first + len(indices)]
    places = (positions_of(i, size, from_end=True) for i, size in zip(indices, sizes, strict=True))
    common = np.broadcast_arrays(*places)
    target = (*x.shape[:first], *common[0].shape, *x.shape[first + len(indices) :])
    given = np.broadcast_to(new, target)
    for i in np.ndindex(target):
        here = i[first : first + common[0].ndim]
        place = (*i[:first], *(int(c[here]) for c in common), *i[first + common[0].ndim :])
        _apply(out, place, "add" if accumulate else "update", given[i])
    return out


# --------------------------------------------------------------------------- through a mask
def _deduce_masked(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, mask, source = matches = tensors(ctx, infos, 3, 3)
    if mask.dtype is not None and not mask.dtype.is_bool:
        raise ctx.error(f"the mask has type {mask.dtype}, not bool")
    same_dtype(ctx, [x, source])
    if x.shape is None or mask.shape is None:
        return unknown(matches, x.dtype, x.rank)
    for number, (a, b) in enumerate(zip(mask.shape, x.shape, strict=True)):
        ctx.require_equal(a, b, f"dimension {number} of the mask")
    return result(matches, x.shape, x.dtype)


def _lower_masked(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    x, mask, source = inputs(ctx, program, infos)
    out = program.alloc("out", x.shape, x.dtype)
    used = ir.Buffer("used", I64, (ONE,))

    def element(i: tuple[ir.Var, ...]) -> ir.Stmt:
        number: ir.Expr = ir.load(used, ZERO)
        place: list[ir.Expr] = []
        first, *inner = source.shape
        if inner:  # before divisions by sizes, which may be 0
            number = ir.call("checked_index", number, functools.reduce(ir.mul, inner, first))
        for size in reversed(inner):
            place.insert(0, ir.floormod(number, size))
            number = ir.floordiv(number, size)
        rest = ir.call("checked_index", number, first)
        given = source[(rest, *place)]
        take = ir.seq(
            [
                ir.BufferStore(out.buffer, given, i),
                ir.BufferStore(used, ir.add(ir.load(used, ZERO), ONE), (ZERO,)),
            ]
        )
        return ir.IfThenElse(mask[i], take, ir.BufferStore(out.buffer, x[i], i))

    def body() -> ir.Stmt:
        start = ir.BufferStore(used, ZERO, (ZERO,))
        return ir.seq([start, serial_nest(x.shape, element)])

    program.block("scatter", (), body, allocated=[used])
    return program.finish([out])


def _masked(x: Array, mask: Array, source: Array) -> Array:
    out = x.copy()
    count = int(mask.sum())
    if count > source.size:
        raise OutOfRange(f"the mask takes {count} elements of the source, which has {source.size}")
    out[mask] = source.reshape(-1)[:count]
    return out


_ROWS_OF = ints(4, 3, low=0, high=4)
_ENDS = ints(6, dtype="int64", low=-5, high=5)
_DEFAULTS = {"axis": 0, "reduction": "update", "include_self": True, "from_end": True}
_NAN = values(1.0, float("nan"), 3.0, -0.0)
_TO = values(0, 0, 2, 3, dtype="int64")
_KIND: dict[str, Kind] = {"axis": "int", "reduction": _REDUCTIONS}

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "scatter_elements",
        ("x", "indices", "updates"),
        _deduce_elements,
        _lower_elements,
        _elements,
        _DEFAULTS,
        onnx=("ScatterElements",),
        samples=(
            Sample((floats(4, 5), _ROWS_OF, floats(4, 3)), {}, 0.0),
            Sample((floats(4, 5), _ROWS_OF, floats(5, 7)), {"axis": 1, "reduction": "add"}, 1.0),
            *(
                Sample(
                    (floats(5), _ENDS, floats(6)),
                    {"reduction": reduction, "include_self": include},
                    1.0,
                )
                for reduction in _REDUCTIONS[1:]
                for include in (True, False)
            ),
            Sample(
                (ints(5, dtype="int64"), _ENDS, ints(6, dtype="int64")), {"reduction": "mean"}, 0.0
            ),
            Sample((ints(5), _ENDS, ints(6)), {"reduction": "max", "include_self": False}, 0.0),
            Sample((floats(4), _TO, _NAN), {"reduction": "min", "include_self": False}, 0.0),
            Sample((bools(5), _ENDS, bools(6)), {"reduction": "add"}, 0.0),
            Sample(
                (floats(5, dtype="float16"), _ENDS, floats(6, dtype="float16")),
                {"reduction": "add"},
                0.0,
            ),
            Sample((floats(3, 2), ints(0, 2), floats(0, 2)), {}, 0.0),
        ),
        doc="Replace or combine elements whose coordinate on one axis is given by indices.",
        kinds=_KIND,
    ),
    OpRow(
        "scatter_nd",
        ("x", "indices", "updates"),
        _deduce_nd,
        _lower_nd,
        _nd,
        {"reduction": "update"},
        onnx=("ScatterND",),
        samples=(
            Sample((floats(4, 5), ints(3, 2, low=-4, high=4), floats(3)), {}, 0.0),
            Sample((floats(4, 5), ints(2, 3, 1, low=0, high=4), floats(2, 3, 5)), {}, 0.0),
            Sample(
                (ints(4), ints(7, 1, dtype="int64", low=0, high=4), ints(7)),
                {"reduction": "add"},
                0.0,
            ),
            Sample((floats(2, 3), ints(0, 2), floats(0)), {"reduction": "max"}, 0.0),
        ),
        doc="Replace or combine slices at the coordinates that the last axis of indices lists.",
        kinds={"reduction": _INDEX_REDUCTIONS},
    ),
    OpRow(
        "index_put",
        ("x", "values", "indices*"),
        _deduce_put,
        _lower_put,
        _put,
        {"axis": None, "accumulate": False},
        samples=(
            Sample((floats(5, 3), floats(4, 3), ints(4, low=-5, high=5)), {}, 0.0),
            Sample((floats(5, 3), floats(), ints(4, 2, low=0, high=5)), {"accumulate": True}, 1.0),
            Sample(
                (
                    ints(2, 5, 3, dtype="int64"),
                    ints(4, 2, dtype="int64"),
                    ints(4, 1, low=0, high=5),
                    ints(2, low=0, high=3),
                ),
                {"axis": 1, "accumulate": True},
                0.0,
            ),
            Sample((bools(6), bools(3), ints(3, low=0, high=6)), {}, 0.0),
        ),
        doc="x[indices] = values (or +=) from an axis on, with index tensors that broadcast.",
        kinds={"axis": "int or None"},
    ),
    OpRow(
        "masked_scatter",
        ("x", "mask", "source"),
        _deduce_masked,
        _lower_masked,
        _masked,
        {},
        samples=(
            Sample((floats(4, 5), bools(4, 5), floats(4, 5)), {}, 0.0),
            Sample((ints(7), bools(7), ints(2, 3, 2)), {}, 0.0),
        ),
        doc="Replace the elements under a mask, in order, by the elements of source.",
    ),
)
