"""Polynomials over sizes and variables, for products, which isl cannot represent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Indeterminate(msgspec.Struct, frozen=True, eq=False):
    """An atom of a polynomial.

    Attributes:
        rank: its position in the order of all atoms.
        kind: "size"; "var", a variable with a range; "//", "%", "min" or "max" of two polynomials;
            "expr", any other expression.
        content: the variable or expression, or the two polynomials.
    """

    rank: int
    kind: str
    content: Any


Product = tuple[Indeterminate, ...]
"""Atoms in order of rank; a power is a repeated atom."""


class Polynomial:
    """A polynomial: product of atoms → nonzero coefficient."""

    def __init__(self, terms: Mapping[Product, int]) -> None:
        self.terms = {k: c for k, c in terms.items() if c}
        self._key = frozenset(self.terms.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __add__(self, other: Polynomial) -> Polynomial:
        result = dict(self.terms)
        for product, count in other.terms.items():
            result[product] = result.get(product, 0) + count
        return Polynomial(result)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other * number(-1)

    def __mul__(self, other: Polynomial) -> Polynomial:
        result: dict[Product, int] = {}
        for a, m in self.terms.items():
            for b, n in other.terms.items():
                product = tuple(sorted((*a, *b), key=lambda atom: atom.rank))
                result[product] = result.get(product, 0) + m * n
        return Polynomial(result)

    @property
    def value(self) -> int | None:
        """The constant value; None if the polynomial has atoms."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def atom(self) -> Indeterminate | None:
        """The single atom that the polynomial consists of, if any."""
        if len(self.terms) == 1:
            ((product, count),) = self.terms.items()
            if count == 1 and len(product) == 1:
                return product[0]
        return None

    def atoms(self) -> list[Indeterminate]:
        return list(dict.fromkeys(a for product in self.terms for a in product))

    def parted(self, atom: Indeterminate) -> tuple[Polynomial, Polynomial]:
        """Split by an atom: (its cofactor, the terms without it)."""
        factor: dict[Product, int] = {}
        rest: dict[Product, int] = {}
        for product, count in self.terms.items():
            if atom in product:
                k = product.index(atom)
                factor[product[:k] + product[k + 1 :]] = count
            else:
                rest[product] = count
        return Polynomial(factor), Polynomial(rest)

    def over(self, other: Polynomial) -> Polynomial | None:
        """The quotient if the division is exact, otherwise None."""
        rest, result = self, number(0)
        lead = _leading(other)
        while rest.terms:
            top = _leading(rest)
            left = _without(top, lead)
            if left is None or rest.terms[top] % other.terms[lead]:
                return None
            part = Polynomial({left: rest.terms[top] // other.terms[lead]})
            result, rest = result + part, rest - part * other
        return result


def number(value: int) -> Polynomial:
    return Polynomial({(): value})


def of_atom(atom: Indeterminate) -> Polynomial:
    return Polynomial({(atom,): 1})


def _leading(poly: Polynomial) -> Product:
    """The leading term in a monomial order, which multiplication preserves."""
    return max(poly.terms, key=lambda product: (len(product), *(a.rank for a in product)))


def _without(product: Product, part: Product) -> Product | None:
    """The quotient of two products of atoms; None if `part` does not divide `product`."""
    left = list(product)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)
