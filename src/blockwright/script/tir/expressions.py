"""Expression functions of the `T` dialect.

These are ordinary Python functions, which helper functions outside scripts may use as well. The
functions for builtin operations are generated from the operation table (`builtin`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes

from blockwright import ir
from blockwright.ir import Buffer, BufferLoad, DType, Expr, Var, dtype_of
from blockwright.ir.printer.expr import implied_type
from blockwright.script.core import Evaluator, ParseProblem, items_of, special_form
from blockwright.script.tir.builder import Builder
from blockwright.script.tir.values import (
    call_type,
    from_first_lane,
    index_types,
    number_types,
    to_expr,
    vector_indices,
)
from blockwright.support import IRError, ScriptError


def fresh_var(dtype: DType) -> Var:
    """A new variable, named after the target of its assignment."""
    builder = Builder.active()
    if builder is None:
        return Var("", dtype)
    return builder.define(Var(builder.take_name("v"), dtype, span=builder.span))


def var(name: str, dtype: str | DType = "") -> Var:
    """A variable: `T.var("n", "int64")`, or `T.var("int64")` named after its assignment."""
    if _names_type(name):  # TVM's older order: the type first
        return named_var(str(dtype), name) if dtype else fresh_var(dtype_of(name))
    return named_var(name, dtype or "int32")


def named_var(name: str, dtype: str | DType = "int32") -> Var:
    """A variable with an explicit name."""
    result, builder = Var(name, dtype_of(dtype)), Builder.active()
    return result if builder is None else builder.define(result)


def _names_type(name: str) -> bool:
    try:
        dtype_of(name)
    except IRError:
        return False
    return True


def _names_result(name: str) -> bool:
    return name in ("", "void") or _names_type(name)


def builtin(name: str) -> Callable[..., Expr]:
    """The function for a row of the builtin operation table."""
    row = ir.op_row(name)

    def call(*args: Any, dtype: str | DType | None = None) -> Expr:
        values = number_types(args) if row.elementwise else [to_expr(a) for a in args]
        if row.arity >= 0 and len(values) != row.arity:
            raise ScriptError(
                f"T.{name} takes {row.arity} argument{'s' * (row.arity != 1)}, got {len(values)}",
                code="BW106",
            )
        known = implied_type(name, values) if dtype is None else call_type(dtype)
        return ir.call(name, *values, dtype=None if row.elementwise and dtype is None else known)

    call.__name__ = call.__qualname__ = name
    return call


_CLASSIC_NAMES = {"fabs": "abs"}
"""TVM name of an operation → its name in the operation table."""


def call_intrin(*args: Any, dtype: str | DType | None = None) -> Expr:
    """A builtin operation by name; the result type is the first argument or `dtype=`."""
    values = list(args)
    if dtype is None and values:
        dtype = values.pop(0)
    if dtype is None or not values or not isinstance(values[0], str):
        raise ScriptError(
            "T.call_intrin takes a result type, a name and arguments",
            code="BW106",
            help='write T.call_intrin("float32", "tir.exp", x)',
        )
    written = str(values.pop(0)).removeprefix("tir.")
    name = _CLASSIC_NAMES.get(written, written)
    return ir.Call(name, tuple(to_expr(a) for a in values), call_type(dtype))


def if_then_else(
    condition: Any, true_value: Any, false_value: Any, dtype: str | DType | None = None
) -> Expr:
    """Conditional expression that evaluates only the selected value; `dtype`: result type."""
    if dtype is None:
        a, b = ir.match_types(*_pair(true_value, false_value), stated=True)
    else:
        a, b = _typed_branches(true_value, false_value, dtype_of(dtype))
    return ir.Call("if_then_else", (_bool(condition), a, b), a.dtype)


def _typed_branches(a: Any, b: Any, kind: DType) -> tuple[Expr, Expr]:
    """Convert both values to a common type, which must be `kind`."""
    x, y = ir.match_types(to_expr(a, kind), to_expr(b, kind))
    if x.dtype is not kind:
        raise ScriptError(
            f"T.if_then_else declares the type {kind} for values of {x.dtype}",
            code="BW107",
            help=f'convert them, T.Cast("{kind}", …), or omit dtype',
        )
    return x, y


def Select(condition: Any, true_value: Any, false_value: Any) -> Expr:
    """Conditional expression that evaluates both values."""
    a, b = ir.match_types(*_pair(true_value, false_value), stated=True)
    return ir.Select(_bool(condition), a, b)


def _bool(value: Any) -> Expr:
    return to_expr(bool(value) if isinstance(value, (int, float)) else value)


def _pair(a: Any, b: Any) -> list[Expr]:
    return number_types((a, b))


def _binary(name: str, cls: type[ir.BinaryOp]) -> Callable[[Any, Any], Expr]:
    # The minimum and maximum of two booleans are booleans.
    match = ir.match_types if cls in (ir.Min, ir.Max) else ir.match_numbers

    def apply(a: Any, b: Any) -> Expr:
        return cls(*match(*_pair(a, b), stated=True))

    apply.__name__ = apply.__qualname__ = name
    return apply


floordiv = indexdiv = _binary("floordiv", ir.FloorDiv)
floormod = indexmod = _binary("floormod", ir.FloorMod)
truncdiv = div = _binary("truncdiv", ir.Div)
truncmod = _binary("truncmod", ir.Mod)
Add, Sub, Mul = _binary("Add", ir.Add), _binary("Sub", ir.Sub), _binary("Mul", ir.Mul)
Div, Mod = _binary("Div", ir.Div), _binary("Mod", ir.Mod)
FloorDiv, FloorMod = floordiv, floormod
Min, Max = _binary("min", ir.Min), _binary("max", ir.Max)


def min(*args: Any) -> Expr:
    """The minimum of two or more values."""
    return _fold(Min, args)


def max(*args: Any) -> Expr:
    """The maximum of two or more values."""
    return _fold(Max, args)


def _fold(function: Callable[[Any, Any], Expr], args: Sequence[Any]) -> Expr:
    if len(args) < 2:
        raise ScriptError(
            f"T.{function.__name__} takes two or more arguments",
            code="BW106",
            help="reduce over an axis with a block and T.init()",
        )
    result = args[0]
    for value in args[1:]:
        result = function(result, value)
    return result


_finfo: Any = ml_dtypes.finfo


def ceildiv(a: Any, b: Any) -> Expr:
    """The quotient a / b rounded up."""
    x, y = ir.match_numbers(*_pair(a, b), stated=True)
    return ir.FloorDiv(ir.Add(x, ir.Sub(y, ir.const(1, y.dtype))), y)


def And(*args: Any) -> Expr:
    return _chain(ir.And, args)


def Or(*args: Any) -> Expr:
    return _chain(ir.Or, args)


def _chain(cls: type[ir.And] | type[ir.Or], args: Sequence[Any]) -> Expr:
    result = _bool(args[0])
    for value in args[1:]:
        result = cls(result, _bool(value))
    return result


def Not(value: Any) -> Expr:
    return ir.Not(_bool(value))


def Cast(dtype: str | DType, value: Any) -> Expr:
    """A cast, kept in the program even if the type does not change."""
    return ir.Cast(dtype_of(dtype), to_expr(value))


def cast(value: Any, dtype: str | DType) -> Expr:
    """A cast; folded for constants and omitted for values of that type."""
    return ir.cast_to(to_expr(value), dtype_of(dtype))


def ramp(base: Any, stride: Any, lanes: int) -> Expr:
    """The vector of indices base, base + stride, …; just `base` for one lane."""
    x, y = ir.match_types(*index_types((base, stride)))
    count = _lanes(lanes)
    return ir.Ramp(x, y, count) if count > 1 else x


def broadcast(value: Any, lanes: int) -> Expr:
    """A vector with the value in every lane; the value itself for one lane."""
    count = _lanes(lanes)
    return ir.Broadcast(to_expr(value), count) if count > 1 else to_expr(value)


def shuffle(vectors: Sequence[Any], indices: Sequence[Any]) -> Expr:
    return ir.Shuffle(tuple(map(to_expr, vectors)), tuple(map(_count, indices)))


def _lanes(value: Any) -> int:
    count = _count(value)
    if count < 1:
        raise ScriptError(
            f"a vector has at least one lane, not {count}",
            code="BW107",
            help="pass the number of lanes, 1 or more",
        )
    return count


def _count(value: Any) -> int:
    number = ir.const_int(value) if isinstance(value, Expr) else value
    if not isinstance(number, int):
        raise ScriptError("lanes must be known while parsing", code="BW107")
    return number


def StringImm(value: str) -> Expr:
    return ir.StringImm(value)


def dtype(name: str) -> DType:
    """A data type as an attribute value."""
    return dtype_of(name)


def infinity(dtype: str | DType = "float32") -> Expr:
    return ir.const(float("inf"), dtype)


def min_value(dtype: str | DType) -> Expr:
    """Smallest finite value of a type."""
    return _limit(dtype_of(dtype), -1)


def max_value(dtype: str | DType) -> Expr:
    """Largest finite value of a type."""
    return _limit(dtype_of(dtype), 1)


def _limit(kind: DType, sign: int) -> Expr:
    if not kind.is_float:
        return ir.const(kind.max_value if sign > 0 else kind.min_value, kind)
    return ir.const(sign * float(_finfo(kind.numpy()).max), kind)


@special_form
def Let(evaluator: Evaluator, node: ast.Call) -> Expr:
    """`T.Let(body, where={x: value})`: bind a new variable x in `body`."""
    where = next((k.value for k in node.keywords if k.arg == "where"), None)
    if len(node.args) != 1 or not isinstance(where, ast.Dict) or not where.keys:
        raise ParseProblem("BW106", "T.Let takes a body and where={name: value}", node)
    bound: list[tuple[Var, Expr]] = []
    evaluator.scopes.append({})
    try:
        for key, item in zip(where.keys, where.values, strict=True):
            value = to_expr(evaluator.eval(item))
            if not isinstance(key, ast.Name):
                raise ParseProblem("BW106", "T.Let binds names", key or node)
            variable = Var(key.id, value.dtype, span=evaluator.span(key))
            evaluator.bind(key.id, variable)
            bound.append((variable, value))
        result = to_expr(evaluator.eval(node.args[0]))
    finally:
        evaluator.scopes.pop()
    for variable, value in reversed(bound):
        result = ir.Let(variable, value, result)
    return result


# ------------------------------------------------------------------------------- methods of values
def vload(buffer: Buffer, indices: Any, dtype: Any = None, predicate: Any = None) -> Expr:
    """`A.vload([i], predicate=mask)`: a masked load.

    `A.vload([i], "float32x4")` loads the elements from i on.
    """
    items = items_of(indices)
    if dtype is not None:
        kind = dtype_of(dtype)
        if kind.element is not buffer.dtype.element or kind.lanes % buffer.dtype.lanes:
            raise ScriptError(
                f"{buffer.name} holds {buffer.dtype}, not {kind}",
                code="BW107",
                help="load the buffer's type and convert the value with T.Cast",
            )
        items = from_first_lane(buffer, items, kind.lanes // buffer.dtype.lanes)
        result = vector_load(buffer, items, predicate)
        if result.dtype is not kind:
            raise ScriptError(
                f"the indices load {result.dtype}, not {kind}",
                code="BW107",
                help="pass only the index of the first lane, or omit the type",
            )
        return result
    return vector_load(buffer, items, predicate)


def vector_load(buffer: Buffer, items: Sequence[Any], predicate: Any = None) -> Expr:
    """A load of an element, or of a vector if the last index is a slice or ramp."""
    mask = None if predicate is None else to_expr(predicate)
    return BufferLoad(buffer, vector_indices(buffer, items), mask)


def call_extern(*args: Any, dtype: str | DType = "int32") -> Expr:
    """Call a function by its symbol name; the result type may come first, as in TVM."""
    return _by_name("call_extern", args, dtype)


def call_pure_extern(*args: Any, dtype: str | DType = "int32") -> Expr:
    """As `call_extern`, for a function without side effects."""
    return _by_name("call_pure_extern", args, dtype)


def _by_name(op: str, args: Sequence[Any], dtype: str | DType) -> Expr:
    values = list(args)
    if len(values) > 1 and isinstance(values[1], str) and _names_result(str(values[0])):
        dtype = values.pop(0)
    return ir.Call(op, tuple(map(to_expr, values)), call_type(dtype))


def reinterpret(*args: Any, dtype: str | DType = "int32") -> Expr:
    """Reinterpret the bits as another type; the type may come first, as in TVM."""
    values = list(args)
    if len(values) == 2:
        dtype = values.pop(0)
    if len(values) != 1:
        raise ScriptError("T.reinterpret takes a type and a value", code="BW106")
    return ir.call("reinterpret", to_expr(values[0]), dtype=dtype)


def power(a: Any, b: Any) -> Expr:
    return ir.call("pow", *number_types((a, b)))


def operator_of(op: ast.operator, a: Any, b: Any) -> Expr | None:
    """Operators that become builtin calls: power, shifts and bitwise operators; else None."""
    names: dict[type[ast.operator], str] = {
        ast.Pow: "pow", ast.LShift: "shift_left", ast.RShift: "shift_right",
        ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or", ast.BitXor: "bitwise_xor",
    }  # fmt: skip
    name = names.get(type(op))
    if name is None:
        return None
    x, y = ir.match_types(*_pair(a, b), stated=True)
    if x.dtype.is_bool and y.dtype.is_bool:
        if name in ("bitwise_and", "bitwise_or"):
            return ir.And(x, y) if name == "bitwise_and" else ir.Or(x, y)
        if name == "bitwise_xor":
            return ir.NE(x, y)
        x, y = ir.match_numbers(x, y)
    return ir.call(name, x, y)


__all__ = [
    "Add", "And", "Cast", "Div", "FloorDiv", "FloorMod", "Let", "Max", "Min", "Mod", "Mul", "Not",
    "Or", "Select", "StringImm", "Sub", "broadcast", "call_extern", "call_intrin",
    "call_pure_extern", "cast", "ceildiv", "div", "dtype", "floordiv", "floormod", "if_then_else",
    "indexdiv", "indexmod", "infinity", "max", "max_value", "min", "min_value", "power", "ramp",
    "reinterpret", "shuffle", "truncdiv", "truncmod", "var",
]  # fmt: skip
