"""Thread-bound loops one thread after another.

That is exact as long as threads exchange nothing while they run: then any order gives the same, and
a barrier does nothing. Loops on one axis of a kernel that stand inside each other are one loop: the
inner variable is the outer one's. Every member of an axis has its own copy of a buffer in a scope
that the axis does not share. Whether threads do exchange values is found while the program runs, by
the check for races; such programs need lanes and barriers, and are refused with BW757.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.analysis.kernels import BLOCK_AXES, VIRTUAL_AXES, axis_of, kernels, shares
from blockwright.interp.private import Privates, owns, single_member
from blockwright.ir import (
    AttrStmt,
    Block,
    Buffer,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    IterVar,
    LetStmt,
    Mutator,
    Node,
    PrimFunc,
    Range,
    Stmt,
    Var,
    atomic_place,
    cast_to,
    compare,
    is_atomic,
)
from blockwright.ir.expr import LT, Expr
from blockwright.support import InterpretError


def in_sequence(func: PrimFunc) -> PrimFunc:
    """The function with one loop per axis and path, `T.launch_thread` written as a loop too."""
    if not kernels(func):
        return func
    return func.replace(body=_Sequence()(func.body))


class _Sequence(Mutator):
    def __init__(self) -> None:
        super().__init__()
        self.open: dict[str, Var] = {}

    def rewrite_For(self, node: For) -> Stmt:
        axis = axis_of(node)
        return self.descend(node) if axis is None else self._bound(axis.tag, node)

    def rewrite_AttrStmt(self, node: AttrStmt) -> Stmt:
        axis = axis_of(node)
        if axis is None:
            return self.descend(node)
        thread = IterVar(Var(axis.tag, axis.var.type), Range(axis.low, axis.extent),
                         thread_tag=axis.tag)  # fmt: skip
        loop = For(axis.var, axis.low, axis.extent, ForKind.THREAD_BINDING, node.body, thread,
                   span=node.span)  # fmt: skip
        return self._bound(axis.tag, loop)

    def _bound(self, tag: str, node: For) -> Stmt:
        outer = None if tag in VIRTUAL_AXES else self.open.get(tag)
        if outer is None:
            self.open[tag] = node.loop_var
            new = self.descend(node)
            del self.open[tag]
            return new
        body: Stmt = self(node.body)
        member: Expr = cast_to(outer, node.loop_var.dtype)
        body = IfThenElse(compare(LT, member, self(node.extent)), body)
        return LetStmt(node.loop_var, member, body)


def is_thread_loop(loop: For) -> bool:
    """Whether the members of a loop wait for each other at barriers: threads, not blocks."""
    return loop.thread is not None and loop.thread.thread_tag not in BLOCK_AXES


def check_owned(root: Stmt, privates: Privates) -> None:
    """Refuse buffers whose copies would have to outlive the loop over their owners."""
    settled = {b: loop for loop, buffers in privates.items() for b in buffers}
    _Owned(settled).visit(root, ())


class _Owned:
    """Looks at every use of a buffer that some loop around it gives each member a copy of."""

    def __init__(self, settled: dict[Buffer, For]) -> None:
        self.settled = settled
        self.depth: dict[Buffer, int] = {}

    def visit(self, node: Node, path: Sequence[For]) -> None:
        if isinstance(node, Buffer):
            inside = path[self.depth.get(node, len(path)) :]
            owners = [f for f in inside if f.kind is ForKind.THREAD_BINDING and owns(f, node)]
            owners = owners[:1] + [f for f in owners[1:] if not single_member(f)]
            if owners and self.settled.get(node) is not owners[-1]:
                raise InterpretError(
                    f"each member of loop {owners[-1].loop_var.name} has its own copy of "
                    f"{node.name}, which outlives the loop", code="BW757", span=node.span,
                    help="the interpreter runs threads one after another; programs whose threads "
                    "keep values between loops need lanes")  # fmt: skip
            return
        if isinstance(node, Block):
            self.depth.update(dict.fromkeys(node.alloc_buffers, len(path)))
            for part in (*(m.source for m in node.match_buffers), node.init, node.body):
                if part is not None:
                    self.visit(part, path)
            return
        inner = (*path, node) if isinstance(node, For) else path
        for child in node.children():
            self.visit(child, inner)


def exchanged(root: Stmt) -> set[Buffer]:
    """Buffers that threads of a kernel share and write, whose elements they may hand over."""
    found: set[Buffer] = set()

    def visit(node: Node, tags: tuple[str, ...]) -> None:
        buffer: Buffer | None = None
        if isinstance(node, BufferStore):
            buffer = node.buffer
        elif is_atomic(node):
            place = atomic_place(node)
            buffer = None if place is None else place.buffer
        if buffer is not None and any(shares(buffer.scope, tag) for tag in tags):
            found.add(buffer)
        if isinstance(node, For) and is_thread_loop(node) and node.thread is not None:
            tags = (*tags, node.thread.thread_tag)
        for child in node.children():
            if not isinstance(child, Buffer):
                visit(child, tags)

    visit(root, ())
    return found
