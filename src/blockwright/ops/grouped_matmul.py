"""Products of groups of rows with a matrix each, as in mixtures of experts.

x: (s, k), weight: (e, k, n), ends: (e,)   →   rows ends[g - 1] … ends[g] of x @ weight[g]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    I64,
    ONE,
    ZERO,
    accumulator,
    fold,
    inputs,
    require_kind,
    result,
    same_dtype,
    tensors,
    unknown,
)
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, known_dtype
from blockwright.ops.samples import floats, values
from blockwright.script.compute import Program


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, weight, ends = matches = tensors(ctx, infos, 3, 3)
    dtype = same_dtype(ctx, [x, weight])
    require_kind(ctx, dtype, "number")
    require_kind(ctx, ends.dtype, "int")
    for info, name, rank in ((x, "rows", 2), (weight, "weight", 3), (ends, "ends", 1)):
        if info.rank not in (-1, rank):
            raise ctx.error(f"the {name} have rank {info.rank}, not {rank}")
    if x.shape is None or weight.shape is None or ends.shape is None:
        return unknown(matches, dtype, 2)
    ctx.require_equal(x.shape[1], weight.shape[1], "rows and weights do not fit")
    ctx.require_equal(ends.shape[0], weight.shape[0], "each group needs a weight")
    return result(matches, (x.shape[0], weight.shape[2]), dtype)


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    """The group of a row is the first whose end is behind it; rows behind all ends are 0."""
    dtype, program = known_dtype(ctx, infos[0], 0), Program(ctx.name)
    x, weight, ends = inputs(ctx, program, infos)
    (rows, depth), (groups, _, columns), inner = x.shape, weight.shape, accumulator(dtype)

    def candidate(s: Any, g: Any) -> Any:
        inside = ir.compare(ir.LT, ir.cast_to(s, I64), ir.cast_to(ends[g], I64))
        return ir.select(inside, ir.cast_to(g, I64), ir.cast_to(groups, I64))

    group = fold(program, "group", (rows,), (groups,), candidate, "min", I64, ("s", "g"))

    def term(s: Any, n: Any, k: Any) -> Any:
        last = ir.maximum(ir.sub(groups, ONE), ZERO)
        own = ir.minimum(ir.maximum(group[s], ZERO), last)
        return ir.mul(ir.cast_to(x[s, k], inner), ir.cast_to(weight[own, k, n], inner))

    shape = (rows, columns)
    total = fold(program, "total", shape, (depth,), term, "sum", inner, ("s", "n", "k"))

    def element(s: Any, n: Any) -> Any:
        value = ir.cast_to(total[s, n], dtype)
        return ir.select(ir.compare(ir.LT, group[s], groups), value, ir.const(0, dtype))

    return program.finish([program.compute("out", shape, element, dtype)])


def _oracle(x: Array, weight: Array, ends: Array) -> Array:
    wide = np.float64 if x.dtype.kind not in "iu" else x.dtype
    out = np.zeros((x.shape[0], weight.shape[2]), wide)
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:  # else no row is left for the group
            out[start:end] = x[start:end].astype(wide) @ weight[group].astype(wide)
            start = end
    return out.astype(x.dtype)


_MEAN = "a sum of products in order: the terms bound the error"


def _case(*args: Any, absolute: float = 1e-5) -> Sample:
    return Sample(args, {}, 16.0, absolute, _MEAN)


ROWS: tuple[OpRow, ...] = (
    OpRow(
        "grouped_matmul",
        ("x", "weight", "ends"),
        _deduce,
        _lower,
        _oracle,
        samples=(
            _case(floats(7, 5), floats(3, 5, 9), values(2, 2, 7, dtype="int32")),
            _case(floats(6, 4), floats(2, 4, 3), values(3, 5, dtype="int64")),
            _case(floats(6, 4), floats(4, 4, 3), values(-2, 3, 1, 9, dtype="int32")),
            _case(
                floats(4, 8, dtype="float16"),
                floats(2, 8, 16, dtype="float16"),
                values(0, 4, dtype="int32"),
                absolute=2e-2,
            ),
        ),
        doc="Row s of the result is x[s] @ weight[g] for the first group g with s < ends[g], and 0 "
        "behind all of them.",
    ),
)
