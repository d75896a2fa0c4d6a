"""Knowledge of an analyzer: facts, derived bounds, and conversion from and to canonical form.

Learning turns ranges, equalities and conditions into bounds of atoms, limits of variables, and
facts (sums that are non-negative). An equality replaces its variable in all later expressions.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import cast

from blockwright.arith import bounds as bounds_rules
from blockwright.arith.condition import conjuncts, inverse, render_test, test_of, without_quotient
from blockwright.arith.countermodel import Witness, witnesses
from blockwright.arith.divide import floordiv, minimum
from blockwright.arith.fast_prove import nonneg
from blockwright.arith.form import (
    UNKNOWN,
    Atom,
    Bounds,
    Poly,
    Space,
    Summand,
    Term,
    is_index,
    never,
    without,
)
from blockwright.arith.prove import entails
from blockwright.arith.regroup import regroup, unit_value
from blockwright.arith.render import Unwritable, render
from blockwright.arith.rewrite import rewrite
from blockwright.arith.state import KnowledgeState, entry_key
from blockwright.arith.text import expr_text
from blockwright.arith.to_canonical import exact, lift, opaque_bounds
from blockwright.arith.values import facts_of
from blockwright.ir import GE, CompareOp, Expr, Not, Range, Var, cast_to
from blockwright.ir.dtype import INT64, DType
from blockwright.support import IRError


class Knowledge:
    """Facts about variables, and the context in which the rules of this package work."""

    _eliminating = False

    def __init__(self) -> None:
        self._space = Space()
        self._state = KnowledgeState()
        self._witnesses: tuple[Witness, ...] | None = None

    @property
    def space(self) -> Space:
        return self._space

    # ------------------------------------------------------------------ learning
    def bind(self, var: Var, value: Range | Expr) -> None:
        """Declare the domain of a variable, or that it equals an expression."""
        if isinstance(value, Range):
            if not is_index(var.type):
                return
            if self._space.changes(value.min) or self._space.changes(value.extent):
                self._bind_loaded(var, value)
            else:
                self._learn(("range", var, value))
        elif not self._space.changes(value):
            self._learn(("equal", var, value))

    def _bind_loaded(self, var: Var, domain: Range) -> None:
        """Declare the bounds of a domain that do not depend on the values in changing memory."""
        space = self._space
        low = self.exact(domain.min)
        high = space.add(space.add(low, self.exact(domain.extent)), space.const(-1))
        self.bind_bounds(var, self.bounds(low)[0], self.bounds(high)[1])
        if not space.changes(domain.min):
            self.learn(GE(var, cast_to(domain.min, var.dtype)))

    def bind_bounds(self, var: Var, low: int | None = None, high: int | None = None) -> None:
        """Declare inclusive constant bounds of a variable."""
        self._learn(("bounds", var, (low, high)))

    def learn(self, condition: Expr) -> None:
        """Add a condition that holds from now on, except what depends on changing memory."""
        changes = self._space.changes
        if changes is never or not changes(condition):
            self._learn(("true", None, condition))
            return
        for part in conjuncts(condition):
            if not changes(part):
                self._learn(("true", None, part))

    @contextmanager
    def assume(self, condition: Expr) -> Generator[None]:
        """Assume a condition within the `with` block."""
        before = self._shared(), self._witnesses
        try:
            self.learn(condition)
            yield
        finally:
            self._state, self._witnesses = before

    def _shared(self) -> KnowledgeState:
        """The current state, marked immutable so that it can be shared."""
        self._state.shared = True
        return self._state

    def _learn(self, entry: tuple[str, Var | None, object]) -> None:
        before = self._state
        self._witnesses = None
        if not before.shared:
            self._learn_anew(entry)
            return
        key = entry_key(entry)
        known = before.next.get(key)
        if known is None:
            self._state = before.copy()
            self._learn_anew(entry)
            before.next[key] = self._shared()
        else:
            self._state = known

    def _learn_anew(self, entry: tuple[str, Var | None, object]) -> None:
        state = self._state
        state.reset()
        state.entries.append(entry)
        if self._apply(entry):
            entries = state.entries
            fresh = KnowledgeState()
            fresh.equal, fresh.exact, fresh.entries = state.equal, state.exact, entries
            fresh.whole = state.whole
            self._state = fresh
            for known in entries:
                self._apply(known)
        self._state.reset()
        self._witnesses = None

    def _apply(self, entry: tuple[str, Var | None, object]) -> bool:
        """Apply an entry to the state; returns True if an equality invalidates earlier sums."""
        kind, var, value = entry
        state = self._state
        if kind == "true":
            assert isinstance(value, Expr)
            return self._apply_condition(value)
        assert var is not None
        if kind == "equal":
            assert isinstance(value, Expr)
            return is_index(var.type) and self._equate(var, self.exact(value))
        if isinstance(value, tuple):
            for limit, sign in zip(cast(Bounds, value), (1, -1), strict=True):
                if limit is not None:
                    p = self._space.scale(self.lift(var), sign)
                    self._fact(self._space.add(p, self._space.const(-sign * limit)))
            return False
        assert isinstance(value, Range)
        return self._apply_range(state, var, value)

    def _apply_range(self, state: KnowledgeState, var: Var, domain: Range) -> bool:
        space = self._space
        low, extent = self.exact(domain.min), self.exact(domain.extent)
        plain = not low.terms and not extent.terms and extent.const > 1
        if plain and var not in state.equal:
            atom = space.var_atom(var)
            state.narrow(atom.id, (low.const, low.const + extent.const - 1))
            state.atom_bounds.clear()
            state.bounds.clear()
            self._witnesses = None
            return False
        self._fact(space.add(extent, space.const(-1)))
        if not extent.terms and extent.const == 1 and var not in low.variables(space):
            return self._equate(var, low)
        p = self.lift(var)
        self._fact(space.sub(p, low))
        high = space.add(space.add(low, extent), space.const(-1))
        self._fact(space.sub(high, p))
        if var not in state.equal:
            state.limits[var] = (low, high)
        return False

    def _apply_condition(self, condition: Expr) -> bool:
        again = False
        for part in conjuncts(condition):
            piece = part
            if isinstance(piece, Not) and isinstance(piece.a, CompareOp):
                piece = inverse(piece.a)
            test = test_of(self, piece)
            if test is None:
                self._state.true.add(rewrite(self, piece))
                continue
            if test.kind == ">=":
                self._fact(test.sum)
            elif test.kind == "==":
                again = self._learn_equality(test.sum) or again
            else:
                with suppress(Unwritable):
                    self._state.true.add(render_test(self, test))
                self._exclude(test.sum)
        return again

    def _exclude(self, p: Poly) -> None:
        """Learn `p != 0`: tightens a bound at 0."""
        space = self._space
        for sign in (1, -1):
            q = space.scale(p, sign)
            if self.nonneg(q):
                self._fact(space.add(q, space.const(-1)))

    def _learn_equality(self, p: Poly) -> bool:
        """Learn `p == 0`: solve for a variable, record divisibility, or keep both inequalities."""
        space = self._space
        for mono, c in sorted(p.terms, reverse=True):
            atom = space.atoms[mono[0]]
            if len(mono) > 1 or atom.kind != "var" or abs(c) != 1:
                continue
            rest = space.scale(space.sub(p, space.monomial(mono, c)), -c)
            var = atom.node
            assert isinstance(var, Var)
            if var not in rest.variables(space):
                return self._equate(var, rest)
            divided = self._divisor(rest, var)
            if divided is not None:
                return self._equate(var, rest, divided)
        again = self._learn_whole(p)
        self._fact(p)
        self._fact(space.scale(p, -1))
        return again

    def _learn_whole(self, p: Poly) -> bool:
        """Learn divisibility from `n - c * (n // c) == 0`, `n` constant; True if it is new."""
        state = self._state
        if len(p.terms) != 1:
            return False
        mono, k = p.terms[0]
        for number in mono:
            atom = self._space.atoms[number]
            if atom.kind != "div" or abs(k) != 1 or not atom.operands[0].is_const:
                continue
            n, c = atom.operands
            rest = without(mono, (number,))
            fits = rest is not None and c is self._space.monomial(rest) and n.const == -k * p.const
            if fits and n.const > state.whole.get(c, 0):
                state.whole[c] = n.const
                return True
        return False

    def _divisor(self, p: Poly, var: Var) -> tuple[int, Term] | None:
        """`(atom, c)` if `p` is `c * (var // c)` for a constant or a product of symbols `c`."""
        if len(p.terms) != 1 or p.const:
            return None
        mono, k = p.terms[0]
        for number in mono:
            atom = self._space.atoms[number]
            if atom.kind != "div" or atom.operands[0] is not self._space.var(var):
                continue
            rest = without(mono, (number,))
            if rest is not None and k > 0 and atom.operands[1] is self._space.monomial(rest, k):
                return number, (rest, k)
        return None

    def _equate(self, var: Var, value: Poly, divided: tuple[int, Term] | None = None) -> bool:
        state, space = self._state, self._space
        if state.equal.get(var) is value or value is space.var(var):
            return False
        as_index = space.is_value(var) and not value.wraps  # sums with the variable wrap around
        again = var in value.variables(space) or var in state.equal
        if as_index or (divided is None and again):
            difference = space.sub(self.lift(var), value)
            self._fact(difference)
            self._fact(space.scale(difference, -1))
            return False
        state.equal[var] = value
        if divided is not None:
            state.exact[divided[0]] = (var, divided[1])
        for other, p in list(state.equal.items()):
            if other is not var and var in p.variables(space):
                state.equal[other] = self._replaced(p)
        return True

    def _replaced(self, p: Poly) -> Poly:
        """`p` with known equalities substituted."""
        self._state.reset()
        self._witnesses = None
        return self.lift(render(self, p, INT64))

    def _fact(self, p: Poly) -> None:
        """Learn `p >= 0`: derive bounds of its atoms and add it to the facts."""
        state, space = self._state, self._space
        numerator = without_quotient(self, p)
        if numerator is not p:  # n // c >= k is n >= k * c
            self._fact(numerator)
        for mono, c in p.terms:
            if len(mono) != 1:
                continue
            rest = space.sub(p, space.monomial(mono, c))
            atom = space.atoms[mono[0]]
            if atom.kind == "min" and c > 0:  # min(...) <= operand, so each operand may replace it
                for operand in (space.zero, *atom.operands):
                    self._fact(space.add(rest, operand, c))
            high = self.bounds(rest)[1]
            if high is not None:  # c * atom >= -rest >= -high
                result: Bounds = (-(high // c), None) if c > 0 else (None, high // -c)
                state.narrow(mono[0], result)
            if atom.kind == "var" and c in (1, -1) and rest.terms:
                self._limit(atom, rest, c)
        joint = len(p.terms) > 1 or any(len(mono) > 1 for mono, _ in p.terms)
        if joint and p not in state.facts:
            state.facts = (*state.facts, p)
        state.bounds.clear()
        state.atom_bounds.clear()
        state.signs.clear()
        state.units.clear()
        self._witnesses = None

    def _limit(self, atom: Atom, rest: Poly, c: int) -> None:
        var = atom.node
        assert isinstance(var, Var)
        low, high = self._state.limits.get(var, (None, None))
        newer = all(a.id < atom.id for m, _ in rest.terms for a in map(self._atom_at, m))
        if not newer or var in rest.variables(self._space):
            return  # limits refer only to older variables, so that substitution terminates
        if c > 0 and low is None:
            self._state.limits[var] = (self._space.scale(rest, -1), high)
        elif c < 0 and high is None:
            self._state.limits[var] = (low, rest)

    def _atom_at(self, number: int) -> Atom:
        return self._space.atoms[number]

    # ------------------------------------------------------------------ context of the rules
    def floordiv(self, p: Poly, c: Poly) -> Poly:
        result = self._state.quotients.get((p, c))
        if result is None:
            result = self._state.quotients[p, c] = floordiv(self, p, c)
        return result

    def whole_quotient(self, k: int, c: Poly) -> Poly | None:
        """`k // c` in terms of `n // c` for a known multiple `n` of `c`.

        None unless `k` is near a multiple of `n`.
        """
        n = self._state.whole.get(c)
        if n is None:
            return None
        space = self._space
        whole = space.monomial((space.div_atom(space.const(n), c).id,))
        times = -(-k // n)
        below = times * n - k  # k // c is times * (n // c) + -below // c
        if below == 0:
            return space.scale(whole, times)
        gap = space.sub(c, space.const(below))
        if self.nonneg(gap):
            return space.add(space.scale(whole, times), space.const(-1))
        return None

    def minimum(self, operands: list[Poly]) -> Poly:
        return minimum(self, operands)

    def bounds(self, p: Poly) -> Bounds:
        result = self._state.bounds.get(p)
        if result is None:
            result = self._state.bounds[p] = bounds_rules.poly_bounds(self, p)
        return result

    def atom_bounds(self, atom: Atom) -> Bounds:
        result = self._state.atom_bounds.get(atom.id)
        if result is None:
            result = self._state.known.get(atom.id, UNKNOWN)
            self._state.atom_bounds[atom.id] = result  # a fact may lead back to this atom
            if atom.kind == "div":
                result = bounds_rules.tighter(result, bounds_rules.div_bounds(self, *atom.operands))
            elif atom.kind == "min":
                result = bounds_rules.tighter(result, bounds_rules.min_bounds(self, atom))
            elif atom.kind == "var" and atom.wraps:
                assert isinstance(atom.node, Var)
                dtype = atom.node.type
                result = bounds_rules.tighter(result, (dtype.min_value, dtype.max_value))
            elif atom.kind == "opaque":
                result = bounds_rules.tighter(result, opaque_bounds(self, atom))
            self._state.atom_bounds[atom.id] = result
        return result

    def nonneg(self, p: Poly) -> bool:
        result = self._state.signs.get(p)
        if result is None:
            result = self._state.signs[p] = not self._refuted(p) and nonneg(self, p)
        return result

    def _refuted(self, p: Poly) -> bool:
        """Whether `p` is negative at a point that satisfies everything known."""
        if self._witnesses is None:
            self._witnesses = ()  # guards against recursion
            self._witnesses = witnesses(self, self._state.facts, self._state.known)
        return any(w.refutes(p) for w in self._witnesses)

    def known_nonneg(self, p: Poly) -> bool:
        """Like `nonneg`, but also eliminates over the facts if there are any."""
        if not self._state.facts or self._eliminating:
            return self.nonneg(p)
        self._eliminating = True  # nested queries do not eliminate
        try:
            return self._entails(p)
        finally:
            self._eliminating = False

    def knows(self, var: Var) -> bool:
        """Whether a range or an equality of the variable is known."""
        state = self._state
        atom = self._space.var_atom(var).id
        return var in state.limits or var in state.equal or atom in state.known

    def holds(self, p: Poly) -> bool:
        """Whether `p >= 0` provably holds."""
        return self._entails(p)

    def _entails(self, p: Poly) -> bool:
        result = self._state.proofs.get(p)
        if result is None:
            result = self._state.proofs[p] = not self._refuted(p) and entails(self, p)
        return result

    def units(self, p: Poly) -> tuple[Summand, ...]:
        result = self._state.units.get(p)
        if result is None:
            result = self._state.units[p] = regroup(self, p)
        return result

    def unit_value(self, unit: Summand) -> Poly:
        return unit_value(self, unit)

    def limits(self, var: Var) -> tuple[Poly | None, Poly | None]:
        return self._state.limits.get(var, (None, None))

    def const_limits(self, var: Var) -> tuple[Poly | None, Poly | None]:
        low, high = self.atom_bounds(self._space.var_atom(var))
        const = self._space.const
        return None if low is None else const(low), None if high is None else const(high)

    def facts(self) -> tuple[Poly, ...]:
        return self._state.facts

    def value_facts(self, atom: Atom) -> list[Poly]:
        node = atom.node
        return [] if node is None else facts_of(self, node, self._space.monomial((atom.id,)))

    def lift(self, expr: Expr) -> Poly:
        result = self._state.lifted.get(expr)
        if result is None:
            if not is_index(expr.dtype):
                raise IRError(
                    f"{expr_text(expr)} has type {expr.dtype}, not an index type",
                    help="index arithmetic is over int32 and int64",
                )
            result = lift(self, expr)
            # As an index, a constant may be out of range of its type.
            if result.wraps or not self._space.sorts.is_index(expr):
                result = self._space.wrapped(result, expr.dtype.bits)
            self._state.lifted[expr] = result
        return result

    def exact(self, expr: Expr) -> Poly:
        p = self.lift(expr)
        if not p.wraps and self._space.sorts.is_index(expr):
            return p
        return exact(self, expr)

    def is_value(self, expr: Expr) -> bool:
        """Whether an expression of an index type is a value, so that its sums may wrap around."""
        return not self._space.sorts.is_index(expr) or self.lift(expr).wraps

    def lower(self, p: Poly, dtype: DType) -> Expr:
        key = (p, dtype)
        result = self._state.lowered.get(key)
        if result is None:
            whole = self._space.wrapped(p, dtype.bits) if p.wraps else p
            result = self._state.lowered[key] = render(self, whole, dtype)
        return result

    def is_true(self, condition: Expr) -> bool:
        return condition in self._state.true

    def equality(self, var: Var) -> Poly | None:
        return self._state.equal.get(var)

    def exact_division(self, atom: int) -> tuple[Var, Term] | None:
        return self._state.exact.get(atom)

    def simplify(self, expr: Expr) -> Expr:
        """Convert to canonical form; equal index expressions yield the same object."""
        result = self._state.simple.get(expr)
        if result is None:
            result = self._state.simple[expr] = rewrite(self, expr)
            self._state.simple[result] = result
        return result
