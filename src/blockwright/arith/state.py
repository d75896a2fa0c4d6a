"""What an analyzer knows: limits of variables, facts, equalities, true conditions, and memos.

A state is rebuilt from its entries when an equality arrives, because sums made earlier mention the
replaced variable; otherwise entries are added one by one.
"""

from __future__ import annotations

from typing import Any

from blockwright.arith.bounds import tighter
from blockwright.arith.form import UNKNOWN, Bounds, Poly, Term
from blockwright.arith.witness import Witness
from blockwright.ir import Expr, Var

Entry = tuple[str, Var | None, Any]
"""("range", var, Range), ("equal", var, Expr), ("bounds", var, Bounds) or ("true", None, Expr)."""


class State:
    """Knowledge and the results that depend on it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.limits: dict[Var, tuple[Poly | None, Poly | None]] = {}
        self.known: dict[int, Bounds] = {}  # atom number → bounds beyond what its meaning says
        self.facts: tuple[Poly, ...] = ()  # sums that are not negative
        self.equal: dict[Var, Poly] = {}
        self.exact: dict[int, tuple[Var, Term]] = {}  # atom n // c → (n, c) where c divides n
        self.whole: dict[Poly, int] = {}  # divisor → a number that it divides
        self.true: set[Expr] = set()
        self.reset()

    def reset(self) -> None:
        """Start new tables of results; knowledge stays, and so do tables shared with a copy."""
        self.lifted: dict[Expr, Poly] = {}
        self.simple: dict[Expr, Expr] = {}
        self.lowered: dict[Any, Expr] = {}
        self.bounds: dict[Poly, Bounds] = {}
        self.atom_bounds: dict[int, Bounds] = {}
        self.units: dict[Poly, Any] = {}
        self.signs: dict[Poly, bool] = {}
        self.proofs: dict[Poly, bool] = {}
        self.quotients: dict[tuple[Poly, Poly], Poly] = {}
        self.witnesses: tuple[Witness, ...] | None = None

    def copy(self, share_results: bool = False) -> State:
        """A state that learns on its own; with `share_results`, one that has learned the same."""
        other = State()
        other.entries = list(self.entries)
        other.limits = dict(self.limits)
        other.known = dict(self.known)
        other.facts = self.facts
        other.equal = dict(self.equal)
        other.exact = dict(self.exact)
        other.whole = dict(self.whole)
        other.true = set(self.true)
        if share_results:
            for name in _RESULTS:
                setattr(other, name, getattr(self, name))
        return other

    def narrow(self, atom: int, bounds: Bounds) -> None:
        """Note constant bounds of an atom."""
        self.known[atom] = tighter(self.known.get(atom, UNKNOWN), bounds)


_RESULTS = ("lifted", "simple", "lowered", "bounds", "atom_bounds", "units", "signs", "proofs",
            "quotients")  # fmt: skip
