"""Softmax and its logarithm; the maximum is subtracted first to avoid overflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    accumulator,
    broadcast_info,
    inputs,
    reference,
    require_kind,
    tensors,
    widen,
)
from blockwright.ops.reduction_axes import ReductionAxes
from blockwright.ops.row import Attrs, OpContext, OpRow, Sample, known_dtype, normalize_axis
from blockwright.ops.samples import floats, values
from blockwright.script.compute import Program


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = result = tensors(ctx, infos, 1, 1)
    require_kind(ctx, x.dtype, "float")
    if x.rank >= 0:
        normalize_axis(ctx, attrs["axis"], x.rank)
    return broadcast_info(ctx, result, x.dtype)


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = known_dtype(ctx, infos[0], 0)
    inner = accumulator(dtype)
    program = Program(ctx.name)
    (x,) = inputs(ctx, program, infos)
    axis = normalize_axis(ctx, attrs["axis"], len(x.shape))
    what = ReductionAxes(x.shape, (axis,), keepdims=False)

    def row(index: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(index[:axis]) + tuple(index[axis + 1 :])

    largest = what.run(program, "largest", "max", lambda *i: widen(x[i]), inner)

    def shifted(i: Sequence[Any]) -> Any:
        return ir.sub(widen(x[tuple(i)]), largest[row(i)])

    if ctx.name == "log_softmax":
        total = what.run(program, "total", "sum", lambda *i: ir.call("exp_ftz", shifted(i)), inner)
        out = program.compute(
            "out", x.shape, lambda *i: ir.sub(shifted(i), ir.call("log", total[row(i)])), dtype
        )
        return program.finish([out])
    power = program.compute("power", x.shape, lambda *i: ir.call("exp_ftz", shifted(i)), inner)
    total = what.run(program, "total", "sum", lambda *i: power[i], inner)
    # 1 <= total <= number of elements: its reciprocal neither overflows nor is denormal.
    one = ir.const(1.0, inner)
    share = program.compute("share", what.shape, lambda *i: ir.truediv(one, total[i]), inner)
    out = program.compute("out", x.shape, lambda *i: ir.mul(power[i], share[row(i)]), dtype)
    return program.finish([out])


def _softmax(x: Any, axis: int) -> Any:
    power = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return power / np.sum(power, axis=axis, keepdims=True)


def _log_softmax(x: Any, axis: int) -> Any:
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


_WHY = "x - max rounds at the size of x, and exp turns that into relative error"
_INF, _NAN = float("inf"), float("nan")


def _samples(absolute: float) -> tuple[Sample, ...]:
    return (
        Sample((floats(3, 17),), {}, 16.0, absolute, _WHY),
        Sample((floats(3, 7, 5),), {"axis": 1}, 16.0, absolute, _WHY),
        Sample((floats(4, 1),), {"axis": -1}, 4.0, absolute),
        Sample((floats(7, low=-90, high=90),), {"axis": 0}, 64.0, absolute, _WHY),
        Sample((values(1.0, -_INF, 2.0, _NAN, 0.0, 1.0, shape=(2, 3)),), {}, 16.0, absolute, _WHY),
        Sample((floats(9, dtype="float16"),), {}, 4.0),
        Sample((floats(2, 0),)),
    )


ROWS: tuple[OpRow, ...] = (
    OpRow(
        "softmax",
        ("x",),
        _deduce,
        _lower,
        reference(_softmax),
        {"axis": -1},
        ("aten.softmax.int", "aten._softmax.default"),
        ("Softmax",),
        _samples(0.0),
        "exp(x) normalized to sum 1 along an axis.",
        layout="axis",
        kinds={"axis": "int"},
    ),
    OpRow(
        "log_softmax",
        ("x",),
        _deduce,
        _lower,
        reference(_log_softmax),
        {"axis": -1},
        ("aten.log_softmax.int", "aten._log_softmax.default"),
        ("LogSoftmax",),
        _samples(1e-6),
        "The logarithm of softmax, without computing softmax.",
        layout="axis",
        kinds={"axis": "int"},
    ),
)
