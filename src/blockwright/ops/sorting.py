"""Sort the positions of a line's elements inside a block: merge sort, and a list of the k best."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from blockwright import ir
from blockwright.ops.common import I64, ONE, ZERO, as_dim

_TRUE, _FALSE = ir.const(True, "bool"), ir.const(False, "bool")


class SortedLine(NamedTuple):
    """Statements that sort a line, and where its order is afterwards.

    Attributes:
        buffers: memory that the block must allocate.
        body: the statements.
        position: k → the position of the k-th element in the unsorted line, an int64.
    """

    buffers: tuple[ir.Buffer, ...]
    body: ir.Stmt
    position: Callable[[ir.Expr], ir.Expr]


def precedes(a: ir.Expr, b: ir.Expr, descending: bool) -> ir.Expr:
    """Whether `a` belongs strictly before `b`; NaN is the largest value."""
    if a.dtype.is_bool:
        a, b = ir.cast_to(a, "int8"), ir.cast_to(b, "int8")
    if descending:
        a, b = b, a
    less = ir.compare(ir.LT, a, b)
    if not a.dtype.is_float:
        return less
    nan = ir.all_of([ir.call("isnan", b), ir.logical_not(ir.call("isnan", a))])
    return ir.logical_or(less, nan)


def sorted_line(
    size: ir.Expr,
    before: Callable[[ir.Expr, ir.Expr], ir.Expr],
    prepare: Callable[[ir.Expr, ir.Expr], ir.Stmt] | None = None,
) -> SortedLine:
    """Sort the positions 0 … size - 1, stably.

    Arguments: `before(p, q)` tells whether the element at position p belongs strictly before that
    at q, after the statement `prepare(p, q)` if there is one.

    Runs of 1, 2, 4, … elements are merged from one half of `order` into the other.
    """
    order = ir.Buffer("order", I64, (ir.mul(size, as_dim(2)),))
    state = {name: ir.Buffer(name, I64, (ONE,)) for name in ("run", "source", "start", "i", "j")}

    def get(name: str) -> ir.Expr:
        return ir.load(state[name], ZERO)

    def put(name: str, value: ir.Expr) -> ir.Stmt:
        return ir.BufferStore(state[name], value, (ZERO,))

    def place(half: ir.Expr, k: ir.Expr) -> ir.Expr:
        return ir.call("checked_index", ir.add(half, k), ir.mul(size, as_dim(2)))

    def entry(k: ir.Expr) -> ir.Expr:
        return ir.load(order, place(get("source"), k))

    middle, end = (ir.Var(name, I64) for name in ("middle", "end"))
    left = ir.compare(ir.LT, get("i"), middle)
    right = ir.compare(ir.LT, get("j"), end)
    second = ir.if_then_else(right, before(entry(get("j")), entry(get("i"))), _FALSE)
    to = place(ir.sub(size, get("source")), ir.sub(ir.add(get("i"), get("j")), middle))

    def take(name: str) -> ir.Stmt:
        return ir.seq(
            [ir.BufferStore(order, entry(get(name)), (to,)), put(name, ir.add(get(name), ONE))]
        )

    step: ir.Stmt = ir.IfThenElse(ir.if_then_else(left, second, _TRUE), take("j"), take("i"))
    if prepare is not None:
        both = ir.logical_and(left, right)
        step = ir.seq([ir.IfThenElse(both, prepare(entry(get("j")), entry(get("i")))), step])
    merge = ir.While(ir.logical_or(left, right), step)
    runs: ir.Stmt = ir.seq([put("i", get("start")), put("j", middle), merge, put("start", end)])
    runs = ir.LetStmt(end, ir.minimum(ir.add(middle, get("run")), size), runs)
    runs = ir.LetStmt(middle, ir.minimum(ir.add(get("start"), get("run")), size), runs)
    sweep = ir.seq(
        [
            put("start", ZERO),
            ir.While(ir.compare(ir.LT, get("start"), size), runs),
            put("source", ir.sub(size, get("source"))),
            put("run", ir.mul(get("run"), as_dim(2))),
        ]
    )
    k = ir.Var("k", I64)
    first = ir.For(k, ZERO, size, ir.ForKind.SERIAL, ir.BufferStore(order, k, (k,)))
    body = ir.seq(
        [
            put("source", ZERO),
            put("run", ONE),
            first,
            ir.While(ir.compare(ir.LT, get("run"), size), sweep),
        ]
    )
    return SortedLine((order, *state.values()), body, entry)


def shortlist(
    size: ir.Expr,
    count: int,
    dtype: ir.DType,
    element: Callable[[ir.Expr], ir.Expr],
    before: Callable[[ir.Expr, ir.Expr], ir.Expr],
) -> SortedLine:
    """Sort the first `count` positions of a line's order only, by insertion.

    Arguments: `element(p)` is the element at position p, and `before(a, b)` tells whether element a
    belongs strictly before b.
    """
    best = ir.Buffer("best", dtype, (as_dim(count),))
    chosen = ir.Buffer("chosen", I64, (as_dim(count),))
    filled, free = (ir.Buffer(name, I64, (ONE,)) for name in ("filled", "free"))
    now, at = ir.load(filled, ZERO), ir.load(free, ZERO)
    p, value = ir.Var("p", I64), ir.Var("value", dtype)

    def slot(k: ir.Expr) -> ir.Expr:
        return ir.call("checked_index", k, as_dim(count))

    def chosen_at(k: ir.Expr) -> ir.Expr:
        return ir.load(chosen, k)

    last, previous = slot(ir.sub(now, ONE)), slot(ir.sub(at, ONE))
    missing = ir.compare(ir.LT, now, as_dim(count))
    some = ir.compare(ir.LT, ZERO, at)
    shift = ir.seq(
        [
            ir.BufferStore(best, ir.load(best, previous), (slot(at),)),
            ir.BufferStore(chosen, ir.load(chosen, previous), (slot(at),)),
            ir.BufferStore(free, ir.sub(at, ONE), (ZERO,)),
        ]
    )
    moves = ir.if_then_else(some, before(value, ir.load(best, previous)), _FALSE)
    insert = ir.seq(
        [
            ir.BufferStore(free, ir.minimum(now, as_dim(count - 1)), (ZERO,)),
            ir.While(moves, shift),
            ir.BufferStore(best, value, (slot(at),)),
            ir.BufferStore(chosen, p, (slot(at),)),
            ir.BufferStore(filled, ir.minimum(ir.add(now, ONE), as_dim(count)), (ZERO,)),
        ]
    )
    better = before(value, ir.load(best, last))
    visit = ir.IfThenElse(ir.if_then_else(missing, _TRUE, better), insert)
    loop = ir.For(p, ZERO, size, ir.ForKind.SERIAL, ir.LetStmt(value, element(p), visit))
    body = ir.seq([ir.BufferStore(filled, ZERO, (ZERO,)), loop])
    return SortedLine((best, chosen, filled, free), body, chosen_at)
