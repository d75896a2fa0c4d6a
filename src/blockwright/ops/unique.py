"""The distinct elements of a tensor, or its distinct slices along an axis: `unique`.

Positions are sorted, then one pass over them gives each group of equal elements or slices a place
in the result. Its size is known when the program has run, as for `ops/select_elements.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import I64, ONE, ZERO, inputs, serial_nest, tensors, unknown, wide
from blockwright.ops.relabel import element_count, source_index
from blockwright.ops.row import (
    Array,
    Attrs,
    Bounded,
    OpContext,
    OpRow,
    Sample,
    known_dtype,
    known_shape,
    normalize_axis,
)
from blockwright.ops.samples import bools, floats, ints, values
from blockwright.ops.sorting import precedes, sorted_line
from blockwright.script.compute import Program, Tensor

_SIZE = "size"


_EXTRA: tuple[str, ...] = ("return_index", "return_inverse", "return_counts")


def _deduce_unique(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    axis = attrs["axis"]
    if axis is not None and x.rank >= 0:
        axis = normalize_axis(ctx, axis, x.rank)
    results: list[ir.Info] = [unknown(matches, x.dtype, 1 if axis is None else x.rank)]
    for name in _EXTRA:
        if not attrs[name]:
            continue
        if name == "return_inverse":  # an element of the result for each of the operand
            whole, rank = (x.shape, x.rank) if axis is None else (None, 1)
            if axis is not None and x.shape is not None:
                whole = (x.shape[axis],)
            results.append(ir.TensorInfo(whole, I64, -1 if whole else rank, x.device))
        else:
            results.append(unknown(matches, I64, 1))
    return results[0] if len(results) == 1 else ir.TupleInfo(tuple(results))


def _bounded_unique(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> Bounded:
    shape, dtype = known_shape(ctx, infos[0], 0), known_dtype(ctx, infos[0], 0)
    device, axis = infos[0].device, attrs["axis"]
    if axis is None:
        most, largest, inverse = (element_count(shape),), (element_count(shape),), shape
    else:
        axis = normalize_axis(ctx, axis, len(shape))
        most, largest, inverse = (shape[axis],), shape, (shape[axis],)
    results, axes = [ir.TensorInfo(largest, dtype, device=device)], list[int | None]([axis or 0])
    for name in (n for n in _EXTRA if attrs[n]):
        whole = name == "return_inverse"
        results.append(ir.TensorInfo(inverse if whole else most, I64, device=device))
        axes.append(None if whole else 0)
    return Bounded(tuple(results), tuple(axes))


class _Distinct:
    """Builds the program of `unique`: a stable sort, then one pass over the sorted elements."""

    def __init__(self, ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> None:
        self.ctx, self.attrs = ctx, attrs
        self.program = Program(ctx.name)
        (self.x,) = inputs(ctx, self.program, infos)
        self.total = element_count(self.x.shape)
        self.order = self.program.alloc("order", (self.total,), I64)
        self.infos = _bounded_unique(ctx, infos, attrs).results

    def build(self) -> ir.PrimFunc:
        self._sort()
        return self._scan()

    def _element(self, i: ir.Expr) -> ir.Expr:
        return self.x[source_index(self.ctx, self.x.shape, (self.total,), (i,))]

    def _sort(self) -> None:
        """Compute the positions of the sorted elements, and the elements in that order."""
        order, total = self.order, self.total

        def element(i: ir.Expr) -> ir.Expr:
            return self._element(ir.call("checked_index", i, total))

        def sorted_element(i: ir.Expr) -> ir.Expr:
            return element(order[i])

        line = sorted_line(total, lambda p, q: precedes(element(p), element(q), descending=False))

        def sort() -> ir.Stmt:
            copied = serial_nest(
                (total,), lambda i: ir.BufferStore(order.buffer, line.position(*i), i)
            )
            return ir.seq([line.body, copied])

        self.program.block("sort", (), sort, allocated=line.buffers)
        self.keys = self.program.compute("keys", (total,), sorted_element)

    def _scan(self) -> ir.PrimFunc:
        """Give each group of equal elements a place in the result."""
        program, keys, order = self.program, self.keys, self.order
        names = ["out", *(name.removeprefix("return_") for name in _EXTRA if self.attrs[name])]
        shapes = {"inverse": (self.total,)}
        outs: dict[str, Tensor] = {}
        for name, info in zip(names, self.infos, strict=True):
            shape = shapes.get(name) or known_shape(self.ctx, info, 0)
            outs[name] = program.alloc(name, shape, known_dtype(self.ctx, info, 0))
        size = program.alloc(_SIZE, (ONE,), I64)

        def put(name: str, value: ir.Expr, place: ir.Expr) -> list[ir.Stmt]:
            return [ir.BufferStore(outs[name].buffer, value, (place,))] if name in outs else []

        def group(indices: tuple[ir.Var, ...]) -> ir.Stmt:
            (i,) = indices
            place = ir.Var("place", I64)
            begun = [*put("out", keys[i], place), *put("index", order[i], place)]
            begun += put("counts", ZERO, place)
            begun.append(ir.BufferStore(size.buffer, ir.add(place, ONE), (ZERO,)))
            fresh = ir.LetStmt(place, size[ZERO], ir.seq(begun))
            last = ir.sub(size[ZERO], ONE)
            stmts: list[ir.Stmt] = [ir.IfThenElse(self._begins(keys, i), fresh)]
            if "counts" in outs:
                stmts += put("counts", ir.add(outs["counts"][last], ONE), last)
            stmts += put("inverse", last, order[i])
            return ir.seq(stmts)

        def scan() -> ir.Stmt:
            return ir.seq(
                [ir.BufferStore(size.buffer, ZERO, (ZERO,)), serial_nest((self.total,), group)]
            )

        program.block("scan", (), scan)
        if "inverse" in outs and len(self.x.shape) != 1:
            flat, shape = outs["inverse"], self.x.shape
            outs["inverse"] = program.compute(
                "places", shape, lambda *i: flat[source_index(self.ctx, flat.shape, shape, i)]
            )
        return program.finish([*outs.values(), size])

    def _begins(self, keys: Tensor, i: ir.Var) -> ir.Expr:
        """Whether element i of the sorted elements differs from the one before it."""
        a, b = keys[ir.sub(i, ONE)], keys[i]
        differ = ir.compare(ir.NE, a, b)
        if keys.dtype.is_float and self.attrs["equal_nan"]:
            differ = ir.logical_and(differ, ir.logical_not(ir.call("isnan", a)))
        return ir.if_then_else(ir.compare(ir.GT, i, ZERO), differ, ir.const(True, "bool"))


class _Slices:
    """Builds the program of distinct slices along an axis, compared element by element."""

    def __init__(self, ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> None:
        self.ctx, self.attrs = ctx, attrs
        self.program = Program(ctx.name)
        (self.x,) = inputs(ctx, self.program, infos)
        shape = self.x.shape
        self.axis = normalize_axis(ctx, attrs["axis"], len(shape))
        self.count = shape[self.axis]
        self.others = (*shape[: self.axis], *shape[self.axis + 1 :])
        self.width = element_count(self.others)
        self.order = self.program.alloc("order", (self.count,), I64)
        self.infos = _bounded_unique(ctx, infos, attrs).results
        self.state: dict[str, ir.Buffer] = {}

    def _begin(self) -> list[ir.Buffer]:
        """Memory of one block: the element that is compared, and what was found.

        That is 0 while the slices are equal, and 1 if the first comes before or differs.
        """
        self.state = {name: ir.Buffer(name, I64, (ONE,)) for name in ("element", "found")}
        return list(self.state.values())

    def _get(self, name: str) -> ir.Expr:
        return ir.load(self.state[name], ZERO)

    def _put(self, name: str, value: int | ir.Expr) -> ir.Stmt:
        return ir.BufferStore(self.state[name], ir.as_expr(value, I64), (ZERO,))

    def _element(self, position: ir.Expr) -> ir.Expr:
        """The element of a slice that is compared."""
        here = ir.call("checked_index", self._get("element"), self.width)
        around = source_index(self.ctx, self.others, (self.width,), (here,))
        at = ir.call("checked_index", position, self.count)
        return self.x[(*around[: self.axis], at, *around[self.axis :])]

    def _search(self, step: ir.Stmt) -> ir.Stmt:
        """Run `step` on one element after the other until one decides."""
        more = ir.logical_and(
            ir.compare(ir.LT, self._get("element"), self.width),
            ir.compare(ir.EQ, self._get("found"), ZERO),
        )
        return ir.seq([self._put("element", 0), self._put("found", 0), ir.While(more, step)])

    def _next(self) -> ir.Stmt:
        return self._put("element", ir.add(self._get("element"), ONE))

    def _compare(self, p: ir.Expr, q: ir.Expr) -> ir.Stmt:
        a, b = self._element(p), self._element(q)
        later = ir.IfThenElse(precedes(b, a, descending=False), self._put("found", 2), self._next())
        return self._search(
            ir.IfThenElse(precedes(a, b, descending=False), self._put("found", 1), later)
        )

    def _tell_apart(self, p: ir.Expr, q: ir.Expr) -> ir.Stmt:
        a, b = self._element(p), self._element(q)
        differ = ir.compare(ir.NE, a, b)
        if a.dtype.is_float and self.attrs["equal_nan"]:
            both = ir.logical_and(ir.call("isnan", a), ir.call("isnan", b))
            differ = ir.logical_and(differ, ir.logical_not(both))
        return self._search(ir.IfThenElse(differ, self._put("found", 1), self._next()))

    def build(self) -> ir.PrimFunc:
        self._sort()
        return self._scan()

    def _sort(self) -> None:
        state = self._begin()
        line = sorted_line(
            self.count,
            lambda p, q: ir.compare(ir.EQ, self._get("found"), ONE),
            lambda p, q: self._compare(p, q),
        )

        def sort() -> ir.Stmt:
            copied = serial_nest(
                (self.count,),
                lambda i: ir.BufferStore(self.order.buffer, line.position(*i), i),
            )
            return ir.seq([line.body, copied])

        self.program.block("sort", (), sort, allocated=[*line.buffers, *state])

    def _scan(self) -> ir.PrimFunc:
        program, order, count = self.program, self.order, self.count
        names = [n.removeprefix("return_") for n in _EXTRA if self.attrs[n]]
        outs = {name: program.alloc(name, (count,), I64) for name in names}
        first = program.alloc("first", (count,), I64)
        size = program.alloc(_SIZE, (ONE,), I64)
        state = self._begin()

        def put(name: str, value: ir.Expr, place: ir.Expr) -> list[ir.Stmt]:
            return [ir.BufferStore(outs[name].buffer, value, (place,))] if name in outs else []

        def group(indices: tuple[ir.Var, ...]) -> ir.Stmt:
            (i,) = indices
            place = ir.Var("place", I64)
            begun: list[ir.Stmt] = [ir.BufferStore(first.buffer, order[i], (place,))]
            begun += [*put("index", order[i], place), *put("counts", ZERO, place)]
            begun.append(ir.BufferStore(size.buffer, ir.add(place, ONE), (ZERO,)))
            last = ir.sub(size[ZERO], ONE)
            stmts: list[ir.Stmt] = [
                ir.IfThenElse(
                    ir.compare(ir.GT, i, ZERO),
                    self._tell_apart(order[ir.sub(i, ONE)], order[i]),
                    self._put("found", 1),
                ),
                ir.IfThenElse(
                    ir.compare(ir.EQ, self._get("found"), ONE),
                    ir.LetStmt(place, size[ZERO], ir.seq(begun)),
                ),
            ]
            if "counts" in outs:
                stmts += put("counts", ir.add(outs["counts"][last], ONE), last)
            stmts += put("inverse", last, order[i])
            return ir.seq(stmts)

        def scan() -> ir.Stmt:
            cleared = serial_nest((count,), lambda i: ir.BufferStore(first.buffer, ZERO, i))
            start = ir.BufferStore(size.buffer, ZERO, (ZERO,))
            return ir.seq([start, cleared, serial_nest((count,), group)])

        program.block("scan", (), scan, allocated=state)

        def taken(*i: Any) -> ir.Expr:
            at = ir.call("checked_index", first[i[self.axis]], count)
            return self.x[(*i[: self.axis], at, *i[self.axis + 1 :])]

        out = program.compute("out", self.x.shape, taken)
        return program.finish([out, *outs.values(), size])


def _lower_unique(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    made = _Distinct if attrs["axis"] is None else _Slices
    return made(ctx, infos, attrs).build()


def _distinct_slices(x: Array, axis: int, equal_nan: bool, **wanted: bool) -> Any:
    moved = np.moveaxis(x, axis, 0)
    keys = wide(moved.reshape(len(moved), math.prod(moved.shape[1:])))
    order = np.lexsort(keys.T[::-1]) if keys.shape[1] else np.arange(len(keys))
    before, after = keys[order[:-1]], keys[order[1:]]
    differ = before != after
    if equal_nan:
        differ &= (before == before) | (after == after)
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = differ.any(1)
    inverse = np.zeros(len(keys), np.int64)
    inverse[order] = np.cumsum(begins) - 1
    every = {
        "return_index": order[begins],
        "return_inverse": inverse,
        "return_counts": np.bincount(inverse, minlength=int(begins.sum())),
    }
    results: list[Array] = [
        np.take(x, order[begins], axis),
        *(every[n].astype(np.int64) for n in _EXTRA if wanted.get(n)),
    ]
    return results if len(results) > 1 else results[0]


def _distinct(
    x: Array, sorted: bool = True, axis: int | None = None, equal_nan: bool = True, **wanted: bool
) -> Any:
    if axis is not None:
        return _distinct_slices(x, axis, equal_nan, **wanted)
    flat = x.reshape(-1)
    order = np.argsort(flat, kind="stable")
    keys = flat[order]
    begins = np.ones(flat.size, np.bool_)
    begins[1:] = keys[1:] != keys[:-1]
    if equal_nan and ir.dtype_of(x.dtype).is_float:
        begins[1:] &= ~np.isnan(keys[:-1])
    inverse = np.zeros(flat.size, np.int64)
    inverse[order] = np.cumsum(begins) - 1
    counts = np.diff(np.append(np.nonzero(begins)[0], flat.size))
    every: dict[str, Array] = {
        "return_index": order[begins],
        "return_inverse": inverse.reshape(x.shape),
        "return_counts": counts,
    }
    results: list[Array] = [
        keys[begins],
        *(every[n].astype(np.int64) for n in _EXTRA if wanted.get(n)),
    ]
    return results if len(results) > 1 else results[0]


_NAN = values(float("nan"), 1.0, -0.0, float("inf"), 0.0, float("nan"), -float("inf"), 1.0)
_ALL: dict[str, Any] = dict.fromkeys(_EXTRA, True)

_PAIRS = values(1, float("nan"), 2, 0.0, 1, float("nan"), 2, -0.0, 0, 5, shape=(5, 2))

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "unique",
        ("x",),
        _deduce_unique,
        _lower_unique,
        _distinct,
        {
            "sorted": True,
            "return_index": False,
            "return_inverse": False,
            "return_counts": False,
            "axis": None,
            "equal_nan": True,
        },
        onnx=("Unique",),
        torch=("aten._unique2.default",),
        samples=(
            Sample((ints(40),)),
            Sample((ints(5, 7, dtype="int64"),), _ALL),
            Sample((_NAN,), _ALL),
            Sample((_NAN,), {"equal_nan": False, "return_inverse": True}),
            Sample((floats(33, dtype="float16"),), {"return_counts": True}),
            Sample((ints(3, 4, low=0, high=255, dtype="uint8"),), {"return_index": True}),
            Sample((bools(2, 3, 2),), {"return_inverse": True, "return_counts": True}),
            Sample((floats(0, 4),), _ALL),
            Sample((values(7, shape=(), dtype="int16"),), {"return_inverse": True}),
            Sample((ints(9, 2, low=0, high=2),), {"axis": 0, **_ALL}),
            Sample((ints(2, 11, 2, low=0, high=2),), {"axis": -2, **_ALL}),
            Sample((_PAIRS,), {"axis": 0, "return_inverse": True}),
            Sample((_PAIRS,), {"axis": 0, "equal_nan": False}),
            Sample((floats(5),), {"axis": 0, "return_counts": True}),
            Sample((floats(3, 0),), {"axis": 0, "return_counts": True}),
            Sample((floats(0, 3),), {"axis": 0, "return_inverse": True}),
        ),
        doc="The distinct elements, or slices along an axis, in ascending order, NaN last; with "
        "the first position, the place of each element, and the number of equal elements, as asked "
        "for.",
        kinds={"axis": "int or None"},
        bounded=_bounded_unique,
    ),
)
