"""State of an analyzer: limits of variables, facts, equalities, true conditions, and memos.

A state is rebuilt from its entries when an equality is learned, because earlier sums contain the
replaced variable; otherwise entries are added incrementally.

A state shared by several analyzers is immutable. Learning from it produces another state, which is
cached in `next`, so that other analyzers that learn the same reuse it.
"""

from __future__ import annotations

from typing import Any

from blockwright.arith.bounds import tighter
from blockwright.arith.form import UNKNOWN, Bounds, Poly, Term
from blockwright.ir import Expr, IntImm, Range, Var

Entry = tuple[str, Var | None, Any]
"""("range", var, Range), ("equal", var, Expr), ("bounds", var, Bounds) or ("true", None, Expr)."""


def entry_key(entry: Entry) -> Any:
    """A key that is equal for equivalent entries."""
    kind, var, value = entry
    if isinstance(value, Range):
        return kind, var, _value_key(value.min), _value_key(value.extent)
    return kind, var, _value_key(value)


def _value_key(value: Any) -> Any:
    return (value.value, value.type) if isinstance(value, IntImm) else value


class KnowledgeState:
    """Knowledge, and memoized results that depend on it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.limits: dict[Var, tuple[Poly | None, Poly | None]] = {}
        self.known: dict[int, Bounds] = {}  # atom number → bounds beyond its definition
        self.facts: tuple[Poly, ...] = ()  # sums that are non-negative
        self.equal: dict[Var, Poly] = {}
        self.exact: dict[int, tuple[Var, Term]] = {}  # atom n // c → (n, c) where c divides n
        self.whole: dict[Poly, int] = {}  # divisor → a known multiple of it
        self.true: set[Expr] = set()
        self.shared = False  # by several analyzers, and therefore immutable
        self.next: dict[
            Any, KnowledgeState
        ] = {}  # of a shared state: entry → the state after learning it
        self.reset()

    def reset(self) -> None:
        """Clear all memoized results; knowledge is kept."""
        self.lifted: dict[Expr, Poly] = {}
        self.simple: dict[Expr, Expr] = {}
        self.lowered: dict[Any, Expr] = {}
        self.bounds: dict[Poly, Bounds] = {}
        self.atom_bounds: dict[int, Bounds] = {}
        self.units: dict[Poly, Any] = {}
        self.signs: dict[Poly, bool] = {}
        self.proofs: dict[Poly, bool] = {}
        self.quotients: dict[tuple[Poly, Poly], Poly] = {}
        self.reduced: dict[
            frozenset[Var], KnowledgeState
        ] = {}  # variables → knowledge without them

    def copy(self) -> KnowledgeState:
        """An unshared state with the same knowledge and no memoized results."""
        other = KnowledgeState()
        other.entries = list(self.entries)
        other.limits = dict(self.limits)
        other.known = dict(self.known)
        other.facts = self.facts
        other.equal = dict(self.equal)
        other.exact = dict(self.exact)
        other.whole = dict(self.whole)
        other.true = set(self.true)
        return other

    def narrow(self, atom: int, bounds: Bounds) -> None:
        """Record constant bounds of an atom."""
        self.known[atom] = tighter(self.known.get(atom, UNKNOWN), bounds)
