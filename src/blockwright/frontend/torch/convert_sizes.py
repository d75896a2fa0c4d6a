"""Converters of arithmetic on sizes: integers, floats computed from them, and conditions.

Values are Python numbers, or int64, float64 and bool expressions where a size is symbolic. A call
with sizes for which Python would raise an error is rejected: a division by zero, or a shift by a
negative amount.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch import size_arithmetic
from blockwright.frontend.torch.operands import Converter, Registry, axis_of, dims_of
from blockwright.frontend.torch.size_arithmetic import FLOAT, INT, alike
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
_LONGEST_SHIFT = 62


@TABLE.overload("aten.sym_size.int")
def _sym_size(imp: Importer, node: Any, x: Any, dim: int) -> Any:
    return dims_of(x)[axis_of(dim, len(dims_of(x)))]


@TABLE.overload("aten.sym_numel.default")
def _sym_numel(imp: Importer, node: Any, x: Any) -> Any:
    return functools.reduce(ir.mul, dims_of(x), ir.const(1, INT))


@TABLE.overload("aten.sym_stride.int", "aten.sym_storage_offset.default")
def _place(imp: Importer, node: Any, *ignored: Any) -> Any:
    """A stride or offset of the exporter's tensor."""
    imp.sizes.ignore(node.meta["val"])
    return imp.symbols.dim(node.meta["val"])


@TABLE.overload("aten.sym_is_contiguous.default")
def _is_contiguous(imp: Importer, node: Any, *ignored: Any) -> Any:
    return imp.symbols.condition(node.meta["val"])


def _is_symbolic(*values: Any) -> bool:
    return any(isinstance(value, ir.Expr) for value in values)


def _expression(value: Any) -> ir.Expr:
    """A number as an expression of Python's type."""
    if isinstance(value, ir.Expr):
        return value
    dtype = ir.dtype_of("bool") if isinstance(value, bool) else FLOAT
    return ir.const(value, INT if type(value) is int else dtype)


def _expressions(a: Any, b: Any) -> tuple[ir.Expr, ir.Expr]:
    """Two numbers as expressions of one type."""
    return alike(_expression(a), _expression(b))


# ------------------------------------------------------------------------------------- arithmetic
def _applied(
    known: Callable[[Any, Any], Any], fn: Callable[[ir.Expr, ir.Expr], Any], a: Any, b: Any
) -> Any:
    return fn(*_expressions(a, b)) if _is_symbolic(a, b) else known(a, b)


def _arithmetic(
    known: Callable[[Any, Any], Any], fn: Callable[[ir.Expr, ir.Expr], Any]
) -> Converter:
    """Apply a function to two operands, or from left to right to more, as decompositions write
    them: `known` to numbers, `fn` to expressions."""
    apply = functools.partial(_applied, known, fn)

    def convert(imp: Importer, node: Any, first: Any, *others: Any) -> Any:
        return functools.reduce(apply, others, first)

    return convert


for _name, _fn in {"add": ir.add, "sub": ir.sub, "mul": ir.mul}.items():
    TABLE.overload(f"operator.{_name}")(_arithmetic(getattr(operator, _name), _fn))
TABLE.overload("torch.sym_max")(_arithmetic(max, ir.maximum))
TABLE.overload("torch.sym_min")(_arithmetic(min, ir.minimum))


@TABLE.overload("torch.sym_sum")
def _sum(imp: Importer, node: Any, values: list[Any]) -> Any:
    return functools.reduce(functools.partial(_applied, operator.add, ir.add), values)


@TABLE.overload("operator.neg")
def _negated(imp: Importer, node: Any, a: Any) -> Any:
    return ir.sub(ir.const(0, a.dtype), a) if isinstance(a, ir.Expr) else -a


@TABLE.overload("operator.abs")
def _absolute(imp: Importer, node: Any, a: Any) -> Any:
    return size_arithmetic.absolute(a) if isinstance(a, ir.Expr) else abs(a)


@TABLE.overload("operator.truediv")
def _quotient(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    if not _is_symbolic(a, b):
        return a / b
    _require_divisor(imp, b)
    return ir.truediv(*(ir.cast_to(_expression(value), FLOAT) for value in (a, b)))


def _dividing(known: Callable[[Any, Any], Any], fn: Callable[[ir.Expr, ir.Expr], Any]) -> Converter:
    def convert(imp: Importer, node: Any, a: Any, b: Any) -> Any:
        if not _is_symbolic(a, b):
            return known(a, b)
        _require_divisor(imp, b)
        return fn(*_expressions(a, b))

    return convert


def _floor_quotient(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    if a.dtype.is_float:
        raise ImporterError(
            "floor division of floats computed from sizes is not supported",
            code="BW507",
            help="use math.floor(a / b), or integers",
        )
    return ir.floordiv(a, b)


TABLE.overload("operator.floordiv")(_dividing(lambda a, b: a // b, _floor_quotient))
TABLE.overload("operator.mod")(_dividing(operator.mod, size_arithmetic.remainder))


def _require_divisor(imp: Importer, divisor: Any) -> None:
    """Reject calls with sizes for which a divisor is zero."""
    if isinstance(divisor, ir.Expr) and not ir.const_int(divisor):
        zero = ir.const(0, divisor.dtype)
        _require(imp, ir.compare(ir.NE, divisor, zero), "the model divides by zero")


def _require(imp: Importer, condition: ir.Expr, message: str) -> None:
    if not imp.builder.analyzer.prove(condition):
        imp.builder.require(condition, f"BW719: {message}\nhelp: pass inputs of other sizes")


@TABLE.overload("operator.pow")
def _power(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    if not _is_symbolic(a, b):
        return a**b
    x, y = _expression(a), _expression(b)
    whole = x.dtype is INT and y.dtype is INT
    if whole and _is_symbolic(b):
        _require(imp, ir.compare(ir.GE, y, ir.const(0, INT)), "an exponent is negative")
    if whole and (_is_symbolic(b) or b >= 0):
        return ir.call("pow", x, y)
    return ir.call("pow", ir.cast_to(x, FLOAT), ir.cast_to(y, FLOAT))


# ------------------------------------------------------------------------------------- conversion
@TABLE.overload("torch.sym_float")
def _float(imp: Importer, node: Any, a: Any) -> Any:
    return ir.cast_to(a, FLOAT) if isinstance(a, ir.Expr) else float(a)


@TABLE.overload("torch.sym_int")
def _int(imp: Importer, node: Any, a: Any) -> Any:
    return _whole(imp, node, "trunc", a) if isinstance(a, ir.Expr) else int(a)


@TABLE.overload("torch._sym_sqrt", "torch.sym_sqrt")
def _root(imp: Importer, node: Any, a: Any) -> Any:
    return ir.call("sqrt", ir.cast_to(a, FLOAT)) if isinstance(a, ir.Expr) else math.sqrt(a)


def _whole(imp: Importer, node: Any, how: str, value: ir.Expr) -> ir.Expr:
    """A float as an integer. The exporter's expression of it, where its shapes have this number,
    is defined as the model's computation unless both are exact."""
    exact = size_arithmetic.rounded_exactly(how, value, imp.symbols.is_size)
    if exact is None:
        exact = size_arithmetic.rounded(how, value)
        imp.symbols.define(node.meta["val"], exact)
    return exact


def _rounding(how: str) -> Converter:
    def convert(imp: Importer, node: Any, a: Any) -> Any:
        return _whole(imp, node, how, a) if isinstance(a, ir.Expr) else getattr(math, how)(a)

    return convert


for _name in ("trunc", "floor", "ceil"):
    TABLE.overload(f"math.{_name}")(_rounding(_name))


@TABLE.overload("builtins.round")
def _round(imp: Importer, node: Any, a: Any, digits: int | None = None) -> Any:
    if not isinstance(a, ir.Expr):
        return round(a, digits)
    if digits is not None and a.dtype.is_float:
        raise ImporterError(
            "a number computed from sizes, rounded to decimals, is not supported",
            code="BW507",
            help="round to an integer, or round a tensor",
        )
    return _whole(imp, node, "round", a)


# ------------------------------------------------------------------------------------- bits
def _bits(
    known: Callable[[Any, Any], Any],
    fn: Callable[[ir.Expr, ir.Expr], ir.Expr],
    name: str,
) -> Converter:
    """A logical operation on conditions, a bitwise one on integers."""

    def convert(imp: Importer, node: Any, a: Any, b: Any) -> Any:
        if not _is_symbolic(a, b):
            return known(a, b)
        x, y = _expressions(a, b)
        return fn(x, y) if x.dtype.is_bool else ir.call(name, x, y)

    return convert


TABLE.overload("operator.and", "operator.and_")(
    _bits(lambda a, b: a & b, ir.logical_and, "bitwise_and")
)
TABLE.overload("operator.or", "operator.or_")(
    _bits(lambda a, b: a | b, ir.logical_or, "bitwise_or")
)


def _shift(known: Callable[[Any, Any], Any], name: str) -> Converter:
    def convert(imp: Importer, node: Any, a: Any, b: Any) -> Any:
        if not _is_symbolic(a, b):
            return known(a, b)
        x, y = _expressions(a, b)
        fits = ir.logical_and(
            ir.compare(ir.GE, y, ir.const(0, INT)),
            ir.compare(ir.LE, y, ir.const(_LONGEST_SHIFT, INT)),
        )
        _require(imp, fits, f"a number is shifted by less than 0 or more than {_LONGEST_SHIFT}")
        return ir.call(name, x, y)

    return convert


TABLE.overload("operator.lshift")(_shift(lambda a, b: a << b, "shift_left"))
TABLE.overload("operator.rshift")(_shift(lambda a, b: a >> b, "shift_right"))


# ------------------------------------------------------------------------------------- conditions
def _comparison(known: Callable[[Any, Any], Any], op: type[ir.CompareOp]) -> Converter:
    def compared(a: ir.Expr, b: ir.Expr) -> ir.Expr:
        if a.dtype.is_bool:
            a, b = ir.cast_to(a, INT), ir.cast_to(b, INT)
        return ir.compare(op, a, b)

    return _arithmetic(known, compared)


_COMPARISONS: dict[str, type[ir.CompareOp]] = {
    "eq": ir.EQ, "ne": ir.NE, "lt": ir.LT, "le": ir.LE, "gt": ir.GT, "ge": ir.GE,
}  # fmt: skip
for _name, _op in _COMPARISONS.items():
    TABLE.overload(f"operator.{_name}")(_comparison(getattr(operator, _name), _op))


@TABLE.overload("operator.not_", "torch.sym_not")
def _not(imp: Importer, node: Any, a: Any) -> Any:
    return ir.logical_not(a) if isinstance(a, ir.Expr) else not a


@TABLE.overload("torch.sym_ite")
def _chosen(imp: Importer, node: Any, condition: Any, a: Any, b: Any) -> Any:
    if not _is_symbolic(condition):
        return a if condition else b
    return ir.if_then_else(condition, *_expressions(a, b))
