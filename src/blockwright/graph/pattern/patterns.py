"""Patterns of graph values: conditions that combine to larger ones.

    x, w = wildcard(), is_const()
    product = is_op("matmul")(x, w)
    biased = product.optional(lambda p: is_op("add")(p, is_const().named("bias")))

matches `add(matmul(x, w), b)` and `matmul(x, w)` for constant w. A pattern object stands for one
value: `is_op("add")(x, x)` matches the sum of a value with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any

import msgspec

from blockwright import ir
from blockwright.graph.pattern.index import GraphIndex
from blockwright.graph.pattern.matcher import Match, Matcher, State, call_attrs
from blockwright.ops.row import dims_text
from blockwright.ops.table import OPERATORS
from blockwright.support import GraphError
from blockwright.support.stack import deep

Dim = int | str | ir.Expr | None
Step = Callable[["Pattern"], "Pattern"]
Test = Callable[[Matcher, ir.GraphExpr, State], "State | str"]


class Pattern(msgspec.Struct, frozen=True, eq=False):
    """A condition on a graph value; `graph.pattern.elementary` has the elementary ones."""

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        """All ways to match a value, given what is decided so far."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------- combination
    def __or__(self, other: Pattern) -> Pattern:
        """Either pattern; the left one is preferred."""
        return _Either(self, required_pattern(other, "a side of |"))

    def __and__(self, other: Pattern) -> Pattern:
        """Both patterns, of the same value."""
        return _Both(self, required_pattern(other, "a side of &"))

    def __getitem__(self, index: int) -> Pattern:
        """An item of a tuple that matches this pattern."""
        return _Item(self, index)

    def optional(self, step: Step) -> Pattern:
        """`step(self)` if it matches, else the pattern itself."""
        return _Either(required_pattern(step(self), "the step of optional"), self)

    def repeated(self, step: Step, at_least: int = 0, at_most: int | None = None) -> Pattern:
        """A chain: `step` applied to this pattern any number of times, the longest preferred.

        `step` is called for each link, so that patterns made inside it match anew in each.
        """
        return _Repeated(self, step, at_least, at_most)

    def through(self, *operators: str) -> Pattern:
        """A value computed from this one and constants by the given operators only.

        The calls between form any DAG that this value dominates: every path into it starts here,
        and calls outside of it read its last value only. The smallest DAG is preferred, which may
        be the value itself.
        """
        return _Dominated(self, known_operators(operators))

    # ------------------------------------------------------------------------------- conditions
    def named(self, name: str) -> Pattern:
        """Capture the value as `match[name]`; `match.all(name)` if the name captures several."""
        return _Named(self, name)

    def used_only_inside(self) -> Pattern:
        """Require that only calls of the match read the value."""

        def inside(matcher: Matcher, value: ir.GraphExpr, state: State) -> State | str:
            if not isinstance(value, ir.GraphVar):
                return state
            return state.having(inside=(*state.inside, value))

        return _Tested(self, inside)

    def has_dtype(self, *dtypes: str) -> Pattern:
        """Require a tensor of one of these element types."""
        wanted = [ir.dtype_of(dtype) for dtype in dtypes]

        def test(matcher: Matcher, value: ir.GraphExpr, state: State) -> State | str:
            info = value.info
            if isinstance(info, ir.TensorInfo) and info.dtype in wanted:
                return state
            return f"the element type of {described(matcher, value)} is not {' or '.join(dtypes)}"

        return _Tested(self, test)

    def has_rank(self, rank: int) -> Pattern:
        """Require a tensor of this many dimensions."""

        def test(matcher: Matcher, value: ir.GraphExpr, state: State) -> State | str:
            info = value.info
            if isinstance(info, ir.TensorInfo) and info.rank == rank:
                return state
            return f"the rank of {described(matcher, value)} is not {rank}"

        return _Tested(self, test)

    def has_shape(self, *dims: Dim | EllipsisType) -> Pattern:
        """Require a shape whose sizes are proved equal to the given ones.

        Arguments: each of `dims` is a number; an expression over the function's symbols; a name, of
            a size that is the same wherever a pattern mentions it (`match.dims[name]`); or None for
            any size. `...` in the first place stands for any number of leading dimensions.
        """
        return _Tested(self, lambda matcher, value, state: _shaped(matcher, value, state, dims))

    def has_attrs(self, **attrs: Any) -> Pattern:
        """Require attributes of a call: values, or functions that accept a value.

        Attributes that the call leaves out have the operator's defaults.
        """

        def test(matcher: Matcher, value: ir.GraphExpr, state: State) -> State | str:
            call = matcher.index.definition(value)
            if not isinstance(call, ir.GraphCall):
                return f"{described(matcher, value)} is not a call"
            given = call_attrs(call)
            for name, wanted in attrs.items():
                if name not in given:
                    return f"{described(matcher, value)} has no attribute {name}"
                held = given[name]
                accepted = wanted(held) if callable(wanted) else _plain(held) == _plain(wanted)
                if not accepted:
                    return f"{described(matcher, value)} has {name}={held!r}"
            return state

        return _Tested(self, test)

    def where(self, predicate: Callable[[ir.GraphExpr], object], why: str = "") -> Pattern:
        """Require a predicate of the value, a variable or constant with its annotation.

        Arguments: `why` tells in an explanation what the predicate requires.
        """

        def test(matcher: Matcher, value: ir.GraphExpr, state: State) -> State | str:
            if predicate(value):
                return state
            return (
                f"{described(matcher, value)} does not meet {why or 'a condition of the pattern'}"
            )

        return _Tested(self, test)

    # ------------------------------------------------------------------------------- in functions
    @deep
    def matches(self, function: ir.GraphFunction, module: ir.IRModule | None = None) -> list[Match]:
        """The preferred match at each variable whose value matches, in program order."""
        matcher = Matcher(GraphIndex(function, module))
        found = (next(matcher.embeddings(self, var), None) for var in matcher.index.order)
        return [match for match in found if match is not None]

    @deep
    def explain(self, function: ir.GraphFunction, module: ir.IRModule | None = None) -> Explanation:
        """The candidates in a function, values whose outermost operator matches, with the reason
        why each one matches or not."""
        matcher = Matcher(GraphIndex(function, module))
        candidates: list[Candidate] = []
        for var in matcher.index.order:
            match = next(matcher.embeddings(self, var), None)
            failure = matcher.failure
            if match is not None:
                candidates.append(Candidate(var.name, matcher.index.described(var), True, ""))
            elif failure is not None and failure.depth:
                text = matcher.index.described(var)
                candidates.append(Candidate(var.name, text, False, failure.why))
        return Explanation(tuple(candidates), len(matcher.index.order))


class Candidate(msgspec.Struct, frozen=True):
    """A value whose outermost operator is that of a pattern. `why` tells why it does not match."""

    name: str
    text: str
    matched: bool
    why: str


class Explanation(msgspec.Struct, frozen=True):
    """Where a pattern matches in a function, and where not; `str` gives one line per candidate."""

    candidates: tuple[Candidate, ...]
    values: int

    def __str__(self) -> str:
        lines = [
            f"{c.text}: {'matches' if c.matched else f'no match, {c.why}'}" for c in self.candidates
        ]
        others = self.values - len(self.candidates)
        return "\n".join([*lines, f"{others} other values have another operator"])


# ---------------------------------------------------------------------------------- combinations
class _Item(Pattern, frozen=True, eq=False):
    whole: Pattern
    index: int

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        item = matcher.index.definition(value)
        if isinstance(item, ir.TupleGetItem) and item.index == self.index:
            entered = matcher.enter(value, state)
            if entered is not None:
                yield from matcher.match(self.whole, item.tuple_value, entered)
        else:
            matcher.fail(state, f"{described(matcher, value)} is not item {self.index} of a tuple")


class _Either(Pattern, frozen=True, eq=False):
    first: Pattern
    second: Pattern

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        yield from matcher.match(self.first, value, state)
        yield from matcher.match(self.second, value, state)


class _Both(Pattern, frozen=True, eq=False):
    first: Pattern
    second: Pattern

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        for result in matcher.match(self.first, value, state):
            yield from matcher.match(self.second, value, result)


class _Repeated(Pattern, frozen=True, eq=False):
    start: Pattern
    step: Step
    least: int
    most: int | None

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        if self.most is None or self.most > 0:
            most = None if self.most is None else self.most - 1
            shorter = _Repeated(self.start, self.step, max(self.least - 1, 0), most)
            link = required_pattern(self.step(_Link(shorter)), "the step of repeated")
            if isinstance(link, _Link):
                raise GraphError(
                    "the step of a repeated pattern returns its argument",
                    code="BW422",
                    help='apply an operator to it: lambda p: is_op("relu")(p)',
                )
            yield from matcher.match(link, value, state)
        if self.least == 0:
            yield from matcher.match(self.start, value, state)


class _Link(Pattern, frozen=True, eq=False):
    """The rest of a chain, which its step receives."""

    rest: Pattern

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        yield from matcher.match(self.rest, value, state)


class _Dominated(Pattern, frozen=True, eq=False):
    start: Pattern
    operators: frozenset[str]

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        for head in self._heads(matcher.index, value):
            inner = self._between(matcher.index, value, head)
            if inner is None:
                continue
            entered: State | None = state
            for var in inner:
                entered = None if entered is None else matcher.enter(var, entered)
            if entered is not None:
                private = tuple(var for var in inner if var is not value)
                entered = entered.having(inside=(*entered.inside, *private))
                yield from matcher.match(self.start, head, entered)

    def _heads(self, index: GraphIndex, value: ir.GraphExpr) -> list[ir.GraphExpr]:
        """The value and all that it is computed from by the operators, the nearest first."""
        found: dict[ir.GraphExpr, None] = {value: None}
        queue = [value]
        while queue:
            call = index.definition(queue.pop(0))
            if operator_name(call) in self.operators and isinstance(call, ir.GraphCall):
                for operand in map(index.resolve, index.operands(call)):
                    if operand not in found and not isinstance(operand, ir.Constant):
                        found[operand] = None
                        queue.append(operand)
        return list(found)

    def _between(
        self, index: GraphIndex, value: ir.GraphExpr, head: ir.GraphExpr
    ) -> list[ir.GraphVar] | None:
        """The calls from `head` to `value`; None if they need another value that is no constant."""
        found: dict[ir.GraphVar, None] = {}
        queue = [value]
        while queue:
            item = queue.pop(0)
            if item is head or isinstance(item, ir.Constant) or item in found:
                continue
            call = index.definition(item)
            if operator_name(call) not in self.operators or not isinstance(call, ir.GraphCall):
                return None
            if not isinstance(item, ir.GraphVar):
                return None
            found[item] = None
            queue += [index.resolve(operand) for operand in index.operands(call)]
        return list(found)


class _Named(Pattern, frozen=True, eq=False):
    pattern: Pattern
    name: str

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        for result in matcher.match(self.pattern, value, state):
            values = (*result.names.get(self.name, ()), value)
            yield result.having(names={**result.names, self.name: values})


class _Tested(Pattern, frozen=True, eq=False):
    pattern: Pattern
    test: Test

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        for result in matcher.match(self.pattern, value, state):
            tested = self.test(matcher, value, result)
            if isinstance(tested, State):
                yield tested
            else:
                matcher.fail(result, tested)


def operator_name(value: ir.GraphExpr) -> str | None:
    """The operator of a call; None for other values."""
    called = value.op if isinstance(value, ir.GraphCall) else None
    return called.name if isinstance(called, ir.OpRef) else None


def required_pattern(value: object, what: str) -> Pattern:
    """The value. Raises: GraphError BW422 if it is not a pattern."""
    if isinstance(value, Pattern):
        return value
    raise GraphError(
        f"{what} is {type(value).__name__}, not a pattern",
        code="BW422",
        help="write wildcard() for any value, is_const(2.0) for a constant",
    )


def known_operators(names: Sequence[str]) -> frozenset[str]:
    """The names as a set. Raises: GraphError BW405 for an unknown operator."""
    for name in names:
        if name not in OPERATORS:
            raise GraphError(
                f"unknown operator {name!r} in a pattern",
                code="BW405",
                help="operators are rows of blockwright.ops.table; is_program matches tensor "
                "programs, is_library library functions",
            )
    return frozenset(names)


# ------------------------------------------------------------------------------------- conditions
def described(matcher: Matcher, value: ir.GraphExpr) -> str:
    """A value in messages."""
    return f"`{matcher.index.described(value)}`"


def _plain(value: Any) -> Any:
    """A value in which lists and tuples of equal items are equal."""
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _shaped(
    matcher: Matcher, value: ir.GraphExpr, state: State, dims: tuple[Dim | EllipsisType, ...]
) -> State | str:
    info = value.info
    shape = info.shape if isinstance(info, ir.TensorInfo) else None
    if shape is None:
        return f"the shape of {described(matcher, value)} is not known"
    wanted = list(dims)
    if wanted and wanted[0] is ...:
        shape = shape[max(len(shape) - len(wanted) + 1, 0) :]
        wanted = wanted[1:]
    if len(shape) != len(wanted):
        return f"the rank of {described(matcher, value)} is not {len(wanted)}"
    known = dict(state.dims)
    for size, dim in zip(shape, wanted, strict=True):
        if dim is None or dim is ...:
            continue
        expected = known.setdefault(dim, size) if isinstance(dim, str) else dim
        if not matcher.index.analyzer.prove_equal(ir.as_expr(expected, size.dtype), size):
            text = dims_text(ir.as_expr(expected, size.dtype))
            name = f" ({dim})" if isinstance(dim, str) else ""
            size_of = f"size {dims_text(size)} of {described(matcher, value)}"
            return f"{size_of} is not known to be {text}{name}"
    return state.having(dims=known)
