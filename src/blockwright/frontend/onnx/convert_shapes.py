"""Operators that move elements: reshape, slice, split, pad, tile, transposed blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import (
    Call,
    Converters,
    Value,
    axis_of,
    dims_of,
    dtype_of,
    own_axis,
    place_of,
    rank_of,
)
from blockwright.frontend.onnx.run_time_sizes import (
    computed,
    count_of,
    expanded_shape,
    loaded,
    reshape_target,
    sizes_of,
    slice_bounds,
    unfit,
)
from blockwright.frontend.onnx.sizes import I64, expr
from blockwright.graph import shape_value

TABLE = Converters()
_ZERO = ir.const(0, I64)


@TABLE.op("Reshape")
def _reshape(call: Call) -> Value:
    """A 0 in the shape keeps a dimension, unless `allowzero` is set; -1 is what remains."""
    x, keeps = call.tensor(0), not call.attr("allowzero", 0)
    dims, target = dims_of(x), computed(call, 1)
    if target is not None:
        chosen = reshape_target(call, target, dims, product(dims), keeps)
        return call.reshape(_with_elements(call, x, chosen), chosen)
    wanted = call.sizes(1, "the shape")
    if keeps and any(_is(d, 0) for d in wanted[len(dims) :]):
        raise call.error("a 0 in the shape keeps an axis that the operand lacks", "write its size")
    shape = [dims[k] if _is(d, 0) and keeps else d for k, d in enumerate(wanted)]
    open_axes = [k for k, d in enumerate(shape) if _is(d, -1)]
    if len(open_axes) > 1:
        raise call.error("the shape has more than one -1", "write the sizes of the others")
    if open_axes:
        (axis,) = open_axes
        rest = [d for k, d in enumerate(shape) if k != axis]
        shape[axis] = _quotient(call, dims, rest)
    return call.reshape(_with_elements(call, x, shape), shape)


def _with_elements(call: Call, x: ir.GraphExpr, shape: Any) -> ir.GraphExpr:
    """The tensor with as many elements as a shape has, which calls check unless it is proved."""
    have, wanted = product(dims_of(x)), product(shape)
    analyzer = call.imp.builder.analyzer
    if analyzer.prove_equal(have, wanted) or analyzer.prove(ir.compare(ir.NE, have, wanted)):
        return x
    flat = call.reshape(x, (have,))
    info = ir.TensorInfo((wanted,), dtype_of(x))
    message = (
        f"BW708: {call.op} {call.name}: %d elements do not fill a shape of %d\n"
        "help: pass inputs of other sizes"
    )
    return call.imp.builder.match_cast(flat, info, "sized", message, (have, wanted))


def _is(value: Any, number: int) -> bool:
    return isinstance(value, int) and value == number


def _quotient(call: Call, dims: Any, rest: list[Any]) -> Any:
    """The product of `dims` divided by that of `rest`, where common factors cancel.

    An empty tensor may have a quotient 0 // 0, for which ONNX gives no value. With a factor that
    cancels it has one, that of all other sizes.
    """
    above, left = _factors(dims)
    below, right = _factors(rest)
    same = call.imp.builder.analyzer.prove_equal
    divisor: list[Any] = []
    for value in right:
        places = [k for k, other in enumerate(left) if same(other, value)]
        if places:
            del left[places[0]]
        else:
            divisor.append(value)
    common = math.gcd(above, below)
    total = product([above // common, *left])
    if below == common and not divisor:
        return total
    return ir.floordiv(total, product([below // common, *divisor]))


def _factors(values: Any) -> tuple[int, list[ir.Expr]]:
    """The factors of a product of sizes: a number other than 0, and the rest."""
    number, factors, waiting = 1, list[ir.Expr](), [expr(value) for value in values][::-1]
    while waiting:
        value = waiting.pop()
        known = ir.const_int(value)
        if known:
            number *= known
        elif isinstance(value, ir.Mul):
            waiting += [value.b, value.a]
        else:
            factors.append(value)
    return number, factors


def product(values: Any) -> Any:
    """The product of sizes."""
    result: Any = ir.const(1, I64)
    for value in values:
        result = ir.mul(result, expr(value))
    return result


@TABLE.op("Flatten")
def _flatten(call: Call) -> Value:
    x = call.tensor(0)
    dims = dims_of(x)
    axis = place_of(call.attr("axis"), len(dims))
    return call.reshape(x, (product(dims[:axis]), product(dims[axis:])))


@TABLE.op("Transpose")
def _transpose(call: Call) -> Value:
    x = call.tensor(0)
    return call.apply("permute_dims", x, axes=call.attr("perm", tuple(range(rank_of(x)))[::-1]))


def axes_of(call: Call, position: int) -> tuple[int, ...] | None:
    """Axes as an attribute (of older versions) or an input; None if left out."""
    if "axes" in call.attrs:
        return tuple(call.attr("axes"))
    return call.ints(position, "axes") if call.has(position) else None


@TABLE.op("Unsqueeze")
def _unsqueeze(call: Call) -> Value:
    x, axes = call.tensor(0), axes_of(call, 1)
    assert axes is not None
    rank = rank_of(x) + len(axes)
    places = {axis_of(axis, rank) for axis in axes}
    if len(places) != len(axes):
        raise call.error(f"axes {axes} contain one axis twice", "name each axis once")
    rest = iter(dims_of(x))
    return call.reshape(x, [1 if axis in places else next(rest) for axis in range(rank)])


@TABLE.op("Squeeze")
def _squeeze(call: Call) -> Value:
    x, axes = call.tensor(0), axes_of(call, 1)
    dims = dims_of(x)
    if axes is None:
        places = {axis for axis, d in enumerate(dims) if ir.is_const_int(d, 1)}
        for axis, size in enumerate(dims):
            _require_kept(call, axis, size)
    else:
        places = {own_axis(axis, len(dims)) for axis in axes}
    for axis in places:
        if ir.const_int(dims[axis]) is None:
            one = ir.compare(ir.EQ, dims[axis], ir.const(1, I64))
            call.require(one, f"BW708: dimension {axis} is squeezed and must be 1")
        elif not ir.is_const_int(dims[axis], 1):
            raise call.error(f"dimension {axis} is {dims[axis]}, not 1", "squeeze another axis")
    return call.reshape(x, [d for axis, d in enumerate(dims) if axis not in places])


def _require_kept(call: Call, axis: int, size: ir.Expr) -> None:
    """Reject calls in which an axis that a Squeeze without axes keeps has one element.

    The result would have another rank, which a program cannot have.
    """
    if ir.const_int(size) is None:
        several = ir.compare(ir.NE, size, ir.const(1, I64))
        message = (
            f"BW708: dimension {axis} is 1, which a Squeeze without axes would drop\n"
            "help: name the axes to squeeze, or declare the dimension as 1"
        )
        call.require(several, message)


@TABLE.op("Expand")
def _expand(call: Call) -> Value:
    """Broadcast in both directions: a size 1 of the wanted shape keeps the operand's."""
    x, target = call.tensor(0), computed(call, 1)
    if target is not None:
        chosen = expanded_shape(call, target, dims_of(x))
        return call.apply("broadcast_to", x, shape_value(chosen))
    wanted = call.sizes(1, "the shape")
    dims: list[Any] = list(dims_of(x))
    rank = max(len(dims), len(wanted))
    dims = [1] * (rank - len(dims)) + dims
    shape = [1] * (rank - len(wanted)) + list(wanted)
    both = [_expanded(call, axis, *pair) for axis, pair in enumerate(zip(dims, shape, strict=True))]
    return call.apply("broadcast_to", x, shape_value(both))


def _expanded(call: Call, axis: int, size: Any, wanted: Any) -> ir.Expr:
    """A size of a broadcast; the builder repeats an axis of `size` elements up to it.

    A size that is wanted and may be 1 keeps that of the operand.
    """
    builder, one = call.imp.builder, ir.const(1, I64)
    size, wanted = expr(size), expr(wanted)
    if _is_one(wanted) or _is_one(size):
        return size if _is_one(wanted) else wanted
    if builder.analyzer.prove_equal(size, wanted) or not builder.may_repeat(wanted):
        return wanted
    if not builder.is_short(wanted) and builder.may_repeat(size):
        return ir.select(ir.compare(ir.EQ, wanted, one), size, wanted)
    fits = ir.logical_or(ir.compare(ir.EQ, wanted, size), ir.compare(ir.EQ, wanted, one))
    call.require(fits, unfit(call, axis))
    return size


def _is_one(value: Any) -> bool:
    return _is(value, 1) or (isinstance(value, ir.Expr) and ir.is_const_int(value, 1))


@TABLE.op("Slice")
def _slice(call: Call) -> Value:
    x = call.tensor(0)
    axes = axes_of(call, 3)
    if "starts" in call.attrs:
        starts, ends = call.attr("starts"), call.attr("ends")
    else:
        steps = call.ints(4, "steps") if call.has(4) else None
        starts, ends = (_bounds(call, x, k, axes, steps) for k in (1, 2))
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = call.ints(4, "steps") if call.has(4) else (1,) * len(starts)
    for axis, begin, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            raise call.error("the step is 0", "set a step")
        axis = own_axis(axis, rank_of(x))
        if step < 0:
            x = call.apply("flip", x, axis=axis)
        bounds = {"begin": _bound(begin), "end": _bound(end)}
        x = call.apply("slice", x, axis=axis, **bounds, step=abs(step))
    return x if x is not call.tensor(0) else call.reshape(x, dims_of(x))


def _bounds(
    call: Call,
    x: ir.GraphExpr,
    position: int,
    axes: tuple[int, ...] | None,
    steps: tuple[int, ...] | None,
) -> tuple[Any, ...]:
    """The starts or ends of slices; those with a negative step are places in the reversed axis."""
    later = computed(call, position)
    given = call.sizes(position, "starts" if position == 1 else "ends") if later is None else ()
    count = len(given) if later is None else count_of(later)
    places = range(count) if axes is None else axes
    sizes = [dims_of(x)[own_axis(axis, rank_of(x))] for axis in places]
    backward = [step < 0 for step in steps or (1,) * count]
    if later is not None:
        return slice_bounds(call, later, sizes, backward, starts=position == 1)
    every = zip(given, sizes, backward, strict=True)
    return tuple(_mirrored(v, size, position == 1) if back else v for v, size, back in every)


_MOST = (1 << 40) - 1


def _bound(value: Any) -> Any:
    """A bound that fits the range of sizes."""
    return max(-_MOST, min(_MOST, value)) if isinstance(value, int) else value


def _mirrored(value: Any, size: ir.Expr, is_start: bool) -> ir.Expr:
    """A place in the reversed axis: a start before the axis is the last one, an end its size."""
    place, last = expr(_bound(value)), ir.sub(size, ir.const(1, I64))
    if not (isinstance(value, int) and value >= 0):
        place = ir.select(ir.compare(ir.LT, place, _ZERO), ir.add(place, size), place)
    most = last if is_start else size
    return ir.maximum(ir.minimum(ir.sub(last, place), most), _ZERO)


@TABLE.op("Split")
def _split(call: Call) -> Value:
    x = call.tensor(0)
    axis = own_axis(call.attr("axis"), rank_of(x))
    size = dims_of(x)[axis]
    count = len(call.outputs)
    if "split" in call.attrs or call.has(1):
        given = call.attr("split") if "split" in call.attrs else sizes_of(call, 1, "split")
        parts = list(given)
        _check_parts(call, parts, size)
    else:
        width = ir.floordiv(ir.add(size, ir.const(count - 1, I64)), ir.const(count, I64))
        parts = [width] * (count - 1) + [None]
    results: list[Value] = []
    begin: Any = _ZERO
    for part in parts:
        end = size if part is None else ir.add(begin, expr(part))
        results.append(call.apply("slice", x, axis=axis, begin=begin, end=end, step=1))
        begin = call.imp.builder.analyzer.simplify(end)
    return results


def _check_parts(call: Call, parts: Sequence[Any], size: ir.Expr) -> None:
    """Reject sizes of parts that are not together the size of the axis."""
    if len(parts) != len(call.outputs) or any(isinstance(p, int) and p < 0 for p in parts):
        raise call.error(
            f"the {len(call.outputs)} results cannot have sizes {[str(p) for p in parts]}",
            "give each result a size of at least 0",
        )
    total = ir.const(0, I64)
    for part in parts:
        total = ir.add(total, expr(part))
    analyzer = call.imp.builder.analyzer
    fits = analyzer.simplify(ir.compare(ir.EQ, total, size))
    if ir.is_const_int(fits, 0):
        raise call.error(f"the parts do not add up to the axis, of size {size}", "change split")
    if not analyzer.prove(fits):
        call.require(fits, f"BW708: the parts of {call.op} {call.name} do not fit the axis")


@TABLE.op("Tile")
def _tile(call: Call) -> Value:
    """Each axis is doubled to (1, size), broadcast to (repeats, size) and joined again."""
    x, repeats = call.tensor(0), sizes_of(call, 1, "repeats")
    dims = dims_of(x)
    if len(repeats) != len(dims) or any(isinstance(r, int) and r < 0 for r in repeats):
        raise call.error(
            f"{len(dims)} axes cannot be repeated {[str(r) for r in repeats]} times",
            "give each axis a number of at least 0",
        )
    if all(_is_one(r) for r in repeats):
        return call.reshape(x, dims)
    apart = [d for size in dims for d in (1, size)]
    shape = [expr(d) for size, r in zip(dims, repeats, strict=True) for d in (r, size)]
    spread = call.apply("broadcast_to", call.reshape(x, apart), shape_value(shape))
    return call.reshape(
        spread, [ir.mul(expr(r), size) for size, r in zip(dims, repeats, strict=True)]
    )


_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@TABLE.op("Pad")
def pad(call: Call) -> Value:
    """Negative padding removes elements."""
    x = call.tensor(0)
    rank = rank_of(x)
    pads, cuts = _pads(call)
    axes = call.ints(3, "axes") if call.has(3) else tuple(range(rank))
    width: list[tuple[Any, Any]] = [(0, 0)] * rank
    for place, axis in enumerate(axes):
        width[axis_of(axis, rank)] = pads[place], pads[place + len(axes)]
    for place, axis in enumerate(axis_of(a, rank) for a in axes):
        before, after = cuts[place], cuts[place + len(axes)]
        if not (isinstance(before, int) and before == 0 and isinstance(after, int) and after == 0):
            end = ir.sub(dims_of(x)[axis], expr(after))
            x = call.apply("slice", x, axis=axis, begin=before, end=end, step=1)
    value: Any = call.attr("value", 0)
    mode = _MODES[call.attr("mode")]
    if call.has(2) and isinstance(call.value(2), ir.GraphExpr) and mode == "constant":
        return _padded_with(call, x, tuple(width), call.reshape(call.tensor(2), ()))
    if call.has(2) and mode == "constant":
        value = call.known(2, "the padding value").reshape(())[()]
    filling = bool(value) if dtype_of(x).is_bool else number_of(value)
    return call.apply("pad", x, pad_width=tuple(width), pad_value=filling, pad_mode=mode)


def _pads(call: Call) -> tuple[list[Any], list[Any]]:
    """How many elements are added at the ends of the axes, and how many are removed."""
    later = None if "pads" in call.attrs else computed(call, 1)
    if later is not None:
        both = [later, call.apply("negative", later)]
        added, removed = (
            loaded(call, call.apply("maximum", v, scalar=0, scalar_side="right")) for v in both
        )
        return list(added), list(removed)
    pads = call.attr("pads") if "pads" in call.attrs else call.sizes(1, "pads")
    added = [max(p, 0) if isinstance(p, int) else p for p in pads]
    return added, [max(-p, 0) if isinstance(p, int) else 0 for p in pads]


def _padded_with(call: Call, x: ir.GraphExpr, width: Any, value: ir.GraphExpr) -> ir.GraphExpr:
    """Padding with an element that is known when the model runs."""
    padded = call.apply("pad", x, pad_width=width)
    inside = call.apply("full_like", x, fill_value=1, dtype="uint8")
    inside = call.apply("pad", inside, pad_width=width)
    where = call.apply("not_equal", inside, call.scalar(0, ir.dtype_of("uint8")))
    return call.apply("where", where, padded, value)


def number_of(value: Any) -> Any:
    """A NumPy scalar as a Python number."""
    if not isinstance(value, np.generic):
        return value
    scalar = cast("Any", value)
    return scalar.item() if scalar.dtype.kind in "iufb" else float(scalar)


@TABLE.op("DepthToSpace")
def _depth_to_space(call: Call) -> Value:
    x, b = call.tensor(0), call.attr("blocksize")
    n, c, h, w = dims_of(x)
    depth = ir.floordiv(c, ir.const(b * b, I64))
    if call.attr("mode") == "CRD":
        shape, order = (n, depth, b, b, h, w), (0, 1, 4, 2, 5, 3)
    else:
        shape, order = (n, b, b, depth, h, w), (0, 3, 4, 1, 5, 2)
    apart = call.apply("permute_dims", call.reshape(x, shape), axes=order)
    block = ir.const(b, I64)
    return call.reshape(apart, (n, depth, ir.mul(h, block), ir.mul(w, block)))


def _of_multiples(call: Call, x: ir.GraphExpr, shape: Sequence[ir.Expr]) -> ir.GraphExpr:
    """The tensor with sizes that calls check to be multiples of the block size."""
    builder = call.imp.builder
    if all(builder.analyzer.prove_equal(a, b) for a, b in zip(dims_of(x), shape, strict=True)):
        return x
    text = f"BW708: a size of the operand of {call.op} {call.name} is no multiple of the block size"
    return builder.match_cast(x, ir.TensorInfo(tuple(shape), dtype_of(x)), "blocks", text)


@TABLE.op("SpaceToDepth")
def _space_to_depth(call: Call) -> Value:
    x, b = call.tensor(0), call.attr("blocksize")
    n, c, h, w = dims_of(x)
    block = ir.const(b, I64)
    rows, columns = ir.floordiv(h, block), ir.floordiv(w, block)
    x = _of_multiples(call, x, (n, c, ir.mul(rows, block), ir.mul(columns, block)))
    apart = call.reshape(x, (n, c, rows, b, columns, b))
    order = (0, 1, 3, 5, 2, 4) if call.attr("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    moved = call.apply("permute_dims", apart, axes=order)
    return call.reshape(moved, (n, ir.mul(c, ir.const(b * b, I64)), rows, columns))


@TABLE.op("CenterCropPad")
def _center_crop_pad(call: Call) -> Value:
    x, target = call.tensor(0), call.ints(1, "the shape")
    axes = call.attr("axes", None) or tuple(range(rank_of(x)))
    for axis, wanted in zip(axes, target, strict=True):
        axis = axis_of(axis, rank_of(x))
        size = ir.const_int(dims_of(x)[axis])
        if size is None:
            raise call.error(f"dimension {axis} is symbolic", "declare it as a number")
        if size > wanted:
            begin = (size - wanted) // 2
            x = call.apply("slice", x, axis=axis, begin=begin, end=begin + wanted, step=1)
        elif size < wanted:
            before = (wanted - size) // 2
            width = [(0, 0)] * rank_of(x)
            width[axis] = (before, wanted - size - before)
            x = call.apply("pad", x, pad_width=tuple(width))
    return x if x is not call.tensor(0) else call.reshape(x, dims_of(x))
