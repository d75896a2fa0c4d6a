"""Assertions of a host program: sizes that `match_cast` states, types of sizes, depth of calls."""

from __future__ import annotations

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.ops.row import dims_text
from blockwright.support import GraphError

MAX_DEPTH = 1000
"""Calls of a recursive function that may be active at once; each uses stack of the thread."""


def cast_checks(cast: ir.MatchCast, info: ir.Info | None, analyzer: Analyzer) -> list[ir.Stmt]:
    """Assertions for the dimensions of a match_cast that are not proved equal.

    Types and ranks need no check: deduction knows them for every value that can be compiled.

    Arguments: `info` annotates the value.
    Raises: GraphError BW407 if its shape is unknown.
    """
    expected, actual = _sizes(cast.pattern), _sizes(info)
    if expected is None:
        return []
    if actual is None:
        raise GraphError(
            f"match_cast of {cast.var.name}: the shape of the value is unknown", code="BW407"
        )
    pairs = enumerate(zip(expected, actual, strict=True))
    return [
        _assertion(cast, axis, wanted, size)
        for axis, (wanted, size) in pairs
        if not analyzer.prove_equal(wanted, size)
    ]


def _assertion(cast: ir.MatchCast, axis: int, wanted: ir.Expr, size: ir.Expr) -> ir.AssertStmt:
    """Assert that a size equals the one that a match_cast states."""
    condition = ir.is_const_int(wanted, 1) and size.dtype.is_bool
    holds = size if condition else ir.compare(ir.EQ, wanted, size)
    if cast.message:
        return ir.AssertStmt(holds, cast.message, cast.values)
    said: list[str] = []
    values: list[ir.Expr] = []
    for part in (size, wanted):
        text = dims_text(part).replace("%", "%%")
        if part.dtype.is_int and not isinstance(part, ir.IntImm):
            text += " = %d"
            values.append(part)
        said.append(text)
    message = (
        f"BW704: match_cast of {cast.var.name}: dimension {axis} is {said[0]}, which is not "
        f"{said[1]}\nhelp: pass arguments of sizes that agree"
    )
    return ir.AssertStmt(holds, message, tuple(values))


def _sizes(info: ir.Info | None) -> tuple[ir.Expr, ...] | None:
    """The sizes in the annotation of a tensor, shape or scalar."""
    if isinstance(info, ir.TensorInfo):
        return info.shape
    if isinstance(info, ir.ShapeInfo):
        return info.values
    return (info.value,) if isinstance(info, ir.PrimInfo) and info.value is not None else None


def narrowed(symbol: ir.Var, value: ir.Expr, analyzer: Analyzer, checks: list[ir.Stmt]) -> ir.Expr:
    """Convert a size to the type of a callee's parameter; adds a range check if needed."""
    kind, given = symbol.dtype, value.dtype
    if given is kind:
        return value
    low, high = analyzer.const_bounds(value)
    message = f"BW708: {symbol.name} does not fit {kind}"
    ends = (
        (ir.GE, kind.min_value, low is not None and low >= kind.min_value),
        (ir.LE, kind.max_value, high is not None and high <= kind.max_value),
    )
    for holds, end, proved in ends:
        if not proved and given.min_value <= end <= given.max_value:
            checks.append(ir.AssertStmt(ir.compare(holds, value, ir.const(end, given)), message))
    return ir.cast_to(value, kind)


def depth_check(name: str, depth: ir.Var | None) -> list[ir.Stmt]:
    """The assertion at the start of a recursive function, whose parameter counts its calls."""
    if depth is None:
        return []
    message = (
        f"BW723: {name} calls itself more than {MAX_DEPTH} times deep\n"
        "help: make sure that the recursion ends, or use a loop in a tensor program"
    )
    return [ir.AssertStmt(depth < ir.const(MAX_DEPTH, depth.dtype), message, ())]
