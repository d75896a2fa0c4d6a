"""Operators whose result has as many elements as their operand has of a kind.

    nonzero(x)           the positions of the elements that are not 0
    masked_select(x, m)  the elements where the mask is True

The size of the result is known when the program has run. It writes results of the largest size, of
which the first elements count, and last that size (`OpRow.bounded`); `passes/bind_sizes.py` takes
the part that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from blockwright.ops.relabel import element_count
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
from blockwright.script.compute import Program, Tensor

_SIZE = "size"


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
    positions = ir.TensorInfo(
        (as_dim(len(shape)), element_count(shape)), I64, device=infos[0].device
    )
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
    return Bounded((ir.TensorInfo((element_count(shape),), dtype, device=infos[0].device),), (0,))


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
)
