"""Calls of operators: by the NumPy oracle of the row, or by its tensor program.

NumPy broadcasts whatever has size 1; an operator, only a dimension that is the number 1. Each call
is deduced again with the sizes it has: a symbolic size that happens to be 1 stays a symbol, so that
what broadcasts by accident is rejected. The result must have the deduced shape and type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph.deduce import size_conditions
from blockwright.graph.interpreter.symbols import Symbols
from blockwright.graph.interpreter.values import (
    Array,
    Mismatch,
    Shape,
    is_array,
    is_tuple,
    of_type,
)
from blockwright.interp import interpret
from blockwright.ops.implementation import ATTRIBUTE, lower_call
from blockwright.ops.row import Bounded, OpContext, OpRow, OutOfRange
from blockwright.ops.table import row as row_of
from blockwright.support import BlockwrightError, GraphError, InterpretError, Span

_ONE = ir.const(1, "int64")


def evaluated_attributes(attrs: Mapping[str, Any], symbols: Symbols) -> dict[str, Any]:
    """Attributes with the values of the expressions in them."""
    return {key: _evaluated(value, symbols) for key, value in attrs.items()}


def _evaluated(value: Any, symbols: Symbols) -> Any:
    if isinstance(value, ir.Expr):
        return symbols.value(value)
    if isinstance(value, (list, tuple)):  # NumPy takes tuples of axes, no lists
        return tuple(_evaluated(v, symbols) for v in cast("Sequence[Any]", value))
    return value


def check_sizes(call: ir.GraphCall, known: Sequence[ir.Info | None], symbols: Symbols) -> None:
    """Check what an operator requires of symbolic attributes, such as a bound of a slice.

    What it requires of sizes alone is checked when the call is deduced with numbers.

    Raises: InterpretError BW708.
    """
    symbolic = any(
        isinstance(node, ir.Var) for value in call.attrs.values() for node in _expressions(value)
    )
    infos = [info for info in known if info is not None]
    if not symbolic or len(infos) < len(known):
        return
    try:
        conditions = size_conditions(call, Analyzer(), infos)
    except GraphError:  # sizes that are not known to agree; the numbers may
        return
    for condition in conditions:
        if not symbols.value(condition.holds):
            numbers = tuple(symbols.value(value) for value in condition.values)
            raise InterpretError(
                condition.message % numbers,
                code="BW708",
                span=call.span,
                help="pass tensors of other sizes",
            )


def _expressions(value: Any) -> Iterator[ir.Node]:
    if isinstance(value, ir.Expr):
        yield from ir.walk(value)
    elif isinstance(value, (list, tuple)):
        for part in cast("Sequence[Any]", value):
            yield from _expressions(part)


class _Call:
    """One call of an operator with values.

    Attributes:
        arrays: its tensors in order, those of tuples one by one; infos: their annotations, also of
            tuples as such.
        units: the symbol of each symbolic size that is 1, with that value.
        is_tuple: whether the result is a tuple, once deduced.
    """

    def __init__(
        self, row: OpRow, args: Sequence[Any], known: Sequence[ir.Info | None], attrs: Any
    ) -> None:
        self.row = row
        self.attrs: dict[str, Any] = {**row.attrs, **attrs}
        self.arrays: list[Array] = []
        self.tensors: list[ir.TensorInfo] = []
        self.units = Symbols()
        self.infos: list[ir.Info] = []
        self.is_tuple = False
        for arg, info in zip(args, known, strict=True):
            if isinstance(arg, Shape):
                self.attrs["shape"] = tuple(arg)
            else:
                self.infos.append(self._info(arg, info))
        bounds = {v: ir.Range(_ONE, _ONE) for v in self.units.values}
        self.context = OpContext(row.name, Analyzer(bounds))

    def _info(self, value: Any, known: ir.Info | None) -> ir.Info:
        if is_tuple(value):
            fields = known.fields if isinstance(known, ir.TupleInfo) else [None] * len(value)
            pairs = zip(value, fields, strict=True)
            return ir.TupleInfo(tuple(self._info(v, f) for v, f in pairs))
        if not is_array(value):
            return ir.ObjectInfo()
        shape = known.shape if isinstance(known, ir.TensorInfo) else None
        dims = shape or [None] * value.ndim
        sizes = tuple(self._size(n, d) for n, d in zip(value.shape, dims, strict=True))
        dtype = known.dtype if isinstance(known, ir.TensorInfo) else None
        same = dtype is not None and dtype.numpy() == value.dtype  # int4 is kept as int8
        info = ir.TensorInfo(sizes, dtype if same else ir.dtype_of(value.dtype))
        self.arrays.append(value)
        self.tensors.append(info)
        return info

    def _size(self, size: int, dim: ir.Expr | None) -> ir.Expr:
        """A size; a symbol if it is 1 but not known to be."""
        if size != 1 or dim is None or ir.const_int(dim) is not None:
            return ir.const(size, "int64")
        symbol = ir.Var(f"one{len(self.units.values)}", ir.dtype_of("int64"))
        self.units.values[symbol] = 1
        return symbol

    def with_numbers(self, text: str) -> str:
        """A message about sizes that are 1, without the names of the symbols of this call."""
        for symbol in self.units.values:
            text = re.sub(rf"\b{symbol.name}\b", "1", text)
        return text

    def deduced(self) -> tuple[ir.TensorInfo, ...]:
        """The annotations of the results."""
        result = self.row.deduce(self.context, self.infos, self.attrs)
        self.is_tuple = isinstance(result, ir.TupleInfo)
        fields = result.fields if isinstance(result, ir.TupleInfo) else (result,)
        return tuple(f for f in fields if isinstance(f, ir.TensorInfo))

    def by_oracle(self) -> tuple[Array, ...]:
        attrs = {key: value for key, value in self.attrs.items() if key != ATTRIBUTE}
        with np.errstate(all="ignore"):
            found: Any = self.row.oracle(*self.arrays, **attrs)
        results = cast("Sequence[Any]", found) if isinstance(found, (list, tuple)) else [found]
        return tuple(np.array(r, order="C") for r in results)  # never a view of an argument

    def by_program(self, infos: Sequence[ir.TensorInfo]) -> tuple[Array, ...]:
        program = lower_call(self.row, self.context, self.tensors, self.attrs)
        if self.row.bounded is not None:
            return self._bounded(program, self.row.bounded(self.context, self.tensors, self.attrs))
        return self._run(program, infos)

    def _bounded(self, program: ir.PrimFunc, bounded: Bounded) -> tuple[Array, ...]:
        """The part that counts of results of which the program also writes the size."""
        size = ir.TensorInfo((_ONE,), ir.dtype_of("int64"))
        return tuple(bounded.part(self._run(program, (*bounded.results, size))))

    def _run(self, program: ir.PrimFunc, infos: Sequence[ir.TensorInfo]) -> tuple[Array, ...]:
        results: list[Array] = []
        for info in infos:
            assert info.shape is not None
            assert info.dtype is not None
            results.append(np.zeros(self.units.extents(info.shape), info.dtype.numpy()))
        interpret(program, *self.arrays, *results, outputs=len(results))
        return tuple(results)

    def wrong(self, infos: Sequence[ir.TensorInfo], found: Sequence[Array]) -> Mismatch | None:
        """Why the results are not those deduced."""
        pairs = zip(infos, found, strict=True)
        return next((w for i, f in pairs if (w := self.units.mismatch(i, f))), None)


def _results(call: _Call, infos: Sequence[ir.TensorInfo], exact: bool) -> tuple[Array, ...]:
    """The results of an operator, by its program where NumPy does not know them.

    NumPy also squeezes a symbolic dimension of size 1, and refuses some tensors without elements.
    """
    if exact:
        return call.by_program(infos)
    try:
        results = call.by_oracle()
    except (BlockwrightError, OutOfRange):
        raise
    except Exception:
        if all(array.size for array in call.arrays):
            raise
        return call.by_program(infos)
    unsure = call.units.values or not all(array.size for array in call.arrays)
    if unsure and call.wrong(infos, results) is not None:
        return call.by_program(infos)
    return results


def operator_result(
    name: str,
    args: Sequence[Any],
    known: Sequence[ir.Info | None],
    attrs: Mapping[str, Any],
    exact: bool,
    span: Span | None,
) -> Any:
    """Compute an operator.

    Args:
        known: annotations of the arguments, which tell symbolic sizes from numbers.
        exact: by its tensor program.

    Raises:
        GraphError: BW405 unknown operator, BW401 it does not apply to these sizes.
        InterpretError: BW708 an index is out of range, BW750 its oracle fails, BW754 integer
            division by zero, BW769 the result is not what deduction says; errors of its tensor
            program.
    """
    call = None
    try:
        call = _Call(row_of(name), args, known, attrs)
        infos = call.deduced()
    except GraphError as error:
        message, help = error.message, error.help
        if call is not None:
            message, help = call.with_numbers(message), help and call.with_numbers(help)
        raise GraphError(message, code=error.code, help=help, span=span) from error
    try:
        results = _results(call, infos, exact)
    except BlockwrightError:
        raise
    except OutOfRange as error:
        raise InterpretError(f"{name}: {error}", code="BW708", span=span) from error
    except ZeroDivisionError as error:
        text = f"{name}: integer division by zero"
        raise InterpretError(text, code="BW754", span=span) from error
    except Exception as error:
        text = f"{name}: its NumPy oracle fails: {type(error).__name__}: {error}"
        raise InterpretError(text, code="BW750", span=span) from error
    wrong = call.wrong(infos, results)
    if wrong is not None:
        text = f"{name}: the result: {call.with_numbers(wrong.message)}"
        raise InterpretError(text, code="BW769", span=span)
    results = tuple(of_type(r, i.dtype) for r, i in zip(results, infos, strict=True))
    return results if call.is_tuple else results[0]
