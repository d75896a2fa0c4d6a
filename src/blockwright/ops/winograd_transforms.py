"""Winograd's minimal filtering: exact transforms of F(m, r) as straight-line sums.

A one-dimensional correlation of m results with a filter g of r taps over n = m + r - 1 inputs d is

    y = output · [(filter · g) ⊙ (input · d)]

with three rational matrices that are determined by n - 1 distinct points and one at infinity
(Cook-Toom). In two dimensions each matrix is applied to rows and to columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import msgspec

Matrix = tuple[tuple[Fraction, ...], ...]
Row = dict[int, Fraction]

# Interpolation points by count. Opposite pairs share half of the sums; dyadic fractions keep the
# coefficients exact; among these, the points with the smallest measured convolution error.
_POINTS = {
    3: ("0", "1", "-1"),
    5: ("0", "5/8", "-5/8", "3/2", "-3/2"),
    7: ("0", "1/2", "-1/2", "1", "-1", "2", "-2"),
}


class Transforms(msgspec.Struct, frozen=True):
    """The matrices of F(m, r), with n = m + r - 1.

    Attributes:
        input: n × n.
        filter: n × r.
        output: m × n.
    """

    input: Matrix
    filter: Matrix
    output: Matrix


@functools.cache
def transforms(m: int, r: int) -> Transforms:
    """Transforms for m results of r taps; m + r - 2 must be 3, 5 or 7, with known points."""
    if m + r - 2 not in _POINTS:
        raise ValueError(f"no points for F({m}, {r})")
    points = [Fraction(p) for p in _POINTS[m + r - 2]]
    inputs: list[tuple[Fraction, ...]] = []
    filters: list[tuple[Fraction, ...]] = []
    for point in points:
        others = [p for p in points if p != point]
        scale = functools.reduce(lambda a, p, at=point: a * (at - p), others, Fraction(1))
        inputs.append((*_polynomial(others), Fraction(0)))
        filters.append(tuple(point**j / scale for j in range(r)))
    inputs.append(_polynomial(points))
    filters.append((*(Fraction(0),) * (r - 1), Fraction(1)))
    outputs = [(*(p**k for p in points), Fraction(k == m - 1)) for k in range(m)]
    return Transforms(tuple(inputs), tuple(filters), tuple(outputs))


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of the product of (x - root), lowest degree first."""
    result = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *result]
        result = [
            high - root * low for high, low in zip(shifted, [*result, Fraction(0)], strict=True)
        ]
    return tuple(result)


class Sums:
    """Products of one matrix with vectors, as sums with common subexpressions.

    Two rows that agree up to signs become the sum and the difference of two partial sums. Two
    columns that agree up to signs are replaced by the sum and the difference of two inputs.

    Args:
        matrix: the matrix.
        number: converts a coefficient to a constant.
        name: binds an intermediate value to a name, so that it is computed once.
    """

    def __init__(
        self, matrix: Matrix, number: Callable[[Fraction], Any], name: Callable[[Any], Any]
    ) -> None:
        self._number = number
        self._name = name
        self._rows: list[Row] = [{k: c for k, c in enumerate(row) if c} for row in matrix]
        self._width = len(matrix[0])

    def __call__(self, vector: Sequence[Any]) -> list[Any]:
        """The product of the matrix with a vector of expressions."""
        values = dict(enumerate(vector))
        rows = [dict(row) for row in self._rows]
        for a, b in _opposites(_columns(rows, self._width)):
            _replace_pair(rows, a, b)
            values[a], values[b] = (
                self._name(values[a] + values[b]),
                self._name(values[a] - values[b]),
            )
        result: dict[int, Any] = {}
        for a, b in _opposites(dict(enumerate(rows))):
            same = {k: c for k, c in rows[a].items() if rows[b][k] == c}
            rest = {k: c for k, c in rows[a].items() if rows[b][k] != c}
            even, odd = self._name(self._sum(same, values)), self._name(self._sum(rest, values))
            result[a], result[b] = even + odd, even - odd
        return [
            result.get(k) if k in result else self._sum(row, values) for k, row in enumerate(rows)
        ]

    def _sum(self, row: Row, values: dict[int, Any]) -> Any:
        """A linear combination; starts with a term of coefficient 1, else with a positive one."""
        order = sorted(row, key=lambda k: (row[k] != 1, row[k] < 0, k))
        total: Any = None
        for k in order:
            factor, value = row[k], values[k]
            if abs(factor) != 1:
                value = value * self._number(abs(factor))
            if total is None:
                total = value if factor > 0 else value * self._number(Fraction(-1))
            else:
                total = total + value if factor > 0 else total - value
        return total


def operations(matrix: Matrix) -> int:
    """Number of additions in a product with the matrix; a multiply-add counts as one addition."""

    class Count(msgspec.Struct):
        total: int = 0

        def __add__(self, other: Count) -> Count:
            return Count(self.total + other.total + 1)

        __sub__ = __add__

        def __mul__(self, other: object) -> Count:
            return self

    named = 0

    def name(value: Count) -> Count:
        nonlocal named
        named += value.total
        return Count()

    result = Sums(matrix, lambda c: c, name)([Count() for _ in matrix[0]])
    return named + sum(value.total for value in result)


def _columns(rows: list[Row], width: int) -> dict[int, Row]:
    return {k: {i: row[k] for i, row in enumerate(rows) if k in row} for k in range(width)}


def _opposites(vectors: dict[int, Row]) -> list[tuple[int, int]]:
    """Disjoint pairs of vectors that agree up to signs, with some signs equal and some opposite."""
    pairs: list[tuple[int, int]] = []
    free = list(vectors)
    while free:
        a = free.pop(0)
        for b in free:
            x, y = vectors[a], vectors[b]
            if x.keys() != y.keys() or any(abs(x[k]) != abs(y[k]) for k in x):
                continue
            if 0 < sum(x[k] == y[k] for k in x) < len(x):
                pairs.append((a, b))
                free.remove(b)
                break
    return pairs


def _replace_pair(rows: list[Row], a: int, b: int) -> None:
    """Replace columns a and b by the columns for the sum and the difference of the two inputs."""
    for row in rows:
        if a in row:
            factor = row.pop(a)
            opposite = row.pop(b) != factor
            row[b if opposite else a] = factor
