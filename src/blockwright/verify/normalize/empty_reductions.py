"""Initialize the results of reductions over domains that may be empty.

    for i, k in T.grid(n, n - 1):             for i in range(n):
        with T.block("C"):                        if n - 1 <= 0:
            …                         →               C[i] = 0
            with T.init():                        for k in range(n - 1):
                C[vi] = 0                             with T.block("C"):
            C[vi] = C[vi] + A[vi, vk]                     …

If the domain of a reduction iterator is empty, the initial value is set once for each point of the
spatial iterators (docs/semantics.md), although no loop reaches the block. Reductions that have an
element for all sizes are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockwright import ir
from blockwright.verify.normalize.quotients import Quotients
from blockwright.verify.polynomial import number
from blockwright.verify.verdict import Unknown

Around = ir.For | ir.IfThenElse


def with_empty_reductions(func: ir.PrimFunc, minimum: Mapping[ir.Var, int]) -> ir.PrimFunc:
    """Set the initial values of reductions whose domain may be empty.

    Args:
        minimum: size → its smallest value.

    Raises: Unknown if such a reduction is in a nest of another form.
    """
    if all(block.init is None for block in ir.blocks(func.body)):
        return func
    return func.replace(body=_Begin(Quotients(minimum))(func.body))


class _Begin(ir.Mutator):
    """Rewriter.

    Attributes:
        path: the loops and conditions from the innermost block to the current statement; None for
            a statement of another kind.
        early: loop → statements to run before it.
    """

    def __init__(self, known: Quotients) -> None:
        super().__init__()
        self.known = known
        self.path: list[Around | None] = []
        self.early: dict[ir.For, list[ir.Stmt]] = {}

    def __call__(self, node: Any) -> Any:
        """Visit statements only: expressions contain no blocks."""
        return super().__call__(node) if isinstance(node, ir.Stmt) else node

    def rewrite_For(self, node: ir.For) -> ir.Stmt:
        result = self._under(node, node)
        return ir.seq([*self.early.pop(node, ()), result])

    def rewrite_SeqStmt(self, node: ir.SeqStmt) -> ir.Stmt:
        return ir.seq(map(self, node.seq))

    def rewrite_IfThenElse(self, node: ir.IfThenElse) -> ir.Stmt:
        return self._under(node, node if node.else_case is None else None)

    def rewrite_LetStmt(self, node: ir.LetStmt) -> ir.Stmt:
        return self._under(node, None)

    def rewrite_AttrStmt(self, node: ir.AttrStmt) -> ir.Stmt:
        return self._under(node, None)

    def _under(self, node: ir.Stmt, step: Around | None) -> Any:
        self.path.append(step)
        result = self.descend(node)
        self.path.pop()
        return result

    def rewrite_BlockRealize(self, node: ir.BlockRealize) -> ir.Stmt:
        if node.block.init is not None:
            self._plan(node)
        outer, self.path = self.path, []
        body = self(node.block.body)
        self.path = outer
        return node.replace(block=node.block.replace(body=body))

    def _plan(self, realize: ir.BlockRealize) -> None:
        """Put the initial values before the outermost reduction loop."""
        pairs = list(zip(realize.block.iter_vars, realize.iter_values, strict=True))
        reduced = [(it, v) for it, v in pairs if it.iter_type is ir.IterType.REDUCE]
        empty = [it.dom.extent for it, _ in reduced if not self._has_elements(it.dom.extent)]
        gone = {v for _, value in reduced for v in ir.free_vars(value)}
        first = next(
            (k for k, s in enumerate(self.path) if isinstance(s, ir.For) and s.loop_var in gone),
            None,
        )
        if not empty or first is None:
            return  # without a loop the block runs, whatever its domain is
        loop = self.path[first]
        assert isinstance(loop, ir.For)
        self.early.setdefault(loop, []).append(self._nest(realize, self.path[first:], gone, empty))

    def _has_elements(self, extent: ir.Expr) -> bool:
        return self.known.never_negative(self.known.poly(extent) - number(1))

    def _nest(
        self,
        realize: ir.BlockRealize,
        path: list[Around | None],
        gone: set[ir.Var],
        empty: list[ir.Expr],
    ) -> ir.Stmt:
        """The initial values of all points that the reduction loop would have reached."""
        block = realize.block
        assert block.init is not None
        if any(s is None or (isinstance(s, ir.For) and s.thread is not None) for s in path):
            raise Unknown(f"the reduction of block {block.name} may be empty inside of its nest")
        fresh: dict[Any, ir.Node] = {}
        steps: list[Around] = []
        for step in path:
            if isinstance(step, ir.For) and step.loop_var not in gone:
                fresh[step.loop_var] = ir.Var(step.loop_var.name, step.loop_var.type)
                steps.append(step)
            elif isinstance(step, ir.IfThenElse) and not ir.uses_var(step.condition, gone):
                steps.append(step)
        iters: list[ir.IterVar] = []
        values: list[ir.Expr] = []
        points: list[ir.For] = []
        none = ir.Evaluate(ir.const(0, "int32"))
        seen: dict[ir.Expr, ir.Expr] = {}
        for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
            if it.iter_type is ir.IterType.REDUCE:
                continue
            if ir.uses_var(value, gone):  # fused with a reduction loop
                var = ir.Var(it.var.name, it.var.type)
                points.append(ir.For(var, it.dom.min, it.dom.extent, ir.ForKind.SERIAL, none))
                seen[value] = var
                value = var
            fresh[it.var] = ir.Var(it.var.name, it.var.type)
            iters.append(it.replace(var=fresh[it.var]))
            values.append(value)
        tests = [_of_points(test, seen) for test in ir.conditions(realize.predicate)]
        holds = ir.all_of(t for t in tests if not ir.uses_var(t, gone))
        inner = ir.Block(f"{block.name}_init", tuple(iters), (), block.writes, block.init)
        result: ir.Stmt = ir.BlockRealize(tuple(values), holds, inner)
        result = ir.IfThenElse(_any_empty(empty), result)
        for point in reversed(points):
            result = point.replace(body=result)
        for step in reversed(steps):
            if isinstance(step, ir.For):
                own = fresh[step.loop_var]
                result = step.replace(loop_var=own, body=result, annotations={})
            else:
                result = ir.IfThenElse(step.condition, result)
        return _renamed(result, fresh)


def _renamed(stmt: ir.Stmt, fresh: Mapping[Any, ir.Node]) -> ir.Stmt:
    return ir.substitute(stmt, dict(fresh))


def _any_empty(extents: list[ir.Expr]) -> ir.Expr:
    result: ir.Expr = ir.const(False, "bool")
    for extent in extents:
        result = ir.logical_or(result, ir.compare(ir.LE, extent, ir.const(0, extent.dtype)))
    return result


def _of_points(expr: Any, seen: Mapping[ir.Expr, ir.Expr]) -> Any:
    """An expression in which points stand for the values that fused loops drive."""
    for value, var in seen.items():
        if isinstance(expr, ir.Expr) and ir.structural_equal(expr, value):
            return var

    def below(child: Any) -> Any:
        return _of_points(child, seen)

    return expr.map_children(below)
