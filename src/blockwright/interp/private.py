"""Which buffers belong to the iterations of a parallel loop.

A schedule computes a producer inside a parallel loop without moving its buffer, which stays
allocated in an outer block. Iterations of a parallel loop exchange nothing, so a buffer that is
touched only inside such a loop is memory of its iterations, not memory they share. That holds
unless values may outlive an iteration: where another loop runs the parallel loop again during the
life of the buffer, and an iteration does not begin with a write of its own, as here::

    for k in range(64):
        for i in T.parallel(16):
            total[i] += x[i, k]      # the sum of the rounds before is in total

Such a buffer is shared, and the check for races sees that iterations keep to their own elements.
Lowering proves for each loop where an allocation may stand; this rule looks at the place of the
accesses alone, and lets the check for uninitialised reads find an iteration that relies on others.
Loops bound to a thread axis own the buffers in scopes that the members of the axis do not share.
"""

from __future__ import annotations

from blockwright.analysis.kernels import shares
from blockwright.arith.condition import conjuncts
from blockwright.ir import (
    AttrStmt,
    Block,
    BlockRealize,
    Buffer,
    BufferStore,
    Expr,
    For,
    ForKind,
    IfThenElse,
    IterType,
    LetStmt,
    Node,
    SeqStmt,
    Stmt,
    Var,
    While,
    blocks,
    structural_equal,
    uses_var,
    walk,
)

Path = tuple[For | While, ...]
Privates = dict[For, list[Buffer]]


def private_buffers(root: Stmt) -> Privates:
    """Parallel loop → the buffers of outer blocks that are fresh at each of its iterations."""
    finder = _Finder()
    finder.visit(root, ())
    found: Privates = {}
    for buffer, outside in finder.allocated.items():
        within = finder.used.get(buffer, ())[len(outside) :]
        owner = _owner(buffer, within)
        if owner is not None:
            found.setdefault(owner, []).append(buffer)
    return found


def _owner(buffer: Buffer, within: Path) -> For | None:
    """The innermost parallel loop whose iterations own the buffer, of the loops around all uses."""
    for depth in reversed(range(len(within))):
        loop = within[depth]
        if not isinstance(loop, For) or not _owns(loop, buffer):
            continue
        again = [n for n in within[:depth] if isinstance(n, While) or n.kind is not loop.kind]
        rounds = {n.loop_var for n in again if isinstance(n, For)}
        if not again or _begins_with_write(loop.body, buffer, rounds, loop.body):
            return loop
    return None


def _owns(loop: For, buffer: Buffer) -> bool:
    """Whether iterations of a loop may have the buffer for themselves."""
    if loop.kind is ForKind.THREAD_BINDING and loop.thread is not None:
        return not shares(buffer.scope, loop.thread.thread_tag)
    return loop.kind is ForKind.PARALLEL


class _Finder:
    """Loops around each allocation, and around all uses of a buffer."""

    def __init__(self) -> None:
        self.allocated: dict[Buffer, Path] = {}
        self.used: dict[Buffer, Path] = {}

    def visit(self, node: Node, path: Path) -> None:
        if isinstance(node, Buffer):
            known = self.used.get(node, path)
            shared = [a for a, b in zip(known, path, strict=False) if a is b]
            self.used[node] = tuple(shared)
        elif isinstance(node, For):
            self.visit(node.min, path)
            self.visit(node.extent, path)
            self.visit(node.body, (*path, node))
        elif isinstance(node, While):
            self.visit(node.condition, (*path, node))
            self.visit(node.body, (*path, node))
        elif isinstance(node, Block):
            self.allocated.update(dict.fromkeys(node.alloc_buffers, path))
            for match in node.match_buffers:
                self.visit(match.source, path)
            for part in (node.init, node.body):
                if part is not None:
                    self.visit(part, path)
        else:
            for child in node.children():
                self.visit(child, path)


def _begins_with_write(stmt: Stmt, buffer: Buffer, rounds: set[Var], whole: Stmt) -> bool:
    """Whether the first access of the buffer is a write that happens in every round alike.

    `whole`: the body of the parallel loop. A condition on the round is no matter where it stands on
    every use of the buffer.
    """
    match stmt:
        case SeqStmt():
            first = next((part for part in stmt.seq if _uses(part, buffer)), None)
            return first is not None and _begins_with_write(first, buffer, rounds, whole)
        case For():
            bounds = _uses(stmt.min, buffer) or _uses(stmt.extent, buffer)
            return not bounds and _begins_with_write(stmt.body, buffer, rounds, whole)
        case IfThenElse():
            if uses_var(stmt.condition, rounds) or _uses(stmt.condition, buffer):
                return False
            one_sided = stmt.else_case is None or not _uses(stmt.else_case, buffer)
            return one_sided and _begins_with_write(stmt.then_case, buffer, rounds, whole)
        case LetStmt():
            if _uses(stmt.value, buffer):
                return False
            return _begins_with_write(stmt.body, buffer, rounds, whole)
        case AttrStmt():
            return _begins_with_write(stmt.body, buffer, rounds, whole)
        case BlockRealize():
            if not all(_everywhere(c, buffer, whole) for c in conjuncts(stmt.predicate)
                       if uses_var(c, rounds)):  # fmt: skip
                return False
            if blocks(stmt.block.body):
                return _begins_with_write(stmt.block.body, buffer, rounds, whole)
            return _block_begins_with_write(stmt, buffer, rounds)
        case BufferStore():
            return not any(_uses(part, buffer) for part in (stmt.value, *stmt.indices))
        case _:
            return False


def _block_begins_with_write(node: BlockRealize, buffer: Buffer, rounds: set[Var]) -> bool:
    """A block without blocks inside: it sets an initial value first, or reads nothing of it."""
    block = node.block
    if block.init is not None and _uses(block.init, buffer):
        return not any(
            it.iter_type is IterType.REDUCE and uses_var(value, rounds)
            for it, value in zip(block.iter_vars, node.iter_values, strict=True)
        )
    return all(region.buffer is not buffer for region in block.reads)


def _everywhere(condition: Expr, buffer: Buffer, whole: Stmt) -> bool:
    """Whether all blocks that use the buffer run under the condition."""
    users = [n for n in walk(whole) if isinstance(n, BlockRealize) and _uses(n.block, buffer)]
    return all(any(structural_equal(c, condition) for c in conjuncts(n.predicate))
               for n in users)  # fmt: skip


def _uses(root: Node, buffer: Buffer) -> bool:
    return any(node is buffer for node in walk(root))
