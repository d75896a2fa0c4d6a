"""Analyzer: knowledge about variables, and simplification and proofs under it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from blockwright.arith import bounds as bounds_rules
from blockwright.arith.condition import (
    Test,
    conjuncts,
    decide,
    disjuncts,
    holds,
    inverse,
    is_known,
    negated,
    test_of,
)
from blockwright.arith.countermodel import Impossible, Witness, witnesses
from blockwright.arith.form import UNKNOWN, Bounds, Poly, is_index, never
from blockwright.arith.knowledge import Knowledge
from blockwright.arith.prove import entails
from blockwright.arith.querylog import record, recording
from blockwright.arith.rewrite import lanes_of
from blockwright.arith.state import Entry, KnowledgeState
from blockwright.arith.text import expr_text
from blockwright.ir import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    CompareOp,
    Expr,
    IntImm,
    Mul,
    Node,
    Not,
    Range,
    Var,
    const,
    const_int,
    rewrite_bottom_up,
    structural_equal,
    uses_var,
)

_TRIED = 24  # points tried to find a counterexample when a query log is open


class Analyzer(Knowledge):
    """Simplifies and proves under known ranges, equalities and conditions.

    A bound variable is assumed to take some value, so its range is not empty: `bind(i, Range(0,
    n))` also implies `n >= 1`. Results are cached until something new is learned.

    A variable is an index, a mathematical integer, unless it is declared to hold a value, which
    wraps around. Loads and calls are values (docs/semantics.md, Integers).

    Args:
        ranges: domains of variables; extents may be symbolic.
        values: variables that hold values; `ir.value_variables` lists those of a function.
        changes: whether memory that an expression reads may change while what is known holds.
            By default, memory does not change. Such an expression bounds no variable: `k < I[0]`
            is no longer known after a store to `I`.
    """

    def __init__(
        self,
        ranges: Mapping[Var, Range] | None = None,
        values: Iterable[Var] = (),
        changes: Callable[[Expr], bool] = never,
    ) -> None:
        super().__init__()
        self._space.changes = changes
        for var in values:
            self.declare_value(var)
        for var, domain in (ranges or {}).items():
            self.bind(var, domain)

    def declare_value(self, var: Var) -> None:
        """Declare, before its first use, that a variable holds a value."""
        self._space.declare_value(var)

    def copy(self) -> Analyzer:
        """An analyzer with the same knowledge that learns independently."""
        other = Analyzer.__new__(Analyzer)
        other._space, other._state = self._space, self._shared()
        other._witnesses = None
        return other

    def afresh(self) -> Analyzer:
        """A copy that shares no state, so that its results do not depend on queries to this one."""
        other = Analyzer.__new__(Analyzer)
        other._space = self._space.copy()
        other._state = self._state.copy()
        other._witnesses = None
        return other

    def without(self, variables: Iterable[Var]) -> Analyzer:
        """An analyzer with the same knowledge except entries that involve the variables."""
        gone, state = frozenset(variables), self._state
        other = Analyzer.__new__(Analyzer)
        other._space, other._state, other._witnesses = self._space, KnowledgeState(), None
        known = state.reduced.get(gone)
        if known is None:
            kept = [entry for entry in state.entries if not _concerns(entry, gone)]
            if len(kept) == len(state.entries):
                return self.copy()
            for entry in kept:
                other._learn(entry)
            state.reduced[gone] = known = other._shared()
        other._state = known
        return other

    def without_empty(self, variables: Iterable[Var]) -> Analyzer:
        """An analyzer without the knowledge that these variables' ranges are non-empty.

        Binding a range implies that its extent is at least 1. Only ranges whose extent is provably
        positive without this assumption are kept.
        """
        wanted = frozenset(variables)
        ranges = {
            var: value
            for kind, var, value in self._state.entries
            if kind == "range" and isinstance(value, Range) and var is not None and var in wanted
        }
        if all((const_int(r.extent) or 0) > 0 for r in ranges.values()):
            return self.copy()
        other = self.without(ranges)
        for var, dom in ranges.items():
            if other.prove(GE(dom.extent, const(1, dom.extent.dtype))):
                other.bind(var, dom)
        return other

    # ------------------------------------------------------------------ questions
    def is_nonzero(self, expr: Expr) -> bool:
        """Whether an expression is provably nonzero.

        Besides its bounds this uses known ranges: if one would be empty were the expression 0, it
        is not 0. For example `i in [0, n * ceil(m / 32))` implies that `ceil(m / 32)` is nonzero.
        """
        if isinstance(expr, Mul):
            return self.is_nonzero(expr.a) and self.is_nonzero(expr.b)
        zero = const(0, expr.dtype)
        if self.prove(GT(expr, zero)) or self.prove(LT(expr, zero)):
            return True

        def vanishes(node: Node) -> Expr | None:
            return zero if isinstance(node, Expr) and structural_equal(node, expr) else None

        for kind, _, told in self._state.entries:
            if kind == "range" and isinstance(told, Range):
                extent = rewrite_bottom_up(told.extent, vanishes)
                if extent is not told.extent and self.prove(LE(extent, const(0, extent.dtype))):
                    return True
        return False

    def prove(self, condition: Expr) -> bool:
        """Whether the condition provably holds."""
        proved = self._prove(condition, ())
        if not proved and recording():
            entries = [_entry_text(e) for e in self._state.entries]
            record(condition, entries, self._has_counterexample(condition))
        return proved

    def _has_counterexample(self, condition: Expr) -> bool:
        state = self._state
        points = witnesses(self, state.facts, state.known, _TRIED)
        return any(self._false_at(point, condition) for point in points)

    def _false_at(self, point: Witness, condition: Expr) -> bool:
        """Whether the condition can be false at a point; a condition on memory always can be."""
        parts = list(conjuncts(condition))
        if len(parts) > 1:
            return any(self._false_at(point, p) for p in parts)
        options = list(disjuncts(parts[0]))
        if len(options) > 1:
            return all(self._false_at(point, p) for p in options)
        piece = inverse(options[0].a) if isinstance(options[0], Not) else options[0]
        test = test_of(self, piece)
        if test is None:
            simple = self.simplify(piece)
            return not simple.value if isinstance(simple, IntImm) else True
        try:
            value = point.value(test.sum)
        except Impossible:
            return False
        return value < 0 if test.kind == ">=" else (value == 0) == (test.kind == "!=")

    def _prove(self, condition: Expr, extra: tuple[Poly, ...]) -> bool:
        for part in conjuncts(condition):
            options = list(disjuncts(part))
            if len(options) > 1:
                if not self._prove_any(options, extra):
                    return False
                continue
            piece = options[0]
            if isinstance(piece, Not):
                piece = inverse(piece.a)
            test = test_of(self, piece) if isinstance(piece, CompareOp) else None
            if test is None:
                simple = self.simplify(piece)
                known = bool(simple.value) if isinstance(simple, IntImm) else False
            elif extra:
                known = holds(self, test, lambda p: entails(self, p, extra))
            else:
                known = holds(self, test, self._entails)
                if not known and test.kind != ">=":
                    known = is_known(self, test)
            if not known:
                return False
        return True

    def _prove_any(self, options: list[Expr], extra: tuple[Poly, ...]) -> bool:
        """Prove a disjunction: prove one option under the assumption that the others are false."""
        options = [inverse(o.a) if isinstance(o, Not) else o for o in options]
        tests = [test_of(self, o) for o in options]
        against: list[Poly | None] = []
        for test in tests:
            opposite = None if test is None else negated(self, test)
            usable = opposite is not None and opposite.kind == ">="
            against.append(opposite.sum if usable and opposite is not None else None)
        for i, option in enumerate(options):
            others = tuple(p for j, p in enumerate(against) if p is not None and j != i)
            if self._prove(option, (*extra, *others)):
                return True
        simple = self.simplify(options[0])
        return isinstance(simple, IntImm) and bool(simple.value)

    def prove_equal(self, a: Expr, b: Expr) -> bool:
        """Whether two expressions are provably equal."""
        if a is b:
            return True
        if a.dtype is not b.dtype and not (is_index(a.dtype) and is_index(b.dtype)):
            return False
        if not is_index(a.dtype):
            return self.simplify(a) is self.simplify(b)
        if self.lift(a) is self.lift(b):
            return True
        if a.dtype is not b.dtype:
            difference = self._space.sub(self.exact(a), self.exact(b))
            return decide(self, Test("==", difference, a.dtype), self._entails) is True
        return self.prove(EQ(a, b))

    def const_bounds(self, expr: Expr) -> Bounds:
        """Inclusive constant bounds; None for a missing bound."""
        dtype = expr.dtype
        if dtype.lanes > 1 and is_index(dtype.element):
            lanes = lanes_of(self, expr)
            if lanes is None or lanes[0].wraps or lanes[1].wraps:
                return (dtype.min_value, dtype.max_value)
            last = self._space.add(lanes[0], lanes[1], dtype.lanes - 1)
            first, final = self.bounds(lanes[0]), self.bounds(last)
            low = None if first[0] is None or final[0] is None else min(first[0], final[0])
            high = None if first[1] is None or final[1] is None else max(first[1], final[1])
            return (low, high)
        if is_index(dtype):
            return self.bounds(self.exact(expr))
        if isinstance(expr, IntImm):
            return (expr.value, expr.value)
        return (dtype.min_value, dtype.max_value) if dtype.is_int or dtype.is_bool else UNKNOWN

    def modular(self, expr: Expr) -> tuple[int, int]:
        """`(c, r)` such that `expr` is congruent to `r` modulo `c`; `c` is 0 for a constant `r`."""
        return bounds_rules.modular(self, self.exact(expr))


def _concerns(entry: Entry, variables: AbstractSet[Var]) -> bool:
    """Whether a knowledge entry involves one of the variables."""
    _, var, value = entry
    parts = value.children() if isinstance(value, Range) else (value,)
    return var in variables or any(isinstance(p, Expr) and uses_var(p, variables) for p in parts)


def _entry_text(entry: tuple[str, Var | None, object]) -> str:
    kind, var, value = entry
    if kind == "range" and var is not None and isinstance(value, Range):
        return f"{var.name} in [{expr_text(value.min)}, +{expr_text(value.extent)})"
    if isinstance(value, Expr):
        return f"{var.name} = {expr_text(value)}" if var is not None else expr_text(value)
    return f"{var.name if var is not None else ''} in {value}"


def simplify(expr: Expr, ranges: Mapping[Var, Range] | None = None) -> Expr:
    """Simplify `expr` under the given domains of its variables."""
    return Analyzer(ranges).simplify(expr)
