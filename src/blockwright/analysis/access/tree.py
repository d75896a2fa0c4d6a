"""Statement tree of a function: parents, enclosing loops and scopes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from blockwright import ir

T = TypeVar("T")


def child_stmts(node: ir.Stmt) -> Sequence[ir.Stmt]:
    """Direct sub-statements in program order (a block's `init` before its body)."""
    read = _READERS.get(type(node))
    if read is not None:
        return read(node)
    return [child for child in node.children() if isinstance(child, ir.Stmt)]


def takes_addresses(node: ir.Node) -> bool:
    """Whether a program part accesses memory through addresses or named pointers.

    If so, only signatures state what it accesses.
    """
    return any(map(is_address, ir.walk(node)))


def is_address(node: ir.Node) -> bool:
    """Whether a node takes an address or is a pointer variable."""
    if isinstance(node, ir.Var):
        return node.type.is_handle
    return isinstance(node, ir.Call) and node.op in ("address_of", "tensor")


def _body(node: Any) -> Sequence[ir.Stmt]:
    return (node.body,)


def _of_block(node: Any) -> Sequence[ir.Stmt]:
    return (node.body,) if node.init is None else (node.init, node.body)


_READERS: dict[type[ir.Stmt], Callable[[Any], Sequence[ir.Stmt]]] = {
    ir.For: _body,
    ir.LetStmt: _body,
    ir.AttrStmt: _body,
    ir.Allocate: _body,
    ir.DeclBuffer: _body,
    ir.SeqStmt: attrgetter("seq"),
    ir.BlockRealize: lambda node: (node.block,),
    ir.Block: _of_block,
    ir.BufferStore: lambda _: (),
    ir.Evaluate: lambda _: (),
}
"""Accessors of the sub-statements of each class; a table, because trees are walked after every
step.
"""


def stands_around_a_block(body: ir.Stmt, kind: type[ir.Stmt]) -> bool:
    """Whether a statement of the given class contains a block."""
    stack = [(body, False)]
    while stack:
        node, below = stack.pop()
        if below and isinstance(node, ir.Block):
            return True
        below = below or isinstance(node, kind)
        stack += [(child, below) for child in child_stmts(node)]
    return False


def is_jump(node: ir.Node) -> bool:
    """Whether a node is `break` or `continue`."""
    return isinstance(node, ir.Call) and node.op in ("break", "continue")


_evaluated: ir.Rare[ir.Evaluate] = ir.Rare(ir.Evaluate)


def may_return(root: ir.Stmt) -> bool:
    """Whether a statement may end the program: it contains `T.ret()`."""
    return any(map(is_return, _evaluated.of(root)))


def is_return(node: ir.Node) -> bool:
    """Whether a statement is `T.ret()`."""
    return (
        isinstance(node, ir.Evaluate) and isinstance(node.value, ir.Call) and node.value.op == "ret"
    )


def jumps(body: ir.Stmt) -> bool:
    """Whether a loop with this body may exit or continue early through its own jumps."""
    stack: list[ir.Node] = [body]
    while stack:
        node = stack.pop()
        if is_jump(node):
            return True
        if not isinstance(node, (ir.For, ir.While)):  # jumps inside belong to that loop
            stack.extend(node.children())
    return False


class Tree:
    """Parent links and definitions of a function, collected in one walk over its statements."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.func = func
        self.parent: dict[ir.Stmt, ir.Stmt] = {}
        self.loops: dict[ir.Var, ir.For] = {}
        self.blocks: list[ir.Block] = []
        self.order: dict[ir.Stmt, int] = {}
        self.left_early: set[ir.Stmt] = set()
        """Loops that contain their own `break` or `continue`."""
        stack: list[ir.Stmt] = [func.body]
        while stack:
            node = stack.pop()
            self.order[node] = len(self.order)
            if isinstance(node, ir.For):
                self.loops[node.loop_var] = node
            elif isinstance(node, ir.Block):
                self.blocks.append(node)
            elif isinstance(node, ir.Evaluate) and is_jump(node.value):
                around = (n for n in self.ancestors(node) if isinstance(n, (ir.For, ir.While)))
                self.left_early.update(itertools.islice(around, 1))
            children = child_stmts(node)
            for child in children:
                self.parent[child] = node
            stack += children[::-1]
        self.block_set = set(self.blocks)

    def realize(self, block: ir.Block) -> ir.BlockRealize:
        result = self.parent[block]
        assert isinstance(result, ir.BlockRealize)
        return result

    def ancestors(self, node: ir.Stmt) -> Iterator[ir.Stmt]:
        """Enclosing statements, innermost first, excluding the node itself."""
        current = self.parent.get(node)
        while current is not None:
            yield current
            current = self.parent.get(current)

    def deciding(self, node: ir.Stmt, top: ir.Stmt) -> Iterator[ir.Stmt]:
        """Statements around `node`, up to and including `top`, that may decide whether it runs.

        These are all except sequences, blocks, and loops that are not left early.
        """
        for above in self.ancestors(node):
            whole = isinstance(above, (ir.For, ir.SeqStmt)) and above not in self.left_early
            if not whole and not isinstance(above, ir.Block):
                yield above
            if above is top:
                return

    def scope(self, node: ir.Stmt) -> ir.Block | None:
        """The innermost block around a statement (for a block, around its realize)."""
        start = self.realize(node) if isinstance(node, ir.Block) and node in self.parent else node
        for above in self.ancestors(start):
            if isinstance(above, ir.Block):
                return above
        return None

    def in_initial(self, node: ir.Stmt, scope: ir.Block) -> bool:
        """Whether a statement inside a block is in its init statement rather than its body."""
        part: ir.Stmt | None = node
        while part is not None and self.parent.get(part) is not scope:
            part = self.parent.get(part)
        return part is not None and part is scope.init

    def initial_of(self, node: ir.Stmt) -> ir.Block | None:
        """The innermost block whose init statement contains the statement, or None."""
        part = node
        for above in self.ancestors(node):
            if isinstance(above, ir.Block) and part is above.init:
                return above
            part = above
        return None

    def loops_above(self, node: ir.Stmt) -> list[ir.For]:
        """Loops between a statement and its scope, outermost first."""
        start: ir.Stmt = self.realize(node) if isinstance(node, ir.Block) else node
        result: list[ir.For] = []
        for above in self.ancestors(start):
            if isinstance(above, ir.Block):
                break
            if isinstance(above, ir.For):
                result.append(above)
        return result[::-1]

    def child_blocks(self, node: ir.Stmt) -> list[ir.Block]:
        """Blocks directly below a block or loop, excluding those inside other blocks."""
        result: list[ir.Block] = []
        stack = [node.body] if isinstance(node, (ir.Block, ir.For)) else [node]
        while stack:
            here = stack.pop()
            if isinstance(here, ir.BlockRealize):
                result.append(here.block)
            else:
                stack += child_stmts(here)[::-1]
        return result

    def is_below(self, node: ir.Stmt, ancestor: ir.Stmt) -> bool:
        return any(above is ancestor for above in self.ancestors(node))

    def common_loops(self, a: ir.Block, b: ir.Block) -> list[ir.For]:
        """Loops of the scope that enclose both blocks, outermost first."""
        return common_prefix(self.loops_above(a), self.loops_above(b))


def common_prefix(a: Iterable[T], b: Iterable[T]) -> list[T]:
    """The first nodes of two sequences, as long as they are the same nodes."""
    result: list[T] = []
    for x, y in zip(a, b, strict=False):
        if x is not y:
            break
        result.append(x)
    return result
