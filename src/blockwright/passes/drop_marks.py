"""DropMarks: remove attributes that only passes may set from imported functions.

Before::

    @T.prim_func(private=True)
    def negative(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        T.func_attr({"tir.view": True, "tir.noalias": True})
        for i in range(8):
            with T.block("y"):
                v = T.axis.spatial(8, i)
                y[v] = -x[v]

After::

    @T.prim_func(private=True)
    def negative(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        T.func_attr({"tir.noalias": True})
        for i in range(8):
            with T.block("y"):
                v = T.axis.spatial(8, i)
                y[v] = -x[v]

The attributes below are notes of one pass to a later one, which trusts them without checking the
program: a `tir.view` reuses the memory of its argument and is never run. In an imported program
they may be wrong. Attributes that affect how a program computes (`tir.fp_contract`, `tir.noalias`,
declared bounds …) stay.
"""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.codegen.abi.entry import ENTRY_TICKS
from blockwright.ir.attributes import IS_HOST, IS_LIBRARY, IS_VIEW
from blockwright.passes.context import PassContext, graph_pass
from blockwright.strategies.match.blocks import (
    CONSTANT_PARAMS,
    OUTSIDE_PRIVATE_CACHE_PARAMS,
    UNCACHED_PARAMS,
)

MARKS = frozenset({
    "compute_pattern", "op", "primitive", IS_HOST, IS_LIBRARY, IS_VIEW,
    OUTSIDE_PRIVATE_CACHE_PARAMS, UNCACHED_PARAMS, CONSTANT_PARAMS, ENTRY_TICKS,
})  # fmt: skip


@graph_pass
def drop_marks(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Remove the attributes that only passes may set from all functions."""
    functions = {name: _unmarked(function) for name, function in module.functions.items()}
    same = all(functions[name] is module.functions[name] for name in functions)
    return module if same else module.replace(functions=functions)


def _unmarked(function: ir.Node) -> Any:
    if not isinstance(function, (ir.PrimFunc, ir.GraphFunction)) or not MARKS & set(function.attrs):
        return function
    attrs = {key: value for key, value in function.attrs.items() if key not in MARKS}
    return function.replace(attrs=attrs)
