"""Converters of arithmetic on sizes: integers, and floats computed from them.

Values are Python numbers, or int64 and float64 expressions where a size is symbolic.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch.operands import Converter, Registry, axis_of, dims_of

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
_INT64, _FLOAT64 = ir.dtype_of("int64"), ir.dtype_of("float64")

CONDITIONS = frozenset(
    {f"operator.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge", "and", "and_", "or_")}
    | {"torch.sym_not"}
)
"""Functions whose result is a condition on sizes."""


class Condition:
    """A condition on sizes. Assertions may use it: ranges and guards already imply it."""


CONDITION = Condition()


@TABLE.overload("aten.sym_size.int")
def _sym_size(imp: Importer, node: Any, x: Any, dim: int) -> Any:
    return dims_of(x)[axis_of(dim, len(dims_of(x)))]


def _is_float(value: Any) -> bool:
    return value.dtype.is_float if isinstance(value, ir.Expr) else isinstance(value, float)


def _applied(fn: Callable[[Any, Any], Any], divides: bool, a: Any, b: Any) -> Any:
    """Apply `fn` to numbers, or to expressions; the result is a float if either operand is."""
    if not isinstance(a, ir.Expr) and not isinstance(b, ir.Expr):
        return fn(a, b)
    dtype = _FLOAT64 if divides or _is_float(a) or _is_float(b) else _INT64
    typed = (ir.as_expr(v, None if isinstance(v, ir.Expr) else dtype) for v in (a, b))
    return fn(*(ir.cast_to(v, dtype) for v in typed))


def _arithmetic(fn: Callable[[Any, Any], Any], *, divides: bool = False) -> Converter:
    """Apply `fn` to two operands, or from left to right to more, as decompositions write them."""
    apply = functools.partial(_applied, fn, divides)

    def convert(imp: Importer, node: Any, first: Any, *others: Any) -> Any:
        return functools.reduce(apply, others, first)

    return convert


def _power(a: Any, b: Any) -> Any:
    if not isinstance(a, ir.Expr) and not isinstance(b, ir.Expr):
        return a**b
    return ir.call("pow", a, b)


def _quotient(a: Any, b: Any) -> Any:
    return ir.truediv(a, b) if isinstance(a, ir.Expr) else a / b


def _larger(a: Any, b: Any) -> Any:
    return ir.maximum(a, b) if isinstance(a, ir.Expr) else max(a, b)


def _smaller(a: Any, b: Any) -> Any:
    return ir.minimum(a, b) if isinstance(a, ir.Expr) else min(a, b)


@TABLE.overload("operator.neg")
def _negated(imp: Importer, node: Any, a: Any) -> Any:
    return ir.sub(ir.const(0, a.dtype), a) if isinstance(a, ir.Expr) else -a


@TABLE.overload("torch.sym_sum")
def _sum(imp: Importer, node: Any, values: list[Any]) -> Any:
    return functools.reduce(functools.partial(_applied, operator.add, False), values)


@TABLE.overload("torch.sym_float")
def _float(imp: Importer, node: Any, a: Any) -> Any:
    return ir.cast_to(a, _FLOAT64) if isinstance(a, ir.Expr) else float(a)


def _whole(name: str) -> Converter:
    """Convert a float to an integer by the integer expression that the exporter computed."""

    def convert(imp: Importer, node: Any, a: Any) -> Any:
        return (
            imp.symbols.dim(node.meta["val"]) if isinstance(a, ir.Expr) else getattr(math, name)(a)
        )

    return convert


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: a // b,
    "mod": operator.mod,
}
for _name, _fn in _FUNCTIONS.items():
    TABLE.overload(f"operator.{_name}")(_arithmetic(_fn))
TABLE.overload("torch.sym_max")(_arithmetic(_larger))
TABLE.overload("torch.sym_min")(_arithmetic(_smaller))
TABLE.overload("operator.truediv")(_arithmetic(_quotient, divides=True))
TABLE.overload("operator.pow")(_arithmetic(_power, divides=True))
for _name in ("trunc", "floor", "ceil"):
    TABLE.overload(f"math.{_name}")(_whole(_name))
