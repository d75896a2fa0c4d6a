"""The body of a host program in levels: a level begins when sizes are loaded from a tensor.

    f(…)                                     # level 0
    with T.LetStmt(sizes[0]) as m:           # level 1
        assert m >= 0
        with T.LetStmt(T.result_memory(out_handle, "float32", m)) as out_data:
            arena1 = T.allocate([m * 4], "uint8")
            g(…, m)

Within a level, checks come first, then the memory of results and values of sizes that it is the
first to know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from blockwright import ir
from blockwright.ops.row import dims_text
from blockwright.passes.host.size_order import ALIGNMENT
from blockwright.support import GraphError

_HANDLE = ir.dtype_of("handle")
_INT64 = ir.dtype_of("int64")
Named = tuple[ir.Var, ir.Expr]


class Level(msgspec.Struct):
    """Statements that know the same symbols.

    Attributes:
        lets: variables that are bound when it begins.
        checks: assertions before all else; results: addresses of results.
        arena: the memory of its values; declared: buffers with their addresses.
        steps: statements in order.
    """

    lets: tuple[Named, ...]
    checks: list[ir.Stmt] = []
    results: list[Named] = []
    arena: ir.Buffer | None = None
    declared: list[tuple[ir.Buffer, ir.Expr]] = []
    steps: list[ir.Stmt] = []


def nested(levels: Sequence[Level]) -> ir.Stmt:
    """The statements of levels, each inside the one before it."""
    body: ir.Stmt | None = None
    for level in reversed(levels):
        steps = [*level.steps] if body is None else [*level.steps, body]
        body = ir.seq(steps) if steps else ir.Evaluate(ir.const(0, "int32"))
        for buffer, source in reversed(level.declared):
            body = ir.DeclBuffer(buffer, source, body)
        if level.arena is not None:
            body = ir.Allocate(level.arena, body)
        body = _let(level.results, body)
        body = ir.seq([*level.checks, body])
        body = _let(level.lets, body)
    assert body is not None
    return body


def arena(name: str, total: ir.Expr) -> ir.Buffer:
    """Memory of `total` bytes."""
    empty = ir.is_const_int(total, 0)  # empty values need an address too
    size = ir.const(ALIGNMENT, "int64") if empty else total
    return ir.Buffer(name, ir.dtype_of("uint8"), (size,), data_alignment=ALIGNMENT)


def _let(named: Sequence[Named], body: ir.Stmt) -> ir.Stmt:
    for var, value in reversed(named):
        body = ir.LetStmt(var, value, body)
    return body


def loaded(buffer: ir.Buffer, position: int) -> ir.Expr:
    """Element `position` of a tensor with one axis, or the only one of a tensor."""
    zeros = [ir.const(0, "int64")] * len(buffer.shape)
    if zeros:
        zeros[-1] = ir.const(position, "int64")
    return ir.cast_to(ir.BufferLoad(buffer, tuple(zeros)), _INT64)


def symbol_checks(
    symbol: ir.Var, bounds: tuple[int, int], limits: Mapping[ir.Var, ir.Expr]
) -> list[ir.Stmt]:
    """Assertions that a loaded symbol is in its range and within the stated limit."""
    low, high = bounds
    what = f"BW708: {symbol.name}, which is known only at run time,"
    checks: list[ir.Stmt] = []
    if low > symbol.dtype.min_value:
        fits = ir.compare(ir.GE, symbol, ir.const(low, symbol.dtype))
        text = f"{what} is %d, and must be at least {low}\nhelp: pass other data"
        checks.append(ir.AssertStmt(fits, text, (symbol,)))
    if high < symbol.dtype.max_value:
        fits = ir.compare(ir.LE, symbol, ir.const(high, symbol.dtype))
        text = f"{what} is %d, and must be at most {high}\nhelp: pass other data"
        checks.append(ir.AssertStmt(fits, text, (symbol,)))
    limit = limits.get(symbol)
    if limit is not None and ir.const_int(limit) != high:
        said = dims_text(limit).replace("%", "%%")
        text = f"{what} is %d, and must be at most {said} = %d\nhelp: pass other data"
        fits = ir.compare(ir.LE, symbol, limit)
        checks.append(ir.AssertStmt(fits, text, (symbol, limit)))
    return checks


def lent_checks(handle: ir.Var, label: str, shape: Sequence[ir.Expr]) -> list[ir.Stmt]:
    """Assertions that the memory lent for a late result has its sizes."""
    checks: list[ir.Stmt] = []
    for axis, size in enumerate(shape):
        found = ir.Call("result_size", (handle, ir.const(axis, "int64"), size), _INT64)
        said = dims_text(size).replace("%", "%%")
        text = (
            f"BW704: {label}: expected dimension {axis} to be {said} = %d, got %d\n"
            "help: the size depends on the data: call without memory for the result"
        )
        checks.append(ir.AssertStmt(ir.compare(ir.EQ, found, size), text, (size, found)))
    return checks


def result_memory(handle: ir.Var, out: ir.Buffer) -> ir.Expr:
    """The address of the memory of a late result."""
    args = (handle, ir.StringImm(out.dtype.name), *out.shape)
    return ir.Call("result_memory", args, _HANDLE)


def unknown_result(name: str) -> GraphError:
    """The error for a called function whose result has a size known only at run time."""
    return GraphError(
        f"{name}: a function that a loop calls, or that calls itself through a function value, "
        "returns a tensor whose size is known only at run time",
        code="BW435",
        help="match_cast the result to sizes that the caller knows, or return the data and sizes "
        "before they are cut to size",
    )
