"""Constructors of expressions, regions and sequences, with constant folding.

Folding is limited to constants and neutral elements, so that `x + 0` and `2 * 3` do not clutter
programs; further simplification belongs to `arith`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from blockwright.ir import expr as E
from blockwright.ir.buffer import Buffer, BufferRegion, Range
from blockwright.ir.convert import (
    as_expr,
    const,
    is_const_int,
    match_numbers,
    match_types,
    number_of,
)
from blockwright.ir.dtype import BOOL, HANDLE, INT32, DType, dtype_of
from blockwright.ir.expr import Expr, IntImm, Var
from blockwright.ir.node import Node, show
from blockwright.ir.op import op_row, result_type
from blockwright.ir.stmt import SeqStmt, Stmt
from blockwright.support import IRError


def _fold(cls: type[E.BinaryOp], a: Expr, b: Expr) -> Expr | None:
    """Fold constants and drop neutral elements; None if the node must be built."""
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        value = _fold_int(cls, a.value, b.value)
        return None if value is None else number_of(value, a.dtype)
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
    wrong = tensor_problem(values[0]) if op == "tensor" else None
    if wrong is not None:
        raise IRError(wrong, code="BW260", help=TENSOR_OF_PART)
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


def tensor_of(buffer: Buffer) -> E.Call:
    """A whole buffer as a tensor: an argument of a packed function or of a C function."""
    zeros = tuple(const(0, extent.dtype) for extent in buffer.shape)
    return E.Call("tensor", (E.BufferLoad(buffer, zeros),), HANDLE)


def tensor_problem(place: Node) -> str | None:
    """Why the operand of `tensor` does not name a whole buffer, by its first element, as it must;
    None if it does."""
    if isinstance(place, E.BufferLoad) and place.predicate is None:
        ours = len(place.indices) == place.buffer.ndim
        if ours and all(is_const_int(index, 0) for index in place.indices):
            return None
    return f"T.tensor passes a whole buffer, named by its first element, not {show(place)}"


LARGE_ARGUMENT = "an argument of a foreign function is above 2**63 - 1"
LARGE_ARGUMENT_HELP = 'pass it in a tensor, or as an int64: T.reinterpret("int64", x)'

TENSOR_OF_PART = "for a part, declare a view, V = T.match_buffer(A[i, 0:n], (n,)): T.tensor(V[0])"
"""Remedy for a `tensor_problem`."""


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
