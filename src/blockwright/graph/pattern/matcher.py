"""Match patterns against the values of a graph function, with backtracking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from blockwright import ir
from blockwright.graph.pattern.index import GraphIndex
from blockwright.ops.table import OPERATORS
from blockwright.support import GraphError

if TYPE_CHECKING:
    from blockwright.graph.pattern.patterns import Pattern


class State(msgspec.Struct, frozen=True):
    """What a partial match has decided.

    Attributes:
        values: pattern → the value that it matched.
        names: name of a capture → the values captured under it.
        dims: pattern dimension → size.
        calls: variables of the matched calls, the root first.
        inside: variables that may be read by matched calls only.
    """

    values: dict[Any, ir.GraphExpr] = {}
    names: dict[str, tuple[ir.GraphExpr, ...]] = {}
    dims: dict[str, ir.Expr] = {}
    calls: tuple[ir.GraphVar, ...] = ()
    inside: tuple[ir.GraphVar, ...] = ()

    def having(self, **changes: Any) -> State:
        return msgspec.structs.replace(self, **changes)


class Failure(msgspec.Struct, frozen=True):
    """Why a match failed, and how many calls had matched by then."""

    depth: int
    why: str


class Match:
    """An occurrence of a pattern in a function.

    `match["name"]` and `match[pattern]` give the captured value, a variable or constant.

    Attributes:
        root: the variable whose value the whole pattern matched.
        calls: variables of all matched calls, the root first.
        dims: pattern dimension → size, an expression over the function's symbols.
    """

    def __init__(self, index: GraphIndex, root: ir.GraphVar, state: State) -> None:
        self._index, self._state = index, state
        self.root, self.calls, self.dims = root, state.calls, dict(state.dims)

    @property
    def text(self) -> str:
        """The matched value, `y = matmul(x, w)`."""
        return self._index.described(self.root)

    def __contains__(self, key: str | Pattern) -> bool:
        return key in self._state.names if isinstance(key, str) else key in self._state.values

    def __getitem__(self, key: str | Pattern) -> ir.GraphExpr:
        """The captured value. Raises: GraphError BW422 if there is none, or several."""
        values = self.all(key)
        if len(values) == 1:
            return values[0]
        names = ", ".join(self._state.names) or "none"
        what = f"{len(values)} values are" if values else "nothing is"
        raise GraphError(
            f"{what} captured as {key!r} at {self.root.name}",
            code="BW422",
            help=f"captured names: {names}; use match.get for an optional part, match.all for a "
            "repeated one",
        )

    def get(self, key: str | Pattern) -> ir.GraphExpr | None:
        """The captured value; None if that part of the pattern did not take part in the match."""
        values = self.all(key)
        return values[0] if len(values) == 1 else None if not values else self[key]

    def all(self, key: str | Pattern) -> tuple[ir.GraphExpr, ...]:
        """All values captured under a name, in the order in which they were matched."""
        if isinstance(key, str):
            return self._state.names.get(key, ())
        return (self._state.values[key],) if key in self._state.values else ()

    def call(self, key: str | Pattern | None = None) -> ir.GraphCall:
        """The call behind a captured value; without a key, that of the root."""
        value = self._index.definition(self.root if key is None else self[key])
        if isinstance(value, ir.GraphCall):
            return value
        raise GraphError(f"{key!r} is not a call at {self.root.name}", code="BW422")

    def attrs(self, key: str | Pattern | None = None) -> dict[str, Any]:
        """The attributes of a captured call, with the defaults of its operator."""
        return call_attrs(self.call(key))

    def __repr__(self) -> str:
        shown = {n: self._index.described(v[0]) for n, v in self._state.names.items()}
        parts = ", ".join(f"{name}: {text}" for name, text in shown.items())
        return f"<Match {self.root.name}{' ' if parts else ''}{parts}>"


def call_attrs(call: ir.GraphCall) -> dict[str, Any]:
    """The attributes of a call, with the defaults of its operator."""
    row = OPERATORS.get(call.op.name) if isinstance(call.op, ir.OpRef) else None
    return {**(row.attrs if row is not None else {}), **call.attrs}


class Matcher:
    """Matches patterns in one function. `failure` is the furthest failure since `embeddings`."""

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self.failure: Failure | None = None

    def embeddings(self, pattern: Pattern, root: ir.GraphVar) -> Iterator[Match]:
        """All ways in which the pattern matches a variable's value, the preferred one first."""
        self.failure = None
        for state in self.match(pattern, root, State()):
            if self._closed(state):
                yield Match(self.index, root, state)

    def match(self, pattern: Pattern, value: ir.GraphExpr, state: State) -> Iterator[State]:
        """Match one pattern. The same pattern object always matches the same value."""
        value = self.index.resolve(value)
        known = state.values.get(pattern)
        if known is None:
            for result in pattern.steps(self, value, state):
                yield result.having(values={**result.values, pattern: value})
        elif same_value(known, value):
            yield state
        else:
            self.fail(
                state,
                f"{self.index.described(value)} must be {self.index.described(known)}, which the "
                "same pattern matched",
            )

    def match_all(
        self, patterns: Sequence[Pattern], values: Sequence[ir.GraphExpr], state: State
    ) -> Iterator[State]:
        """Match patterns against values, pair by pair."""
        if not patterns:
            yield state
            return
        for result in self.match(patterns[0], values[0], state):
            yield from self.match_all(patterns[1:], values[1:], result)

    def enter(self, value: ir.GraphExpr, state: State) -> State | None:
        """Add a call to the match; None if an effect lies between it and the root."""
        if not isinstance(value, ir.GraphVar) or value in state.calls:
            return state
        regions = self.index.regions
        if state.calls and regions[value] != regions[state.calls[0]]:
            barrier = self.index.barrier(max(regions[value], regions[state.calls[0]]))
            self.fail(state, f"{barrier} lies between {value.name} and {state.calls[0].name}")
            return None
        return state.having(calls=(*state.calls, value))

    def fail(self, state: State, why: str) -> None:
        """Note a failure; the one after the most matched calls is kept."""
        depth = len(state.calls)
        if self.failure is None or depth > self.failure.depth:
            self.failure = Failure(depth, why)

    def _closed(self, state: State) -> bool:
        """Whether values that may be read inside the match only are."""
        for var in state.inside:
            if var is state.calls[0]:
                continue  # readers of the root read its replacement
            for reader in self.index.readers.get(var, ()):
                if reader not in state.calls:
                    who = "the result of the function or a match_cast"
                    who = who if reader is None else reader.name
                    self.fail(state, f"{var.name} is also read by {who}, outside of the match")
                    return False
        return True


def same_value(a: ir.GraphExpr, b: ir.GraphExpr) -> bool:
    """Whether two operands are the same value; constants compare by type and elements."""
    if a is b:
        return True
    both = isinstance(a, ir.Constant) and isinstance(b, ir.Constant)
    return both and ir.structural_equal(a, b)
