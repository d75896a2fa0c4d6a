"""Move `local` buffers that cannot live in registers or on the stack to memory.

Before::

    tmp = T.allocate((64,), "float32", scope="local")
    for i in T.parallel(4):
        for j in range(16):
            tmp[i * 16 + j] = ...

After::

    tmp = T.allocate((64,), "float32")
    ...

Later passes treat a `local` buffer as private: vectorization reads and writes back the inactive
lanes of a masked store to it.
"""

from __future__ import annotations

from blockwright.ir import Allocate, Buffer, For, ForKind, PrimFunc, Stmt, collect, const_int
from blockwright.lower.context import LowerContext, lowering_pass
from blockwright.lower.rewrite import Renamed, Statements, mentions


@lowering_pass
def demote_local(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Give the scope "global" to `local` buffers that are no private memory of constant size.

    These are buffers whose size is not constant, exceeds the target's limit, or which the
    iterations of a parallel loop share. A note says why.
    """
    return func.replace(body=_Demote(context)(func.body))


class _Demote(Statements):
    def __init__(self, context: LowerContext) -> None:
        super().__init__()
        self.context = context
        limit = context.target.memory_scope("local")
        self.most = limit.max_bytes if limit is not None else 0

    def rewrite_Allocate(self, node: Allocate) -> Stmt:
        node = node.replace(body=self(node.body))
        why = self._why_not(node.buffer, node.body) if node.buffer.scope == "local" else ""
        if not why:
            return node
        self.context.note(f"buffer {node.buffer.name} is in memory, not local: {why}")
        buffer = node.buffer.replace(scope="global")
        return node.replace(buffer=buffer, body=Renamed(node.buffer, buffer)(node.body))

    def _why_not(self, buffer: Buffer, body: Stmt) -> str:
        """Why a buffer is no private memory of constant size; "" if it is."""
        size = const_int(buffer.shape[0])
        if size is None:
            return "its size is not a constant"
        if size * buffer.dtype.nbytes > self.most:
            return f"it has more than {self.most} bytes"
        loops = (loop for loop in collect(body, For) if loop.kind is ForKind.PARALLEL)
        if any(mentions(loop, buffer) for loop in loops):
            return "the iterations of a parallel loop share it"
        return ""
