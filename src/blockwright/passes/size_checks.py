"""Run-time checks of the computed sizes of a graph function.

`normalize` collects them, and `lower_host` emits them at the start of the host program.

Later passes may drop values, and with them their sizes. A call with an invalid size must fail
even if the value of that size was fused into its consumer.

    y = R.zeros(R.shape([6 // (n - 6)]))    # n - 6 != 0, and 6 // (n - 6) >= 0

What an operator requires of sizes is checked, such as that a reshape to (-1, 4) leaves no rest.

A symbol that a cast or a parameter of an inlined function binds must be in its declared range:

    s = R.match_cast(R.shape([n - 3]), R.Shape((k,)))    # n - 3 >= 0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from blockwright import ir
from blockwright.analysis.sizes import nonzero_divisors
from blockwright.arith import Analyzer
from blockwright.graph import function_analyzer, symbol_ranges
from blockwright.graph.deduce import size_conditions
from blockwright.ir.attributes import UPPER_BOUND
from blockwright.ops.row import dims_text


def size_checks(
    function: ir.GraphFunction, name: str, replaced: Mapping[ir.Var, ir.Expr]
) -> tuple[ir.AssertStmt, ...]:
    """Checks of the computed sizes of a normalized function, except those already proved.

    `replaced` are the symbols of its casts that have become expressions of other symbols; `name`
    is that of the function in messages.
    """
    analyzer = function_analyzer(function)
    ranges = [
        check
        for symbol, value in replaced.items()
        if symbol.dtype.is_int
        for check in _in_range(symbol, value, function, name, analyzer)
    ]
    required = [
        _check(
            condition.holds,
            f"BW708: {condition.message}\nhelp: pass tensors of other sizes",
            *condition.values,
        )
        for binding in function.bindings
        if isinstance(binding, ir.VarBinding) and isinstance(binding.value, ir.GraphCall)
        for condition in size_conditions(binding.value, analyzer)
    ]
    return (*_computed_sizes(function, name, analyzer), *ranges, *required)


def declared_ends(function: ir.GraphFunction, symbol: ir.Var) -> tuple[int, int]:
    """The smallest and the largest value of a symbol: declared ones, or those of a size."""
    (bounds,) = symbol_ranges(function.attrs, [symbol]).values()
    low, extent = ir.const_int(bounds.min), ir.const_int(bounds.extent)
    assert low is not None
    assert extent is not None
    return low, low + extent - 1


def range_checks(
    function: ir.GraphFunction, name: str, symbol: ir.Var, value: ir.Expr, what: str
) -> list[ir.AssertStmt]:
    """Assertions that a value is in the declared range of a symbol."""
    low, high = declared_ends(function, symbol)
    wide = ir.cast_to(value, ir.dtype_of("int64"))  # which holds both ends
    ends = ((ir.GE, low, f"at least {low}"), (ir.LE, high, f"at most {high}"))
    return [
        _check(
            ir.compare(relation, wide, ir.const(end, "int64")),
            f"BW708: {what} of {name}: expected {words}, got %d\n"
            "help: pass a value in the declared range",
            value,
        )
        for relation, end, words in ends
    ]


def _in_range(
    symbol: ir.Var, value: ir.Expr, function: ir.GraphFunction, name: str, analyzer: Analyzer
) -> Sequence[ir.AssertStmt]:
    """Checks of a symbol that has become an expression, except those already proved."""
    low, high = range_checks(function, name, symbol, value, f"size `{symbol.name}`")
    stated = symbol.name in function.attrs.get(UPPER_BOUND, {})
    return [c for c in ((low, high) if stated else (low,)) if not analyzer.prove(c.condition)]


def _computed_sizes(
    function: ir.GraphFunction, name: str, analyzer: Analyzer
) -> tuple[ir.AssertStmt, ...]:
    sizes = dict.fromkeys(size for info in _infos(function) for size in _sizes(info))
    dims = dict.fromkeys(size for info in _infos(function) for size in _dims(info))
    if not sizes:
        return ()
    result = [
        _check(holds, f"BW716: a size of {name}: integer division by zero")
        for holds in nonzero_divisors(sizes, analyzer)
    ]
    said: set[str] = set()
    for dim in dims:
        holds = ir.compare(ir.GE, dim, ir.const(0, dim.dtype))
        text = dims_text(dim)
        if text not in said and not analyzer.prove(holds):
            message = f"BW708: a size of {name}, {text.replace('%', '%%')}, would be %d"
            result.append(_check(holds, f"{message}\nhelp: pass larger tensors", dim))
        said.add(text)
    return tuple(result)


def _check(holds: ir.Expr, message: str, *values: ir.Expr) -> ir.AssertStmt:
    return ir.AssertStmt(holds, message, values)


def _infos(function: ir.GraphFunction) -> Iterator[ir.Info]:
    for binding in function.bindings:
        assert isinstance(binding, (ir.VarBinding, ir.MatchCast))
        yield from _fields(binding.var.info)
        if isinstance(binding, ir.MatchCast):
            yield from _fields(binding.pattern)


def _fields(info: ir.Info | None) -> Iterator[ir.Info]:
    if isinstance(info, ir.TupleInfo):
        for field in info.fields:
            yield from _fields(field)
    elif info is not None:
        yield info


def _sizes(info: ir.Info) -> tuple[ir.Expr, ...]:
    """Sizes that an annotation computes: its size expressions except constants and symbols."""
    if isinstance(info, ir.ShapeInfo):
        result = info.values or ()
    elif isinstance(info, ir.PrimInfo) and info.value is not None:
        result = (info.value,)
    else:
        return _dims(info)
    return tuple(size for size in result if not isinstance(size, (ir.IntImm, ir.Var)))


def _dims(info: ir.Info) -> tuple[ir.Expr, ...]:
    shape = info.shape or () if isinstance(info, ir.TensorInfo) else ()
    return tuple(size for size in shape if not isinstance(size, (ir.IntImm, ir.Var)))
