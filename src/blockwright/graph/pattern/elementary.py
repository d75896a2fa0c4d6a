"""Elementary patterns: any value, constants, parameters, calls, tuples."""

from __future__ import annotations

from collections.abc import Iterator
from types import EllipsisType

import numpy as np

from blockwright import ir
from blockwright.graph.pattern.index import callee_name
from blockwright.graph.pattern.matcher import Matcher, State
from blockwright.graph.pattern.patterns import (
    Pattern,
    described,
    known_operators,
    operator_name,
    required_pattern,
)

COMMUTATIVE = frozenset({
    "add", "multiply", "maximum", "minimum", "fmax", "fmin", "equal", "not_equal", "logical_and",
    "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor",
})  # fmt: skip
"""Operators whose operands a pattern matches in both orders."""


class _Wildcard(Pattern, frozen=True, eq=False):
    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        yield state


class _Const(Pattern, frozen=True, eq=False):
    value: float | None = None

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        if not isinstance(value, ir.Constant):
            matcher.fail(state, f"{described(matcher, value)} is not a constant")
        elif self.value is not None and not _all_equal(value, self.value):
            matcher.fail(state, f"{described(matcher, value)} is not {self.value} everywhere")
        else:
            yield state


class _Parameter(Pattern, frozen=True, eq=False):
    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        if value in matcher.index.function.params:
            yield state
        else:
            matcher.fail(state, f"{described(matcher, value)} is not a parameter")


class CallPattern(Pattern, frozen=True, eq=False):
    """A call of an operator, tensor program or library function; call it with operand patterns.

    Without operand patterns, it matches all operands; after `...`, any further ones.
    """

    operators: tuple[str, ...]
    callees: tuple[str, ...] = ()
    args: tuple[Pattern, ...] | None = None
    more: bool = False

    def __call__(self, *args: Pattern | EllipsisType) -> CallPattern:
        more = bool(args) and args[-1] is ...
        given = args[:-1] if more else args
        what = f"an operand of the pattern of {' or '.join(self.callees or self.operators)}"
        patterns = tuple(required_pattern(arg, what) for arg in given)
        return CallPattern(self.operators, self.callees, patterns, more)

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        call = matcher.index.definition(value)
        if not self._heads(call):
            wanted = " or ".join(self.callees or self.operators)
            matcher.fail(state, f"{described(matcher, value)} is not a call of {wanted}")
            return
        entered = matcher.enter(value, state)
        if entered is None:
            return
        if self.args is None:
            yield entered
            return
        assert isinstance(call, ir.GraphCall)
        operands = matcher.index.operands(call)
        count = len(self.args)
        if len(operands) < count or (len(operands) > count and not self.more):
            matcher.fail(entered, f"{described(matcher, value)} has {len(operands)} operands")
            return
        yield from matcher.match_all(self.args, operands, entered)
        if count == 2 and not self.more and operator_name(call) in COMMUTATIVE:
            yield from matcher.match_all(self.args, operands[::-1], entered)

    def _heads(self, call: ir.GraphExpr) -> bool:
        if operator_name(call) not in self.operators or not isinstance(call, ir.GraphCall):
            return False
        return not self.callees or callee_name(call) in self.callees


class _Tuple(Pattern, frozen=True, eq=False):
    fields: tuple[Pattern, ...]

    def steps(self, matcher: Matcher, value: ir.GraphExpr, state: State) -> Iterator[State]:
        whole = matcher.index.definition(value)
        if isinstance(whole, ir.TupleExpr) and len(whole.fields) == len(self.fields):
            entered = matcher.enter(value, state)
            if entered is not None:
                yield from matcher.match_all(self.fields, whole.fields, entered)
        else:
            count = len(self.fields)
            matcher.fail(state, f"{described(matcher, value)} is not a tuple of {count}")


def wildcard() -> Pattern:
    """Any value."""
    return _Wildcard()


def is_const(value: float | None = None) -> Pattern:
    """A constant; with `value`, one whose elements all have that value."""
    return _Const(value)


def is_parameter() -> Pattern:
    """A parameter of the function."""
    return _Parameter()


def is_op(*names: str) -> CallPattern:
    """A call of one of these operators: `is_op("matmul")(a, b)`.

    Operands match in order, those of commutative operators in both orders.

    Raises: GraphError BW405 for an unknown operator.
    """
    return CallPattern(tuple(known_operators(names)))


def is_program(*names: str) -> CallPattern:
    """A `call_tir` of one of these tensor programs of the module; without names, of any."""
    return CallPattern(("call_tir",), names)


def is_library(*names: str) -> CallPattern:
    """A `call_dps_library` of one of these functions; without names, of any."""
    return CallPattern(("call_dps_library",), names)


def is_tuple(*fields: Pattern) -> Pattern:
    """A tuple of values."""
    return _Tuple(tuple(required_pattern(f, "a field of is_tuple") for f in fields))


def _all_equal(constant: ir.Constant, value: float) -> bool:
    return bool(np.all(constant.data == np.asarray(value)))
