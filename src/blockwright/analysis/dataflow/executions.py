"""Whether blocks run in an iteration of the loops around them, and whether they are finished then.

A condition on the iterators of a block is part of its domain. A block that control flow may skip
(conditions around it, jumps, data-dependent extents) has no such domain and is called decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockwright import ir
from blockwright.analysis.access.tree import child_stmts
from blockwright.analysis.dataflow.dependences import Dependences
from blockwright.analysis.dataflow.independence import drives_sums
from blockwright.arith import Analyzer
from blockwright.arith.condition import conjuncts


class Executions(Dependences):
    """When the blocks directly inside a scope run; arguments are those of `Dependences`."""

    def runs(
        self, fixed: Sequence[ir.For], block: ir.Block, given: ir.Expr, analyzer: Analyzer
    ) -> bool:
        """Whether the conditions of a block on the fixed loops alone follow from `given`."""
        outer = {f.loop_var for f in fixed}
        open_ones = self.conditions(fixed, block)
        if not open_ones:
            return True
        known = analyzer.copy()
        for condition in conjuncts(given):
            if all(v in outer or known.knows(v) for v in ir.free_vars(condition)):
                known.learn(condition)
        return all(known.prove(c) for c in open_ones)

    def conditions(self, fixed: Iterable[ir.For], block: ir.Block) -> list[ir.Expr]:
        """The conjuncts of a block's predicate that vary only with the fixed loops."""
        inner = {f.loop_var: f for f in self.tree.loops_above(block)}
        for loop in fixed:
            inner.pop(loop.loop_var, None)
        still = {v: f.min for v, f in inner.items() if ir.is_const_int(f.extent, 1)}
        result: list[ir.Expr] = []
        for part in conjuncts(self.tree.realize(block).predicate):
            if ir.is_const_int(part, 1) or ir.uses_var(part, inner.keys() - still.keys()):
                continue
            if ir.uses_var(part, set(still)):
                part = self.memo.facts(self.tree).simplify(ir.substitute(part, still))
            if not ir.is_const_int(part, 1):
                result.append(part)
        return result

    def always(self, block: ir.Block, analyzer: Analyzer) -> bool:
        """Whether a block runs in every instance of the scope.

        No condition on outer variables and no statement inside the scope may prevent it.
        """
        conditions = self.conditions((), block)
        return not self.decided(block) and all(analyzer.prove(c) for c in conditions)

    def decided(
        self, block: ir.Block, common: Sequence[ir.For] = (), beside: ir.Block | None = None
    ) -> bool:
        """Whether control flow decides if a block runs in an iteration of the common loops.

        Control flow means conditions and jumps, but not loops and the predicate of the block.

        `beside`: a later block in these loops; control flow that decides for both is ignored.
        """
        place = self.tree.realize(block)
        theirs: set[ir.Stmt] = set()
        if beside is not None:
            theirs = {self.tree.realize(beside), *self.tree.ancestors(self.tree.realize(beside))}
        below: set[ir.Stmt] = {place, *self.tree.ancestors(place)}
        for node in self.tree.deciding(place, self.block):
            named = isinstance(node, ir.LetStmt) and any(
                ir.uses_var(e, node.var) for e in (*place.iter_values, place.predicate)
            )
            if not named and not isinstance(node, (ir.IfThenElse, ir.While, ir.For)):
                continue
            branch = next(s for s in child_stmts(node) if s in below)
            if beside is not None and branch in theirs:
                continue
            inner = (
                not common or self.tree.is_below(node, common[-1]) or node in self.tree.left_early
            )
            if inner:
                return True
        return False

    def partial(self, block: ir.Block, common: Sequence[ir.For]) -> bool:
        """Whether the common loops drive a reduction in the block or inside it.

        If so, the result is incomplete within one iteration.
        """
        variables = {f.loop_var for f in common}
        realize = self.tree.realize(block)
        return any(
            it.iter_type is ir.IterType.REDUCE and ir.uses_var(value, variables)
            for it, value in realize.bindings
        ) or (bool(variables) and drives_sums(realize, variables))

    def continued(self, block: ir.Block) -> bool:
        """Whether iterators of enclosing blocks drive a reduction with an init statement.

        The reduction may be the block itself or inside it. One instance of the scope then computes
        only a part of the reduction.
        """
        outer = {
            it.var
            for above in (self.block, *self.tree.ancestors(self.block))
            if isinstance(above, ir.Block)
            for it in above.iter_vars
        }
        return bool(outer) and drives_sums(self.tree.realize(block), outer)
