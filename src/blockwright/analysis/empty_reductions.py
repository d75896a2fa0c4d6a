"""Reductions over nothing have their initial value as result.

Before::

    for i, k in T.grid(n, m):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = 0.0
            B[vi] = B[vi] + A[vi, vk]

After, as `m` may be 0::

    for i in range(n):
        if m <= 0:
            with T.block("B_init"):
                vi = T.axis.spatial(n, i)
                B[vi] = 0.0
        for k in range(m):
            with T.block("B"): ...

Where every reduction surely takes a step, the program stays as it is. Lowering and the
interpreter begin with this, so that `init` may otherwise run with the first step of a reduction.
"""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.analysis.facts import symbol_facts
from blockwright.arith import Analyzer
from blockwright.ir.node import NodeT


def define_empty_reductions(func: ir.PrimFunc) -> ir.PrimFunc:
    """The function with initial values also for reductions that take no step."""
    if all(block.init is None for block in ir.blocks(func.body)):
        return func
    body = _Define(symbol_facts(func))(func.body)
    return func if body is func.body else func.replace(body=body)


class _Step(msgspec.Struct, frozen=True, eq=False):
    """A node on the way from a scope to a block: a loop, or a choice with the side taken."""

    node: ir.For | ir.IfThenElse
    taken: bool = True


class _Define(ir.Mutator):
    """`path` leads from the innermost block to the current statement."""

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self.analyzer = analyzer
        self.path: list[_Step] = []
        self.due: dict[ir.For, list[ir.Stmt]] = {}  # what runs in front of a loop

    def __call__(self, node: NodeT) -> NodeT:
        return node if isinstance(node, ir.Expr) else super().__call__(node)

    def rewrite_For(self, node: ir.For) -> ir.Stmt:
        self.path.append(_Step(node))
        body = self(node.body)
        self.path.pop()
        loop = node if body is node.body else node.replace(body=body)
        return ir.seq([*self.due.pop(node, ()), loop])

    def rewrite_SeqStmt(self, node: ir.SeqStmt) -> ir.Stmt:
        parts = [self(part) for part in node.seq]
        same = all(new is old for new, old in zip(parts, node.seq, strict=True))
        return node if same else ir.seq(parts)

    def rewrite_IfThenElse(self, node: ir.IfThenElse) -> ir.Stmt:
        cases: list[ir.Stmt | None] = []
        for taken, case in ((True, node.then_case), (False, node.else_case)):
            self.path.append(_Step(node, taken))
            cases.append(None if case is None else self(case))
            self.path.pop()
        if cases[0] is node.then_case and cases[1] is node.else_case:
            return node
        return node.replace(then_case=cases[0], else_case=cases[1])

    def rewrite_BlockRealize(self, node: ir.BlockRealize) -> ir.Stmt:
        if node.block.init is not None:
            self._plan(node)
        outer, self.path = self.path, []
        body = self(node.block.body)
        self.path = outer
        return (
            node if body is node.block.body else node.replace(block=node.block.replace(body=body))
        )

    # ---------------------------------------------------------------------------------- planning

    def _plan(self, realize: ir.BlockRealize) -> None:
        """Notes the initial value of a block in front of its outermost reduction loop."""
        pairs = list(zip(realize.block.iter_vars, realize.iter_values, strict=True))
        reduced = [(it, value) for it, value in pairs if it.iter_type is ir.IterType.REDUCE]
        empty = [it.dom.extent for it, _ in reduced if not self._takes_steps(it.dom.extent)]
        if not empty:
            return
        first = next((k for k, step in enumerate(self.path) if _feeds(step, reduced)), None)
        if first is None:
            return  # no loop: the block is visited, whatever its domain
        loop = self.path[first].node
        assert isinstance(loop, ir.For)
        none = ir.const(False, "bool")
        for extent in empty:
            none = ir.logical_or(none, ir.compare(ir.LE, extent, ir.const(0, extent.dtype)))
        nest = self._nest(realize, pairs, self.path[first:], none)
        self.due.setdefault(loop, []).append(nest)

    def _takes_steps(self, extent: ir.Expr) -> bool:
        return self.analyzer.prove(ir.GE(extent, ir.const(1, extent.dtype)))

    def _nest(
        self, realize: ir.BlockRealize, pairs: list[tuple[ir.IterVar, ir.Expr]],
        path: list[_Step], condition: ir.Expr,
    ) -> ir.Stmt:  # fmt: skip
        """The initial value for all points that the path from a reduction loop on reaches."""
        block = realize.block
        assert block.init is not None
        spatial = [(it, value) for it, value in pairs if it.iter_type is not ir.IterType.REDUCE]
        reduced = [(it, value) for it, value in pairs if it.iter_type is ir.IterType.REDUCE]
        gone = {s.node.loop_var for s in path if isinstance(s.node, ir.For) and _feeds(s, reduced)}
        kept: dict[ir.Var, ir.Var] = {}
        around: list[ir.For | ir.Expr] = []  # loops and conditions, outermost first
        for step in path:
            node = step.node
            if isinstance(node, ir.IfThenElse):
                holds = node.condition if step.taken else ir.logical_not(node.condition)
                if not ir.uses_var(holds, gone):
                    around.append(ir.substitute(holds, kept))
            elif node.loop_var not in gone and _feeds(step, spatial):
                var = ir.Var(node.loop_var.name, node.loop_var.type)
                kept[node.loop_var] = var
                low, extent = ir.substitute(node.min, kept), ir.substitute(node.extent, kept)
                around.append(ir.For(var, low, extent, node.kind, node.body))
        iters: list[ir.IterVar] = []
        values: list[ir.Expr] = []
        fresh: dict[ir.Var, ir.Var] = {}
        for it, value in spatial:
            if ir.uses_var(value, gone):  # a loop of both kinds: every point of the domain instead
                var = ir.Var(it.var.name, it.var.type)
                around.append(ir.For(var, it.dom.min, it.dom.extent, ir.ForKind.SERIAL, block.init))
                value = var
            fresh[it.var] = ir.Var(it.var.name, it.var.type)
            iters.append(it.replace(var=fresh[it.var]))
            values.append(ir.substitute(value, kept))
        predicate = [ir.substitute(part, kept) for part in ir.conditions(realize.predicate)
                     if not ir.uses_var(part, gone)]  # fmt: skip
        made = ir.Block(f"{block.name}_init", tuple(iters), (), block.writes, block.init)
        made = ir.substitute(made, fresh)
        stmt: ir.Stmt = ir.BlockRealize(tuple(values), ir.all_of(predicate), made)
        late = ir.uses_var(condition, set(kept))
        if late:
            stmt = ir.IfThenElse(ir.substitute(condition, kept), stmt)
        for outer in reversed(around):
            whole = isinstance(outer, ir.For)
            stmt = outer.replace(body=stmt) if whole else ir.IfThenElse(outer, stmt)
        return stmt if late else ir.IfThenElse(condition, stmt)


def _feeds(step: _Step, pairs: list[tuple[ir.IterVar, ir.Expr]]) -> bool:
    """Whether one of the iterator values depends on a loop."""
    node = step.node
    return isinstance(node, ir.For) and any(ir.uses_var(v, node.loop_var) for _, v in pairs)
