"""Replace accesses of declared views by accesses of the underlying buffer.

Before::

    D = T.decl_buffer((64,), data=C.data)
    for i in range(64):
        D[i] = D[i] + 1.0

After::

    for i in range(64):
        C[i // 8, i % 8] = C[i // 8, i % 8] + 1.0

Later passes compare buffers by identity. The views that remain have another element type, or
strides with which the underlying buffer cannot be indexed.
"""

from __future__ import annotations

from blockwright.analysis.canonical.memory import plain_memory
from blockwright.ir import PrimFunc
from blockwright.lower.context import LowerContext, lowering_pass


@lowering_pass
def fold_views(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Fold the views whose elements map to elements of their source buffer."""
    return plain_memory(func)
