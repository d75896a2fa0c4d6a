"""Recognising reductions: `B[i] = combine(B[i], x)` with an initial value that is neutral."""

from __future__ import annotations

import math
from typing import NoReturn

import msgspec

from blockwright import ir
from blockwright.schedule.state import State

_COMBINERS = (ir.Add, ir.Mul, ir.Max, ir.Min)


Combiner = type[ir.Add | ir.Mul | ir.Max | ir.Min | ir.And | ir.Or]


class Reduction(msgspec.Struct, frozen=True):
    """A recognised reduction block.

    Attributes:
        store: the update.
        combiner: class of the combining expression (Add, Mul, Max, Min, And, Or).
        term: what is combined into the element.
        identity: the neutral initial value.
    """

    store: ir.BufferStore
    combiner: Combiner
    term: ir.Expr
    identity: ir.Expr

    def combine(self, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        return self.combiner(a, b)


def reduction_of(state: State, block: ir.Block) -> Reduction:
    """The reduction a block computes; fails with the reason when it is none that is known."""
    store, init = block.body, block.init
    if not isinstance(store, ir.BufferStore) or not isinstance(init, ir.BufferStore):
        _refuse(state, block, "it is not one update with an initial value")
    same = init.buffer is store.buffer and ir.structural_equal(init.indices, store.indices)
    if not same:
        _refuse(state, block, "the initial value goes to another element than the update")
    value = store.value
    if not isinstance(value, (*_COMBINERS, ir.And, ir.Or)):
        _refuse(state, block, "the update is no sum, product, minimum, maximum, and, or")
    for own, term in ((value.a, value.b), (value.b, value.a)):
        if is_element(own, store) and not touches(term, store.buffer):
            if not is_neutral(type(value), init.value):
                _refuse(state, block, f"{init.value!r} is not neutral for the update")
            return Reduction(store, type(value), term, init.value)
    return _refuse(state, block, "the update does not combine the element with something else")


def is_element(expr: ir.Expr, store: ir.BufferStore) -> bool:
    """Whether an expression reads the element that a store writes."""
    return (
        isinstance(expr, ir.BufferLoad)
        and expr.buffer is store.buffer
        and ir.structural_equal(expr.indices, store.indices)
    )


def touches(expr: ir.Expr, buffer: ir.Buffer) -> bool:
    """Whether an expression reads a buffer anywhere."""
    return any(isinstance(n, ir.BufferLoad) and n.buffer is buffer for n in ir.walk(expr))


def is_neutral(combiner: Combiner, value: ir.Expr) -> bool:
    """Whether combining with `value` changes nothing, for every other operand."""
    if not isinstance(value, (ir.IntImm, ir.FloatImm)):
        return False
    number, dtype = value.value, value.dtype
    if combiner is ir.Add:
        return number == 0
    if combiner is ir.Mul:
        return number == 1
    if combiner is ir.And:
        return bool(number)
    if combiner is ir.Or:
        return not number
    low = -math.inf if dtype.is_float else dtype.min_value
    high = math.inf if dtype.is_float else dtype.max_value
    return number == (low if combiner is ir.Max else high)


def _refuse(state: State, block: ir.Block, why: str) -> NoReturn:
    state.fail(f"{block.name} is no reduction that can be split up: {why}", code="BW330",
               guilty=[block], help="write it as B[i] = B[i] + x with an init")  # fmt: skip
