"""Helpers shared by the operator families: element types, broadcasting, shape arguments.

Types narrower than float32 are computed in float32 and rounded once at the end; their sums are
accumulated in float32. `widen` and `accumulator` are the only places that encode this rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.row import (
    Array,
    Attrs,
    OpContext,
    broadcast_index,
    broadcast_shapes,
    known_dtype,
    known_shape,
    tensor,
)
from blockwright.script.compute import Into, Program, Tensor, reducer_of

I32 = ir.dtype_of("int32")
I64 = ir.dtype_of("int64")
BOOL = ir.dtype_of("bool")
FLOAT32 = ir.dtype_of("float32")
ZERO = ir.const(0, I64)
ONE = ir.const(1, I64)
Elementwise = Callable[..., Any]


def as_dim(value: Any) -> ir.Expr:
    """Convert an int or expression to a dimension."""
    return ir.as_expr(value, I64)


def accumulator(dtype: ir.DType) -> ir.DType:
    """The type in which sums and compositions over `dtype` are computed."""
    return FLOAT32 if dtype.is_float and dtype.bits < 32 else dtype


def widen(value: Any) -> Any:
    """Convert an element to its computation type."""
    return ir.cast_to(value, accumulator(value.dtype))


def unknown(infos: Sequence[ir.TensorInfo], dtype: ir.DType | None, rank: int) -> ir.TensorInfo:
    """A result of which only the rank is known, on the device of the first argument."""
    shape = () if rank == 0 else None
    return ir.TensorInfo(shape, dtype, rank, infos[0].device if infos else "")


def result(
    infos: Sequence[ir.TensorInfo], shape: Sequence[ir.Expr], dtype: ir.DType | None
) -> ir.TensorInfo:
    """A result of known shape, on the device of the first argument."""
    return ir.TensorInfo(tuple(shape), dtype, device=infos[0].device if infos else "")


def tensors(ctx: OpContext, infos: Sequence[ir.Info], low: int, high: int) -> list[ir.TensorInfo]:
    """All arguments as tensors; raises unless there are `low` to `high` of them."""
    if not low <= len(infos) <= high:
        wanted = str(low) if low == high else f"{low} to {high}"
        raise ctx.error(f"takes {wanted} tensor arguments, got {len(infos)}")
    return [tensor(ctx, info, position) for position, info in enumerate(infos)]


def same_dtype(ctx: OpContext, infos: Sequence[ir.TensorInfo]) -> ir.DType | None:
    """The common element type of the arguments; None if none is known."""
    known = [info.dtype for info in infos if info.dtype is not None]
    for dtype in known[1:]:
        if dtype is not known[0]:
            raise ctx.error(
                f"element types {known[0]} and {dtype} differ",
                "convert one argument with astype first",
            )
    return known[0] if known else None


def factor_dtype(ctx: OpContext, infos: Sequence[ir.TensorInfo], out_dtype: Any) -> ir.DType | None:
    """The element type that stands for those of two factors: the common one, if any.

    Integers of different types may be multiplied if `out_dtype` names the integer type of the
    result, as in a product of uint8 activations and int8 weights.
    """
    known = [info.dtype for info in infos if info.dtype is not None]
    if out_dtype is not None and ir.dtype_of(out_dtype).is_int and all(t.is_int for t in known):
        return known[0] if len(known) == len(infos) else None
    return same_dtype(ctx, infos)


def require_kind(ctx: OpContext, dtype: ir.DType | None, kind: str) -> None:
    """Raise unless `dtype` is of a kind: "any", "number", "float", "int", "bits" (int or bool)."""
    if dtype is None or kind == "any":
        return
    fits = {
        "number": dtype.is_float or dtype.is_int,
        "float": dtype.is_float,
        "int": dtype.is_int,
        "bits": dtype.is_int or dtype.is_bool,
    }[kind]
    if not fits:
        wanted = {
            "number": "a number type",
            "float": "a floating-point type",
            "int": "an integer type",
            "bits": "an integer type or bool",
        }[kind]
        raise ctx.error(f"needs {wanted}, got {dtype}", "convert the argument with astype first")


def broadcast_info(
    ctx: OpContext, infos: Sequence[ir.TensorInfo], dtype: ir.DType | None
) -> ir.TensorInfo:
    """Annotation of an elementwise result; only the rank if some shape is unknown."""
    shapes = [info.shape for info in infos if info.shape is not None]
    if len(shapes) == len(infos):
        return result(infos, broadcast_shapes(ctx, shapes), dtype)
    ranks = [info.rank for info in infos]
    return unknown(infos, dtype, -1 if min(ranks) < 0 else max(ranks))


def inputs(ctx: OpContext, program: Program, infos: Sequence[ir.TensorInfo]) -> list[Tensor]:
    """Parameters A, B, C, … of a program, one per tensor argument."""
    created: list[Tensor] = []
    for position, info in enumerate(infos):
        shape, dtype = known_shape(ctx, info, position), known_dtype(ctx, info, position)
        created.append(
            program.param("ABCDEFGH"[position] if position < 8 else f"A{position}", shape, dtype)
        )
    return created


def checked_position(value: Any, size: ir.Expr, *, from_end: bool) -> Any:
    """An index element as a checked int64; negative ones count from the end if `from_end`."""
    wide = ir.cast_to(value, I64)
    if from_end and value.dtype.kind != "uint":
        wide = ir.select(ir.compare(ir.LT, wide, ZERO), ir.add(wide, size), wide)
    return ir.call("checked_index", wide, size)


def serial_nest(shape: Sequence[ir.Expr], body: Callable[[tuple[ir.Var, ...]], ir.Stmt]) -> ir.Stmt:
    """Serial loops over a box in row-major order, with `body(indices)` inside."""
    indices = tuple(ir.Var(f"i{axis}", I64) for axis in range(len(shape)))
    stmt = body(indices)
    for index, extent in reversed(list(zip(indices, shape, strict=True))):
        stmt = ir.For(index, ZERO, extent, ir.ForKind.SERIAL, stmt)
    return stmt


def at(operand: Tensor, indices: Sequence[ir.Expr]) -> Any:
    """The element of a broadcast operand for element `indices` of the result."""
    return operand[broadcast_index(operand.shape, indices)]


def fold(
    program: Program,
    name: str,
    shape: Sequence[ir.Expr],
    over: Sequence[ir.Expr],
    body: Callable[..., Any],
    combiner: str,
    dtype: ir.DType,
    axes: Sequence[str] = (),
    into: Into | None = None,
) -> Tensor:
    """A reduction block, or the combiner's identity if the domain is known to be empty.

    A reduction initializes the result in its first iteration, and an empty domain has none.
    """
    if any(ir.is_const_int(extent, 0) for extent in over):
        (identity,) = reducer_of(combiner, [dtype]).identity
        return program.compute(
            name, shape, lambda *i: identity, dtype, axes=axes[: len(shape)], into=into
        )
    return program.reduce(name, shape, over, body, combiner, dtype, axes=axes, into=into)


def finish_rounded(program: Program, total: Tensor, dtype: ir.DType) -> ir.PrimFunc:
    """The program that returns `total`, rounded if it was accumulated in a wider type."""
    if total.dtype is dtype:
        return program.finish([total])
    out = program.compute("out", total.shape, lambda *i: total[i], dtype)
    return program.finish([out])


def lower_elementwise(
    ctx: OpContext, infos: Sequence[ir.TensorInfo], dtype: ir.DType | None, body: Elementwise
) -> ir.PrimFunc:
    """One block `out[i…] = body(a, b, …)` over the broadcast shape of the arguments."""
    program = Program(ctx.name)
    operands = inputs(ctx, program, infos)
    shape = broadcast_shapes(ctx, [t.shape for t in operands])
    out = program.compute("out", shape, lambda *i: body(*(at(t, i) for t in operands)), dtype)
    return program.finish([out])


def copy_program(
    ctx: OpContext,
    infos: Sequence[ir.TensorInfo],
    shape: Callable[[Tensor], Sequence[ir.Expr]],
    element: Callable[..., Any],
) -> ir.PrimFunc:
    """The program `out[i…] = element(x, shape, i)`."""
    program = Program(ctx.name)
    (x,) = inputs(ctx, program, infos[:1])
    dims = tuple(shape(x))
    return program.finish([program.compute("out", dims, lambda *i: element(x, dims, i))])


def bordered(
    x: Tensor, index: Sequence[Any], width: Sequence[tuple[ir.Expr, ir.Expr]], value: ir.Expr
) -> ir.Expr:
    """Element `index` of `x` padded with `value`, by (before, after) elements along each axis."""
    inside: list[ir.Expr] = []
    where: list[Any] = []
    for position, dim, (low, high) in zip(index, x.shape, width, strict=True):
        if not ir.is_const_int(low, 0):
            inside.append(position >= low)
        if not ir.is_const_int(high, 0):
            inside.append(position < ir.add(low, dim))
        where.append(ir.sub(position, low))
    return ir.if_then_else(ir.all_of(inside), x[tuple(where)], value)


def scalar_constant(ctx: OpContext, value: Any, dtype: ir.DType) -> ir.Expr:
    """Convert a scalar attribute (number or index expression) to an element type."""
    if isinstance(value, ir.Expr):
        return ir.cast_to(value, dtype)
    number: Any = value.item() if hasattr(value, "item") else value  # NumPy scalars
    if dtype.is_bool and not isinstance(number, bool):
        raise ctx.error(f"scalar {number!r} does not fit bool", "convert the argument with astype")
    if dtype.is_int:
        if isinstance(number, float) and not number.is_integer():
            raise ctx.error(
                f"scalar {number!r} does not fit {dtype}",
                "convert the argument to a float type with astype first",
            )
        if not dtype.min_value <= number <= dtype.max_value:
            raise ctx.error(f"scalar {number!r} is out of range for {dtype}")
    return ir.const(number, dtype)


def axes_of(ctx: OpContext, axis: Any, rank: int) -> tuple[int, ...]:
    """An `axis` attribute (None for all, int or tuple) as sorted nonnegative axes."""
    if axis is None:
        return tuple(range(rank))
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    out: set[int] = set()
    for item in given:
        if not -rank <= item < rank:
            raise ctx.error(f"axis {item} is out of range for rank {rank}")
        out.add(item % rank)
    if len(out) != len(given):
        raise ctx.error(f"axes {given} contain one axis twice")
    return tuple(sorted(out))


def shape_operand(
    ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs
) -> tuple[list[ir.TensorInfo], tuple[ir.Expr, ...] | None, int]:
    """Tensor arguments, the requested shape and its rank.

    The shape is the attribute `shape` or a shape argument. Deduction finds the argument among the
    annotations, lowering in `attrs["shape_args"]`. The shape is None if only its rank (or -1) is
    known.
    """
    tensor_infos = [info for info in infos if isinstance(info, ir.TensorInfo)]
    shapes = [info for info in infos if isinstance(info, ir.ShapeInfo)]
    for argument in attrs.get("shape_args", ()):
        if isinstance(argument, ir.GraphExpr) and isinstance(argument.info, ir.ShapeInfo):
            shapes.append(argument.info)
    given = attrs.get("shape")
    if given is not None:
        dims = tuple(as_dim(d) for d in given)
        return tensor_infos, dims, len(dims)
    if len(shapes) != 1:
        raise ctx.error(
            "needs the attribute `shape` or one shape argument",
            "pass shape=(…), or R.shape([…]) as the last argument",
        )
    values = shapes[0].values
    return tensor_infos, values, shapes[0].ndim if values is None else len(values)


def require_shape(ctx: OpContext, shape: tuple[ir.Expr, ...] | None) -> tuple[ir.Expr, ...]:
    """The requested shape; raises if only its rank is known."""
    if shape is None:
        raise ctx.error("the requested shape is unknown", "bind it with match_cast first")
    return shape


def wide(array: Array) -> Array:
    """Widen an array for reference arithmetic: float64 for floats, unchanged otherwise."""
    dtype = ir.dtype_of(array.dtype)
    return array.astype(np.float64) if dtype.is_float else array


def reference(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy oracle computed in float64 and rounded once to the first argument's type."""

    def oracle(*arrays: Array, **attrs: Any) -> Array:
        value = np.asarray(fn(*(wide(np.asarray(a)) for a in arrays), **attrs))
        return value.astype(np.asarray(arrays[0]).dtype)

    return oracle
