"""Initialize the results of reductions over empty domains.

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

A program in which every reduction provably has an iteration is unchanged. Lowering and the
interpreter run this first, so that otherwise `init` may run with the first reduction iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from blockwright import ir
from blockwright.analysis.facts import symbol_facts
from blockwright.arith import Analyzer
from blockwright.ir.node import NodeT


def define_empty_reductions(func: ir.PrimFunc) -> ir.PrimFunc:
    """Initialize results even if their reductions have no iterations; see the module docstring."""
    if all(block.init is None for block in ir.blocks(func.body)):
        return func
    body = _Define(symbol_facts(func))(func.body)
    return func if body is func.body else func.replace(body=body)


_Around = ir.For | ir.IfThenElse | ir.LetStmt | ir.DeclBuffer | ir.Allocate


class _Step(msgspec.Struct, frozen=True, eq=False):
    """A statement between a scope and a block; for a conditional, also the branch taken."""

    node: _Around
    taken: bool = True


class _Define(ir.Mutator):
    """Rewriter; `path` holds the statements from the innermost block to the current one."""

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self.analyzer = analyzer
        self.path: list[_Step] = []
        self.due: dict[ir.For, list[ir.Stmt]] = {}  # statements to insert before a loop

    def __call__(self, node: NodeT) -> NodeT:
        return node if isinstance(node, ir.Expr) else super().__call__(node)

    def rewrite_For(self, node: ir.For) -> ir.Stmt:
        self.path.append(_Step(node))
        body = self(node.body)
        self.path.pop()
        loop = node if body is node.body else node.replace(body=body)
        return ir.seq([*self.due.pop(node, ()), loop])

    def rewrite_LetStmt(self, node: ir.LetStmt) -> ir.Stmt:
        return self._below(node)

    def rewrite_DeclBuffer(self, node: ir.DeclBuffer) -> ir.Stmt:
        return self._below(node)

    def rewrite_Allocate(self, node: ir.Allocate) -> ir.Stmt:
        return self._below(node)

    def _below(self, node: ir.LetStmt | ir.DeclBuffer | ir.Allocate) -> ir.Stmt:
        self.path.append(_Step(node))
        body = self(node.body)
        self.path.pop()
        return node if body is node.body else node.replace(body=body)

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
        """Insert the init statement of a block before its outermost reduction loop.

        If a reduction loop is bound to a thread axis, it is inserted before the kernel.
        """
        iters = realize.block.iter_vars
        empty = [
            it.dom.extent
            for it in iters
            if it.iter_type is ir.IterType.REDUCE and not self._takes_steps(it.dom.extent)
        ]
        if not empty:
            return
        reduced = _reduced(realize, self.path)
        first = next((k for k, step in enumerate(self.path) if _feeds(step, reduced)), None)
        if first is None:
            return  # no loop: the block runs, whatever its domain
        if any(_is_bound(step) and _feeds(step, reduced) for step in self.path):
            # An empty thread axis launches no threads at all, so init needs its own kernel.
            first = next(k for k, step in enumerate(self.path) if k == first or _is_bound(step))
        loop = self.path[first].node
        assert isinstance(loop, ir.For)
        none = ir.const(False, "bool")
        for extent in empty:
            none = ir.logical_or(none, ir.compare(ir.LE, extent, ir.const(0, extent.dtype)))
        if not any(_dies_with(step, realize.block) for step in self.path[first:]):
            nest = self._nest(realize, self.path[first:], none)
            self.due.setdefault(loop, []).append(nest)

    def _takes_steps(self, extent: ir.Expr) -> bool:
        return self.analyzer.prove(ir.GE(extent, ir.const(1, extent.dtype)))

    def _nest(self, realize: ir.BlockRealize, path: list[_Step], condition: ir.Expr) -> ir.Stmt:
        """The init statement for all points reached inside a reduction loop."""
        block = realize.block
        assert block.init is not None
        reduced = _reduced(realize, path)
        nest = _Nest(
            {s.node.loop_var for s in path if isinstance(s.node, ir.For) and _feeds(s, reduced)}
        )
        for step in path:
            nest.enter(step)
        iters: list[ir.IterVar] = []
        values: list[ir.Expr] = []
        fresh: dict[ir.Var, ir.Var] = {}
        for it, value in realize.bindings:
            if it.iter_type is ir.IterType.REDUCE:
                continue
            fresh[it.var] = ir.Var(it.var.name, it.var.type)
            iters.append(it.replace(var=fresh[it.var]))
            values.append(nest.value(it, value))
        predicate = nest.conditions(realize)
        result = ir.Block(f"{block.name}_init", tuple(iters), (), block.writes, block.init)
        result = ir.substitute(result, {**fresh, **nest.kept})
        stmt: ir.Stmt = ir.BlockRealize(tuple(values), ir.all_of(predicate), result)
        late = not nest.kept.keys().isdisjoint(ir.free_vars(condition))
        if late:
            stmt = ir.IfThenElse(ir.substitute(condition, nest.kept), stmt)
        stmt = nest.around(stmt)
        return stmt if late else ir.IfThenElse(condition, stmt)


class _Nest:
    """Context of an init statement: copies of the statements around its block.

    Attributes:
        gone: the reduction loops, and variables that depend on them.
        kept: variable or buffer defined around the block → its copy.
        points: iterator values driven by a reduction loop, with the variables that replace them.
    """

    def __init__(self, gone: set[ir.Var]) -> None:
        self.gone = gone
        self.kept: dict[ir.Var | ir.Buffer, ir.Var | ir.Buffer] = {}
        self.points: list[tuple[ir.Expr, ir.Var]] = []
        self._around: list[Callable[[ir.Stmt], ir.Stmt]] = []  # outermost first

    def enter(self, step: _Step) -> None:
        """Copy a statement, unless it depends on removed loops."""
        node = step.node
        match node:
            case ir.For():
                if node.loop_var not in self.gone:
                    self._loop(node)
            case ir.IfThenElse():
                holds = node.condition if step.taken else ir.logical_not(node.condition)
                if not ir.uses_var(holds, self.gone):
                    condition = ir.substitute(holds, self.kept)
                    self._around.append(lambda body: ir.IfThenElse(condition, body))
            case ir.LetStmt():
                if ir.uses_var(node.value, self.gone):
                    self.gone.add(node.var)
                    return
                value = ir.substitute(node.value, self.kept)
                var = self.kept[node.var] = ir.Var(node.var.name, node.var.type)
                self._around.append(lambda body: ir.LetStmt(var, value, body))
            case ir.DeclBuffer():
                source = ir.substitute(node.source, self.kept)
                buffer = ir.substitute(node.buffer, self.kept)
                buffer = buffer.replace(name=buffer.name)
                self.kept[node.buffer] = buffer
                self._around.append(lambda body: ir.DeclBuffer(buffer, source, body))
            case ir.Allocate():
                pass  # see `_dies_with`: nothing in the nest uses it

    def _loop(self, node: ir.For) -> None:
        low, extent = ir.substitute(node.min, self.kept), ir.substitute(node.extent, self.kept)
        var = self.kept[node.loop_var] = ir.Var(node.loop_var.name, node.loop_var.type)
        self._around.append(lambda body: ir.For(var, low, extent, node.kind, body, node.thread))

    def value(self, it: ir.IterVar, value: ir.Expr) -> ir.Expr:
        """The value of an iterator; if a reduction loop drives it, a loop over its whole domain."""
        if not ir.uses_var(value, self.gone):
            return ir.substitute(value, self.kept)
        var, dom = ir.Var(it.var.name, it.var.type), ir.substitute(it.dom, self.kept)
        self.points.append((value, var))
        self._around.append(lambda body: ir.For(var, dom.min, dom.extent, ir.ForKind.SERIAL, body))
        return var

    def conditions(self, realize: ir.BlockRealize) -> list[ir.Expr]:
        """Conditions of the predicate on points of the nest, without those on reduction loops."""

        def of_points(expr: ir.Node) -> Any:
            for value, var in self.points:
                if isinstance(expr, ir.Expr) and ir.structural_equal(expr, value):
                    return var
            return expr.map_children(of_points)

        parts = [of_points(part) for part in ir.conditions(realize.predicate)]
        return [ir.substitute(p, self.kept) for p in parts if not ir.uses_var(p, self.gone)]

    def around(self, stmt: ir.Stmt) -> ir.Stmt:
        for put in reversed(self._around):
            stmt = put(stmt)
        return stmt


def _reduced(realize: ir.BlockRealize, path: list[_Step]) -> list[ir.Expr]:
    """The values of the reduction iterators, with let-bound names expanded."""
    named: dict[ir.Var, ir.Expr] = {}
    for step in path:
        if isinstance(step.node, ir.LetStmt):
            named[step.node.var] = ir.substitute(step.node.value, named)
    return [
        ir.substitute(value, named)
        for it, value in realize.bindings
        if it.iter_type is ir.IterType.REDUCE
    ]


def _is_bound(step: _Step) -> bool:
    return isinstance(step.node, ir.For) and step.node.kind is ir.ForKind.THREAD_BINDING


def _feeds(step: _Step, values: list[ir.Expr]) -> bool:
    """Whether one of the values depends on a loop."""
    node = step.node
    return isinstance(node, ir.For) and any(ir.uses_var(v, node.loop_var) for v in values)


def _dies_with(step: _Step, block: ir.Block) -> bool:
    """Whether a block writes a buffer that is allocated inside the path."""
    node = step.node
    return isinstance(node, ir.Allocate) and any(r.buffer is node.buffer for r in block.writes)
