"""Evaluation of nodes whose operands are known or are sizes.

    Shape → Gather(0) → Mul(2) → Concat(…, 64) → Reshape      reshape to (n * 2, 64)

Each rule takes the elements of its operands as NumPy arrays of objects: numbers and size
expressions. A rule returns None where the result is not known for all sizes, and the node is then
converted to run. So are floats that are computed from sizes, and their exact elements are noted
(`Floats`). Large arrays are left to the graph passes. Integers lose the bits for which their
type has no room, as they do in the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Value, dims_of, own_axis, place_of
from blockwright.frontend.onnx.model import element_type
from blockwright.frontend.onnx.size_floats import FloatArithmetic, require
from blockwright.frontend.onnx.sizes import (
    I64,
    Floats,
    Items,
    Need,
    SizeFloat,
    Sizes,
    array_of,
    items_of,
    packed,
)

_LIMIT = 4096  # elements of a result that is evaluated here
Rule = Callable[[Call], Any]
_RULES: dict[str, Rule] = {}


def fold(call: Call) -> Sequence[Value] | None:
    """The values of a node's outputs if they are known at import; else None.

    Those that are `Floats` have to run as well.
    """
    rule = _RULES.get(call.op) if call.domain in ("", "ai.onnx") else None
    if rule is None:
        return None
    if call.op not in _OF_SHAPES:
        call = call.like(*map(call.imp.noted, call.operands))
    if call.op not in _OF_SHAPES and not all(map(_is_known, call.operands)):
        return None
    try:
        with np.errstate(all="ignore"):
            result = rule(call)
    except (ValueError, IndexError, OverflowError):
        return None  # operands that do not fit each other: the converter says what is wrong
    if result is None:
        return None
    if isinstance(result, list):
        return cast("list[Value]", result)
    return [np.asarray(cast("Any", result)) if isinstance(result, np.generic) else result]


def _is_known(value: Value) -> bool:
    if isinstance(value, (Sizes, Floats)):
        return True
    return value is None or (isinstance(value, np.ndarray) and value.size <= _LIMIT)


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


def type_of(value: Value) -> ir.DType:
    """The element type of a value in the model."""
    if isinstance(value, (Sizes, Floats)):
        return value.dtype
    array = array_of(value)
    if array is not None:
        return ir.dtype_of(array.dtype)
    return value.tensor_info.dtype


def _numbers(call: Call) -> bool:
    """Whether all operands are arrays, without size expressions."""
    return all(v is None or isinstance(v, np.ndarray) for v in call.operands)


# ------------------------------------------------------------------------------------ constants


@_rule("Constant")
def _constant(call: Call) -> Value:
    kinds = {"value_float": np.float32, "value_floats": np.float32}
    for name, value in call.attrs.items():
        if name == "value":
            return value
        if name in ("value_float", "value_floats", "value_int", "value_ints"):
            return np.asarray(value, kinds.get(name, np.int64))
    raise call.error("only numbers are supported", "set value to a tensor of numbers")


@_rule("Identity")
def _identity(call: Call) -> Value:
    return call.value(0)


@_rule("Shape")
def _shape(call: Call) -> Value:
    dims = _dims(call.value(0))
    begin, end, _ = slice(call.attr("start", 0), call.attr("end", None)).indices(len(dims))
    return packed(_list(dims[begin:end]), I64)


@_rule("Size")
def _size(call: Call) -> Value:
    return packed(np.asarray(_product(_dims(call.value(0))), dtype=object), I64)


def _dims(value: Value) -> list[Any]:
    if isinstance(value, Sizes):
        return list(value.items.shape)
    array = array_of(value)
    return list(dims_of(value)) if array is None else list(array.shape)


def _list(values: Sequence[Any]) -> Items:
    result = np.empty(len(values), dtype=object)
    result[:] = list(values)
    return result


def _product(values: Sequence[Any]) -> Any:
    result: Any = 1
    for value in values:
        result = value if isinstance(result, int) and result == 1 else result * value
    return result


@_rule("ConstantOfShape")
def _constant_of_shape(call: Call) -> Value:
    shape = call.sizes(0, "the shape")
    if any(isinstance(d, ir.Expr) for d in shape) or math.prod(shape) > _LIMIT:
        return None
    value = call.attr("value", np.zeros(1, np.float32))
    return np.full(shape, value.reshape(())[()], value.dtype)


_OF_SHAPES = frozenset({"Shape", "Size", "Identity"})
ALWAYS = _OF_SHAPES | {"Constant"}
"""Operators that are never left to run."""


# -------------------------------------------------------------------------------------- movers


@_rule("Gather")
def _gather(call: Call) -> Value:
    items, indices = items_of(call.value(0)), array_of(call.value(1))
    if indices is None:
        return None
    axis, places = own_axis(call.attr("axis"), items.ndim), indices.astype(np.int64)
    size = items.shape[axis]
    outside = places[(places < -size) | (places >= size)]
    if outside.size:
        raise call.error(
            f"index {outside[0]} is out of range for axis {axis} of size {size}",
            f"use indices from {-size} to {size - 1}",
        )
    return packed(np.take(items, places, axis=axis), type_of(call.value(0)))


@_rule("Concat")
def _concat(call: Call) -> Value:
    joined = np.concatenate([items_of(v) for v in call.operands], axis=call.attr("axis"))
    return packed(joined, type_of(call.value(0)))


@_rule("Unsqueeze")
def _unsqueeze(call: Call) -> Value:
    items = items_of(call.value(0))
    axes = call.attr("axes") if "axes" in call.attrs else call.ints(1, "axes")
    return packed(np.expand_dims(items, tuple(axes)), type_of(call.value(0)))


@_rule("Squeeze")
def _squeeze(call: Call) -> Value:
    items = items_of(call.value(0))
    axes = call.attr("axes", None)
    if axes is None and call.has(1):
        axes = call.ints(1, "axes")
    squeezed = np.squeeze(items, None if axes is None else tuple(axes))
    return packed(np.asarray(squeezed, dtype=object), type_of(call.value(0)))


@_rule("Reshape")
def _reshape(call: Call) -> Value:
    items, shape = items_of(call.value(0)), call.sizes(1, "the shape")
    if any(isinstance(d, ir.Expr) for d in shape):
        return None
    keeps = not call.attr("allowzero", 0)
    dims = [items.shape[k] if d == 0 and keeps else d for k, d in enumerate(shape)]
    return packed(items.reshape(dims), type_of(call.value(0)))


@_rule("Flatten")
def _flatten(call: Call) -> Value:
    items = items_of(call.value(0))
    axis = place_of(call.attr("axis"), items.ndim)
    shape = math.prod(items.shape[:axis]), math.prod(items.shape[axis:])
    return packed(items.reshape(shape), type_of(call.value(0)))


@_rule("Transpose")
def _transpose(call: Call) -> Value:
    return packed(
        items_of(call.value(0)).transpose(call.attr("perm", None)), type_of(call.value(0))
    )


@_rule("Expand")
def _expand(call: Call) -> Value:
    items, shape = items_of(call.value(0)), call.sizes(1, "the shape")
    if any(isinstance(d, ir.Expr) for d in shape) or math.prod(shape) > _LIMIT:
        return None
    dims = np.broadcast_shapes(items.shape, tuple(shape))
    return packed(np.broadcast_to(items, dims), type_of(call.value(0)))


@_rule("Tile")
def _tile(call: Call) -> Value:
    repeats = call.sizes(1, "repeats")
    if any(isinstance(d, ir.Expr) for d in repeats) or math.prod(repeats) > _LIMIT:
        return None
    items = items_of(call.value(0))
    if len(repeats) != items.ndim or any(r < 0 for r in repeats):
        return None
    return packed(np.tile(items, repeats), type_of(call.value(0)))


@_rule("Slice")
def _slice(call: Call) -> Value:
    if any(isinstance(v, Sizes) for v in call.operands[1:]):
        return None
    items = items_of(call.value(0))
    if "starts" in call.attrs:  # before version 10
        starts, ends = call.attr("starts"), call.attr("ends")
        axes = call.attr("axes", None) or tuple(range(len(starts)))
    else:
        starts, ends = call.ints(1, "starts"), call.ints(2, "ends")
        axes = call.ints(3, "axes") if call.has(3) else tuple(range(len(starts)))
    steps = call.ints(4, "steps") if call.has(4) else (1,) * len(starts)
    parts = [slice(None)] * items.ndim
    for axis, begin, end, step in zip(axes, starts, ends, steps, strict=True):
        size, last = items.shape[axis], end
        if step < 0:  # unlike in Python, a start before the axis is its first element
            begin, last = max(begin, -size), None if end < -size else end
        parts[axis] = slice(begin, last, step)
    return packed(items[tuple(parts)], type_of(call.value(0)))


@_rule("Split")
def _split(call: Call) -> Value:
    """Parts of given sizes, or as many equal ones as there are results; last ones are smaller."""
    items, axis, count = items_of(call.value(0)), call.attr("axis"), len(call.outputs)
    size = items.shape[axis]
    if "split" in call.attrs or call.has(1):
        sizes = call.attr("split") if "split" in call.attrs else call.ints(1, "split")
        if len(sizes) != count or min(sizes) < 0 or sum(sizes) != size:
            return None
        ends = np.cumsum(sizes)
    else:
        ends = np.minimum(np.arange(1, count + 1) * -(-size // count), size)
    parts = np.split(items, ends[:-1].tolist(), axis)
    return [packed(part, type_of(call.value(0))) for part in parts]


@_rule("Range")
def _range(call: Call) -> Value:
    if not _numbers(call) or type_of(call.value(0)).is_float:
        return None
    begin, end, step = (v.reshape(())[()] for v in call.operands)
    if step == 0 or (int(end) - int(begin)) // int(step) > _LIMIT:
        return None
    return np.arange(begin, end, step, dtype=call.value(0).dtype)


@_rule("NonZero")
def _nonzero(call: Call) -> Value:
    return np.asarray(np.nonzero(call.value(0)), np.int64) if _numbers(call) else None


# ---------------------------------------------------------------------------------- arithmetic

_BINARY: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}
_TRUTHS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})


@_rule("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", *_BINARY)
def _binary(call: Call) -> Value:
    if call.op in ("Max", "Min") and len(call.operands) != 2:
        return None
    dtype = ir.dtype_of("bool") if call.op in _TRUTHS else type_of(call.value(0))
    if _numbers(call):
        return _of_numbers(call)
    a, b = np.broadcast_arrays(items_of(call.value(0)), items_of(call.value(1)))
    flat: list[Any] = []
    for left, right in zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True):
        value = _element(call, left, right)
        if value is None:
            return None
        flat.append(_wrapped(value, dtype))
    return packed(_list(flat).reshape(a.shape), dtype)


def _wrapped(value: Any, dtype: ir.DType) -> Any:
    """A number of an integer type, without the bits for which it has no room."""
    if not dtype.is_int or isinstance(value, ir.Expr):
        return value
    low = int(dtype.min_value)
    return (int(value) - low) % (1 << dtype.bits) + low


def _element(call: Call, a: Any, b: Any) -> Any:
    """One element of an operator of two operands of integers, or of a list of floats."""
    if type_of(call.value(0)).is_float:
        return _floats_of(call).binary(call.op, a, b)
    if isinstance(a, ir.Expr) or isinstance(b, ir.Expr):
        return call.imp.sizes.binary(call.op, a, b)
    if call.op in ("Max", "Min"):
        return max(a, b) if call.op == "Max" else min(a, b)
    if call.op == "Mod":
        return None if b == 0 or call.attr("fmod") else a % b
    if call.op == "Div":
        return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return _BINARY[call.op](a, b)


def _of_numbers(call: Call) -> Value:
    a, b = call.operands
    if call.op in _BINARY:
        return np.asarray(_BINARY[call.op](a, b))
    if type_of(a).is_float:
        return np.asarray(np.divide(a, b), a.dtype) if call.op == "Div" and np.all(b) else None
    left, right = np.broadcast_arrays(a.astype(object), b.astype(object))
    pairs = zip(left.reshape(-1).tolist(), right.reshape(-1).tolist(), strict=True)
    flat = [_element(call, x, y) for x, y in pairs]
    if any(v is None for v in flat):
        return None
    dtype = type_of(a)
    return _list([_wrapped(v, dtype) for v in flat]).reshape(left.shape).astype(a.dtype)


@_rule("Not")
def _not(call: Call) -> Value:
    return np.logical_not(call.value(0)) if _numbers(call) else None


def _floats_of(call: Call) -> FloatArithmetic:
    return FloatArithmetic(call.imp.sizes.analyzer, type_of(call.value(0)))


@_rule("Neg")
def _neg(call: Call) -> Value:
    if _numbers(call):
        return np.negative(call.value(0))
    if isinstance(call.value(0), Floats):
        return _float_unary(call)
    return packed(0 - items_of(call.value(0)), type_of(call.value(0)))


def _positive(value: Items) -> Items:
    return np.maximum(value, 0)


_FLOAT_UNARY: dict[str, Callable[..., Any]] = {
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sqrt": np.sqrt,
    "Relu": _positive,
}


@_rule(*_FLOAT_UNARY)
def _float_unary(call: Call) -> Value:
    value = call.value(0)
    if _numbers(call):
        return np.asarray(_FLOAT_UNARY[call.op](value), value.dtype)
    if call.op in ("Sqrt", "Relu"):
        return None
    floats = _floats_of(call)
    return _each(value.items, type_of(value), lambda v: floats.unary(call.op, v))


def _each(items: Items, dtype: ir.DType, made: Callable[[Any], Any]) -> Value:
    """An array of what is made of each element; None if one is not known."""
    flat = [made(v) for v in items.reshape(-1).tolist()]
    return None if any(v is None for v in flat) else packed(_list(flat).reshape(items.shape), dtype)


@_rule("Cast")
def _cast(call: Call) -> Value:
    value, dtype = call.value(0), element_type(call.attr("to"), "the result")
    if isinstance(value, (Sizes, Floats)) and dtype.is_float:
        floats = FloatArithmetic(call.imp.sizes.analyzer, dtype)
        return _each(value.items, dtype, floats.converted)
    if isinstance(value, (Sizes, Floats)) and dtype.name not in ("int64", "int32"):
        return None
    if isinstance(value, Sizes):
        return Sizes(value.items, dtype)
    if isinstance(value, Floats):
        return _integers(call, value, dtype)
    simple = {"int64", "int32", "bool", "float16", "float32", "float64"}
    if dtype.name not in simple or value.dtype.name not in {*simple, "bfloat16"}:
        return None
    if value.dtype.name == "bfloat16":  # float32 has all of its numbers
        value = value.astype(np.float32)
    if value.dtype.kind == "f" and dtype.is_int and not np.all(np.abs(value) < 1 << 31):
        return None
    return value.astype(dtype.numpy())


def _integers(call: Call, value: Floats, dtype: ir.DType) -> Value:
    """Floats cut off to integers; calls check that float arithmetic on their sizes is exact."""
    floats, needs = _floats_of(call), list[Need]()

    def integer(item: SizeFloat | float) -> Any:
        if not isinstance(item, SizeFloat):
            return int(item) if abs(item) < 1 << 31 else None
        found = floats.integer(item, dtype)
        if found is None:
            return None
        needs.extend(found[1])
        return found[0]

    result = _each(value.items, dtype, integer)
    if result is not None:
        require(call, needs)
    return result


@_rule("Where")
def _where(call: Call) -> Value:
    condition = array_of(call.value(0))
    if condition is None:
        return None
    chosen = np.where(condition, items_of(call.value(1)), items_of(call.value(2)))
    return packed(chosen, type_of(call.value(1)))


@_rule("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduce(call: Call) -> Value:
    """A reduction of a list to one element."""
    items = items_of(call.value(0))
    axes = call.attr("axes", None)
    if axes is None and call.has(1):
        axes = call.ints(1, "axes")
    if items.ndim != 1 or not items.size or axes not in (None, (0,), (-1,)):
        return None
    if axes is None and call.attr("noop_with_empty_axes", 0):
        return call.value(0)
    flat, dtype = items.tolist(), type_of(call.value(0))
    if dtype.is_float:
        return None
    fold_two = {"ReduceProd": ir.mul, "ReduceSum": ir.add, "ReduceMax": ir.maximum}
    total = flat[0]
    for value in flat[1:]:
        if isinstance(total, ir.Expr) or isinstance(value, ir.Expr):
            two = fold_two.get(call.op, ir.minimum)
            total = two(ir.as_expr(total, I64), ir.as_expr(value, I64))
        else:
            plain: dict[str, Callable[[int, int], int]] = {
                "ReduceProd": lambda a, b: a * b,
                "ReduceSum": lambda a, b: a + b,
                "ReduceMax": max,
            }
            total = _wrapped(plain.get(call.op, min)(total, value), dtype)
    shape = (1,) if call.attr("keepdims") else ()
    return packed(_list([total]).reshape(shape), dtype)
