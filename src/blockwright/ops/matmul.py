"""Matrix products, each a single reduction block, so that schedules see the plain loop nest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    accumulator,
    at,
    factor_dtype,
    finish_rounded,
    fold,
    inputs,
    require_kind,
    result,
    same_dtype,
    tensors,
    unknown,
    wide,
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
)
from blockwright.ops.samples import floats, ints
from blockwright.script.compute import Program

_MATMUL: dict[str, Any] = {"out_dtype": None}


def _out_type(attrs: Attrs, dtype: ir.DType | None) -> ir.DType | None:
    return dtype if attrs["out_dtype"] is None else ir.dtype_of(attrs["out_dtype"])


def _check_rank(ctx: OpContext, infos: Sequence[ir.TensorInfo]) -> None:
    for position, info in enumerate(infos):
        if info.rank == 0:
            raise ctx.error(f"argument {position} is a scalar", "use multiply")


def _deduce_matmul(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    a, b = matches = tensors(ctx, infos, 2, 2)
    dtype = factor_dtype(ctx, matches, attrs["out_dtype"])
    require_kind(ctx, dtype, "number")
    _check_rank(ctx, matches)
    if a.shape is None or b.shape is None:
        if a.rank < 0 or b.rank < 0:
            return unknown(matches, _out_type(attrs, dtype), -1)
        rank = max(a.rank, b.rank, 2) - (a.rank == 1) - (b.rank == 1)
        return unknown(matches, _out_type(attrs, dtype), rank)
    depth = b.shape[-2] if b.rank > 1 else b.shape[0]
    ctx.require_equal(a.shape[-1], depth, "the inner dimensions differ")
    batch = broadcast_shapes(ctx, [a.shape[:-2], b.shape[:-2]])
    rows = a.shape[-2:-1] if a.rank > 1 else ()
    columns = b.shape[-1:] if b.rank > 1 else ()
    return result(matches, (*batch, *rows, *columns), _out_type(attrs, dtype))


def _lower_matmul(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = _out_type(attrs, known_dtype(ctx, infos[0], 0))
    assert dtype is not None
    inner = accumulator(dtype)
    program = Program(ctx.name)
    a, b = inputs(ctx, program, infos)
    batch = broadcast_shapes(ctx, [a.shape[:-2], b.shape[:-2]])
    has_row, has_column = len(a.shape) > 1, len(b.shape) > 1
    shape = (*batch, *(a.shape[-2:-1] if has_row else ()), *(b.shape[-1:] if has_column else ()))

    def term(*index: Any) -> Any:
        lead, rest, k = index[: len(batch)], list(index[len(batch) : -1]), index[-1]
        row = (rest.pop(0),) if has_row else ()
        column = tuple(rest)
        of_a = (*_of_batch(a.shape[:-2], batch, lead), *row, k)
        of_b = (*_of_batch(b.shape[:-2], batch, lead), k, *column)
        return ir.mul(ir.cast_to(a[of_a], inner), ir.cast_to(b[of_b], inner))

    name = "out" if inner is dtype else "product"
    total = fold(program, name, shape, a.shape[-1:], term, "sum", inner)
    return finish_rounded(program, total, dtype)


def _of_batch(
    shape: Sequence[ir.Expr], batch: Sequence[ir.Expr], lead: Sequence[ir.Expr]
) -> tuple[ir.Expr, ...]:
    """Indices into the batch axes of an operand.

    Batch axes of extent 1 are indexed by their iterator instead of 0, so that the product is a
    contraction for any batch size.
    """
    own = batch[len(batch) - len(shape) :]
    tail = lead[len(lead) - len(shape) :]
    repeated = broadcast_index(shape, lead)
    return tuple(
        index if ir.is_const_int(size, 1) else at
        for size, index, at in zip(own, tail, repeated, strict=True)
    )


def _deduce_linear(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    matches = tensors(ctx, infos, 2, 3)
    x, weight = matches[0], matches[1]
    dtype = same_dtype(ctx, matches)
    require_kind(ctx, dtype, "number")
    if x.rank == 0 or weight.rank not in (2, -1):
        raise ctx.error("needs x of rank 1 or more and a weight of shape (out, in)")
    if weight.shape is None or x.shape is None:
        return unknown(matches, dtype, x.rank)
    ctx.require_equal(x.shape[-1], weight.shape[1], "x and weight disagree on the inner dimension")
    if len(matches) == 3 and matches[2].shape is not None:
        if matches[2].rank != 1:
            raise ctx.error(f"the bias has rank {matches[2].rank}, not 1")
        ctx.require_equal(matches[2].shape[0], weight.shape[0], "bias and weight disagree")
    return result(matches, (*x.shape[:-1], weight.shape[0]), dtype)


def _lower_linear(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = known_dtype(ctx, infos[0], 0)
    inner = accumulator(dtype)
    program = Program(ctx.name)
    x, weight, *bias = inputs(ctx, program, infos)
    shape = (*x.shape[:-1], weight.shape[0])

    def term(*index: Any) -> Any:
        *lead, j, k = index
        left, right = x[(*lead, k)], weight[j, k]
        return ir.mul(ir.cast_to(left, inner), ir.cast_to(right, inner))

    if not bias:
        name = "out" if inner is dtype else "product"
        total = fold(program, name, shape, x.shape[-1:], term, "sum", inner)
        return finish_rounded(program, total, dtype)
    total = fold(program, "product", shape, x.shape[-1:], term, "sum", inner)
    out = program.compute(
        "out", shape, lambda *i: ir.add(total[i], ir.cast_to(at(bias[0], i), inner)), dtype
    )
    return program.finish([out])


def _matmul(a: Array, b: Array, *, out_dtype: Any) -> Array:
    target = a.dtype if out_dtype is None else ir.dtype_of(out_dtype).numpy()
    is_float = ir.dtype_of(target).is_float
    value = (
        np.matmul(wide(a), wide(b)) if is_float else np.matmul(a.astype(target), b.astype(target))
    )
    return np.asarray(value).astype(target)


def _linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    value = wide(x) @ wide(weight).T
    return np.asarray(value if bias is None else value + wide(bias)).astype(x.dtype)


_SUM = "sums of products up to 9 in order cancel: the error scales with their sizes"


def _case(*args: Any, **attrs: Any) -> Sample:
    return Sample(args, attrs, 4.0, 2e-5, _SUM)


ROWS: tuple[OpRow, ...] = (
    OpRow(
        "matmul",
        ("a", "b"),
        _deduce_matmul,
        _lower_matmul,
        _matmul,
        dict(_MATMUL),
        ("aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default"),
        ("MatMul",),
        (
            _case(floats(7, 17), floats(17, 3)),
            _case(floats(1, 1), floats(1, 1)),
            _case(floats(3, 7, 5), floats(3, 5, 2)),
            _case(floats(2, 1, 3, 4), floats(5, 4, 3)),
            _case(floats(5), floats(5)),
            _case(floats(5), floats(2, 5, 3)),
            _case(floats(2, 3, 5), floats(5)),
            _case(floats(3, 0), floats(0, 5)),
            _case(floats(3, 5, dtype="float16"), floats(5, 3, dtype="float16")),
            _case(ints(3, 5), ints(5, 7)),
            _case(ints(3, 5, dtype="int8"), ints(5, 7, dtype="int8"), out_dtype="int32"),
            _case(ints(9, 5, dtype="uint8"), ints(5, 40, dtype="int8"), out_dtype="int32"),
        ),
        "Matrix product over the last two dimensions; leading dimensions broadcast. Integers of "
        "different types are multiplied exactly if `out_dtype` names the integer type of the sums.",
    ),
    OpRow(
        "linear",
        ("x", "weight", "bias?"),
        _deduce_linear,
        _lower_linear,
        _linear,
        {},
        ("aten.linear.default",),
        ("Gemm",),
        (
            _case(floats(3, 17), floats(7, 17), floats(7)),
            _case(floats(17), floats(1, 17)),
            _case(floats(2, 3, 5), floats(4, 5), floats(4)),
            _case(floats(0, 3), floats(2, 3), floats(2)),
            _case(
                floats(3, 5, dtype="bfloat16"),
                floats(4, 5, dtype="bfloat16"),
                floats(4, dtype="bfloat16"),
            ),
        ),
        "x · weightᵀ + bias for a weight of shape (out, in).",
    ),
)
