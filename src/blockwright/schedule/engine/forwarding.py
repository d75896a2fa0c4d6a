"""Mutators that record the replacement of each rewritten block, so that handles survive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright import ir
from blockwright.analysis.access.regions import block_access_regions
from blockwright.arith import Analyzer
from blockwright.ir.annotations import EXPLICIT_READ
from blockwright.schedule.engine.explicit_regions import with_explicit


class Forwarding(ir.Mutator):
    """A mutator that records each changed block in `forward` (old → new)."""

    def __init__(self, forward: dict[ir.Block, ir.Block]) -> None:
        super().__init__()
        self.forward = forward

    def rewrite_Block(self, node: ir.Block) -> ir.Block:
        new = self.descend(node)
        if new is not node:
            self.forward[node] = new
        return new


class AccessRewrite(Forwarding):
    """A mutator of buffer accesses that recomputes the regions of each changed block.

    Buffers themselves are not rewritten.
    """

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_Block(self, node: ir.Block) -> Any:
        body = self(node.body)
        init = None if node.init is None else self(node.init)
        views = tuple(map(self, node.match_buffers))  # their regions may load elements
        if body is node.body and init is node.init and views == node.match_buffers:
            return node
        new = with_signature(node.replace(body=body, init=init, match_buffers=views))
        self.forward[node] = new = self.restated(new)
        return new

    def restated(self, block: ir.Block) -> ir.Block:
        """Hook: adjust the recomputed signature of a changed block."""
        return block


def defined_buffers(stmt: ir.Stmt) -> set[ir.Buffer]:
    """The buffers that a statement defines: block allocations, views and `Allocate` nodes."""
    result: set[ir.Buffer] = set()
    for node in ir.walk(stmt):
        if isinstance(node, ir.Block):
            result.update(node.alloc_buffers)
        elif isinstance(node, (ir.MatchBufferRegion, ir.Allocate, ir.DeclBuffer)):
            result.add(node.buffer)
    return result


def rewritten_accesses(
    stmt: ir.Stmt, change: Callable[[ir.BufferLoad | ir.BufferStore], ir.Node]
) -> Any:
    """The statement with its accesses rewritten by `change`, innermost first.

    Buffers are not rewritten, although their shapes may contain loads.
    """

    class _Rewrite(ir.Mutator):
        def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
            return node

        def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Node:
            return change(self.descend(node))

        def rewrite_BufferStore(self, node: ir.BufferStore) -> ir.Node:
            return change(self.descend(node))

    return _Rewrite()(stmt)


def with_signature(block: ir.Block, analyzer: Analyzer | None = None) -> ir.Block:
    """The block with regions recomputed from its body, widened by the user's explicit regions."""
    reads, writes = block_access_regions(block, analyzer)
    if EXPLICIT_READ in block.annotations:
        return with_explicit(block.replace(reads=reads, writes=writes), block.reads)
    return block.replace(reads=reads, writes=writes)
