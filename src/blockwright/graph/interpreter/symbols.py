"""Bind the symbols of annotations to the sizes of values, and check values against annotations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blockwright import ir
from blockwright.analysis.sizes import linear_in
from blockwright.graph.builder import symbol_ranges
from blockwright.graph.interpreter.values import (
    Mismatch,
    Shape,
    is_array,
    is_scalar,
    is_tuple,
    kind_mismatch,
)
from blockwright.interp.scalars import Scalar, scalar_function
from blockwright.ops.row import dims_text
from blockwright.support import InterpretError

Dim = tuple[ir.Expr, Any, str]
"""A dimension of an annotation, its value, and its place in words."""

_compiled: dict[ir.Expr, Scalar] = {}
_MOST = 4096  # expressions kept


def _function(expr: ir.Expr) -> Scalar:
    result = _compiled.get(expr)
    if result is None:
        if len(_compiled) >= _MOST:
            _compiled.clear()
        result = _compiled[expr] = scalar_function(expr)
    return result


class Symbols:
    """The symbols of a running function: their values, and where each was bound."""

    def __init__(self, values: Mapping[ir.Var, Any] | None = None) -> None:
        self.values: dict[ir.Var, Any] = dict(values or {})
        self.origin: dict[ir.Var, str] = {}

    def value(self, expr: ir.Expr) -> Any:
        """The value of an expression.

        Raises: InterpretError: BW769 for an unbound symbol; the errors of expressions.
        """
        if isinstance(expr, ir.IntImm) and not expr.dtype.is_bool:
            return expr.value
        if isinstance(expr, ir.Var) and expr in self.values:
            return self.values[expr]
        missing = [v.name for v in ir.free_vars(expr) if v not in self.values]
        if missing:
            raise InterpretError(
                f"symbol {missing[0]} has no value here", code="BW769", span=expr.span
            )
        return _function(expr)(self.values)

    def shape(self, dims: tuple[ir.Expr, ...]) -> tuple[int, ...]:
        return tuple(int(self.value(d)) for d in dims)

    def extents(self, dims: tuple[ir.Expr, ...]) -> tuple[int, ...]:
        """The sizes of a new tensor. Raises: InterpretError BW708 for a negative one."""
        sizes = self.shape(dims)
        for axis, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
            if size < 0:
                raise InterpretError(
                    f"dimension {axis} of a result, {dims_text(dim)}, would be {size}",
                    code="BW708",
                    help="pass larger tensors",
                    notes=self.notes(list(ir.free_vars(dim))),
                )
        return sizes

    # ------------------------------------------------------------------------------------- binding
    def bind(self, info: ir.Info | None, value: Any, name: str) -> None:
        """Bind the new symbols that are a whole dimension of an annotation; the first one wins."""
        for dim, actual, place in dims_of(info, value):
            if isinstance(dim, ir.Var) and dim not in self.values:
                self._set(dim, actual, f"{place} of {name}")

    def solve(self, info: ir.Info | None, value: Any, name: str) -> None:
        """Bind the only new symbol of each linear dimension, such as `n` of `2 * n + 1`.

        Raises: InterpretError BW704: no integer solves it.
        """
        for dim, actual, place in dims_of(info, value):
            unknown = [v for v in ir.free_vars(dim) if v not in self.values]
            linear = linear_in(self._inserted(dim), unknown[0]) if len(unknown) == 1 else None
            if linear is None or linear[0] == 0:
                continue
            factor, offset = linear
            quotient, rest = divmod(actual - offset, factor)
            if rest:
                raise InterpretError(
                    f"{name}: {place} is {actual}, which is {dims_text(dim)} for no integer "
                    f"{unknown[0].name}",
                    code="BW704",
                    help="pass an argument of another size",
                )
            self._set(unknown[0], quotient, f"{place} of {name}")

    def _inserted(self, dim: ir.Expr) -> ir.Expr:
        known = {
            v: ir.const(self.values[v], v.dtype) for v in ir.free_vars(dim) if v in self.values
        }
        return ir.substitute(dim, known) if known else dim

    def _set(self, symbol: ir.Var, value: Any, place: str) -> None:
        self.values[symbol] = int(value) if symbol.dtype.is_int else value
        self.origin[symbol] = place

    def check_ranges(self, attrs: dict[str, Any], new: list[ir.Var]) -> None:
        """Check symbols against the declared bounds; without bounds they are at least 0.

        Raises: InterpretError BW708.
        """
        for symbol, bounds in symbol_ranges(attrs, [v for v in new if v.dtype.is_int]).items():
            low, extent = ir.const_int(bounds.min), ir.const_int(bounds.extent)
            assert low is not None
            assert extent is not None
            high, value = low + extent - 1, self.values[symbol]
            if not low <= value <= high:
                raise InterpretError(
                    f"{symbol.name} = {value} is outside its declared range [{low}, {high}]",
                    code="BW708",
                    notes=self.notes([symbol]),
                )

    def notes(self, symbols: list[ir.Var]) -> list[str]:
        """Where these symbols were bound, for messages."""
        return [
            f"{s.name} = {self.values[s]} by {self.origin[s]}" for s in symbols if s in self.origin
        ]

    # ------------------------------------------------------------------------------------ checking
    def mismatch(self, info: ir.Info | None, value: Any) -> Mismatch | None:
        """Why a value does not have an annotation; None if it does."""
        if info is None or isinstance(info, ir.ObjectInfo):
            return None
        wrong = kind_mismatch(info, value)
        if wrong is not None:
            return wrong
        if isinstance(info, ir.TupleInfo):
            for number, (field, part) in enumerate(zip(info.fields, value, strict=True)):
                wrong = self.mismatch(field, part)
                if wrong is not None:
                    return Mismatch(wrong.code, f"field {number}: {wrong.message}")
            return None
        rank = _rank(info)
        if rank >= 0 and rank != _count(value):
            return Mismatch("BW704", f"expected {rank} dimensions, got {_count(value)}")
        for dim, actual, place in dims_of(info, value):
            wanted = self.value(dim)
            if wanted != actual and (wanted == wanted or actual == actual):  # NaN is itself
                symbolic = "BW709" if ir.free_vars(dim) else "BW704"
                known = dims_text(dim) if ir.const_int(dim) is None else ""
                text = f"{known} = {wanted}" if known else f"{wanted}"
                return Mismatch(symbolic, f"{place} is {actual}, expected {text}")
        return None


def dims_of(info: ir.Info | None, value: Any) -> Iterator[Dim]:
    """Each dimension of an annotation with its value, where the value has that rank."""
    if isinstance(info, ir.TupleInfo):
        if is_tuple(value) and len(value) == len(info.fields):
            for number, (field, part) in enumerate(zip(info.fields, value, strict=True)):
                for dim, actual, place in dims_of(field, part):
                    yield dim, actual, f"{place} of field {number}"
    elif isinstance(info, ir.PrimInfo):
        if info.value is not None and is_scalar(value):
            yield info.value, value, "its value"
    else:
        dims: tuple[ir.Expr, ...] | None = None
        sizes: tuple[int, ...] = ()
        if isinstance(info, ir.TensorInfo) and is_array(value):
            dims, sizes = info.shape, value.shape
        elif isinstance(info, ir.ShapeInfo) and isinstance(value, Shape):
            dims, sizes = info.values, value
        if dims is not None and len(dims) == len(sizes):
            for axis, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
                yield dim, size, f"dimension {axis}"


def new_symbols(info: ir.Info | None) -> list[ir.Var]:
    """All symbols of an annotation."""
    return ir.collect(info, ir.Var) if info is not None else []


def _rank(info: ir.Info) -> int:
    if isinstance(info, ir.TensorInfo):
        return info.rank
    if isinstance(info, ir.ShapeInfo):
        return info.ndim if info.values is None else len(info.values)
    return -1


def _count(value: Any) -> int:
    return value.ndim if is_array(value) else len(value)
