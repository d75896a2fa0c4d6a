"""Memoization of block analyses across schedule steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from blockwright import ir
from blockwright.analysis.access.tree import Tree
from blockwright.analysis.facts import facts_at, stated_conditions, symbol_facts
from blockwright.arith import Analyzer

T = TypeVar("T")


class FlowMemo:
    """Cache of results about blocks, valid while a block and its enclosing loops are unchanged.

    Keys consist of identities of nodes and attributes, which are kept alive so that an identity is
    never reused. A memo lives at most as long as its schedule.
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[int | str, ...], Any] = {}
        self._kept: list[Any] = []

    def answer(self, what: str, nodes: Sequence[Any], find: Callable[[], T]) -> T:
        """The cached result, or that of `find`."""
        key = (what, *(id(n) for n in nodes))
        if key not in self._answers:
            self._kept.extend(nodes)
            self._answers[key] = find()
        return self._answers[key]

    def facts(self, tree: Tree, at: ir.Stmt | None = None) -> Analyzer:
        """Facts at a statement (None: facts about sizes only), for proofs about its blocks.

        The returned analyzers share cached results. Expressions that are put into a program must
        come from `own_facts`, so that their form does not depend on earlier queries.
        """
        return self.answer("facts", around(tree, at), lambda: _find_facts(tree, at)).copy()

    def own_facts(self, tree: Tree, at: ir.Stmt | None = None) -> Analyzer:
        """Facts at a statement, as an analyzer without shared state.

        For expressions that are put into a program.
        """
        return self.answer("own facts", around(tree, at), lambda: _find_facts(tree, at)).afresh()


def around(tree: Tree, at: ir.Stmt | None) -> list[Any]:
    """Everything that determines the facts at a statement: function facts and enclosing nodes."""
    func = tree.func
    nodes: list[Any] = [func.attrs, *func.params, *func.buffers, *stated_conditions(func)]
    scalars = [p for p in func.params if p.dtype.is_int]
    if scalars:  # a scalar becomes a size when a step uses it as an extent
        values = ir.value_variables(func)
        nodes += (p for p in scalars if p in values)
    part = at
    for above in () if at is None else tree.ancestors(at):
        if isinstance(above, ir.For):
            nodes += (above.loop_var, above.min, above.extent)
        elif isinstance(above, ir.Block):
            nodes += above.iter_vars
            if part is above.init:
                nodes += (part, *tree.realize(above).iter_values)
        part = above
    return nodes


def _find_facts(tree: Tree, at: ir.Stmt | None) -> Analyzer:
    return symbol_facts(tree.func) if at is None else facts_at(tree, at)
