"""Accesses of declared views become accesses of the memory behind them.

Before::

    D = T.decl_buffer((64,), data=C.data)
    for i in range(64):
        D[i] = D[i] + 1.0

After::

    for i in range(64):
        C[i // 8, i % 8] = C[i // 8, i % 8] + 1.0

The passes that follow compare buffers; a view that stays has another element type, or strides that
its buffer cannot be indexed by.
"""

from __future__ import annotations

from blockwright.analysis.canonical.memory import plain_memory
from blockwright.ir import PrimFunc
from blockwright.lower.context import LowerContext


def fold_views(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """The function without the views whose elements are known."""
    return plain_memory(func)
