"""Determine which cache levels are too small for the constants that a module reads per call."""

from __future__ import annotations

from collections.abc import Iterator

from blockwright import ir
from blockwright.passes.rewrite import graph_functions, tir_args, tir_callee
from blockwright.target import Target

_BY_ROWS = ("take", "embedding")  # operators that read only some rows of their first operand


def caches_without_constants(module: ir.IRModule, target: Target) -> int:
    """Number of cache levels smaller than the constants that one call reads in full.

    Such a level does not retain the constants from one call to the next. Lookup tables are not
    counted, because a call reads only some of their rows. Works before and after legalization.
    """
    read = {c: c.data.nbytes for c in _constants(module)}
    return sum(cache.size < sum(read.values()) for cache in target.caches)


def constants_are_uncached(module: ir.IRModule, target: Target) -> bool:
    """Whether constants are read from memory in every call: they exceed every cache."""
    return bool(target.caches) and caches_without_constants(module, target) == len(target.caches)


def _constants(module: ir.IRModule) -> Iterator[ir.Constant]:
    tables: dict[str, set[ir.Buffer]] = {}
    for _, function in graph_functions(module):
        for binding in function.bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, ir.GraphCall):
                read = _read_whole(module, value, tables)
                yield from (a for a in read if isinstance(a, ir.Constant))


def _read_whole(
    module: ir.IRModule, call: ir.GraphCall, tables: dict[str, set[ir.Buffer]]
) -> list[ir.GraphExpr]:
    """Arguments that a call reads completely; `tables` caches the lookup tables of programs."""
    name = tir_callee(call) or ""
    callee = module.functions.get(name)
    if isinstance(callee, ir.PrimFunc):
        if name not in tables:
            tables[name] = _tables(callee)
        pairs = zip(callee.buffers, tir_args(call), strict=False)
        return [argument for buffer, argument in pairs if buffer not in tables[name]]
    by_rows = isinstance(call.op, ir.OpRef) and call.op.name in _BY_ROWS
    return list(call.args[1:] if by_rows else call.args)


def _tables(func: ir.PrimFunc) -> set[ir.Buffer]:
    """Buffers that are indexed by values loaded from other buffers."""
    return {
        access.buffer
        for access in ir.accesses(func.body)
        if any(ir.collect(index, ir.BufferLoad) for index in access.indices)
    }
