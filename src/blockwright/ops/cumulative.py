"""Cumulative operators along an axis: one block per line, with a loop inside the block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    I64,
    ONE,
    ZERO,
    accumulator,
    inputs,
    require_kind,
    result,
    tensors,
    unknown,
    wide,
)
from blockwright.ops.row import (
    REQUIRED,
    Array,
    Attrs,
    OpContext,
    OpRow,
    Sample,
    TorchCall,
    known_dtype,
    normalize_axis,
)
from blockwright.ops.samples import bools, floats, ints, values
from blockwright.script.compute import Program

_WHY = "n values in order are rounded n times"


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs, kind: str) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    require_kind(ctx, x.dtype, kind)
    if x.shape is None:
        return unknown(matches, x.dtype, x.rank)
    if x.shape:  # a rank-0 tensor is its own sum, whatever the axis
        normalize_axis(ctx, attrs["axis"], x.rank)
    return result(matches, x.shape, x.dtype)


def _cumulative(
    name: str,
    combine: Callable[[Any, Any], Any],
    neutral: float,
    fn: Callable[..., Any],
    doc: str,
    kind: str = "number",
) -> OpRow:
    """A row for out[k] = combine(out[k - 1], x[k]) along an axis."""

    def lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
        dtype = known_dtype(ctx, infos[0], 0)
        program = Program(ctx.name)
        (x,) = inputs(ctx, program, infos)
        if not x.shape:
            return program.finish([program.compute("out", (), lambda: x[()])])
        axis = normalize_axis(ctx, attrs["axis"], len(x.shape))
        # As in PyTorch, the running float32 result is rounded only where it is stored.
        inner = ir.dtype_of("float64") if dtype.name == "float32" else accumulator(dtype)
        out = program.alloc("out", x.shape, dtype)
        total = ir.Buffer("total", inner, (ONE,))  # running result of a line

        def line(*around: Any) -> ir.Stmt:
            k = ir.Var("k", ZERO.dtype)
            here = (*around[:axis], k, *around[axis:])
            more = combine(ir.load(total, ZERO), ir.cast_to(x[here], inner))
            add = ir.BufferStore(total, more, (ZERO,))
            give = ir.BufferStore(out.buffer, ir.cast_to(ir.load(total, ZERO), dtype), here)
            loop = ir.For(k, ZERO, x.shape[axis], ir.ForKind.SERIAL, ir.seq([add, give]))
            return ir.seq([ir.BufferStore(total, ir.const(neutral, inner), (ZERO,)), loop])

        around = (*x.shape[:axis], *x.shape[axis + 1 :])
        program.block("line", around, line, allocated=[total])
        return program.finish([out])

    def oracle(x: Array, axis: int | None) -> Array:
        return (
            x
            if x.ndim == 0
            else np.asarray(fn(wide(x), axis=axis, dtype=wide(x).dtype)).astype(x.dtype)
        )

    integers = (
        Sample((ints(4, 5),), {"axis": 1}),
        Sample((ints(40, dtype="int64"),), {"axis": 0}),
    )
    return OpRow(
        name,
        ("x",),
        partial(_deduce, kind=kind),
        lower,
        oracle,
        {"axis": REQUIRED},
        (f"aten.{name}.default",),
        ("CumSum",) if name == "cumsum" else (),
        (
            Sample((floats(3, 17),), {"axis": 1}, 17.0, 1e-5, _WHY),
            Sample((floats(5, 2, 3),), {"axis": 0}, 8.0, 1e-5, _WHY),
            Sample((floats(1, 4, 1),), {"axis": -2}, 8.0, 1e-5, _WHY),
            Sample((floats(9, dtype="float16"),), {"axis": 0}, 4.0, 2e-2, _WHY),
            Sample((floats(3, 0),), {"axis": 1}),
            Sample((floats(),), {"axis": None}),
            *(integers if kind == "number" else ()),
            Sample((values(1.0, float("inf"), 2.0, float("nan"), 3.0),), {"axis": 0}),
        ),
        doc,
        TorchCall(types="result"),
        kinds={"axis": "int or None"},
    )


def _log_of_sum(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)), relative to the larger of both."""
    larger = ir.maximum(a, b)
    more = ir.call("log1p", ir.call("exp", ir.minimum(a, b) - larger))
    return ir.select(ir.call("isinf", larger), larger, larger + more)


def _log_of_sums(x: Array, axis: int, dtype: Any) -> Array:
    return np.logaddexp.accumulate(x.astype(dtype), axis=axis)


def _deduce_extreme(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    if x.rank > 0:
        normalize_axis(ctx, attrs["axis"], x.rank)
    positions = unknown(matches, I64, x.rank) if x.shape is None else result(matches, x.shape, I64)
    return ir.TupleInfo((x, positions))


def _running_extreme(name: str, compare: type[ir.GE] | type[ir.LE], doc: str) -> OpRow:
    """A row for the extreme of the elements so far, and the position of its last occurrence."""

    def lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
        dtype = known_dtype(ctx, infos[0], 0)
        program = Program(ctx.name)
        (x,) = inputs(ctx, program, infos)
        if not x.shape:
            value = program.compute("values", (), lambda: x[()])
            return program.finish([value, program.compute("indices", (), lambda: ZERO)])
        axis = normalize_axis(ctx, attrs["axis"], len(x.shape))
        values = program.alloc("values", x.shape, dtype)
        indices = program.alloc("indices", x.shape, I64)
        best = ir.Buffer("best", dtype, (ONE,))
        place = ir.Buffer("place", I64, (ONE,))

        def line(*around: Any) -> ir.Stmt:
            k = ir.Var("k", I64)
            here = (*around[:axis], k, *around[axis:])
            new, old = x[here], ir.load(best, ZERO)
            pair = [ir.cast_to(v, "int8") if dtype.is_bool else v for v in (new, old)]
            taken = ir.logical_or(ir.compare(ir.EQ, k, ZERO), ir.compare(compare, *pair))
            if dtype.is_float:
                taken = ir.logical_or(taken, ir.call("isnan", new))
            take = ir.seq([ir.BufferStore(best, new, (ZERO,)), ir.BufferStore(place, k, (ZERO,))])
            give = [
                ir.BufferStore(values.buffer, ir.load(best, ZERO), here),
                ir.BufferStore(indices.buffer, ir.load(place, ZERO), here),
            ]
            body = ir.seq([ir.IfThenElse(taken, take), *give])
            start = [
                ir.BufferStore(best, ir.const(0, dtype), (ZERO,)),
                ir.BufferStore(place, ZERO, (ZERO,)),
            ]
            return ir.seq([*start, ir.For(k, ZERO, x.shape[axis], ir.ForKind.SERIAL, body)])

        around = (*x.shape[:axis], *x.shape[axis + 1 :])
        program.block("line", around, line, allocated=[best, place])
        return program.finish([values, indices])

    def oracle(x: Array, axis: int) -> list[Array]:
        values, indices = x.copy(), np.zeros(x.shape, np.int64)
        if not x.ndim or not x.size:
            return [values, indices]
        lines = np.moveaxis(values, axis, 0), np.moveaxis(indices, axis, 0)
        for k in range(1, x.shape[axis]):
            new, old = lines[0][k].copy(), lines[0][k - 1]
            better = new >= old if compare is ir.GE else new <= old
            better |= new != new
            lines[0][k] = np.where(better, new, old)
            lines[1][k] = np.where(better, k, lines[1][k - 1])
        return [values, indices]

    return OpRow(
        name,
        ("x",),
        _deduce_extreme,
        lower,
        oracle,
        {"axis": REQUIRED},
        samples=(
            Sample((floats(3, 17),), {"axis": 1}, 0.0),
            Sample((ints(4, 9, low=0, high=4),), {"axis": 0}, 0.0),
            Sample((values(1.0, float("nan"), 9.0, float("nan"), 2.0),), {"axis": 0}, 0.0),
            Sample((floats(9, dtype="bfloat16"),), {"axis": -1}, 0.0),
            Sample((bools(6),), {"axis": 0}, 0.0),
            Sample((floats(2, 0),), {"axis": 1}, 0.0),
            Sample((floats(),), {"axis": 0}, 0.0),
        ),
        doc=doc,
        kinds={"axis": "int"},
    )


ROWS: tuple[OpRow, ...] = (
    _cumulative("cumsum", ir.add, 0, np.cumsum, "Cumulative sum along an axis."),
    _cumulative("cumprod", ir.mul, 1, np.cumprod, "Cumulative product along an axis."),
    _cumulative(
        "logcumsumexp",
        _log_of_sum,
        -math.inf,
        _log_of_sums,
        "log of the cumulative sum of exponentials along an axis.",
        "float",
    ),
    _running_extreme("cummax", ir.GE, "Largest element so far, and its last position."),
    _running_extreme("cummin", ir.LE, "Smallest element so far, and its last position."),
)
