"""Parser from index expressions to sums of splits.

Each canonical summand of an index is a loop variable, a quotient or a remainder, times a
loop-invariant factor. The numerator of a quotient or remainder is fused into one mark: its splits
must form a mixed-radix number, where each scale is the product of the previous scale and extent.
A split with a negative factor is reversed: `-4 * d` with `d < 3` is `4 * (2 - d) - 8`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from blockwright.arith.analyzer import Analyzer
from blockwright.arith.digits import Terms, common_digits
from blockwright.arith.form import Poly, Summand
from blockwright.arith.itermark import IterMark, IterSplit, IterSum, split_expr
from blockwright.arith.text import expr_text
from blockwright.ir import Expr, Range, Var, widest_type
from blockwright.ir.dtype import DType


class NotAffine(Exception):
    """The index is not a sum of splits; the message states why."""


class Parser:
    """Parses sums of splits over a set of iterators; marks are shared among all indices.

    Args:
        analyzer: knows the domains of the iterators; not modified.
        pad: whether a quotient may pad its numerator to a whole number of periods.
    """

    def __init__(self, iters: Mapping[Var, Range], analyzer: Analyzer, *, pad: bool) -> None:
        analyzer = analyzer.without(iters)
        for var, domain in iters.items():
            analyzer.bind(var, domain)
        self.analyzer = analyzer
        self.space = analyzer.space
        self.pad = pad
        self.dtype: DType = widest_type(iters)
        self.one, self.zero = self.expr(self.space.one), self.expr(self.space.zero)
        self.marks: dict[Var, IterMark] = {}
        self.atoms: dict[int, Var] = {}
        for var, domain in iters.items():
            start = None if analyzer.exact(domain.min) is self.space.zero else domain.min
            extent = analyzer.simplify(domain.extent)
            self.marks[var] = IterMark(var, extent, start)
            self.atoms[self.space.var_atom(var).id] = var
        self.variables = frozenset(iters)
        self.fused: dict[tuple[object, ...], IterMark] = {}
        self.constrained: list[IterMark] = []
        self.periods: dict[tuple[IterMark, Poly], Poly] = {}
        self.padded: dict[tuple[IterMark, Poly], IterMark] = {}
        self.padding: list[IterMark] = []

    # ------------------------------------------------------------------ small helpers
    def poly(self, expr: Expr) -> Poly:
        return self.analyzer.lift(expr)

    def expr(self, p: Poly) -> Expr:
        return self.analyzer.lower(p, self.dtype)

    def moves(self, p: Poly) -> bool:
        """Whether the value depends on an iterator."""
        return not self.variables.isdisjoint(p.variables(self.space))

    def quotient(self, p: Poly, q: Poly) -> Poly | None:
        """`p / q` if exact, otherwise None."""
        if p is q:
            return self.space.one
        result = self.analyzer.floordiv(p, q)
        return result if self.space.mul(result, q) is p else None

    def extent_of(self, mark: IterMark) -> Poly:
        return self.poly(mark.extent)

    def at_least(self, p: Poly, q: Poly) -> bool:
        """Whether `p >= q` provably holds."""
        return p is q or self.analyzer.holds(self.space.sub(p, q))

    def same(self, p: Poly, q: Poly) -> bool:
        if p is q:
            return True
        d = self.space.sub(p, q)
        return (
            not d.is_const
            and self.analyzer.holds(d)
            and self.analyzer.holds(self.space.scale(d, -1))
        )

    def text(self, p: Poly) -> str:
        return expr_text(self.expr(p))

    # ------------------------------------------------------------------ sums
    def parse(self, p: Poly) -> IterSum:
        """Parse `p` as a sum of splits."""
        base = self.space.zero
        terms: Terms = {}
        for unit in self.analyzer.units(p):
            moving = [a for a in unit.rest if self.atom_moves(a)]
            value_moves = any(self.moves(q) for q in unit.operands)
            if not moving and not value_moves:
                base = self.space.add(base, _unit_poly(self.analyzer, unit))
                continue
            if len(moving) + value_moves > 1 or (value_moves and unit.kind in ("min", "max")):
                raise NotAffine(f"{self.text(p)} is not a sum of loop variables times factors")
            rest = list(unit.rest)
            for a in moving:
                rest.remove(a)
            factor = self.space.monomial(tuple(rest), unit.coefficient)
            if moving:  # the unit's own value, a remainder or minimum of symbols, is a factor
                factor = self.space.mul(factor, self.analyzer.unit_value(unit))
                result = self._atom_value(moving[0])
            else:
                result = self._divide(*unit.operands, remainder=True)
            for split in result.args:
                key = (split.source, self.poly(split.lower_factor), self.poly(split.extent))
                scale = self.space.mul(self.poly(split.scale), factor)
                terms[key] = self.space.add(terms.get(key, self.space.zero), scale)
            base = self.space.add(base, self.space.mul(self.poly(result.base), factor))
        args: list[IterSplit] = []
        for (mark, lower, extent), scale in common_digits(self, terms).items():
            if scale is self.space.zero or extent is self.space.one:
                continue
            split = IterSplit(mark, self.expr(lower), self.expr(extent), self.expr(scale))
            if self._falls(scale):
                split = self._backwards(split)
                last = self.space.add(extent, self.space.const(-1))
                base = self.space.add(base, self.space.mul(scale, last))
            args.append(split)
        return IterSum(tuple(args), self.expr(base))

    def _falls(self, scale: Poly) -> bool:
        """Whether a factor is provably negative."""
        minus = self.space.scale(scale, -1)
        return self.analyzer.holds(self.space.add(minus, self.space.const(-1)))

    def _backwards(self, split: IterSplit) -> IterSplit:
        """Reverse a digit with negative scale: a new mark that counts down from its last value."""
        last = self.space.add(self.poly(split.extent), self.space.const(-1))
        digit = _scaled(split, self.expr(self.space.const(-1)))
        mark = self._mark_of(IterSum((digit,), self.expr(last)), split.extent)
        scale = self.expr(self.space.scale(self.poly(split.scale), -1))
        return IterSplit(mark, self.one, mark.extent, scale)

    def atom_moves(self, number: int) -> bool:
        return not self.variables.isdisjoint(self.space.atoms[number].variables(self.space))

    def _atom_value(self, number: int) -> IterSum:
        """A loop variable or a quotient of loop variables."""
        atom = self.space.atoms[number]
        if atom.kind == "var":
            var = self.atoms[atom.id]
            mark = self.marks[var]
            base = self.zero if mark.start is None else mark.start
            return IterSum((IterSplit(mark, self.one, mark.extent, self.one),), base)
        if atom.kind == "div":
            return self._divide(*atom.operands, remainder=False)
        shown = self.text(self.space.monomial((atom.id,)))
        raise NotAffine(f"{shown} is not a quotient or remainder of loop variables")

    # ------------------------------------------------------------------ quotients and remainders
    def _divide(self, p: Poly, c: Poly, *, remainder: bool) -> IterSum:
        if self.moves(c):
            raise NotAffine(f"the divisor {self.text(c)} depends on a loop variable")
        whole = self.fuse(self.parse(p))
        base = self.poly(whole.base)
        if not whole.args:
            return IterSum((), self.expr(_divided(self.analyzer, base, c, remainder)))
        split = whole.args[0]
        scale = self.poly(split.scale)
        ratio = self.quotient(scale, c)
        if ratio is not None:  # scale * x is a multiple of c
            rest = self.expr(_divided(self.analyzer, base, c, remainder))
            if remainder:
                return IterSum((), rest)
            return IterSum((_scaled(split, self.expr(ratio)),), rest)
        by = self.quotient(c, scale)
        if by is None or not self.analyzer.holds(self.space.add(scale, self.space.const(-1))):
            raise NotAffine(
                f"{self.text(p)} // {self.text(c)}: the scale {self.text(scale)} and "
                "the divisor do not divide each other"
            )
        whole_periods = self.analyzer.floordiv(base, c)
        if not whole_periods.is_const:
            whole_periods = self.space.zero
        base = self.space.sub(base, self.space.mul(whole_periods, c))
        shift = self.analyzer.floordiv(base, scale)  # (scale * x + base) // scale = x + shift
        below = self.space.sub(base, self.space.mul(scale, shift))
        split = _scaled(split, self.one)
        if (
            shift is not self.space.zero
            or not self._divides(split, by)
            or (self.pad and (split.source, shift) in self.periods)
        ):
            split = self._pad(split, shift, by, p, c)
        result = self._digit(split, by, remainder)
        if not remainder:
            return IterSum((result,), self.expr(whole_periods))
        return IterSum((_scaled(result, self.expr(scale)),), self.expr(below))

    def _divides(self, split: IterSplit, by: Poly) -> bool:
        return self.quotient(self.poly(split.extent), by) is not None

    def _digit(self, split: IterSplit, by: Poly, remainder: bool) -> IterSplit:
        """`split // by` or `split % by`, where `by` divides the extent."""
        if remainder:
            return IterSplit(split.source, split.lower_factor, self.expr(by), self.one)
        lower = self.space.mul(self.poly(split.lower_factor), by)
        extent = self.analyzer.floordiv(self.poly(split.extent), by)
        return IterSplit(split.source, self.expr(lower), self.expr(extent), self.one)

    def _pad(self, split: IterSplit, shift: Poly, by: Poly, p: Poly, c: Poly) -> IterSplit:
        """A split of a padded mark, which starts and ends at multiples of the period."""
        if not self.pad:
            what = "starts inside" if shift is not self.space.zero else "is not a multiple of"
            raise NotAffine(
                f"{self.text(p)} // {self.text(c)}: the iterator over "
                f"{expr_text(split.extent)} values {what} a period of "
                f"{self.text(by)}"
            )
        top = self.space.mul(self.poly(split.extent), self.poly(split.lower_factor))
        if top is not self.poly(split.source.extent):
            raise NotAffine(f"{self.text(p)} // {self.text(c)}: a digit cannot be padded")
        mark = split.source
        lower = self.poly(split.lower_factor)
        if lower is not self.space.one:  # pad the quotient, as a new mark
            mark = self._mark_of(IterSum((split,), self.zero), split.extent)
        key = (mark, shift)
        period = self._note_period(key, by)
        result = self.padded.get(key)
        if result is None:
            result = self._padded_mark(mark, shift, period)
            self.padded[key] = result
            self.padding.append(result)
        return IterSplit(result, self.one, result.extent, self.one)

    def _note_period(self, key: tuple[IterMark, Poly], by: Poly) -> Poly:
        known = self.periods.get(key)
        if known is None or self.quotient(by, known) is not None:
            known = by
        elif self.quotient(known, by) is None:
            if known.terms or by.terms:
                raise NotAffine(
                    f"periods {self.text(known)} and {self.text(by)} of one iterator "
                    "do not divide each other"
                )
            known = self.space.const(_lcm(known.const, by.const))
        self.periods[key] = known
        return known

    def _padded_mark(self, mark: IterMark, shift: Poly, period: Poly) -> IterMark:
        space = self.space
        start = self.analyzer.floordiv(shift, period)
        shift = space.sub(shift, space.mul(start, period))
        if start is not space.zero:
            raise NotAffine("an iterator starts beyond its first period")
        end = space.add(shift, self.poly(mark.extent))
        count = self.analyzer.floordiv(space.add(end, space.sub(period, space.one)), period)
        whole = IterSplit(mark, self.one, mark.extent, self.one)
        return IterMark(IterSum((whole,), self.expr(shift)), self.expr(space.mul(count, period)))

    # ------------------------------------------------------------------ fusing
    def fuse(self, item: IterSum) -> IterSum:
        """The same sum with at most one split; raises `NotAffine` if the scales leave gaps."""
        if len(item.args) < 2:
            return item
        left = list(item.args)
        lowest = self._lowest(left)
        if lowest is None:
            raise NotAffine(f"no scale of {_sum_text(item)} divides the others")
        chain: list[IterSplit] = []
        unit = self.poly(lowest.scale)
        expected = unit
        while left:
            group = self._constraint_at(left, expected)
            if group is not None:
                split, used = group
                for s in used:
                    left.remove(s)
            else:
                split = self._next(left, expected)
                if split is None:
                    raise NotAffine(
                        f"the scales of {_sum_text(item)} are not a mixed radix: expected "
                        f"{self.text(expected)}"
                    )
                left.remove(split)
                split = _scaled(split, self.expr(expected))
            chain.append(split)
            expected = self.space.mul(expected, self.poly(split.extent))
        if len(chain) == 1:
            return IterSum((chain[0],), item.base)
        extent = self.quotient(expected, unit)
        assert extent is not None
        digits = tuple(_scaled(s, self.expr(self._ratio(s, unit))) for s in reversed(chain))
        mark = self._mark_of(IterSum(digits, self.zero), self.expr(extent))
        whole = IterSplit(mark, self.one, mark.extent, self.expr(unit))
        return IterSum((whole,), item.base)

    def _constraint_at(
        self, splits: Sequence[IterSplit], expected: Poly
    ) -> tuple[IterSplit, list[IterSplit]] | None:
        """A constrained mark with lowest scale `expected` whose splits are all present."""
        for mark in reversed(self.constrained):
            assert isinstance(mark.source, IterSum)
            used: list[IterSplit] = []
            for digit in mark.source.args:
                scale = self.space.mul(self.poly(digit.scale), expected)
                match = next(
                    (
                        s
                        for s in splits
                        if self._same_digit(s, digit) and self.poly(s.scale) is scale
                    ),
                    None,
                )
                if match is None:
                    break
                used.append(match)
            else:
                return IterSplit(mark, self.one, mark.extent, self.expr(expected)), used
        return None

    def _same_digit(self, a: IterSplit, b: IterSplit) -> bool:
        return (
            a.source is b.source
            and self.poly(a.lower_factor) is self.poly(b.lower_factor)
            and self.poly(a.extent) is self.poly(b.extent)
        )

    def _ratio(self, split: IterSplit, unit: Poly) -> Poly:
        result = self.quotient(self.poly(split.scale), unit)
        assert result is not None
        return result

    def _lowest(self, splits: Sequence[IterSplit]) -> IterSplit | None:
        for candidate in splits:
            scale = self.poly(candidate.scale)
            if self.analyzer.bounds(scale)[0] is None or not self.analyzer.nonneg(scale):
                continue
            others = (s for s in splits if s is not candidate)
            if all(self._above(s, scale) for s in others):
                return candidate
        return None

    def _above(self, split: IterSplit, scale: Poly) -> bool:
        ratio = self.quotient(self.poly(split.scale), scale)
        return ratio is not None and ratio is not self.space.one and self.analyzer.nonneg(ratio)

    def _next(self, splits: Sequence[IterSplit], expected: Poly) -> IterSplit | None:
        """The split whose scale is `expected` or provably equal to it."""
        for split in splits:
            if self.poly(split.scale) is expected:
                return split
        return next((s for s in splits if self.same(self.poly(s.scale), expected)), None)

    def _mark_of(self, item: IterSum, extent: Expr) -> IterMark:
        key = tuple(
            (s.source, self.poly(s.lower_factor), self.poly(s.extent), self.poly(s.scale))
            for s in item.args
        )
        result = self.fused.get(key)
        if result is None:
            result = self.fused[key] = IterMark(item, extent)
        return result


def _scaled(split: IterSplit, scale: Expr) -> IterSplit:
    return IterSplit(split.source, split.lower_factor, split.extent, scale)


def _divided(analyzer: Analyzer, p: Poly, c: Poly, remainder: bool) -> Poly:
    q = analyzer.floordiv(p, c)
    return analyzer.space.sub(p, analyzer.space.mul(q, c)) if remainder else q


def _unit_poly(analyzer: Analyzer, unit: Summand) -> Poly:
    outer = analyzer.space.monomial(unit.rest, unit.coefficient)
    return analyzer.space.mul(outer, analyzer.unit_value(unit))


def _lcm(a: int, b: int) -> int:
    return a * b // gcd(a, b)


def _sum_text(item: IterSum) -> str:
    return " + ".join(expr_text(split_expr(s)) for s in item.args)
