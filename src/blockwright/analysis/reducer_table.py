"""The builtin commutative reducers, and how a reducer is declared.

| name | components | combination | value of nothing |
|---|---|---|---|
| `sum`, `prod` | one number | `x + y`, `x * y` | 0, 1 |
| `min`, `max` | one number | the smaller, larger; NaN if either is | the largest, smallest |
| `any`, `all` | one bool | `x or y`, `x and y` | false, true |
| `argmin`, `argmax` | number, position | the smaller, larger number | as above, the last index |

Of equal numbers `argmin` and `argmax` take the one at the lower position. NaN comes before every
number, as in NumPy: the result is the first NaN, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from blockwright import ir
from blockwright.support import IRError

Combine = Callable[..., Any]


class BuiltinReducer(msgspec.Struct, frozen=True):
    """A row of the table.

    Attributes:
        arity: number of components.
        combine: flat operands (x0, …, y0, …) to the result, one expression or several.
        identity: types of the components to the value of nothing.
        lanes: name of the vector operation that combines lanes; "" when there is none.
        idempotent: whether a value combined with itself is that value.
    """

    name: str
    arity: int
    combine: Combine
    identity: Callable[..., tuple[ir.Expr, ...]]
    lanes: str = ""
    idempotent: bool = True


def largest(dtype: ir.DType) -> ir.Expr:
    return ir.const(float("inf") if dtype.is_float else dtype.max_value, dtype)


def smallest(dtype: ir.DType) -> ir.Expr:
    return ir.const(float("-inf") if dtype.is_float else dtype.min_value, dtype)


def _position(better: type[ir.CompareOp]) -> Combine:
    """Which of two (number, position) pairs comes first; the second pair is taken if it does."""

    def combine(x: Any, i: Any, y: Any, j: Any) -> tuple[ir.Expr, ir.Expr]:
        first: Any = ir.logical_or(
            better(y, x), ir.logical_and(ir.EQ(y, x), ir.compare(ir.LT, j, i))
        )
        if x.dtype.is_float:
            alone = ir.logical_or(ir.EQ(x, x), ir.compare(ir.LT, j, i))
            first = ir.logical_or(first, ir.logical_and(ir.NE(y, y), alone))
        return ir.select(first, y, x), ir.select(first, j, i)

    return combine


BUILTIN: dict[str, BuiltinReducer] = {
    row.name: row
    for row in (
        BuiltinReducer("sum", 1, ir.add, lambda t: (ir.const(0, t),), "vector_reduce_add", False),
        BuiltinReducer("prod", 1, ir.mul, lambda t: (ir.const(1, t),), "", False),
        BuiltinReducer("min", 1, ir.minimum, lambda t: (largest(t),), "vector_reduce_min"),
        BuiltinReducer("max", 1, ir.maximum, lambda t: (smallest(t),), "vector_reduce_max"),
        BuiltinReducer("any", 1, ir.logical_or, lambda t: (ir.const(False, t),)),
        BuiltinReducer("all", 1, ir.logical_and, lambda t: (ir.const(True, t),)),
        BuiltinReducer("argmin", 2, _position(ir.LT), lambda t, i: (largest(t), largest(i))),
        BuiltinReducer("argmax", 2, _position(ir.GT), lambda t, i: (smallest(t), largest(i))),
    )
}


def builtin_reducer(name: str, dtypes: Sequence[ir.DType | str]) -> ir.CommReducer:
    """A builtin reducer over components of the given types."""
    row = BUILTIN.get(name)
    if row is None:
        raise IRError(f"there is no reducer {name!r}", code="BW218",
                      help=f"builtin reducers: {', '.join(BUILTIN)}; others are declared with "
                      "comm_reducer")  # fmt: skip
    kinds = tuple(ir.dtype_of(d) for d in dtypes)
    if len(kinds) != row.arity:
        raise IRError(f"{name} combines {row.arity} components, got {len(kinds)} types",
                      code="BW218")  # fmt: skip
    if row.arity == 2 and not kinds[1].is_int:
        raise IRError(f"a position of {name} is an integer, not {kinds[1]}", code="BW218")
    if name in ("any", "all") and not kinds[0].is_bool:
        raise IRError(f"{name} combines bool, not {kinds[0]}", code="BW218",
                      help="compare first: x != 0")  # fmt: skip
    return _made(name, kinds)


@lru_cache(maxsize=256)
def _made(name: str, kinds: tuple[ir.DType, ...]) -> ir.CommReducer:
    row = BUILTIN[name]
    return make_reducer(row.combine, row.identity(*kinds))


def make_reducer(combine: Combine, identity: Sequence[ir.Expr]) -> ir.CommReducer:
    """A reducer from a function of the operands (x0, x1, …, y0, y1, …), one or several results."""
    tags = [""] if len(identity) == 1 else [str(c) for c in range(len(identity))]
    lhs = tuple(ir.Var(f"x{t}", e.dtype) for t, e in zip(tags, identity, strict=True))
    rhs = tuple(ir.Var(f"y{t}", e.dtype) for t, e in zip(tags, identity, strict=True))
    made = combine(*lhs, *rhs)
    parts: Sequence[Any] = made if isinstance(made, (tuple, list)) else (made,)
    if len(parts) != len(identity):
        raise IRError(f"the combination has {len(parts)} components, the identity "
                      f"{len(identity)}", code="BW218")  # fmt: skip
    result = tuple(ir.as_expr(p, v.type) if not isinstance(p, ir.Expr) else p
                   for p, v in zip(parts, lhs, strict=True))  # fmt: skip
    for part, var in zip(result, lhs, strict=True):
        if part.dtype is not var.type:
            raise IRError(f"a component of type {var.type} becomes {part.dtype} in the "
                          "combination", code="BW218",
                          help="give the identity the type of the combination")  # fmt: skip
    return ir.CommReducer(lhs, rhs, result, tuple(identity))


def combined(
    reducer: ir.CommReducer, lhs: Sequence[ir.Expr], rhs: Sequence[ir.Expr]
) -> tuple[ir.Expr, ...]:
    """The components of combining two tuples of expressions."""
    operands = reducer.operands(lhs, rhs)
    return tuple(ir.substitute(part, operands) for part in reducer.result)
