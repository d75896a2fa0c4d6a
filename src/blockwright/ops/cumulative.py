"""Cumulative sums and products along an axis: one block per line, with a loop inside the block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
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
from blockwright.ops.samples import floats, ints, values
from blockwright.script.compute import Program

_WHY = "n values in order are rounded n times"


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    require_kind(ctx, x.dtype, "number")
    if x.shape is None:
        return unknown(matches, x.dtype, x.rank)
    if x.shape:  # a rank-0 tensor is its own sum, whatever the axis
        normalize_axis(ctx, attrs["axis"], x.rank)
    return result(matches, x.shape, x.dtype)


def _cumulative(
    name: str, combine: Callable[[Any, Any], Any], neutral: int, fn: Callable[..., Any], doc: str
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

    return OpRow(
        name,
        ("x",),
        _deduce,
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
            Sample((ints(4, 5),), {"axis": 1}),
            Sample((ints(40, dtype="int64"),), {"axis": 0}),
            Sample((values(1.0, float("inf"), 2.0, float("nan"), 3.0),), {"axis": 0}),
        ),
        doc,
        TorchCall(types="result"),
        kinds={"axis": "int or None"},
    )


ROWS: tuple[OpRow, ...] = (
    _cumulative("cumsum", ir.add, 0, np.cumsum, "Cumulative sum along an axis."),
    _cumulative("cumprod", ir.mul, 1, np.cumprod, "Cumulative product along an axis."),
)
