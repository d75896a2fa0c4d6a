"""Non-temporal stores to unaligned rows: vectors are realigned to cache lines in registers.

    for c in …: row[16 * c : 16 * c + 16] = v      # k elements after a line start

    for c in …: line c = the last k elements of the previous v, and the first 16 - k of v
    final line = the last k elements of the last v

A non-temporal store fills a whole line, and rows of an odd length do not begin at one. The two
lines that a row shares with its neighbors are written with masked, ordinary stores. With AVX-512,
one permute instruction combines two vectors into a line. With AVX2 the code works on half lines:
each vector is rotated by k lanes, and its last lanes are held for the next store. On other targets
such rows are stored without realignment.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from blockwright.analysis.access.tree import jumps
from blockwright.arith import Analyzer
from blockwright.codegen.llvm import integers
from blockwright.codegen.llvm.context import FunctionContext
from blockwright.codegen.llvm.values import (
    Value,
    float_const,
    int_const,
    lane_consts,
    vector,
)
from blockwright.ir import (
    AttrStmt,
    BufferStore,
    Expr,
    For,
    LetStmt,
    SeqStmt,
    Stmt,
    Var,
    build,
    cast_to,
    collect,
    free_vars,
    match_types,
    substitute,
)
from blockwright.ir import expr as E

if TYPE_CHECKING:
    from blockwright.codegen.llvm.expr import ExprEmitter

_WIDE, _NARROW = 16, 8  # floats per line, and per half line
_FEWEST = 4  # minimum number of vectors per row; shorter rows are mostly unaligned head and tail


class Shifted(msgspec.Struct):
    """The stores of one loop to a row. With AVX2, a line here means a half line.

    Attributes:
        stores: in order; each stores the vector after the previous one.
        lanes: lanes of a vector, which fills a line.
        behind: bytes from the start of a line to the start of the row.
        order: the permutation that builds a line from the previous and the current vector.
        held: memory that holds the previous vector.
        first: whether this is the first iteration of the loop; set inside of it.
    """

    stores: tuple[BufferStore, ...]
    lanes: int
    behind: Value
    order: Value
    held: Value
    first: Value | None = None

    def store(self, c: ExprEmitter, stmt: BufferStore, value: Value, pointer: Value) -> None:
        """Store the line that a vector completes."""
        e, line_bytes = c.e, 4 * self.lanes
        value = self._turned(c, value)
        line = self._line(c, e.load(value.type, self.held, line_bytes), value)
        e.store(value, self.held, line_bytes)
        place = self._place(c, pointer)
        if stmt is not self.stores[0]:
            e.store(line, place, line_bytes, nontemporal=True)
            return
        assert self.first is not None
        part, whole, done = (e.fresh(n) for n in ("part", "whole", "stored"))
        e.branch_if(self.first, part, whole, likely=False)
        e.label(part)
        self._store_part(c, line, place, "uge")
        e.branch(done)
        e.label(whole)
        e.store(line, place, line_bytes, nontemporal=True)
        e.branch(done)
        e.label(done)

    def finish(self, c: ExprEmitter, pointer: Value) -> None:
        """Store the rest of the last vector; `pointer` is the end of the row stored so far."""
        held = c.e.load(vector("float", self.lanes), self.held, 4 * self.lanes)
        self._store_part(c, self._line(c, held, held), self._place(c, pointer), "ult")

    def _turned(self, c: ExprEmitter, value: Value) -> Value:
        """The vector rotated to its lanes in lines, on targets that need two steps (AVX2)."""
        if self.lanes == _WIDE:
            return value
        return c.e.intrinsic("x86.avx2.permps", value.type, value, self.order)

    def _line(self, c: ExprEmitter, before: Value, value: Value) -> Value:
        """Combine two vectors that are `_turned` into a line."""
        if self.lanes == _WIDE:
            name = "x86.avx512.vpermi2var.ps.512"
            return c.e.intrinsic(name, value.type, before, self.order, value)
        return c.e.select(self._lanes_of_row(c, "ult"), before, value)

    def _lanes_of_row(self, c: ExprEmitter, which: str) -> Value:
        """A mask of the lanes of a line at or after the row's start ("uge"), or before ("ult")."""
        count = c.e.splat(_elements(c, self.behind), self.lanes)
        return c.e.compare(which, lane_consts(range(self.lanes), "i32"), count)

    def _place(self, c: ExprEmitter, pointer: Value) -> Value:
        return c.e.offset(pointer, c.e.binary("sub", int_const(0), self.behind))

    def _store_part(self, c: ExprEmitter, line: Value, place: Value, which: str) -> None:
        """Store the row's lanes of its first line ("uge"), or of the line after its end ("ult")."""
        c.e.masked_store(line, place, 4 * self.lanes, self._lanes_of_row(c, which))


def begin(c: ExprEmitter, loop: For) -> list[Shifted]:
    """Set up realignment before a loop, for each row that it stores unaligned."""
    return [_ready(c, loop, stores) for stores in _rows(c, loop)]


@contextmanager
def moving(
    context: FunctionContext, rows: Sequence[Shifted], index: Value, low: Value
) -> Generator[None]:
    """The body of the loop with variable `index`, whose first value is `low`."""
    outer = context.shifted
    if rows:
        first = context.e.compare("eq", index, low)
        for row in rows:
            row.first = first
        context.shifted = {**outer, **{store: row for row in rows for store in row.stores}}
    yield
    context.shifted = outer


def end(c: ExprEmitter, loop: For, rows: Sequence[Shifted], low: Value, high: Value) -> None:
    """Store the rest of each row after the loop."""
    if not rows:
        return
    behind = build.add(loop.min, loop.extent)
    c.forget()  # values computed in the loop are invalid here: it may have run no iteration
    with c.e.guarded(c.e.compare("slt", low, high)), c.scope():
        for row in rows:
            row.finish(c, _pointer(c, row.stores[0], loop.loop_var, behind))


def _ready(c: ExprEmitter, loop: For, stores: tuple[BufferStore, ...]) -> Shifted:
    e, lanes = c.e, _lanes(c.context)
    start = e.convert("ptrtoint", _pointer(c, stores[0], loop.loop_var, loop.min), "i64")
    behind = e.binary("and", start, int_const(4 * lanes - 1))
    skipped = e.binary("sub", int_const(lanes, "i32"), _elements(c, behind))
    order = e.binary("add", lane_consts(range(lanes), "i32"), e.splat(skipped, lanes))
    held = e.stack(4 * lanes)
    e.store(float_const(0.0, vector("float", lanes)), held, 4 * lanes)
    return Shifted(stores, lanes, behind, order, held)


def _lanes(context: FunctionContext) -> int:
    """Lanes of a realigned vector; 0 on targets without the instructions."""
    target = context.module.target
    return _WIDE if target.cheap_predication else _NARROW if target.has("avx2") else 0


def _elements(c: ExprEmitter, nbytes: Value) -> Value:
    return c.e.convert("trunc", c.e.binary("lshr", nbytes, int_const(2)), "i32")


def _pointer(c: ExprEmitter, store: BufferStore, var: Var, at: Expr) -> Value:
    """The address of a store when the loop variable has a given value."""
    index = substitute(_base(store), {var: cast_to(at, var.type)})
    return c.e.offset(c.context.memory(store.buffer).pointer, c.index(index), 4)


def _rows(c: ExprEmitter, loop: For) -> Iterator[tuple[BufferStore, ...]]:
    """Stores that fill a row contiguously, vector by vector, and may be unaligned."""
    context, lanes = c.context, _lanes(c.context)
    count = integers.constant_of(loop.extent)
    if not context.streamed or not lanes or c.mask is not None:
        return
    if jumps(loop.body):
        return  # no store may be skipped: each vector completes the line of the previous one
    straight = [s for s in _straight(loop.body) if isinstance(s, BufferStore)]
    everywhere = collect(loop.body, BufferStore)
    for buffer in dict.fromkeys(s.buffer for s in straight if s.buffer in context.streamed):
        stores = tuple(s for s in straight if s.buffer is buffer)
        if (
            sum(s.buffer is buffer for s in everywhere) == len(stores)
            and (count is None or count * len(stores) >= _FEWEST)
            and all(_is_vector(store, lanes) for store in stores)
            and _side_by_side(stores, loop, lanes)
            and context.alignment(context.memory(buffer), stores[0].indices[0], 4) % (4 * lanes)
            and all(
                v is loop.loop_var or v in context.variables for v in free_vars(_base(stores[0]))
            )
        ):
            yield stores


def _straight(stmt: Stmt) -> Iterator[Stmt]:
    """Statements that every iteration executes exactly once."""
    if isinstance(stmt, SeqStmt):
        for part in stmt.seq:
            yield from _straight(part)
    elif isinstance(stmt, (LetStmt, AttrStmt)):
        yield from _straight(stmt.body)
    else:
        yield stmt


def _is_vector(store: BufferStore, lanes: int) -> bool:
    """Whether the store writes `lanes` contiguous floats without a mask."""
    (index,) = store.indices
    return (
        isinstance(index, E.Ramp)
        and integers.constant_of(index.stride) == 1
        and index.lanes == lanes
        and store.predicate is None
        and str(store.buffer.dtype) == "float32"
        and not collect(index.base, E.BufferLoad)
    )


def _base(store: BufferStore) -> Expr:
    index = store.indices[0]
    assert isinstance(index, E.Ramp)
    return index.base


def _side_by_side(stores: tuple[BufferStore, ...], loop: For, lanes: int) -> bool:
    """Whether the vectors are contiguous within an iteration and across iterations."""
    first, after = _base(stores[0]), build.add(loop.loop_var, 1)
    known = Analyzer()

    def distance(index: Expr) -> int | None:
        return integers.constant_of(known.simplify(build.sub(*match_types(index, first))))

    return all(distance(_base(s)) == lanes * k for k, s in enumerate(stores)) and (
        distance(substitute(first, {loop.loop_var: after})) == lanes * len(stores)
    )
