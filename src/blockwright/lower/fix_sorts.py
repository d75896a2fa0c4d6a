"""Note which scalar parameters are indices: they remain so in all passes.

A parameter is an index if a domain or a shape uses it. Passes change those: bounds get names, loops
disappear, conditions become bounds. What else is computed from the parameter must not change then::

    for i in range(T.min(k, 8)):    ->    T.func_attr({"tir.index_params": ("k",)})
        B[i] = A[(k << 7) % 12]
"""

from __future__ import annotations

from blockwright.ir import PrimFunc, with_fixed_sorts
from blockwright.lower.context import LowerContext, lowering_pass


@lowering_pass
def fix_sorts(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Add the attribute to a function with scalar parameters."""
    return with_fixed_sorts(func)
