"""Cached properties of expressions, which passes query at every level of a tree."""

from __future__ import annotations

from blockwright.ir import OPS, Buffer, BufferLoad, Call, Let, Node

_OWN_RULES, _EFFECT = 1, 2


class Contents:
    """Classifies expressions by the nodes they contain; buffer shapes are not visited."""

    def __init__(self) -> None:
        self._found: dict[Node, int] = {}

    def has_own_rules(self, root: Node) -> bool:
        """Whether there is a load, call or let; these have rewrite rules of their own."""
        return bool(self._of(root) & _OWN_RULES)

    def has_effect(self, root: Node) -> bool:
        """Whether evaluating the expression has side effects."""
        return bool(self._of(root) & _EFFECT)

    def _of(self, root: Node) -> int:
        result = self._found
        if root in result:
            return result[root]
        stack: list[Node] = [root]
        while stack:
            node = stack[-1]
            below = () if isinstance(node, Buffer) else node.children()
            waiting = [child for child in below if child not in result]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            flags = _own(node)
            for child in below:
                flags |= result[child]
            result[node] = flags
        return result[root]


def _own(node: Node) -> int:
    if isinstance(node, Call):
        row = OPS.get(node.op)  # names without a row are runtime calls
        effect = row is None or row.kind == "effect"
        return _OWN_RULES | _EFFECT if effect else _OWN_RULES
    return _OWN_RULES if isinstance(node, (BufferLoad, Let)) else 0
