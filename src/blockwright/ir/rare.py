"""Nodes of classes that are rare in programs, found without a walk over all of the program.

A schedule asks for them after every step, and a step changes a few loops and blocks of many: what
stands below each loop and block is remembered as long as the node lives.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from blockwright.ir.buffer import Buffer, BufferRegion, IterVar
from blockwright.ir.expr import Expr, IntImm, Var
from blockwright.ir.node import Node
from blockwright.ir.stmt import Block, For, Stmt

NodeT = TypeVar("NodeT", bound=Node)


class Rare(Generic[NodeT]):
    """Finds nodes of some classes."""

    def __init__(self, *kinds: type[NodeT]) -> None:
        self.kinds = kinds
        # Statements stand in statements alone.
        self._leaves: tuple[type[Node], ...] = (
            (Expr, IterVar, BufferRegion, Buffer)
            if all(issubclass(kind, Stmt) for kind in kinds)
            else (Var, IntImm, Buffer)
        )
        self._below: WeakKeyDictionary[Node, tuple[NodeT, ...]] = WeakKeyDictionary()

    def of(self, root: Node) -> list[NodeT]:
        """The nodes of these classes in a tree, in program order, shapes of buffers left out."""
        stack: list[Node] = [root]
        while True:
            found, unknown = self._around(stack[-1])
            if unknown:
                stack += unknown
                continue
            node = stack.pop()
            if not stack:
                return found
            self._below[node] = tuple(found)

    def _around(self, root: Node) -> tuple[list[NodeT], list[Node]]:
        """The nodes in a tree; and the loops and blocks in it below which none are known yet."""
        found: list[NodeT] = [root] if isinstance(root, self.kinds) else []
        unknown: list[Node] = []
        stack = [*root.children()[::-1]]
        while stack:
            node = stack.pop()
            if isinstance(node, (For, Block)):
                known = self._below.get(node)
                if known is None:
                    unknown.append(node)
                else:
                    found += known
            elif not isinstance(node, self._leaves):
                if isinstance(node, self.kinds):
                    found.append(node)
                stack += node.children()[::-1]
        return found, unknown
