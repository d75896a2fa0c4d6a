"""Rows that begin within a line of memory: vectors are moved to lines and stored past the caches.

    for c in …: row[16 * c : 16 * c + 16] = v      # the row begins k elements behind a line

    for c in …: line c = the last k elements of the v before, and the first 16 - k of v
    the line after = the last k elements of the last v

A store past the caches fills a whole line, and rows of an odd length do not begin at one. The two
lines of a row that it shares with its neighbours are stored in part, and not past the caches. What
moves the elements is one instruction of AVX-512; without it such rows are stored as they are.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from blockwright.analysis.tree import jumps
from blockwright.arith import Analyzer
from blockwright.codegen import integers
from blockwright.codegen.context import Context
from blockwright.codegen.values import Value, float_const, int_const, lane_consts
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
    collect,
    free_vars,
    substitute,
)
from blockwright.ir import expr as E

if TYPE_CHECKING:
    from blockwright.codegen.expr import ExprCompiler

_LINE, _LANES = 64, 16
_VECTOR, _MASK = "<16 x float>", "<16 x i1>"
_FEWEST = 4  # vectors of a row, below which its ends are most of it


class Shifted(msgspec.Struct):
    """The stores of one loop to a row.

    Attributes:
        stores: in order, each a vector behind the one before.
        behind: bytes from a line to the beginning of the row.
        order: which elements of the vector before, and of this one, make a line.
        held: memory of the vector before.
        first: whether the loop is in its first iteration; known inside of it.
    """

    stores: tuple[BufferStore, ...]
    behind: Value
    order: Value
    held: Value
    first: Value | None = None

    def store(self, c: ExprCompiler, stmt: BufferStore, value: Value, pointer: Value) -> None:
        """Stores the line that a vector completes."""
        e = c.e
        line = self._line(c, e.load(_VECTOR, self.held, _LINE), value)
        e.store(value, self.held, _LINE)
        place = self._place(c, pointer)
        if stmt is not self.stores[0]:
            e.store(line, place, _LINE, past_caches=True)
            return
        assert self.first is not None
        part, whole, done = (e.fresh(n) for n in ("part", "whole", "stored"))
        e.branch_if(self.first, part, whole, likely=False)
        e.label(part)
        self._store_part(c, line, place, "uge")
        e.branch(done)
        e.label(whole)
        e.store(line, place, _LINE, past_caches=True)
        e.branch(done)
        e.label(done)

    def finish(self, c: ExprCompiler, pointer: Value) -> None:
        """Stores what is left of the last vector; `pointer`: behind what the loop has stored."""
        held = c.e.load(_VECTOR, self.held, _LINE)
        self._store_part(c, self._line(c, held, held), self._place(c, pointer), "ult")

    def _line(self, c: ExprCompiler, before: Value, value: Value) -> Value:
        return c.e.intrinsic("x86.avx512.vpermi2var.ps.512", _VECTOR, before, self.order, value)

    def _place(self, c: ExprCompiler, pointer: Value) -> Value:
        return c.e.offset(pointer, c.e.binary("sub", int_const(0), self.behind))

    def _store_part(self, c: ExprCompiler, line: Value, place: Value, which: str) -> None:
        """Stores the lanes that are the row's ("uge"), or of the line after, those that are."""
        e, name = c.e, "llvm.masked.store.v16f32.p0"
        count = _elements(c, self.behind)
        mask = e.compare(which, lane_consts(range(_LANES), "i32"), e.splat(count, _LANES))
        e.module.declare_intrinsic(name, "void", f"{_VECTOR}, ptr, {_MASK}")
        e.line(f"call void @{name}({line.typed}, ptr align {_LINE} {place.text}, {mask.typed})")


def begin(c: ExprCompiler, loop: For) -> list[Shifted]:
    """What is made ready before a loop, for each row that it stores off lines."""
    return [_ready(c, loop, stores) for stores in _rows(c, loop)]


@contextmanager
def moving(context: Context, rows: Sequence[Shifted], index: Value, low: Value) -> Generator[None]:
    """The body of the loop, whose variable is `index` and begins with `low`."""
    outer = context.shifted
    if rows:
        first = context.e.compare("eq", index, low)
        for row in rows:
            row.first = first
        context.shifted = {**outer, **{store: row for row in rows for store in row.stores}}
    yield
    context.shifted = outer


def end(c: ExprCompiler, loop: For, rows: Sequence[Shifted], low: Value, high: Value) -> None:
    """What is left of each row behind the loop."""
    if not rows:
        return
    behind = build.add(loop.min, loop.extent)
    c.forget()  # what the loop has computed, which may have run no iteration
    with c.e.guarded(c.e.compare("slt", low, high)), c.scope():
        for row in rows:
            row.finish(c, _pointer(c, row.stores[0], loop.loop_var, behind))


def _ready(c: ExprCompiler, loop: For, stores: tuple[BufferStore, ...]) -> Shifted:
    e = c.e
    start = e.convert("ptrtoint", _pointer(c, stores[0], loop.loop_var, loop.min), "i64")
    behind = e.binary("and", start, int_const(_LINE - 1))
    skipped = e.binary("sub", int_const(_LANES, "i32"), _elements(c, behind))
    order = e.binary("add", lane_consts(range(_LANES), "i32"), e.splat(skipped, _LANES))
    held = e.stack(_LINE)
    e.store(float_const(0.0, _VECTOR), held, _LINE)
    return Shifted(stores, behind, order, held)


def _elements(c: ExprCompiler, nbytes: Value) -> Value:
    return c.e.convert("trunc", c.e.binary("lshr", nbytes, int_const(2)), "i32")


def _pointer(c: ExprCompiler, store: BufferStore, var: Var, at: Expr) -> Value:
    """Where a store begins when the loop is at a value."""
    index = substitute(_base(store), {var: build.cast_to(at, var.type)})
    return c.e.offset(c.context.memory(store.buffer).pointer, c.index(index), 4)


def _rows(c: ExprCompiler, loop: For) -> Iterator[tuple[BufferStore, ...]]:
    """Stores that fill a row from its beginning on, vector by vector, and not surely at lines."""
    context = c.context
    count = integers.constant_of(loop.extent)
    if not context.streamed or not context.module.avx512 or c.mask is not None:
        return
    if jumps(loop.body):
        return  # each vector completes the line of the one before: none may be left out
    straight = [s for s in _straight(loop.body) if isinstance(s, BufferStore)]
    everywhere = collect(loop.body, BufferStore)
    for buffer in dict.fromkeys(s.buffer for s in straight if s.buffer in context.streamed):
        stores = tuple(s for s in straight if s.buffer is buffer)
        if (
            sum(s.buffer is buffer for s in everywhere) == len(stores)
            and (count is None or count * len(stores) >= _FEWEST)
            and all(map(_is_vector, stores))
            and _side_by_side(stores, loop)
            and context.alignment(context.memory(buffer), stores[0].indices[0], 4) % _LINE
            and all(
                v is loop.loop_var or v in context.variables for v in free_vars(_base(stores[0]))
            )
        ):
            yield stores


def _straight(stmt: Stmt) -> Iterator[Stmt]:
    """Statements that each iteration runs once."""
    if isinstance(stmt, SeqStmt):
        for part in stmt.seq:
            yield from _straight(part)
    elif isinstance(stmt, (LetStmt, AttrStmt)):
        yield from _straight(stmt.body)
    else:
        yield stmt


def _is_vector(store: BufferStore) -> bool:
    """Whether a store fills as many neighbouring bytes as a line has, with floats."""
    (index,) = store.indices
    return (
        isinstance(index, E.Ramp)
        and integers.constant_of(index.stride) == 1
        and index.lanes == _LANES
        and store.predicate is None
        and str(store.buffer.dtype) == "float32"
        and not collect(index.base, E.BufferLoad)
    )


def _base(store: BufferStore) -> Expr:
    index = store.indices[0]
    assert isinstance(index, E.Ramp)
    return index.base


def _side_by_side(stores: tuple[BufferStore, ...], loop: For) -> bool:
    """Whether vectors follow each other, and those of an iteration the last one's."""
    first, after = _base(stores[0]), build.add(loop.loop_var, 1)
    known = Analyzer()

    def distance(index: Expr) -> int | None:
        return integers.constant_of(known.simplify(build.sub(*build.match_types(index, first))))

    return all(distance(_base(s)) == _LANES * k for k, s in enumerate(stores)) and (
        distance(substitute(first, {loop.loop_var: after})) == _LANES * len(stores)
    )
