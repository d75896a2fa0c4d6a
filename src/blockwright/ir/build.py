"""Constructors: Python values to constants, type matching, operators with constant folding.

Folding is limited to constants and neutral elements, so that `x + 0` and `2 * 3` do not clutter
programs; further simplification belongs to `arith`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from blockwright.ir import expr as E
from blockwright.ir.buffer import Buffer, BufferRegion, Range
from blockwright.ir.dtype import BOOL, FLOAT32, INT32, DType, dtype_of
from blockwright.ir.expr import Expr, ExprLike, FloatImm, IntImm, Var
from blockwright.ir.op import op_row, result_type
from blockwright.ir.stmt import SeqStmt, Stmt
from blockwright.support import IRError
from blockwright.support.kinds import is_huge, number_text

_BOOLS: tuple[type, ...] = (bool, np.bool_)
_INTS: tuple[type, ...] = (int, np.integer)
_FLOATS: tuple[type, ...] = (float, np.floating)


def const(value: int | float | bool, dtype: DType | str) -> Expr:
    """A constant of the given type; a broadcast for vector types.

    Raises:
        IRError: BW207 for an integer out of range of the type (`cast_to` reduces modulo 2**n).
    """
    type_ = dtype_of(dtype)
    if is_huge(value):
        raise IRError(
            f"{number_text(value)} does not fit {type_}",
            code="BW207",
            help='write float("inf"), or a number that the type holds',
        )
    if type_.lanes > 1:
        return E.Broadcast(const(value, type_.element), type_.lanes)
    if type_.is_float:
        return FloatImm(float(value), type_)
    if type_.is_bool:
        return IntImm(int(bool(value)), type_)
    number = int(value)
    if type_.is_int and not type_.min_value <= number <= type_.max_value:
        raise IRError(
            f"{number} does not fit {type_}, which holds {type_.min_value} to {type_.max_value}",
            code="BW207",
            help="use a wider type, or cast the number, which reduces it modulo 2**n",
        )
    return IntImm(number, type_)


def as_expr(value: Any, dtype: DType | None = None) -> Expr:
    """Convert `value` to an expression.

    Python ints become int32 (int64 if out of range), floats float32.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, _BOOLS):
        return const(bool(value), dtype or BOOL)
    if isinstance(value, _INTS):
        number = int(value)
        fits = -(1 << 31) <= number < (1 << 31)
        return const(number, dtype or (INT32 if fits else dtype_of("int64")))
    if isinstance(value, _FLOATS):
        return const(float(value), dtype or FLOAT32)
    if isinstance(value, str):
        return E.StringImm(value)
    raise IRError(
        f"cannot turn {type(value).__name__} into an expression",
        code="BW207",
        help="pass an expression, int, float or bool",
    )


def is_const_int(node: Any, value: int | None = None) -> bool:
    """Whether `node` is an integer constant (equal to `value` when given)."""
    return isinstance(node, IntImm) and (value is None or node.value == value)


def const_int(node: Any) -> int | None:
    """The value of an integer constant, or None."""
    return node.value if isinstance(node, IntImm) else None


def cast_to(value: Expr, dtype: DType | str) -> Expr:
    """Convert `value` to a type; constants are folded.

    An int64 constant out of range of int32 is not folded: as an index it keeps its value.
    """
    type_ = dtype_of(dtype)
    if value.dtype is type_:
        return value
    if isinstance(value, IntImm) and type_.is_scalar and not type_.is_handle:
        if type_.is_int:
            both = _is_index_type(value.dtype) and _is_index_type(type_)
            number = _number(value.value, type_) if both else _wrap(value.value, type_)
            return E.Cast(type_, value) if number is None else number
        number = _to_odd(value.value) if type_.is_float and type_.bits < 64 else value.value
        return const(number, type_)
    if isinstance(value, FloatImm) and type_.is_float and type_.is_scalar:
        number = value.value
        if value.type.bits < 64:  # round to the type: the constant may be kept with more bits
            number = float(np.asarray(number).astype(value.type.numpy()))
        return FloatImm(number, type_)
    return E.Cast(type_, value)


def _to_odd(value: int) -> int:
    """An integer with at most 53 leading bits that rounds to any narrower float as `value` does.

    Rounding to odd avoids double rounding.
    """
    excess = abs(value).bit_length() - 53
    if excess <= 0:
        return value
    kept, rest = divmod(abs(value), 1 << excess)
    odd = (kept | bool(rest)) << excess
    return odd if value > 0 else -odd


def _wrap(value: int, dtype: DType) -> IntImm:
    span = dtype.max_value - dtype.min_value + 1
    return IntImm((value - dtype.min_value) % span + dtype.min_value, dtype)


def widest_type(items: Iterable[Expr]) -> DType:
    """The widest type among indices or extents; int64 if there are none."""
    return max((e.dtype for e in items), key=lambda t: t.bits, default=dtype_of("int64"))


def match_types(a: Any, b: Any, *, stated: bool = False) -> tuple[Expr, Expr]:
    """Convert both operands to expressions of one type.

    Python numbers and constants take the other operand's type; a scalar is broadcast to match a
    vector; the wider of two integer types or two float types is used; int with float gives float.

    Args:
        stated: keep the type of constants that are wider than the other operand, as for a program
            that writes `T.float32(0.1)` next to a float16.
    """
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        a = as_expr(a)
    if not isinstance(a, Expr):
        a = _adapt(a, b.dtype)
    if not isinstance(b, Expr):
        b = _adapt(b, a.dtype)
    ta, tb = a.dtype, b.dtype
    if ta is tb:
        return a, b
    if ta.lanes != tb.lanes:
        if ta.lanes == 1:
            a = E.Broadcast(a, tb.lanes)
        elif tb.lanes == 1:
            b = E.Broadcast(b, ta.lanes)
        else:
            raise IRError(f"operands have {ta.lanes} and {tb.lanes} lanes", code="BW208")
        ta, tb = a.dtype, b.dtype
    if ta is tb:
        return a, b
    a_const = _adapts(a, tb) and not (stated and ta.bits > tb.bits)
    b_const = _adapts(b, ta) and not (stated and tb.bits > ta.bits)
    target = _common(ta, tb, a_const, b_const)
    return cast_to(a, target), cast_to(b, target)


def _adapts(value: Expr, dtype: DType) -> bool:
    """Whether an operand is a constant that can take the other operand's type."""
    if isinstance(value, IntImm) and dtype.is_int:
        return dtype.min_value <= value.value <= dtype.max_value
    return isinstance(value, (IntImm, FloatImm))


def _adapt(value: Any, dtype: DType) -> Expr:
    if dtype.is_int and isinstance(value, _FLOATS):
        return as_expr(value)
    if dtype.is_bool and not isinstance(value, _BOOLS):
        return as_expr(value)
    if dtype.is_handle:
        raise IRError("a handle cannot be used in arithmetic", code="BW208")
    if dtype.lanes > 1:
        return E.Broadcast(_adapt(value, dtype.element), dtype.lanes)
    return as_expr(value, dtype)


def _common(ta: DType, tb: DType, a_const: bool, b_const: bool) -> DType:
    if ta.is_handle or tb.is_handle:
        raise IRError(f"cannot combine {ta} and {tb}", code="BW208")
    if ta.is_float != tb.is_float:
        return ta if ta.is_float else tb
    if a_const != b_const and ta.is_int == tb.is_int and ta.is_float == tb.is_float:
        return tb if a_const else ta
    if ta.is_bool or tb.is_bool:
        return tb if ta.is_bool else ta
    if ta.bits != tb.bits:
        return ta if ta.bits > tb.bits else tb
    if ta.kind != tb.kind:
        raise IRError(
            f"cannot combine {ta} and {tb} implicitly",
            code="BW208",
            help="cast one side explicitly",
        )
    return ta


def _fold(cls: type[E.BinaryOp], a: Expr, b: Expr) -> Expr | None:
    """Fold constants and drop neutral elements; None if the node must be built."""
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        value = _fold_int(cls, a.value, b.value)
        return None if value is None else _number(value, a.dtype)
    if isinstance(b, IntImm) and a.dtype.is_int:
        if b.value == 0 and cls in (E.Add, E.Sub):
            return a
        if b.value == 1 and cls in (E.Mul, E.FloorDiv, E.Div):
            return a
        if (b.value == 0 and cls is E.Mul) or (b.value == 1 and cls in (E.FloorMod, E.Mod)):
            return IntImm(0, a.dtype)
    if isinstance(a, IntImm) and b.dtype.is_int:
        if a.value == 0 and cls is E.Add:
            return b
        if a.value == 1 and cls is E.Mul:
            return b
        if a.value == 0 and cls in (E.Mul,):
            return IntImm(0, b.dtype)
    return None


def _is_index_type(dtype: DType) -> bool:
    return dtype.kind == "int" and dtype.bits >= 32


def _number(value: int, dtype: DType) -> IntImm | None:
    """An integer result as a constant; None if it is out of range of an index type.

    Whether such a result is an index (the exact number) or a value (modulo 2**n) is not known here,
    so the operation is kept.
    """
    if _is_index_type(dtype):
        return IntImm(value, dtype) if dtype.min_value <= value <= dtype.max_value else None
    return _wrap(value, dtype)


def _fold_int(cls: type[E.BinaryOp], x: int, y: int) -> int | None:
    if y == 0 and cls in (E.FloorDiv, E.FloorMod, E.Div, E.Mod):
        return None
    table: dict[type[E.BinaryOp], Callable[[], int]] = {
        E.Add: lambda: x + y, E.Sub: lambda: x - y, E.Mul: lambda: x * y,
        E.FloorDiv: lambda: x // y, E.FloorMod: lambda: x % y,
        E.Min: lambda: min(x, y), E.Max: lambda: max(x, y),
        E.Div: lambda: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
        E.Mod: lambda: abs(x) % abs(y) * (-1 if x < 0 else 1),
    }  # fmt: skip
    return table[cls]()


def match_numbers(a: Any, b: Any, *, stated: bool = False) -> tuple[Expr, Expr]:
    """Convert both operands of arithmetic to one type; two booleans become int32."""
    x, y = match_types(a, b, stated=stated)
    if x.dtype.is_bool and y.dtype.is_bool:
        number = INT32.with_lanes(x.dtype.lanes)
        x, y = cast_to(x, number), cast_to(y, number)
    return x, y


def binary(cls: type[E.BinaryOp], a: Any, b: Any) -> Expr:
    """`cls(a, b)` with types matched and constants folded."""
    x, y = match_numbers(a, b)
    folded = _fold(cls, x, y)
    return cls(x, y) if folded is None else folded


def compare(cls: type[E.CompareOp], a: Any, b: Any) -> Expr:
    """`cls(a, b)` with types matched; two constants fold to a constant bool."""
    x, y = match_types(a, b)
    if isinstance(x, IntImm) and isinstance(y, IntImm):
        table: dict[type[E.CompareOp], bool] = {
            E.EQ: x.value == y.value, E.NE: x.value != y.value, E.LT: x.value < y.value,
            E.LE: x.value <= y.value, E.GT: x.value > y.value, E.GE: x.value >= y.value,
        }  # fmt: skip
        return const(table[cls], BOOL)
    return cls(x, y)


def add(a: Any, b: Any) -> Expr:
    return binary(E.Add, a, b)


def sub(a: Any, b: Any) -> Expr:
    return binary(E.Sub, a, b)


def mul(a: Any, b: Any) -> Expr:
    return binary(E.Mul, a, b)


def floordiv(a: Any, b: Any) -> Expr:
    return binary(E.FloorDiv, a, b)


def floormod(a: Any, b: Any) -> Expr:
    return binary(E.FloorMod, a, b)


def truediv(a: Any, b: Any) -> Expr:
    """Division of floats; two integers are an error, because the kind of division is ambiguous."""
    x, y = match_types(a, b)
    if not x.dtype.is_float:
        raise IRError(
            "`/` on integers is ambiguous",
            code="BW208",
            help="use // (floor) or T.truncdiv, or cast to a float type",
        )
    return E.Div(x, y)


def ceildiv(a: Any, b: Any) -> Expr:
    """`ceil(a / b)` for positive b."""
    return floordiv(add(a, sub(b, 1)), b)


def minimum(a: Any, b: Any) -> Expr:
    return binary(E.Min, a, b)


def maximum(a: Any, b: Any) -> Expr:
    return binary(E.Max, a, b)


def logical_and(a: Any, b: Any) -> Expr:
    x, y = as_expr(a), as_expr(b)
    if is_const_int(x):
        return y if cast(IntImm, x).value else x
    if is_const_int(y):
        return x if cast(IntImm, y).value else y
    return E.And(*match_types(x, y))


def logical_or(a: Any, b: Any) -> Expr:
    x, y = as_expr(a), as_expr(b)
    if is_const_int(x):
        return x if cast(IntImm, x).value else y
    if is_const_int(y):
        return y if cast(IntImm, y).value else x
    return E.Or(*match_types(x, y))


def logical_not(a: Any) -> Expr:
    x = as_expr(a)
    return const(not x.value, BOOL) if isinstance(x, IntImm) else E.Not(x)


def conditions(condition: Expr) -> list[Expr]:
    """The conjuncts of a condition, without constant true; the inverse of `all_of`."""
    if isinstance(condition, E.And):
        return [*conditions(condition.a), *conditions(condition.b)]
    return [] if is_const_int(condition, 1) else [condition]


def all_of(conditions: Iterable[Expr]) -> Expr:
    """Conjunction of the conditions; true if there are none."""
    result: Expr = const(True, BOOL)
    for condition in conditions:
        result = logical_and(result, condition)
    return result


def select(condition: Any, true_value: Any, false_value: Any) -> Expr:
    t, f = match_types(true_value, false_value)
    return E.Select(as_expr(condition), t, f)


def if_then_else(condition: Any, true_value: Any, false_value: Any) -> Expr:
    """Lazy conditional: only the taken side is evaluated, so the other may be out of bounds."""
    t, f = match_types(true_value, false_value)
    c = as_expr(condition)
    if isinstance(c, IntImm):
        return t if c.value else f
    return E.Call("if_then_else", (c, t, f), t.dtype)


def call(op: str, *args: Any, dtype: DType | str | None = None) -> Expr:
    """A call of a builtin operation; its row determines the result type unless `dtype` is given."""
    row = op_row(op)
    values = tuple(as_expr(a) for a in args)
    if row.arity >= 0 and len(values) != row.arity:
        raise IRError(f"{op} takes {row.arity} arguments, got {len(values)}", code="BW229")
    if row.elementwise and row.arity > 1:
        values = _match_all(values)
    if dtype is not None:
        return E.Call(op, values, dtype_of(dtype))
    if row.result == "given":
        return E.Call(op, values, INT32)
    return E.Call(op, values, result_type(row, values[0].dtype))


def _match_all(values: tuple[Expr, ...]) -> tuple[Expr, ...]:
    first = values[0]
    for other in values[1:]:
        first, _ = match_types(first, other)
    return tuple(match_types(v, first)[0] for v in values)


def load(buffer: Buffer, *indices: Any) -> Expr:
    """Element of a buffer; the number of indices must match its dimensions."""
    if len(indices) != buffer.ndim:
        raise IRError(
            f"buffer {buffer.name} has {buffer.ndim} dimensions, got {len(indices)} indices",
            code="BW209",
        )
    return E.BufferLoad(buffer, tuple(as_expr(i) for i in indices))


def full_region(buffer: Buffer) -> BufferRegion:
    """The whole of a buffer."""
    ranges = tuple(Range(const(0, extent.dtype), extent) for extent in buffer.shape)
    return BufferRegion(buffer, ranges)


def point(index: Expr) -> Range:
    """The range of a single index."""
    return Range(index, const(1, index.dtype))


def point_region(buffer: Buffer, indices: Sequence[Expr]) -> BufferRegion:
    """The single element at `indices`."""
    return BufferRegion(buffer, tuple(map(point, indices)))


def seq(stmts: Iterable[Stmt]) -> Stmt:
    """Statements in sequence, flattened; a single statement is returned as is."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.seq if isinstance(stmt, SeqStmt) else (stmt,))
    return flat[0] if len(flat) == 1 else SeqStmt(tuple(flat))


def var(name: str, dtype: DType | str = INT32) -> Var:
    return Var(name, dtype_of(dtype))


_Operator = Callable[[Any, Any], Expr]


def _comparing(cls: type[E.CompareOp]) -> _Operator:
    return lambda a, b: compare(cls, a, b)


def _calling(op: str) -> _Operator:
    return lambda a, b: call(op, *match_types(a, b))


def _bit_or_logical(op: str, logical: _Operator) -> _Operator:
    def apply(a: Any, b: Any) -> Expr:
        x, y = match_types(a, b)
        return logical(x, y) if x.dtype.is_bool else call(op, x, y)

    return apply


def _swapped(fn: _Operator) -> _Operator:
    return lambda a, b: fn(b, a)


def _negate(value: Expr) -> Expr:
    if isinstance(value, FloatImm):
        return FloatImm(-value.value, value.dtype)
    if value.dtype.is_float:
        return E.Mul(value, const(-1.0, value.dtype))
    return binary(E.Sub, const(0, value.dtype), value)


def _invert(value: Expr) -> Expr:
    return logical_not(value) if value.dtype.is_bool else call("bitwise_not", value)


def _element(self: Buffer, index: ExprLike | tuple[ExprLike, ...]) -> Expr:
    at = cast("tuple[ExprLike, ...]", index) if isinstance(index, tuple) else (index,)
    return load(self, *at)


def _install_operators() -> None:
    two_sided: dict[str, _Operator] = {
        "add": add, "sub": sub, "mul": mul, "floordiv": floordiv, "mod": floormod,
        "truediv": truediv, "and": _bit_or_logical("bitwise_and", logical_and),
        "or": _bit_or_logical("bitwise_or", logical_or), "xor": _calling("bitwise_xor"),
        "lshift": _calling("shift_left"), "rshift": _calling("shift_right"),
    }  # fmt: skip
    for name, fn in two_sided.items():
        setattr(Expr, f"__{name}__", fn)
        setattr(Expr, f"__r{name}__", _swapped(fn))
    for name, cls in {"lt": E.LT, "le": E.LE, "gt": E.GT, "ge": E.GE}.items():
        setattr(Expr, f"__{name}__", _comparing(cls))
    for name, one_sided in {"neg": _negate, "invert": _invert}.items():
        setattr(Expr, f"__{name}__", one_sided)
    Buffer.__getitem__ = _element


_install_operators()
