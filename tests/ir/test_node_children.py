"""Children of nodes: all of them, in field order, whatever the fields hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from blockwright import ir
from blockwright.analysis import child_stmts
from blockwright.testing import random_program


def _held(value: Any) -> list[ir.Node]:
    """The nodes in a field, looked for without regard to its annotation."""
    if isinstance(value, ir.Node):
        return [value]
    items: Iterable[Any] = ()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).values()
    elif isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
    return [node for item in items for node in _held(item)]


@pytest.mark.parametrize("seed", range(20))
def test_children_are_the_nodes_in_the_fields(seed: int) -> None:
    for node in ir.walk(random_program(seed)):
        fields = [name for name in node.__struct_fields__ if name != "span"]
        assert list(node.children()) == [n for f in fields for n in _held(getattr(node, f))]


@pytest.mark.parametrize("seed", range(20))
def test_statements_below_are_the_children_that_are_statements(seed: int) -> None:
    for node in ir.walk(random_program(seed)):
        if isinstance(node, ir.Stmt):
            below = [c for c in node.children() if isinstance(c, ir.Stmt)]
            assert sorted(map(id, child_stmts(node))) == sorted(map(id, below))


def test_a_map_that_changes_nothing_gives_the_node_itself() -> None:
    for node in ir.walk(random_program(0)):
        assert node.map_children(lambda child: child) is node
