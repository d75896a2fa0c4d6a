"""The builtin commutative reducers, and the constructor of reducers.

| name | components | combiner | identity |
|---|---|---|---|
| `sum`, `prod` | one number | `x + y`, `x * y` | 0, 1 |
| `min`, `max` | one number | smaller, larger; NaN if either is NaN | largest, smallest value |
| `any`, `all` | one bool | `x or y`, `x and y` | false, true |
| `argmin`, `argmax` | number, position | smaller, larger number | as above, largest index |

Among equal numbers `argmin` and `argmax` choose the lower position. NaN precedes every number, as
in NumPy: the result is the first NaN, if any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec

from blockwright import ir
from blockwright.support import IRError

Combine = Callable[..., Any]


class BuiltinReducer(msgspec.Struct, frozen=True):
    """A row of the table.

    Attributes:
        combine: maps flat operands (x0, …, y0, …) to the result, one expression or several.
        identity: per component, a function from its type to its identity value.
        lanes: name of the vector operation that combines lanes; "" if there is none.
        idempotent: whether combining a value with itself yields that value.
    """

    name: str
    combine: Combine
    identity: tuple[Callable[[ir.DType], ir.Expr], ...]
    lanes: str = ""
    idempotent: bool = True

    @property
    def arity(self) -> int:
        """Number of components."""
        return len(self.identity)


def largest(dtype: ir.DType) -> ir.Expr:
    return ir.const(float("inf") if dtype.is_float else dtype.max_value, dtype)


def smallest(dtype: ir.DType) -> ir.Expr:
    return ir.const(float("-inf") if dtype.is_float else dtype.min_value, dtype)


def _position(better: type[ir.CompareOp]) -> Combine:
    """Combiner of (number, position) pairs: the second pair is taken if it is better."""

    def combine(x: Any, i: Any, y: Any, j: Any) -> tuple[ir.Expr, ir.Expr]:
        first: Any = ir.logical_or(
            better(y, x), ir.logical_and(ir.EQ(y, x), ir.compare(ir.LT, j, i))
        )
        if x.dtype.is_float:
            alone = ir.logical_or(ir.EQ(x, x), ir.compare(ir.LT, j, i))
            first = ir.logical_or(first, ir.logical_and(ir.NE(y, y), alone))
        return ir.select(first, y, x), ir.select(first, j, i)

    return combine


def _constant(value: int | bool) -> Callable[[ir.DType], ir.Expr]:
    return lambda dtype: ir.const(value, dtype)


_ZERO, _ONE, _FALSE, _TRUE = _constant(0), _constant(1), _constant(False), _constant(True)
BUILTIN: dict[str, BuiltinReducer] = {
    row.name: row
    for row in (
        BuiltinReducer("sum", ir.add, (_ZERO,), "vector_reduce_add", idempotent=False),
        BuiltinReducer("prod", ir.mul, (_ONE,), idempotent=False),
        BuiltinReducer("min", ir.minimum, (largest,), "vector_reduce_min"),
        BuiltinReducer("max", ir.maximum, (smallest,), "vector_reduce_max"),
        BuiltinReducer("any", ir.logical_or, (_FALSE,)),
        BuiltinReducer("all", ir.logical_and, (_TRUE,)),
        BuiltinReducer("argmin", _position(ir.LT), (largest, largest)),
        BuiltinReducer("argmax", _position(ir.GT), (smallest, largest)),
    )
}


def builtin_reducer(name: str, dtypes: Sequence[ir.DType | str]) -> ir.CommReducer:
    """A builtin reducer over components of the given types."""
    row = BUILTIN.get(name)
    if row is None:
        raise IRError(
            f"there is no reducer {name!r}",
            code="BW228",
            help=f"builtin reducers: {', '.join(BUILTIN)}; others are declared with comm_reducer",
        )
    kinds = tuple(ir.dtype_of(d) for d in dtypes)
    if len(kinds) != row.arity:
        raise IRError(
            f"{name} combines {row.arity} components, got {len(kinds)} types", code="BW228"
        )
    if row.arity == 2 and not kinds[1].is_int:
        raise IRError(f"a position of {name} is an integer, not {kinds[1]}", code="BW228")
    if name in ("any", "all") and not kinds[0].is_bool:
        raise IRError(
            f"{name} combines bool, not {kinds[0]}", code="BW228", help="compare first: x != 0"
        )
    return _made(name, kinds)


@lru_cache(maxsize=256)
def _made(name: str, kinds: tuple[ir.DType, ...]) -> ir.CommReducer:
    row = BUILTIN[name]
    return make_reducer(row.combine, [e(t) for e, t in zip(row.identity, kinds, strict=True)])


def make_reducer(
    combine: Combine, identity: Sequence[ir.Expr], names: Sequence[str] = ()
) -> ir.CommReducer:
    """A reducer from a function of the operands (x0, x1, …, y0, y1, …) with one or several results.

    `names` optionally names the operands.
    """
    count = len(identity)
    tags = [""] if count == 1 else [str(c) for c in range(count)]
    called = names or [f"{side}{tag}" for side in "xy" for tag in tags]
    lhs = tuple(ir.Var(n, e.dtype) for n, e in zip(called[:count], identity, strict=True))
    rhs = tuple(ir.Var(n, e.dtype) for n, e in zip(called[count:], identity, strict=True))
    parts = components(combine(*lhs, *rhs))
    if len(parts) != len(identity):
        raise IRError(
            f"the combination has {len(parts)} components, the identity {len(identity)}",
            code="BW228",
        )
    result = tuple(
        ir.as_expr(p, v.type) if not isinstance(p, ir.Expr) else p
        for p, v in zip(parts, lhs, strict=True)
    )
    for part, var in zip(result, lhs, strict=True):
        if part.dtype is not var.type:
            raise IRError(
                f"a component of type {var.type} becomes {part.dtype} in the combination",
                code="BW228",
                help="give the identity the type of the combination",
            )
    return ir.CommReducer(lhs, rhs, result, tuple(identity))


def components(value: Any) -> list[Any]:
    """The items of a tuple or list; any other value is a single component."""
    return list(cast("Sequence[Any]", value)) if isinstance(value, (tuple, list)) else [value]


def combined(
    reducer: ir.CommReducer, lhs: Sequence[ir.Expr], rhs: Sequence[ir.Expr]
) -> tuple[ir.Expr, ...]:
    """The components of combining two tuples of expressions."""
    operands = reducer.operands(lhs, rhs)
    return tuple(ir.substitute(part, operands) for part in reducer.result)
