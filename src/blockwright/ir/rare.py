"""Cached lookup of all nodes of rare classes in a program.

A schedule queries these after every step, but a step changes only a few loops and blocks. The
results below each loop and block are therefore cached for the lifetime of the node.
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
    """Finds the nodes of the given classes in a program."""

    def __init__(self, *kinds: type[NodeT]) -> None:
        self.kinds = kinds
        # Statements occur only inside statements.
        self._leaves: tuple[type[Node], ...] = (
            (Expr, IterVar, BufferRegion, Buffer)
            if all(issubclass(kind, Stmt) for kind in kinds)
            else (Var, IntImm, Buffer)
        )
        self._roles: dict[type[Node], int] = {}
        self._below: WeakKeyDictionary[Node, tuple[NodeT, ...]] = WeakKeyDictionary()

    def of(self, root: Node) -> list[NodeT]:
        """Nodes of these classes in a tree, in program order; buffer shapes are not searched."""
        result: list[NodeT] = []
        roles = self._roles
        stack: list[Node | _End] = [root]
        while stack:
            node = stack.pop()
            if isinstance(node, _End):
                self._below[node.node] = tuple(result[node.start :])
                continue
            role = roles.get(type(node))
            if role is None:
                role = roles[type(node)] = self._role(type(node))
            if role == _LEAF:
                continue
            if role == _REMEMBERED:
                known = self._below.get(node)
                if known is not None:
                    result += known
                    continue
                stack.append(_End(node, len(result)))
            if isinstance(node, self.kinds):
                result.append(node)
            stack += node.children()[::-1]
        return result

    def _role(self, kind: type[Node]) -> int:
        if issubclass(kind, (For, Block)):
            return _REMEMBERED
        leaf = issubclass(kind, self._leaves) and not issubclass(kind, self.kinds)
        return _LEAF if leaf else _INNER


_LEAF, _INNER, _REMEMBERED = range(3)


class _End:
    """Stack marker: the subtree of `node` is done; its nodes are `result[start:]`."""

    __slots__ = ("node", "start")

    def __init__(self, node: Node, start: int) -> None:
        self.node, self.start = node, start
