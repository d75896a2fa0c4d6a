"""Traversal and rewriting of trees.

`walk` visits every node before its children. `Mutator` rewrites through a per-class table of
methods (`rewrite_<ClassName>`), children first via `map_children`, and preserves sharing: a node
that occurs in several places is rewritten once. Buffers are rewritten at every mention, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, TypeVar, cast

from blockwright.ir.buffer import Buffer
from blockwright.ir.expr import BufferLoad, Expr, Var
from blockwright.ir.node import Node
from blockwright.ir.stmt import Block, BufferStore, For, Stmt

NodeT = TypeVar("NodeT", bound=Node)


def walk(root: Node) -> Iterator[Node]:
    """Iterate over `root` and every node below it, parents first, once per path to the node.

    Shapes and strides of buffers are visited at every mention.
    """
    stack: list[Node] = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += node.children()[::-1]


def collect(root: Node, kind: type[NodeT]) -> list[NodeT]:
    """All nodes of one class in program order, each object once."""
    result: dict[NodeT, None] = {}
    statements = issubclass(kind, Stmt)  # statements occur only inside statements
    stack: list[Node] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, kind):
            result[node] = None
        below = node.children()[::-1]
        stack += [child for child in below if isinstance(child, Stmt)] if statements else below
    return list(result)


def uses_var(root: Node, variables: Var | AbstractSet[Var]) -> bool:
    """Whether any of the variables occurs in the tree."""
    wanted = {variables} if isinstance(variables, Var) else variables
    stack: list[Node] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Var):
            if node in wanted:
                return True
        else:
            stack += node.children()
    return False


def height(root: Node) -> int:
    """Number of nodes on the longest path from the root to a leaf."""
    result: dict[Node, int] = {}
    stack: list[Node] = [root]
    while stack:
        node = stack[-1]
        if node in result:
            stack.pop()
            continue
        below = node.children()
        waiting = [child for child in below if child not in result]
        if waiting:
            stack += waiting
        else:
            stack.pop()
            result[node] = 1 + max([result[child] for child in below], default=0)
    return result[root]


def free_vars(root: Expr) -> list[Var]:
    """Variables of an expression in order of first occurrence (Let-bound ones included)."""
    return collect(root, Var)


class Mutator:
    """Base class of tree rewrites. Subclasses define `rewrite_<ClassName>(self, node)` methods.

    A method returns the new node; `self.descend(node)` rewrites the children first. Nodes without a
    method are descended into. Results are memoized per node object.
    """

    _table: ClassVar[dict[str, Callable[[Any, Node], Node]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        table: dict[str, Callable[[Any, Node], Node]] = {}
        for base in reversed(cls.__mro__):
            for name, method in vars(base).items():
                if name.startswith("rewrite_"):
                    table[name.removeprefix("rewrite_")] = method
        cls._table = table

    def __init__(self) -> None:
        self._memo: dict[Node, Node] = {}

    def __call__(self, node: NodeT) -> NodeT:
        result = self._memo.get(node)
        if result is None:
            method = self._table.get(type(node).__name__)
            result = self.descend(node) if method is None else method(self, node)
            self._memo[node] = result
        return cast(NodeT, result)

    def descend(self, node: NodeT) -> NodeT:
        """The node with rewritten children."""
        return node.map_children(self)


class _Substitute(Mutator):
    def __init__(self, mapping: Mapping[Any, Node]) -> None:
        super().__init__()
        self._memo.update(mapping)


def substitute(
    root: NodeT, mapping: Mapping[Var, Expr] | Mapping[Buffer, Buffer] | Mapping[Any, Any]
) -> NodeT:
    """`root` with variables (and buffers) replaced at every use.

    Buffers whose shape uses a replaced variable are replaced consistently. A definition is replaced
    too if its variable is mapped to another variable.
    """
    return _Substitute(mapping)(root) if mapping else root


def rewrite_bottom_up(root: NodeT, fn: Callable[[Node], Node | None]) -> NodeT:
    """Apply `fn` to every node after its children; None keeps the node."""

    class _Rewrite(Mutator):
        def __call__(self, node: Any) -> Any:
            result = self._memo.get(node)
            if result is None:
                new = node.map_children(self)
                changed = fn(new)
                result = new if changed is None else changed
                self._memo[node] = result
            return result

    return _Rewrite()(root)


def blocks(root: Node) -> list[Block]:
    """All blocks in program order."""
    return collect(root, Block)


def loops(root: Node) -> list[For]:
    """All loops in program order."""
    return collect(root, For)


def accesses(root: Stmt) -> list[BufferLoad | BufferStore]:
    """All element reads and writes in program order (writes come before their operands)."""
    return [n for n in walk(root) if isinstance(n, (BufferLoad, BufferStore))]
