"""Equality of two terms of bit vectors: sums are compared part by part.

Products of 32 bits are hard for z3, and a sum of several is out of reach. The difference of two
sums is zero if each part of it is, where a part has the terms that share inputs: few bits each, and
the same question for every element of a product, which is asked once.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from blockwright.verify.model.symbolic_values import Symbols

z3: Any = importlib.import_module("z3")  # untyped
_INPUT = re.compile(r"p\d+_\d+")


class Equality:
    """Decides equalities, and remembers the answer for each part up to the names of inputs."""

    def __init__(self, symbols: Symbols, resources: int) -> None:
        self.symbols, self.resources = symbols, resources
        self._zero: dict[str, bool] = {}

    def holds(self, a: Any, b: Any) -> bool:
        """Whether two terms are proved equal; False if this is not known."""
        if a.eq(b):
            return True
        if not z3.is_bv(a):
            return bool(z3.simplify(a).eq(z3.simplify(b)))
        return all(map(self._is_zero, _parts(z3.simplify(a - b, som=True))))

    def _is_zero(self, part: Any) -> bool:
        names: dict[str, str] = {}
        key = _INPUT.sub(lambda m: names.setdefault(m[0], f"x{len(names)}"), part.sexpr())
        key = f"{key} {[self.symbols.types[name] for name in names]}"
        if key not in self._zero:
            solver = self.symbols.solver(self.resources)
            solver.add(part != 0)
            self._zero[key] = solver.check() == z3.unsat
        return self._zero[key]


def _parts(total: Any) -> list[Any]:
    """Sums of the terms that are connected by common inputs."""
    groups: list[tuple[set[str], list[Any]]] = []
    for term in _terms(total):
        names, terms = set(_INPUT.findall(term.sexpr())), [term]
        apart: list[tuple[set[str], list[Any]]] = []
        for group in groups:
            if names & group[0]:
                names |= group[0]
                terms = [*group[1], *terms]
            else:
                apart.append(group)
        groups = [*apart, (names, terms)]
    return [sum(terms[1:], terms[0]) for _, terms in groups]


def _terms(total: Any) -> list[Any]:
    if z3.is_app_of(total, z3.Z3_OP_BADD):
        return [term for child in total.children() for term in _terms(child)]
    return [total]
