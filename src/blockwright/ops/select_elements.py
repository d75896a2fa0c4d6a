"""Operators whose result has as many elements as their operand has of a kind.

    unique(x)            the distinct elements, sorted
    nonzero(x)           the positions of the elements that are not 0
    masked_select(x, m)  the elements where the mask is True

The size of the result is known when the program has run. It writes results of the largest size, of
which the first elements count, and last that size (`OpRow.bounded`); `passes/bind_sizes.py` takes
the part that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    I64,
    ONE,
    ZERO,
    as_dim,
    at,
    broadcast_info,
    inputs,
    serial_nest,
    tensors,
    unknown,
)
from blockwright.ops.relabel import SymbolicProduct, source_index
from blockwright.ops.row import (
    Array,
    Attrs,
    Bounded,
    OpContext,
    OpRow,
    Sample,
    broadcast_shapes,
    known_dtype,
    known_shape,
)
from blockwright.ops.samples import bools, floats, ints, values
from blockwright.ops.sorting import precedes, sorted_line
from blockwright.script.compute import Program, Tensor

_SIZE = "size"


def _product(shape: Sequence[ir.Expr]) -> ir.Expr:
    return SymbolicProduct(shape).expr()


def collected(
    program: Program,
    shape: Sequence[ir.Expr],
    condition: Callable[..., ir.Expr],
    store: Callable[[ir.Expr, tuple[ir.Var, ...]], Sequence[ir.Stmt]],
) -> Tensor:
    """Add a block that calls `store(k, indices)` for the k-th element that meets a condition.

    Returns the number of these elements.
    """
    size = program.alloc(_SIZE, (ONE,), I64)

    def one(indices: tuple[ir.Var, ...]) -> ir.Stmt:
        place = ir.Var("place", I64)
        more = ir.BufferStore(size.buffer, ir.add(place, ONE), (ZERO,))
        kept = ir.LetStmt(place, size[ZERO], ir.seq([*store(place, indices), more]))
        return ir.IfThenElse(condition(*indices), kept)

    def collect() -> ir.Stmt:
        return ir.seq([ir.BufferStore(size.buffer, ZERO, (ZERO,)), serial_nest(shape, one)])

    program.block("collect", (), collect)
    return size


# ---------------------------------------------------------------------------------------- nonzero
def _deduce_nonzero(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    matches = tensors(ctx, infos, 1, 1)
    return unknown(matches, I64, 2)


def _bounded_nonzero(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> Bounded:
    shape = known_shape(ctx, infos[0], 0)
    positions = ir.TensorInfo((as_dim(len(shape)), _product(shape)), I64, device=infos[0].device)
    return Bounded((positions,), (1,))


def _lower_nonzero(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    (x,) = inputs(ctx, program, infos)
    (result,) = _bounded_nonzero(ctx, infos, attrs).results
    out = program.alloc("out", known_shape(ctx, result, 0), I64)

    def store(place: ir.Expr, indices: tuple[ir.Var, ...]) -> list[ir.Stmt]:
        return [
            ir.BufferStore(out.buffer, index, (as_dim(axis), place))
            for axis, index in enumerate(indices)
        ]

    zero = ir.const(0, x.dtype)
    size = collected(program, x.shape, lambda *i: ir.compare(ir.NE, x[i], zero), store)
    return program.finish([out, size])


def _nonzero(x: Array) -> Array:
    places = np.nonzero(np.asarray(x).reshape(x.shape or (1,)))
    found = np.stack(places).astype(np.int64)
    return found if x.ndim else found[:0]


# ---------------------------------------------------------------------------------- masked_select
def _deduce_select(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, mask = matches = tensors(ctx, infos, 2, 2)
    if mask.dtype is not None and not mask.dtype.is_bool:
        raise ctx.error(f"the mask is {mask.dtype}, not bool", "compare it with a number first")
    broadcast_info(ctx, matches, x.dtype)  # their shapes have to fit
    return unknown(matches, x.dtype, 1)


def _bounded_select(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> Bounded:
    shape = broadcast_shapes(ctx, [known_shape(ctx, info, k) for k, info in enumerate(infos)])
    dtype = known_dtype(ctx, infos[0], 0)
    return Bounded((ir.TensorInfo((_product(shape),), dtype, device=infos[0].device),), (0,))


def _lower_select(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    x, mask = inputs(ctx, program, infos)
    (result,) = _bounded_select(ctx, infos, attrs).results
    out = program.alloc("out", known_shape(ctx, result, 0), x.dtype)

    def store(place: ir.Expr, indices: tuple[ir.Var, ...]) -> list[ir.Stmt]:
        return [ir.BufferStore(out.buffer, at(x, indices), (place,))]

    shape = broadcast_shapes(ctx, [x.shape, mask.shape])
    size = collected(program, shape, lambda *i: at(mask, i), store)
    return program.finish([out, size])


def _selected(x: Array, mask: Array) -> Array:
    elements, chosen = np.broadcast_arrays(x, mask)
    return elements[chosen]


# ----------------------------------------------------------------------------------------- unique
_EXTRA: tuple[str, ...] = ("return_index", "return_inverse", "return_counts")


def _deduce_unique(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    if attrs["axis"] is not None:
        raise ctx.error(
            "distinct slices along an axis are not supported", "leave out axis=, or flatten"
        )
    results: list[ir.Info] = [unknown(matches, x.dtype, 1)]
    for name in _EXTRA:
        if not attrs[name]:
            continue
        if name == "return_inverse":  # an element of the result for each of the operand
            results.append(ir.TensorInfo(x.shape, I64, -1 if x.shape else x.rank, x.device))
        else:
            results.append(unknown(matches, I64, 1))
    return results[0] if len(results) == 1 else ir.TupleInfo(tuple(results))


def _bounded_unique(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> Bounded:
    shape, dtype = known_shape(ctx, infos[0], 0), known_dtype(ctx, infos[0], 0)
    device, most = infos[0].device, (_product(shape),)
    results, axes = [ir.TensorInfo(most, dtype, device=device)], list[int | None]([0])
    for name in (n for n in _EXTRA if attrs[n]):
        whole = name == "return_inverse"
        results.append(ir.TensorInfo(shape if whole else most, I64, device=device))
        axes.append(None if whole else 0)
    return Bounded(tuple(results), tuple(axes))


class _Distinct:
    """Builds the program of `unique`: a stable sort, then one pass over the sorted elements."""

    def __init__(self, ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> None:
        self.ctx, self.attrs = ctx, attrs
        self.program = Program(ctx.name)
        (self.x,) = inputs(ctx, self.program, infos)
        self.total = _product(self.x.shape)
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


def _lower_unique(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    return _Distinct(ctx, infos, attrs).build()


def _distinct(
    x: Array, sorted: bool = True, axis: None = None, equal_nan: bool = True, **wanted: bool
) -> Any:
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

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "masked_select",
        ("x", "mask"),
        _deduce_select,
        _lower_select,
        _selected,
        torch=("aten.masked_select.default",),
        samples=(
            Sample((floats(5, 3), bools(5, 3))),
            Sample((ints(4, 1), bools(3))),
            Sample((floats(6, dtype="float16"), bools(2, 6))),
            Sample((values(2.0, shape=()), bools(4))),
            Sample((floats(0, 3), bools(0, 3))),
        ),
        doc="The elements where the mask is True, in row-major order.",
        bounded=_bounded_select,
    ),
    OpRow(
        "nonzero",
        ("x",),
        _deduce_nonzero,
        _lower_nonzero,
        _nonzero,
        torch=("aten.nonzero.default",),
        onnx=("NonZero",),
        samples=(
            Sample((ints(4, 5, low=-1, high=2),)),
            Sample((bools(9),)),
            Sample((values(0.0, -0.0, float("nan"), 1e-40, 0.0, 2.0, shape=(1, 3, 2)),)),
            Sample((values(1, shape=(), dtype="int8"),)),
            Sample((values(False, shape=(), dtype="bool"),)),
        ),
        doc="The positions of the elements that are not 0, one column each, in row-major order.",
        bounded=_bounded_nonzero,
    ),
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
        ),
        doc="The distinct elements in ascending order, NaN last; with the first position, the "
        "place of each element, and the number of equal elements, as asked for.",
        kinds={"axis": "int or None"},
        bounded=_bounded_unique,
    ),
)
