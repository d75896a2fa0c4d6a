"""Functions of four bits: a table on targets that look up lanes in a register.

T.Cast("float32", words & 15) - 7.0    16 lanes  →  lookup(words, [-7.0, -6.0, …, 8.0])

AVX-512 permutes the 16 lanes of a register by the lowest four bits of each lane of another one, so
the mask, the conversion and the arithmetic of a decoded number take one instruction together. The
table holds what the arithmetic gives, rounded to its type, so no rounding is left. Elsewhere,
arithmetic in a narrow type that rounds none of the 16 values happens in single precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blockwright.codegen.llvm import integers
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.values import Value, float_const, lanes_of, vector
from blockwright.ir import Call, DType, Expr, build
from blockwright.ir import expr as E

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIZE = 16
_DEEPEST = 8  # operations that are evaluated for a table
_OPERATIONS: dict[type[Expr], Callable[[Any, Any], Any]] = {
    E.Add: np.add, E.Sub: np.subtract, E.Mul: np.multiply,
}  # fmt: skip


class FourBits(NamedTuple):
    """A function of the lowest four bits of an integer.

    Attributes:
        source: the integer, a scalar or a vector.
        values: the results.
        exact: whether single precision gives the same without rounding to the type.
    """

    source: Expr
    values: NDArray[np.float32]
    exact: bool


def four_bits(expr: Expr) -> FourBits | None:
    """The function that a float expression is; None if it is not one of four bits alone."""
    if not expr.dtype.is_float or expr.dtype.bits > 32:
        return None
    found = _values(expr, _DEEPEST, rounded=True)
    if found is None or found[0] is None:
        return None
    plain = _values(expr, _DEEPEST, rounded=False)
    assert plain is not None
    values = found[1].astype(np.float32)
    return FourBits(found[0], values, bool((values == plain[1]).all()))


def has_lookup(e: FunctionEmitter, dtype: DType) -> bool:
    """Whether one instruction looks up a vector of this type in a register of 16 floats."""
    return dtype.lanes == _SIZE and e.module.target.has("avx512f")


def lookup(e: FunctionEmitter, index: Value, values: NDArray[np.float32]) -> Value:
    """The elements of a table at the lowest four bits of the lanes of an integer vector."""
    wide = vector("i32", lanes_of(index.type))
    index = e.convert("trunc" if index.type.endswith("i64>") else "zext", index, wide)
    items = ", ".join(f"float {float_const(float(x), 'float').text}" for x in values)
    table = Value(vector("float", _SIZE), f"<{items}>")
    return e.intrinsic("x86.avx512.permvar.sf.512", table.type, table, index)


def in_single(expr: Expr) -> Expr:
    """The same function of four bits with arithmetic in single precision."""
    wide = DType("float", 32, expr.dtype.lanes)
    if isinstance(expr, E.Cast):
        return E.Cast(wide, in_single(expr.value) if expr.value.dtype.is_float else expr.value)
    if isinstance(expr, E.BinaryOp):
        return type(expr)(in_single(expr.a), in_single(expr.b))
    if isinstance(expr, E.Broadcast):
        return E.Broadcast(in_single(expr.value), expr.lanes)
    assert isinstance(expr, E.FloatImm)
    return build.const(expr.value, wide)


def _values(expr: Expr, depth: int, *, rounded: bool) -> tuple[Expr | None, NDArray[Any]] | None:
    """The integer that an expression depends on, None for constants, and its 16 values."""
    number = _constant(expr)
    if number is not None:
        return None, np.full(_SIZE, number, expr.dtype.numpy())
    masked = _masked(expr)
    if masked is not None:
        source, mask = masked
        return source, np.arange(_SIZE) & mask
    if depth == 0 or not expr.dtype.is_float:
        return None
    kind = expr.dtype.numpy() if rounded else np.float32
    if isinstance(expr, E.Cast):
        inner = _values(expr.value, depth - 1, rounded=rounded)
        return None if inner is None else (inner[0], inner[1].astype(np.float32).astype(kind))
    operation = _OPERATIONS.get(type(expr))
    if operation is None or not isinstance(expr, E.BinaryOp):
        return None
    a = _values(expr.a, depth - 1, rounded=rounded)
    b = None if a is None else _values(expr.b, depth - 1, rounded=rounded)
    if a is None or b is None or (a[0] is not None and b[0] is not None and a[0] is not b[0]):
        return None
    x, y = (part[1].astype(np.float32) for part in (a, b))
    return (a[0] if a[0] is not None else b[0]), operation(x, y).astype(kind)


def _constant(expr: Expr) -> float | None:
    while isinstance(expr, E.Broadcast):
        expr = expr.value
    return expr.value if isinstance(expr, (E.IntImm, E.FloatImm)) else None


def _masked(expr: Expr) -> tuple[Expr, int] | None:
    """The source and mask of `x & mask`, or `x % 2**n`, with at most four bits."""
    if isinstance(expr, Call) and expr.op == "bitwise_and":
        source, mask = expr.args[0], integers.constant_of(expr.args[1])
    elif isinstance(expr, E.FloorMod):
        divisor = integers.constant_of(expr.b)
        power = divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0
        source, mask = expr.a, divisor - 1 if power and divisor is not None else None
    else:
        return None
    whole = source.dtype.is_int and not source.dtype.is_bool and source.dtype.bits >= 8
    return (source, mask) if mask is not None and 0 <= mask < _SIZE and whole else None
