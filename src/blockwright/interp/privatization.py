"""Privatization: which buffers are private to the iterations of a parallel loop.

A schedule computes a producer inside a parallel loop without moving its buffer, which stays
allocated outside, by a block or by a statement. Iterations of a parallel loop exchange no data, so
a buffer that is accessed only inside such a loop is private to its iterations. Exceptions are
buffers whose values may outlive an iteration: another loop runs the parallel loop repeatedly
during the lifetime of the buffer, and an iteration does not begin by writing the buffer, as here::

    for k in range(64):
        for i in T.parallel(16):
            total[i] += x[i, k]      # total holds the sum of the earlier rounds

Such a buffer is shared, and the race check verifies that iterations access their own elements only.
Lowering proves for each loop where an allocation may be placed. This rule looks only at the
positions of accesses, and relies on the check for uninitialized reads to find an iteration that
depends on others. Memory private to GPU threads is handled by `gpu/kernels` and `gpu/launch`.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockwright.arith import Analyzer
from blockwright.arith.condition import conjuncts
from blockwright.ir import (
    Allocate,
    AttrStmt,
    Block,
    BlockRealize,
    Buffer,
    BufferStore,
    DeclBuffer,
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
    add,
    blocks,
    is_const_int,
    structural_equal,
    sub,
    substitute,
    uses_var,
    walk,
)

Path = tuple[For | While, ...]
Privates = dict[For, list[Buffer]]


def private_buffers(root: Stmt) -> Privates:
    """Parallel loop → buffers allocated outside of it that are fresh in each iteration."""
    finder = _Finder()
    finder.visit(root, ())
    result: Privates = {}
    for buffer, outside in finder.allocated.items():
        owner = _owner(buffer, finder.used.get(buffer, ()), len(outside))
        if owner is not None:
            result.setdefault(owner, []).append(buffer)
    return result


def _owner(buffer: Buffer, around: Path, outside: int) -> For | None:
    """The innermost parallel loop to whose iterations the buffer is private.

    Args:
        around: the loops around all uses.
        outside: the number of those loops that enclose the allocation.
    """
    owners = [k for k in range(outside, len(around)) if owns(around[k])]
    for depth in reversed(owners):
        loop = around[depth]
        assert isinstance(loop, For)
        again = [
            n
            for n in around[outside:depth]
            if isinstance(n, While) or (n.kind is not loop.kind and not is_const_int(n.extent, 1))
        ]
        rounds = {n.loop_var for n in again if isinstance(n, For)}
        if not again or _Beginning(buffer, rounds, around[: depth + 1]).writes(loop.body):
            return loop
    return None


def owns(loop: For | While) -> bool:
    """Whether a buffer can be private to the iterations of a loop."""
    return isinstance(loop, For) and loop.kind is ForKind.PARALLEL


class _Finder:
    """Collects the loops around each allocation and around all uses of a buffer."""

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
        elif isinstance(node, Allocate):
            self.allocated[node.buffer] = path
            for size in (*node.buffer.shape, *node.buffer.strides):
                self.visit(size, path)
            self.visit(node.body, path)
        else:
            if isinstance(node, DeclBuffer):
                self.visit(node.buffer.elem_offset, path)
            for child in node.children():
                self.visit(child, path)


class _Beginning:
    """Checks whether an iteration of a parallel loop begins by writing the buffer in every round.

    Args:
        buffer: the buffer.
        rounds: variables of the loops that repeat the parallel loop.
        around: the loops around the body of the parallel loop.
    """

    def __init__(self, buffer: Buffer, rounds: set[Var], around: Path) -> None:
        self.buffer = buffer
        self.rounds = rounds
        self.around = around
        self.whole = around[-1].body
        self.inner: list[For] = []

    def writes(self, stmt: Stmt) -> bool:
        """Whether the first access to the buffer is a write that happens in every round."""
        match stmt:
            case SeqStmt():
                first = next((part for part in stmt.seq if self._used_in(part)), None)
                return first is not None and self.writes(first)
            case For():
                self.inner.append(stmt)
                bounds = self._used_in(stmt.min) or self._used_in(stmt.extent)
                return not bounds and self.writes(stmt.body)
            case IfThenElse():
                guarded = self._holds_all_uses(stmt) or self._in_every_round(stmt.condition)
                if not guarded or self._used_in(stmt.condition):
                    return False
                one_sided = stmt.else_case is None or not self._used_in(stmt.else_case)
                return one_sided and self.writes(stmt.then_case)
            case LetStmt():
                return not self._used_in(stmt.value) and self.writes(stmt.body)
            case AttrStmt():
                return self.writes(stmt.body)
            case BlockRealize():
                if not all(
                    self._in_every_round(c) or self._everywhere(c)
                    for c in conjuncts(stmt.predicate)
                ):
                    return False
                if blocks(stmt.block.body):
                    self.rounds = self.rounds | {
                        it.var
                        for it, value in zip(stmt.block.iter_vars, stmt.iter_values, strict=True)
                        if uses_var(value, self.rounds)
                    }
                    return self.writes(stmt.block.body)
                return self._block_writes(stmt)
            case BufferStore():
                return not any(map(self._used_in, (stmt.value, *stmt.indices)))
            case _:
                return False

    def _block_writes(self, node: BlockRealize) -> bool:
        """Whether an innermost block initializes the buffer first, or does not read it."""
        block = node.block
        if block.init is not None and self._used_in(block.init):
            return not any(
                it.iter_type is IterType.REDUCE and uses_var(value, self.rounds)
                for it, value in zip(block.iter_vars, node.iter_values, strict=True)
            )
        return all(region.buffer is not self.buffer for region in block.reads)

    def _in_every_round(self, condition: Expr) -> bool:
        """Whether a condition holds in every round for some iteration of the inner loops.

        Only iterations in which blocks that read the buffer run are considered. Conditions that
        clip a partial tile to a buffer leave some iterations in each round; the first and last
        iterations of the inner loops are tried.
        """
        if not uses_var(condition, self.rounds):
            return True
        if not self.inner:
            return False
        first: dict[Var, Expr] = {f.loop_var: f.min for f in self.inner}
        last: dict[Var, Expr] = {f.loop_var: sub(add(f.min, f.extent), 1) for f in self.inner}
        return any(
            all(self._runs_only_under(substitute(condition, end), *r) for r in self._readers())
            for end in (first, last)
        )

    def _readers(self) -> Iterator[tuple[BlockRealize, Path]]:
        """Blocks in the parallel loop that read the buffer, with the loops around each."""

        def visit(node: Node, loops: Path) -> Iterator[tuple[BlockRealize, Path]]:
            if isinstance(node, BlockRealize) and any(
                region.buffer is self.buffer for region in node.block.reads
            ):
                yield node, loops
            inside = (*loops, node) if isinstance(node, For) else loops
            for child in node.children():
                yield from visit(child, inside)

        return visit(self.whole, self.around)

    def _runs_only_under(self, condition: Expr, node: BlockRealize, loops: Path) -> bool:
        """Whether a condition holds wherever a block inside the given loops runs."""
        known = Analyzer()
        for loop in loops:
            if isinstance(loop, For):
                known.bind(loop.loop_var, loop.dom)
        return _implies(node.predicate, condition, known)

    def _everywhere(self, condition: Expr) -> bool:
        """Whether all blocks that use the buffer run under the condition."""
        users = [
            n for n in walk(self.whole) if isinstance(n, BlockRealize) and self._used_in(n.block)
        ]
        return all(any(_same(c, condition) for c in conjuncts(n.predicate)) for n in users)

    def _holds_all_uses(self, stmt: IfThenElse) -> bool:
        """Whether the parallel loop uses the buffer in this branch only."""
        return self._uses(stmt.then_case) == self._uses(self.whole)

    def _uses(self, root: Node) -> int:
        return sum(node is self.buffer for node in walk(root))

    def _used_in(self, root: Node) -> bool:
        return any(node is self.buffer for node in walk(root))


def _implies(given: Expr, condition: Expr, known: Analyzer) -> bool:
    with known.assume(given):
        return known.prove(condition)


def _same(a: Expr, b: Expr) -> bool:
    """Whether two conditions are equivalent."""
    if structural_equal(a, b):
        return True
    known = Analyzer()
    return _implies(a, b, known) and _implies(b, a, known)
