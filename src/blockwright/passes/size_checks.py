"""Run-time checks of the computed sizes of a graph function.

`normalize` collects them, and `lower_host` emits them at the start of the host program.

Later passes may drop values, and with them their sizes. A call with an invalid size must fail
even if the value of that size was fused into its consumer.

    y = R.zeros(R.shape([6 // (n - 6)]))    # n - 6 != 0, and 6 // (n - 6) >= 0
"""

from __future__ import annotations

from collections.abc import Iterator

from blockwright import ir
from blockwright.analysis.sizes import nonzero_divisors
from blockwright.graph import function_analyzer
from blockwright.ops.row import dims_text


def size_checks(function: ir.GraphFunction) -> tuple[ir.AssertStmt, ...]:
    """Checks of the computed sizes of a normalized function, except those already proved."""
    sizes = dict.fromkeys(size for info in _infos(function) for size in _sizes(info))
    dims = dict.fromkeys(size for info in _infos(function) for size in _dims(info))
    if not sizes:
        return ()
    analyzer = function_analyzer(function)
    result = [
        _check(holds, f"BW716: a size of {function.name}: integer division by zero")
        for holds in nonzero_divisors(sizes, analyzer)
    ]
    said: set[str] = set()
    for dim in dims:
        holds = ir.compare(ir.GE, dim, ir.const(0, dim.dtype))
        text = dims_text(dim)
        if text not in said and not analyzer.prove(holds):
            message = f"BW708: a size of {function.name}, {text.replace('%', '%%')}, would be %d"
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
