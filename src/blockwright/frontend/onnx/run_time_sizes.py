"""Sizes that the model computes when it runs: the targets of reshapes, the bounds of slices.

A tensor of sizes is made valid by tensor operators (no -1, no bound outside of its axis), then
loaded (`R.tensor_to_shape`) and cast to symbols:

    Reshape(x, target)  →  t = where(target == -1, rest, target)
                           s = match_cast(R.tensor_to_shape(t), R.Shape((size, size_1)))
                           R.reshape(x, (size, size_1))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import Call, dims_of, dtype_of, rank_of
from blockwright.frontend.onnx.sizes import I64, expr, packed
from blockwright.graph import shape_value, symbol_ranges


def computed(call: Call, position: int) -> ir.GraphExpr | None:
    """An input of a known number of sizes that are computed when the model runs; else None."""
    value = call.value(position) if call.has(position) else None
    if not isinstance(value, ir.GraphExpr) or isinstance(value, ir.Constant):
        return None
    if rank_of(value) == 0:
        value = call.reshape(value, (1,))
    single = rank_of(value) == 1 and ir.const_int(dims_of(value)[0]) is not None
    return call.cast(value, I64) if single else None


def sizes_of(call: Call, position: int, what: str) -> tuple[Any, ...]:
    """An input as integers and sizes, which may be computed when the model runs.

    Raises: ImporterError BW523 if the number of sizes is not known.
    """
    later = computed(call, position)
    return call.sizes(position, what) if later is None else loaded(call, later)


def count_of(sizes: ir.GraphExpr) -> int:
    """The number of sizes in a tensor that `computed` returned."""
    count = ir.const_int(dims_of(sizes)[0])
    assert count is not None
    return count


def loaded(
    call: Call, sizes: ir.GraphExpr, limits: Sequence[Any] | None = None
) -> tuple[ir.Var, ...]:
    """Symbols for the elements of a tensor, which calls check to be at least 0.

    Args:
        limits: the largest values, as the caller has made sure.
    """
    imp = call.imp
    most = () if limits is None else (shape_value([expr(limit) for limit in limits]),)
    shape = imp.builder.emit(ir.GraphCall(ir.OpRef("tensor_to_shape"), (sizes, *most)), "loaded")
    symbols = tuple(ir.Var(imp.dimensions.unique("size"), I64) for _ in range(count_of(sizes)))
    for symbol, bounds in symbol_ranges(imp.builder.attrs, symbols).items():
        imp.builder.analyzer.bind(symbol, bounds)
    imp.builder.match_cast(shape, ir.ShapeInfo(symbols), "sizes")
    return symbols


def _listed(call: Call, values: Sequence[Any]) -> ir.GraphExpr:
    """Numbers and sizes as a tensor."""
    items = np.empty(len(values), dtype=object)
    items[:] = [v if isinstance(v, int) else expr(v) for v in values]
    return call.imp.tensor(packed(items, I64))


def _compared(call: Call, name: str, a: ir.GraphExpr, number: int) -> ir.GraphExpr:
    return call.apply(name, a, scalar=number, scalar_side="right")


def reshape_target(
    call: Call, target: ir.GraphExpr, dims: Sequence[ir.Expr], total: Any, keeps: bool
) -> tuple[ir.Var, ...]:
    """The sizes of a reshape of a tensor with `total` elements.

    A -1 is what remains; if `keeps`, a 0 is the dimension of the operand at the same place.
    """
    count = count_of(target)
    if keeps:
        own = _listed(call, [*dims, *([0] * count)][:count])
        target = call.apply("where", _compared(call, "equal", target, 0), own, target)
    open_ = _compared(call, "equal", target, -1)
    one = call.scalar(1, I64)
    known = call.apply("prod", call.apply("where", open_, one, target), axes=0, keepdims=False)
    rest = call.apply("floor_divide", _listed(call, [total]), _compared(call, "maximum", known, 1))
    return loaded(call, call.apply("where", open_, rest, target))


def expanded_shape(call: Call, target: ir.GraphExpr, dims: Sequence[ir.Expr]) -> list[ir.Expr]:
    """The shape of a broadcast: a size 1 of the target keeps the dimension of the operand.

    Calls check that other sizes of the target are those of the operand, unless that is 1.
    """
    symbols = loaded(call, target)
    rank = max(len(dims), len(symbols))
    one = ir.const(1, I64)
    ours = [one] * (rank - len(dims)) + list(dims)
    theirs: list[ir.Expr] = [one] * (rank - len(symbols)) + list(symbols)
    shape: list[ir.Expr] = []
    for axis, (mine, wanted) in enumerate(zip(ours, theirs, strict=True)):
        if ir.is_const_int(mine, 1):
            shape.append(wanted)
            continue
        if call.imp.builder.may_repeat(mine):  # the builder requires that one is 1, or both equal
            shape.append(ir.select(ir.compare(ir.EQ, wanted, one), mine, wanted))
            continue
        shape.append(mine)
        if not ir.is_const_int(wanted, 1):
            fits = ir.logical_or(ir.compare(ir.EQ, wanted, one), ir.compare(ir.EQ, wanted, mine))
            call.require(fits, unfit(call, axis))
    return shape


def unfit(call: Call, axis: int) -> str:
    """The BW708 message for a target size that neither is 1 nor equals the size of the operand."""
    return (
        f"BW708: dimension {axis} of the shape of {call.op} {call.name} does not fit\n"
        "help: an axis of an input is repeated if the model declares that its size is 1"
    )


def slice_bounds(
    call: Call,
    bounds: ir.GraphExpr,
    sizes: Sequence[ir.Expr],
    backward: Sequence[bool],
    *,
    starts: bool,
) -> tuple[ir.Var, ...]:
    """Bounds of slices along axes of the given sizes, clamped as ONNX says.

    Args:
        backward: which axes are sliced with a negative step; their bounds count from the end.
    """
    own, zero = _listed(call, sizes), call.scalar(0, I64)
    below = _compared(call, "less", bounds, 0)
    counted = call.apply("where", below, call.apply("add", bounds, own), bounds)
    most = own
    if any(backward):
        mirror = call.imp.tensor(np.array(backward))
        last = _compared(call, "subtract", own, 1)
        counted = call.apply("where", mirror, call.apply("subtract", last, counted), counted)
        most = call.apply("where", mirror, last, own) if starts else own
    clamped = call.apply("maximum", call.apply("minimum", counted, most), zero)
    return loaded(call, clamped, sizes)


def range_count(call: Call, begin: ir.GraphExpr, end: ir.GraphExpr, step: ir.GraphExpr) -> ir.Var:
    """The number of elements of a range: ⌈(end - begin) / step⌉, at least 0."""
    span = call.apply("subtract", begin, end)
    if dtype_of(span).is_float:
        steps = call.apply("floor", call.apply("divide", span, step))
    else:
        steps = call.apply("floor_divide", span, step)
    count = call.cast(call.apply("negative", steps), I64)
    count = _compared(call, "maximum", call.reshape(count, (1,)), 0)
    return loaded(call, count)[0]
