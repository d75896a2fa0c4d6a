"""Simplify index expressions with quotients by sizes, using the ranges of variables.

    (q * m + r) // m = q    and    (q * m + r) % m = r,    where 0 <= r < m

Variables range from 0 up to an extent (exclusive) that is a polynomial of sizes. Sizes are at
least 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blockwright import ir
from blockwright.verify.affine import constant
from blockwright.verify.polynomial import Indeterminate, Polynomial, number, of_atom

INDEX = ir.dtype_of("int64")


STEPS = 20_000
"""Limit on sign tests of polynomials per program; further tests report "unknown"."""
MOST_TERMS = 60
"""Limit on the number of terms of a sum; longer expressions are left as they are."""


class Quotients:
    """The index expressions of one program as polynomials.

    Attributes:
        minimum: size → its smallest value.
    """

    def __init__(self, minimum: Mapping[ir.Var, int]) -> None:
        self.minimum = minimum
        self._atoms: dict[Any, Indeterminate] = {}
        self._extents: dict[Indeterminate, Polynomial] = {}
        self._heights: dict[Indeterminate, int] = {}
        self._left = STEPS

    # ------------------------------------------------------------------ atoms
    def of_variable(self, var: ir.Var) -> Indeterminate:
        return self._atom("size" if var in self.minimum else "var", var)

    def bound(self, var: ir.Var, extent: Polynomial) -> None:
        """Record that a variable ranges over 0 <= var < extent."""
        self._extents[self.of_variable(var)] = extent
        self._heights.clear()

    def _atom(self, kind: str, content: Any) -> Indeterminate:
        key = (kind, content)
        if key not in self._atoms:
            self._atoms[key] = Indeterminate(len(self._atoms), kind, content)
        return self._atoms[key]

    # ------------------------------------------------------------------ expressions
    def poly(self, expr: ir.Expr) -> Polynomial:
        """Convert an index expression to a polynomial, with quotients resolved."""
        match expr:
            case ir.IntImm():
                return number(expr.value)
            case ir.Var():
                return self._variable(expr)
            case ir.Cast() if expr.type.is_index and expr.value.dtype.is_index:
                return self.poly(expr.value)
            case ir.Add():
                return self.poly(expr.a) + self.poly(expr.b)
            case ir.Sub():
                return self.poly(expr.a) - self.poly(expr.b)
            case ir.Mul():
                a, b = self.poly(expr.a), self.poly(expr.b)
                if len(a.terms) * len(b.terms) > MOST_TERMS:
                    return of_atom(self._atom("expr", expr))
                return a * b
            case ir.FloorDiv():
                return self.divided(self.poly(expr.a), self.poly(expr.b))[0]
            case ir.FloorMod():
                return self.divided(self.poly(expr.a), self.poly(expr.b))[1]
            case ir.Min() | ir.Max():
                return self._extreme(expr)
            case _:
                return of_atom(self._atom("expr", expr))

    def _variable(self, var: ir.Var) -> Polynomial:
        atom = self.of_variable(var)
        extent = self._extents.get(atom)
        return number(0) if extent is not None and extent.value == 1 else of_atom(atom)

    def _extreme(self, expr: ir.Min | ir.Max) -> Polynomial:
        a, b = self.poly(expr.a), self.poly(expr.b)
        smallest, greatest = (
            (a, b)
            if self.never_negative(b - a)
            else ((b, a) if self.never_negative(a - b) else (None, None))
        )
        known = smallest if isinstance(expr, ir.Min) else greatest
        kind = "min" if isinstance(expr, ir.Min) else "max"
        return of_atom(self._atom(kind, (a, b))) if known is None else known

    def divided(self, poly: Polynomial, by: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Quotient and remainder; atoms represent what cannot be resolved."""
        if by.value == 1:
            return poly, number(0)
        if (by.value is not None and by.value <= 0) or len(poly.terms) > MOST_TERMS:
            return self._unresolved(poly, by)
        whole, rest = self.taken_out(poly, by)
        if self._below(rest, by):
            return whole, rest
        quotient, remainder = self._unresolved(rest, by)
        return whole + quotient, remainder

    def digits(self, poly: Polynomial, by: Polynomial) -> tuple[Polynomial, Polynomial] | None:
        """Quotient and remainder; None if they cannot be resolved."""
        whole, rest = self.taken_out(poly, by)
        return (whole, rest) if self._below(rest, by) else None

    def taken_out(self, poly: Polynomial, by: Polynomial) -> tuple[Polynomial, Polynomial]:
        """The quotient of the terms divisible by `by`, and the remaining terms."""
        whole, rest = number(0), number(0)
        for product, count in poly.terms.items():
            term = Polynomial({product: count})
            quotient = term.over(by) if len(by.terms) == 1 else None
            whole, rest = (whole + quotient, rest) if quotient is not None else (whole, rest + term)
        return self._by_cofactors(rest, by) if len(by.terms) > 1 else (whole, rest)

    def _by_cofactors(self, poly: Polynomial, by: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Division by a sum: divide the cofactor of each variable."""
        whole, rest = number(0), poly
        for atom in poly.atoms():
            if atom.kind == "size":
                continue
            factor, _ = rest.parted(atom)
            quotient = factor.over(by)
            if quotient is not None:
                whole, rest = whole + of_atom(atom) * quotient, rest - of_atom(atom) * factor
        quotient = rest.over(by)
        return (whole, rest) if quotient is None else (whole + quotient, number(0))

    def _unresolved(self, poly: Polynomial, by: Polynomial) -> tuple[Polynomial, Polynomial]:
        return of_atom(self._atom("//", (poly, by))), of_atom(self._atom("%", (poly, by)))

    # ------------------------------------------------------------------ what is known
    def _below(self, poly: Polynomial, limit: Polynomial) -> bool:
        return self.never_negative(poly) and self.never_negative(limit - poly - number(1))

    def extent(self, atom: Indeterminate) -> Polynomial | None:
        """The exclusive upper bound of an atom that is at least 0; None if unknown."""
        if atom in self._extents:
            return self._extents[atom]
        if atom.kind == "%" and self.never_negative(atom.content[1] - number(1)):
            return atom.content[1]
        if atom.kind == "//":
            poly, by = atom.content
            inner = poly.atom
            above = None if inner is None else self.extent(inner)
            return None if above is None or by.value is None else above.over(by)
        return None

    def never_negative(self, poly: Polynomial, depth: int = 12) -> bool:
        """Whether a polynomial is provably at least 0 for all values of its atoms."""
        self._left -= 1
        if depth == 0 or self._left < 0:
            return False
        unknown = [atom for atom in poly.atoms() if atom.kind != "size"]
        if unknown:
            atom = max(unknown, key=self._height)
            factor, rest = poly.parted(atom)
            if atom in factor.atoms():
                return False
            if self.never_negative(factor, depth - 1):
                smallest = self._least_parts(atom, factor)
            elif self.never_negative(number(0) - factor, depth - 1):
                smallest = self._greatest_parts(atom, factor)
            else:
                return False
            return any(self.never_negative(rest + part, depth - 1) for part in smallest)
        moved = number(0)  # substitute sizes by smallest value plus a nonnegative variable
        for product, count in poly.terms.items():
            term = number(count)
            for atom in product:
                term = term * (of_atom(atom) + number(self.minimum[atom.content]))
            moved = moved + term
        return all(count >= 0 for count in moved.terms.values())

    def _height(self, atom: Indeterminate) -> int:
        """Rank above all atoms in an atom's bounds, so that substituting bounds terminates."""
        result = self._heights.get(atom)
        if result is None:
            bounds: list[Polynomial] = [] if atom.kind in ("var", "expr") else [*atom.content]
            extent = self._extents.get(atom)
            bounds += [] if extent is None else [extent]
            below = [self._height(a) for p in bounds for a in p.atoms() if a.kind != "size"]
            result = self._heights[atom] = 1 + max(below, default=0)
        return result

    def _least_parts(self, atom: Indeterminate, factor: Polynomial) -> Iterator[Polynomial]:
        """Lower bounds of `factor * atom` for a nonnegative factor.

        `b * (e // b) >= e - b + 1` for `b >= 1`, and `e // b >= 0` for `e >= 0`.
        """
        if atom.kind == "//":
            poly, by = atom.content
            if self.never_negative(by - number(1)):
                quotient = factor.over(by)
                if quotient is not None:
                    yield quotient * (poly - by + number(1))
                if self.never_negative(poly):
                    yield number(0)
        elif atom.kind == "max":
            yield from (factor * one for one in atom.content)
        elif self.extent(atom) is not None:
            yield number(0)

    def _greatest_parts(self, atom: Indeterminate, factor: Polynomial) -> Iterator[Polynomial]:
        """Lower bounds of `factor * atom` for a nonpositive factor: the atom at its maximum.

        `b * (e // b) <= e` for `b >= 1`, and `e // b <= e` if also `e >= 0`.
        """
        extent = self.extent(atom)
        if extent is not None:
            yield factor * (extent - number(1))
        if atom.kind == "//":
            poly, by = atom.content
            if self.never_negative(by - number(1)):
                quotient = factor.over(by)
                if quotient is not None:
                    yield quotient * poly
                if self.never_negative(poly):
                    yield factor * poly
        elif atom.kind == "min":
            yield from (factor * one for one in atom.content)

    def cleared(self, poly: Polynomial) -> Polynomial:
        """A polynomial without quotients that is positive exactly where the given one is.

        For integers and `b >= 1`, `e // b + r >= 1` is equivalent to `e >= b * (1 - r)`, and
        `r - e // b >= 1` is equivalent to `e < b * r`.
        """
        for atom in poly.atoms():
            if atom.kind != "//" or not self.never_negative(atom.content[1] - number(1)):
                continue
            divided, by = atom.content
            factor, rest = poly.parted(atom)
            if factor == number(1):
                return self.cleared(divided - by + by * rest + number(1))
            if factor == number(-1):
                return self.cleared(by * rest - divided)
        return poly

    def truth(self, test: ir.LT | ir.LE | ir.GT | ir.GE) -> bool | None:
        """True if a comparison always holds, False if it never does, None if unknown."""
        a, b = self.poly(test.a), self.poly(test.b)
        if isinstance(test, (ir.GT, ir.GE)):
            a, b = b, a
        strict = number(1 if isinstance(test, (ir.LT, ir.GT)) else 0)
        if self.never_negative(b - a - strict):
            return True
        return False if self.never_negative(a - b - number(1) + strict) else None

    # ------------------------------------------------------------------ back to expressions
    def expression(self, poly: Polynomial) -> ir.Expr:
        """Convert a polynomial back to an index expression."""
        result: ir.Expr | None = None
        for product, count in poly.terms.items():
            term: ir.Expr | None = None
            for atom in product:
                one = self._of_atom(atom)
                term = one if term is None else ir.Mul(term, one)
            scale = ir.IntImm(count, INDEX)
            created = scale if term is None else term if count == 1 else ir.Mul(term, scale)
            result = created if result is None else ir.Add(result, created)
        return ir.IntImm(0, INDEX) if result is None else result

    def _of_atom(self, atom: Indeterminate) -> ir.Expr:
        if isinstance(atom.content, ir.Expr):
            return atom.content
        a, b = (self.expression(part) for part in atom.content)
        result = {"//": ir.FloorDiv, "%": ir.FloorMod, "min": ir.Min, "max": ir.Max}
        return result[atom.kind](a, b)


def is_hard(node: ir.Node) -> bool:
    """Whether an index expression divides by a size or multiplies variables, which isl lacks."""
    if isinstance(node, (ir.FloorDiv, ir.FloorMod)):
        hard = constant(node.b) is None
    elif isinstance(node, ir.Mul):
        hard = constant(node.a) is None and constant(node.b) is None
    else:
        return False
    return hard and _is_index(node)


def _is_index(node: ir.Node) -> bool:
    if not (isinstance(node, ir.Expr) and node.dtype.is_index):
        return False
    if isinstance(node, (ir.Var, ir.IntImm)):
        return True
    arithmetic = (ir.Add, ir.Sub, ir.Mul, ir.FloorDiv, ir.FloorMod, ir.Min, ir.Max, ir.Cast)
    return isinstance(node, arithmetic) and all(map(_is_index, node.children()))


def hard_parts(node: ir.Node) -> list[ir.Expr]:
    """All hard expressions (`is_hard`) below a node."""
    result: list[ir.Expr] = []
    stack: list[ir.Node] = [node]
    while stack:
        one = stack.pop()
        if is_hard(one) and isinstance(one, ir.Expr):
            result.append(one)
        if not isinstance(one, ir.Buffer):
            stack += one.children()[::-1]
    return result


def index_roots(node: ir.Node, every: bool = False) -> list[ir.Expr]:
    """Maximal index expressions below a node that have hard parts, and those parts that divide.

    Args:
        every: include maximal index expressions without hard parts.
    """
    result: list[ir.Expr] = []
    stack: list[ir.Node] = [node]
    while stack:
        one = stack.pop()
        if isinstance(one, ir.Buffer):
            continue
        if isinstance(one, ir.Expr) and _is_index(one):
            parts = hard_parts(one)
            if parts or every:
                divisions = (p for p in parts if isinstance(p, (ir.FloorDiv, ir.FloorMod)))
                result += [one, *divisions]
            continue
        stack += one.children()[::-1]
    return result


class Simplify:
    """Node rewriter that simplifies index expressions: hard ones only, or every one."""

    def __init__(self, quotients: Quotients, every: bool = False) -> None:
        self.quotients = quotients
        self.every = every

    def __call__(self, node: Any) -> Any:
        if isinstance(node, (ir.Buffer, ir.Var, ir.IntImm)):
            return node
        if not (self.every or hard_parts(node)):
            return node
        if isinstance(node, ir.Expr) and _is_index(node):
            return self.quotients.expression(self.quotients.poly(node))
        if (
            isinstance(node, (ir.LT, ir.LE, ir.GT, ir.GE))
            and _is_index(node.a)
            and _is_index(node.b)
        ):
            held = self.quotients.truth(node)
            if held is not None:
                return ir.const(held, "bool")
        return node.map_children(self)
