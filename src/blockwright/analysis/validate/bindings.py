"""Check of iterator bindings: the values that loops bind to block iterators.

See TensorIR paper, section 3.3. Three rules, each proved by iterator maps and bounds where
possible, and rejected only with an instance that violates it (undecided cases are accepted; the
interpreter checks them at every run):

- every value lies in the iterator's domain (BW232);
- iterators vary independently: `v1 = i // 4, v2 = i % 4` takes all pairs, `v1 = i, v2 = 2 i` does
  not (BW233). Conditions are ignored, because they may restrict the points to any subset of the
  box. So are loop starts: `v1 = i, v2 = i + j` counts as `v2 = j` in a loop that starts at `i`.
  Several loop iterations may bind the same values; then those instances are recomputed;
- a block with an init statement runs it before the first term of every element, unless other blocks
  write there too, and adds no term twice (BW234).

Opaque iterators and values that depend on memory are not checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from blockwright import ir
from blockwright.analysis.access.tree import Tree
from blockwright.analysis.dataflow.contexts import BlockContext
from blockwright.analysis.dataflow.counterexample import (
    Array,
    DependsOnMore,
    Env,
    Instances,
    VarRange,
    instances,
    shown,
    sizes_to_try,
    value_of,
)
from blockwright.analysis.dataflow.independent_values import independent
from blockwright.analysis.dataflow.memo import FlowMemo
from blockwright.analysis.kernels import axis_of
from blockwright.analysis.reduction.first_steps import begins_at, holds_at
from blockwright.analysis.validate.violation import Violation
from blockwright.arith import Analyzer, detect_iter_map, is_bijective
from blockwright.arith.condition import conjuncts

_OPAQUE = (ir.IterType.OPAQUE, ir.IterType.SCAN)

_SIMULATED = 1 << 11  # maximum number of reduction instances to simulate one by one


def binding_problems(tree: Tree, found: Sequence[BlockContext]) -> Iterator[Violation]:
    """Violations in all blocks of a function."""
    writers: dict[ir.Buffer, int] = {}
    memo = FlowMemo()
    for context in found:
        for region in context.block.writes:
            writers[region.buffer] = writers.get(region.buffer, 0) + 1
    for context in found:
        if context.block.iter_vars:
            alone = all(writers[r.buffer] == 1 for r in context.block.writes)
            yield from _Nest(tree, context, alone, memo).problems()


def joined_iterators(
    tree: Tree, context: BlockContext, memo: FlowMemo
) -> list[list[tuple[ir.IterVar, ir.Expr]]]:
    """Groups of iterators of a block, with their values, that do not vary independently."""
    nest = _Nest(tree, context, False, memo)
    return [] if nest.plain() else [group for group, _ in nest.dependent()]


class _Nest:
    """One block with the loops of its scope."""

    def __init__(self, tree: Tree, context: BlockContext, alone: bool, memo: FlowMemo) -> None:
        self.tree, self.context, self.alone, self.memo = tree, context, alone, memo
        self.block, self.realize = context.block, context.realize
        same = _one_variable_per_axis(context)
        self.values = [ir.substitute(v, same) for v in self.realize.iter_values]
        self.predicate = ir.substitute(self.realize.predicate, same)
        self.loops = [f for f in tree.loops_above(self.block) if f.loop_var not in same]
        self.domains = {f.loop_var: f.dom for f in self.loops}

    def problems(self) -> Iterator[Violation]:
        if self.plain():
            return
        yield from self._outside(self.judged, self.analyzer)
        for group, why in self.dependent():
            names = ", ".join(it.var.name for it, _ in group)
            yield Violation(
                "BW233",
                f"iterators {names} of block {self.block.name} are not independent: {why}",
                tuple(node for pair in group for node in pair),
                "bind them to different loops, or to quotient and remainder of one "
                "(i // 4, i % 4); declare them opaque if this is intended",
            )
        if self.block.init is not None and len(self.judged) == len(self.values):
            yield from self._repeated(self.analyzer)

    @cached_property
    def judged(self) -> list[tuple[ir.IterVar, ir.Expr]]:
        """The iterators that are checked, with their values."""
        return [
            (it, value)
            for it, value in zip(self.block.iter_vars, self.values, strict=True)
            if it.iter_type not in _OPAQUE and not _depends_on_memory(value)
        ]

    @cached_property
    def analyzer(self) -> Analyzer:
        return self.memo.facts(self.tree, self.loops[0] if self.loops else self.realize)

    def plain(self) -> bool:
        """Whether each iterator is bound to its own loop with the same domain."""
        seen: set[ir.Node] = set()
        for it, value in zip(self.block.iter_vars, self.values, strict=True):
            domain = self.domains.get(value) if isinstance(value, ir.Var) else None
            if domain is None or value in seen or not _same_range(domain, it.dom):
                return False
            seen.add(value)
        bound = all(f.loop_var in seen for f in self.loops) or self.block.init is None
        return bound and ir.is_const_int(self.predicate, 1)

    # ------------------------------------------------------------------ domains
    def _outside(
        self, judged: list[tuple[ir.IterVar, ir.Expr]], analyzer: Analyzer
    ) -> Iterator[Violation]:
        inside = analyzer.copy()
        for loop in self.loops:
            inside.bind(loop.loop_var, loop.dom)
        for condition in conjuncts(self.predicate):
            inside.learn(condition)
        for it, value in judged:
            low, end = it.dom.min, ir.add(it.dom.min, it.dom.extent)
            fits = ir.logical_and(ir.compare(ir.GE, value, low), ir.compare(ir.LT, value, end))
            if inside.prove(fits):
                continue
            where = self._out_of_domain(it)
            if where is not None:
                yield Violation(
                    "BW232",
                    f"iterator {it.var.name} of block {self.block.name} leaves its domain: {where}",
                    (it, value),
                    "guard the block with T.where, or give the iterator a domain that contains all "
                    "its values",
                )

    def _out_of_domain(self, it: ir.IterVar) -> str | None:
        """Description of an instance at which an iterator is outside its domain, or None."""
        low, extent = self.context.resolved(it.dom.min), self.context.resolved(it.dom.extent)
        for rows in self._runs():
            try:
                value = self._column(it.var, rows)
                start = value_of(low, rows.env)
                bad = (value < start) | (value >= start + value_of(extent, rows.env))
            except DependsOnMore:
                return None
            hits = np.flatnonzero(bad)
            if len(hits):
                at = rows.at(int(hits[0]))
                return f"at {shown(at, at)} it is {int(value[hits[0]])}"
        return None

    def _runs(self) -> Iterator[Instances]:
        """Instances of the block that run, for several assignments of sizes."""
        for sizes in sizes_to_try(self.tree.func):
            try:
                rows = self.context.instances(sizes)
            except DependsOnMore:
                return
            if rows.rows:
                yield rows

    def _column(self, var: ir.Var, rows: Instances) -> Array:
        """Values of an iterator of this or an enclosing block at all instances."""
        result = value_of(self.context.values[var], rows.env)
        return np.broadcast_to(np.asarray(result), (rows.rows,))

    # ------------------------------------------------------------------ independence
    def dependent(self) -> Iterator[tuple[list[tuple[ir.IterVar, ir.Expr]], str]]:
        """Groups of iterators that do not vary independently, with the evidence."""
        values = [value for _, value in self.judged]
        if detect_iter_map(values, self.domains, None, self.analyzer, "independent", pad=True).ok:
            return
        for group in self._sharing(self.judged):
            loops = [f for f in self.loops if any(ir.uses_var(v, f.loop_var) for _, v in group)]
            domains = {f.loop_var: self.domains[f.loop_var] for f in loops}
            if independent([value for _, value in group], domains, self.analyzer):
                continue
            why = self._missing_combination([it for it, _ in group], loops)
            if why is not None:
                yield group, why

    def _sharing(
        self, judged: list[tuple[ir.IterVar, ir.Expr]]
    ) -> list[list[tuple[ir.IterVar, ir.Expr]]]:
        """Groups of several iterators connected by shared loops."""
        groups: list[tuple[set[ir.Var], list[tuple[ir.IterVar, ir.Expr]]]] = []
        for it, value in judged:
            used = {v for v in ir.free_vars(value) if v in self.domains}
            mine: list[tuple[ir.IterVar, ir.Expr]] = []
            for other in [g for g in groups if g[0] & used]:
                groups.remove(other)
                used |= other[0]
                mine = [*other[1], *mine]
            groups.append((used, [*mine, (it, value)]))
        return [members for _, members in groups if len(members) > 1]

    def _missing_combination(
        self, group: Sequence[ir.IterVar], loops: Sequence[ir.For]
    ) -> str | None:
        """Evidence that some combination of iterator values never occurs; None if none is found."""
        moving = {f.loop_var for f in loops}
        others = [level.span for level in self.context.path if level.var not in moving]
        spans = [level.span for level in self.context.path if level.var in moving]
        for sizes in sizes_to_try(self.tree.func):
            try:
                fixed = instances(others, sizes, 1)
                if not fixed.rows:
                    continue
                known = fixed.at(0)
                kinds = [self._at_least(it.var, spans, known) for it in group]
                total = _count(spans, known)
                if not total:
                    continue  # the block never runs at these sizes
                rows = instances(spans, known)
                running = self._running(rows)
            except DependsOnMore:
                return None
            sets = [self._combinations(group, part) for part in (rows, running) if part is not None]
            if rows.complete and all(ran < box for ran, box in sets):
                ran, box = sets[-1]
                return f"only {ran} of the {box} combinations of their values occur"
            if not self.context.guards and math.prod(kinds) > total:
                return (
                    f"they take {' × '.join(map(str, kinds))} values or more, but the loops have "
                    f"{total} iterations"
                )
        return None

    def _running(self, rows: Instances) -> Instances | None:
        """The instances whose guards hold; None if there are no guards."""
        if not self.context.guards:
            return None
        for guard in self.context.guards:
            rows = rows.where(value_of(guard, rows.env))
        return rows

    def _combinations(self, group: Sequence[ir.IterVar], rows: Instances) -> tuple[int, int]:
        """Number of combinations that occur, and size of the product of all value sets."""
        columns = np.stack([self._column(it.var, rows) for it in group])
        box = math.prod(len(np.unique(column)) for column in columns)
        return np.unique(columns, axis=1).shape[1], box

    def _at_least(self, var: ir.Var, spans: Sequence[VarRange], known: Env) -> int:
        """Lower bound on the number of values of an iterator; varies one loop at a time."""
        largest = 1
        for moving in spans:
            first = {**known, **{s.var: int(value_of(s.low, known)) for s in spans}}
            count = min(_SIMULATED, int(value_of(moving.extent, known)))
            env = {**first, moving.var: first[moving.var] + np.arange(count)}
            result = value_of(self.context.values[var], env)
            largest = max(largest, len(np.unique(np.asarray(result))))
        return largest

    # ------------------------------------------------------------------ reductions
    def _repeated(self, analyzer: Analyzer) -> Iterator[Violation]:
        reduced = [it.iter_type is ir.IterType.REDUCE for it in self.block.iter_vars]
        if not any(reduced):
            return
        predicate = None if ir.is_const_int(self.predicate, 1) else self.predicate
        once = is_bijective(self.values, self.domains, predicate, analyzer)
        if once and self._starts_first(reduced, analyzer):
            return
        why = self._simulated(reduced)
        if why is not None:
            yield Violation(
                "BW234",
                f"block {self.block.name} does not reduce every element once: {why}",
                (self.realize,),
                "let every reduction iterator run through its domain from its first value, once "
                "for each element",
            )

    def _starts_first(self, reduced: Sequence[bool], analyzer: Analyzer) -> bool:
        """Whether the first iteration of the reduction loops is the first term, and runs."""
        pairs = list(zip(self.block.iter_vars, self.values, reduced, strict=True))
        terms = [(it.dom.min, v) for it, v, is_term in pairs if is_term]
        starts = {
            f.loop_var: f.min
            for f in self.loops
            if any(ir.uses_var(v, f.loop_var) for _, v in terms)
        }
        elements = [v for _, v, is_term in pairs if not is_term]
        if any(ir.uses_var(v, set(starts)) for v in elements):
            return False  # not every element has its first term there
        known = analyzer.copy()
        for loop in self.loops:
            known.bind(loop.loop_var, loop.dom)
        steps = [(v, low) for low, v in terms]
        return begins_at(steps, starts, known) and holds_at([self.predicate], starts, known)

    def _simulated(self, reduced: Sequence[bool]) -> str | None:
        """Simulate the instances one by one; describes the first error, or None."""
        mine = {it.var: is_term for it, is_term in zip(self.block.iter_vars, reduced, strict=True)}
        for rows in self._runs():
            if not rows.complete or rows.rows > _SIMULATED:
                continue
            try:
                keys = [self._column(v, rows) for v in self.context.values if not mine.get(v)]
                terms = [self._column(v, rows) for v, is_term in mine.items() if is_term]
                starts = [
                    np.broadcast_to(
                        value_of(self.context.resolved(it.dom.min), rows.env), (rows.rows,)
                    )
                    for it in self.block.iter_vars
                    if mine[it.var]
                ]
            except DependsOnMore:
                return None
            first = np.all(np.stack(terms) == np.stack(starts), axis=0)
            seen: dict[bytes, set[bytes]] = {}
            for k in range(rows.rows):
                key = np.array([c[k] for c in keys], np.int64).tobytes()
                term = np.array([c[k] for c in terms], np.int64).tobytes()
                known = seen.setdefault(key, set())
                at = rows.at(k)
                if first[k]:
                    known.clear()
                elif not known and self.alone:
                    return f"at {shown(at, at)} a term is added before the initial value is set"
                if term in known:
                    return f"at {shown(at, at)} a term is added a second time"
                known.add(term)
        return None


def _one_variable_per_axis(context: BlockContext) -> dict[ir.Var, ir.Expr]:
    """Map variables of loops bound to an axis to that of the outermost loop bound to it."""
    outer: dict[str, ir.Var] = {}
    same: dict[ir.Var, ir.Expr] = {}
    for stmt in context.around:
        axis = axis_of(stmt)
        if axis is not None and outer.setdefault(axis.tag, axis.var) is not axis.var:
            same[axis.var] = outer[axis.tag]
    return same


def _depends_on_memory(value: ir.Expr) -> bool:
    return any(isinstance(n, ir.BufferLoad) for n in ir.walk(value))


def _same_range(a: ir.Range, b: ir.Range) -> bool:
    return _same(a.min, b.min) and _same(a.extent, b.extent)


def _same(a: ir.Expr, b: ir.Expr) -> bool:
    return a is b or (ir.is_const_int(a) and ir.is_const_int(b, ir.const_int(a) or 0))


def _count(spans: Sequence[VarRange], env: Env) -> int:
    """Number of iterations of loops whose extents do not depend on each other."""
    total = 1
    for span in spans:
        total *= max(0, int(value_of(span.extent, env)))
    return total
