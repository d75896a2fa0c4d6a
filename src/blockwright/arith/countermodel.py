"""Countermodels: points that satisfy all known facts and refute a goal.

Most queries have the answer no, and a point where the sum is negative shows that at once, where
Fourier-Motzkin elimination would first exhaust its combinations. A witness assigns every variable
and opaque atom a value within its known bounds, and is used only if all facts hold there.
"""

from __future__ import annotations

from blockwright.arith.form import ArithContext, Atom, Bounds, Poly
from blockwright.ir import Expr, Var

_STEP = 37  # distance chosen within an unbounded domain
_MULTIPLE = 64 * 720720  # multiple of every number up to 16, and of powers of 2
_LARGE = 64  # a domain with at least this many values counts as a size


class Impossible(Exception):
    """An atom has no feasible or no defined value at this point."""


class Witness:
    """Lazily chosen values of atoms.

    `style` selects the values: 0 lower ends, 1 upper ends, 2 in between, 3 upper ends with sizes
    that leave a remainder of 1 for common divisors (so that the last tile is partial), others
    scattered.
    """

    def __init__(self, ctx: ArithContext, style: int) -> None:
        self.ctx = ctx
        self.style = style
        self.values: dict[int, int] = {}
        self.open: set[int] = set()
        self.limited: set[Expr | None] = set()  # variables with a symbolic upper limit

    def holds(self, facts: tuple[Poly, ...], known: dict[int, Bounds]) -> bool:
        """Whether every fact and every bound of an atom is satisfied."""
        try:
            for p in facts:
                if self.value(p) < 0:
                    return False
            for number, (low, high) in known.items():
                value = self.atom(number)
                if (low is not None and value < low) or (high is not None and value > high):
                    return False
        except Impossible:
            return False
        return True

    def refutes(self, p: Poly) -> bool:
        """Whether the sum is negative at this point."""
        try:
            return self.value(p) < 0
        except Impossible:
            return False

    def value(self, p: Poly) -> int:
        total = p.const
        values = self.values
        for m, c in p.terms:
            for number in m:
                result = values.get(number)
                c *= self.atom(number) if result is None else result
            total += c
        return total

    def atom(self, number: int) -> int:
        result = self.values.get(number)
        if result is None:
            result = self.values[number] = self._choose(self.ctx.space.atoms[number])
        return result

    def _choose(self, atom: Atom) -> int:
        if atom.kind == "div":
            divisor = self.value(atom.operands[1])
            if divisor == 0:
                raise Impossible
            return self.value(atom.operands[0]) // divisor
        if atom.kind == "min":
            return min(0, *(self.value(p) for p in atom.operands))
        low, high = self._ends(atom)
        if low is not None and high is not None and low > high:
            raise Impossible
        if self.style == 3:
            limited = atom.kind == "var" and atom.node in self.limited
            return high if limited and high is not None else self._odd(low, high)
        return self._pick(low, high) if self.style < 3 else self._scatter(low, high, atom.id)

    def _ends(self, atom: Atom) -> Bounds:
        low, high = self.ctx.atom_bounds(atom)
        if atom.kind != "var" or atom.id in self.open:
            return low, high
        assert isinstance(atom.node, Var)
        self.open.add(atom.id)
        limits = self.ctx.limits(atom.node)
        if limits[0] is not None:
            value = self.value(limits[0])
            low = value if low is None else max(low, value)
        if limits[1] is not None:
            self.limited.add(atom.node)
            value = self.value(limits[1])
            high = value if high is None else min(high, value)
        self.open.discard(atom.id)
        return low, high

    def _pick(self, low: int | None, high: int | None) -> int:
        if low is None:
            if high is None:
                return (_STEP, -_STEP, 1)[self.style]
            return high if self.style else high - _STEP
        if high is None:
            return low + (0, 17, _STEP)[self.style] * _STEP
        return (low, high, low + (high - low) // 3)[self.style]

    def _odd(self, low: int | None, high: int | None) -> int:
        if high is None:
            return _MULTIPLE * max(1, -(-(low or 0) // _MULTIPLE)) + 1
        if low is not None and high - low + 1 < _LARGE:
            return high
        return max(high - (high - 1) % 48, high - 48 if low is None else low)

    def _scatter(self, low: int | None, high: int | None, number: int) -> int:
        """A deterministic value that varies with atom and style."""
        draw = (number * 7919 + self.style * 104729) * 2654435761 % 65537
        span = 64 if self.style % 2 else 5
        if low is None:
            return draw % span - span // 2 if high is None else high - draw % span
        return low + draw % (span if high is None else high - low + 1)


def witnesses(
    ctx: ArithContext, facts: tuple[Poly, ...], known: dict[int, Bounds], count: int = 4
) -> tuple[Witness, ...]:
    """Those of `count` candidate points at which all known facts hold."""
    result = (Witness(ctx, style) for style in range(count))
    return tuple(w for w in result if w.holds(facts, known))
