"""What an analyzer knows: limits of variables, facts, equalities, true conditions, and memos.

A state is rebuilt from its entries when an equality arrives, because sums made earlier mention the
replaced variable; otherwise entries are added one by one.
"""

from __future__ import annotations

from typing import Any

from blockwright.arith.bounds import tighter
from blockwright.arith.form import UNKNOWN, Bounds, Poly, Term
from blockwright.arith.witness import Witness
from blockwright.ir import Expr, IntImm, Range, Var

Entry = tuple[str, Var | None, Any]
"""("range", var, Range), ("equal", var, Expr), ("bounds", var, Bounds) or ("true", None, Expr)."""


def entry_key(entry: Entry) -> Any:
    """Equal for entries that tell the same."""
    kind, var, value = entry
    if isinstance(value, Range):
        return kind, var, _value_key(value.min), _value_key(value.extent)
    return kind, var, _value_key(value)


def _value_key(value: Any) -> Any:
    return (value.value, value.type) if isinstance(value, IntImm) else value


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
        self.shared = False  # whether copies are about that may learn the same
        self.next: dict[Any, State] = {}  # entry → this state after learning it
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
        self.reduced: dict[frozenset[Var], State] = {}  # variables → what is known without them
        self.witnesses: tuple[Witness, ...] | None = None

    def copy(self, share_results: bool = False) -> State:
        """A state that learns on its own; with `share_results`, one that has worked out the same.

        What copies learn from here on is remembered, for those that learn it again."""
        other = State()
        other.entries = list(self.entries)
        other.limits = dict(self.limits)
        other.known = dict(self.known)
        other.facts = self.facts
        other.equal = dict(self.equal)
        other.exact = dict(self.exact)
        other.whole = dict(self.whole)
        other.true = set(self.true)
        other.shared = self.shared = True
        other.next = self.next
        if share_results:
            for name in _RESULTS:
                setattr(other, name, getattr(self, name))
        return other

    def narrow(self, atom: int, bounds: Bounds) -> None:
        """Note constant bounds of an atom."""
        self.known[atom] = tighter(self.known.get(atom, UNKNOWN), bounds)


_RESULTS = ("lifted", "simple", "lowered", "bounds", "atom_bounds", "units", "signs", "proofs",
            "quotients", "reduced")  # fmt: skip
