"""Drop consumed annotations, serialize nested parallel loops, and check that the program is flat.

Before::

    for i in T.parallel(4):
        for j in T.parallel(8): ...

After::

    for i in T.parallel(4):
        for j in range(8): ...

Annotations without a remaining consumer are dropped. `check_flat` rejects constructs that code
generation does not support.
"""

from __future__ import annotations

from typing import Any

from blockwright.ir import (
    BlockRealize,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    For,
    ForKind,
    PrimFunc,
    Stmt,
)
from blockwright.ir import stmt as S
from blockwright.ir.annotations import CACHE_HINTS, LLVM_UNROLL
from blockwright.lower.context import LowerContext, lowering_pass
from blockwright.lower.rewrite import Statements
from blockwright.support import BuildError

_KEPT = (LLVM_UNROLL, *CACHE_HINTS)


@lowering_pass
def finalize(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Finish lowering; attribute "lower.notes" lists annotations that could not be honored."""
    func = func.replace(body=_Finish(context)(func.body))
    notes: dict[str, Any] = {"lower.notes": tuple(context.notes)} if context.notes else {}
    return func.replace(attrs={**func.attrs, **notes}) if notes else func


class _Finish(Statements):
    def __init__(self, context: LowerContext) -> None:
        super().__init__()
        self.context = context
        self.parallel = False

    def rewrite_For(self, node: For) -> Stmt:
        kind = node.kind
        if kind is ForKind.PARALLEL and self.parallel:
            self.context.note(f"loop {node.loop_var.name} is serial: it is inside a parallel loop")
            kind = ForKind.SERIAL
        outer, self.parallel = self.parallel, self.parallel or kind is ForKind.PARALLEL
        body = self(node.body)
        self.parallel = outer
        kept = {key: value for key, value in node.annotations.items() if key in _KEPT}
        if body is node.body and kind is node.kind and kept == node.annotations:
            return node
        return node.replace(kind=kind, body=body, annotations=kept)


def check_flat(func: PrimFunc) -> None:
    """Raise BuildError BW601 when the function is not in flat form."""
    shaped = set(func.buffers)
    stack: list[Any] = [func.body]
    while stack:
        node = stack.pop()
        problem = ""
        if isinstance(node, (BlockRealize, S.Block)):
            problem = "a block"
        elif isinstance(node, For) and node.kind not in (ForKind.SERIAL, ForKind.PARALLEL):
            problem = f"a {node.kind.value} loop"
        elif isinstance(node, (BufferLoad, BufferStore)) and len(node.indices) != 1:
            problem = f"an access of {node.buffer.name} with {len(node.indices)} indices"
        elif isinstance(node, (BufferLoad, BufferStore)) and node.buffer in shaped:
            problem = f"a direct access of parameter buffer {node.buffer.name}"
        if problem:
            raise BuildError(
                f"{func.name} is not in flat form: it has {problem}",
                code="BW601",
                help="pass the function through blockwright.lower.lower",
            )
        if isinstance(node, S.DeclBuffer):
            source = node.source
            reaches = isinstance(source, Call) and source.op == "address_of"
            stack.extend((node.body,) if reaches else (node.source, node.body))
        elif not (isinstance(node, Call) and node.op == "tensor"):
            stack.extend(n for n in node.children() if not isinstance(n, Buffer))
