"""Runs a tensor program and compares every access with the signatures of the blocks around it.

An oracle for signatures: at the begin of each instance of a block its stated regions are evaluated,
and each element that is touched until its end has to lie in one. Left out are

- accesses outside of a buffer or a view, which are undefined;
- reads of elements to which a block inside has given an initial value in this instance, or the
  block's own initial value in any: what a reduction updates belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.analysis.facts import symbols_of

Cell = tuple[ir.Buffer, tuple[int, ...]]
Ends = list[tuple[ir.Buffer, list[tuple[int, int]]]]

MOST_STATEMENTS = 4000


class _Instance:
    """A running block: what it states, what has an initial value, the buffers only it can name.

    Attributes:
        updated: elements that the block's own initial value has begun, in all of its instances.
        begun: elements that blocks inside have begun in this instance.
    """

    def __init__(self, block: ir.Block, updated: set[Cell]) -> None:
        self.block = block
        self.updated = updated
        self.begun: set[Cell] = set()
        self.stated: dict[str, Ends] = {}
        self.own: set[ir.Buffer] = set()


class TooLong(Exception):
    """The program runs for too many statements."""


def unstated_cells(func: ir.PrimFunc, sizes: dict[str, int], seed: int = 0) -> list[str]:
    """The accesses that no signature states, in words.

    Args:
        func: a program of integer buffers.
        sizes: its symbols and scalar parameters.
        seed: decides what the parameter buffers hold (numbers below 8).
    """
    run = _Run(func, sizes, seed)
    run.stmt(func.body)
    return list(run.faults)


class _Run:
    def __init__(self, func: ir.PrimFunc, sizes: dict[str, int], seed: int) -> None:
        self.sorts = ir.Sorts(ir.value_variables(func))
        self.env: dict[ir.Var, int] = {v: sizes[v.name] for v in symbols_of(func)}
        self.views: dict[ir.Buffer, Cell] = {}
        self.running: list[_Instance] = []
        self.faults: dict[str, None] = {}
        self.updated: dict[Any, set[Cell]] = {}  # per block and values of its spatial iterators
        self.beginning: list[int] = []  # where in `running` the initial values are given
        self.count = self.calls = 0
        chance = np.random.default_rng(seed)
        self.memory = {b: chance.integers(0, 8, self.shape(b)) for b in func.buffers}

    def shape(self, buffer: ir.Buffer) -> tuple[int, ...]:
        return tuple(self.value(n) for n in buffer.shape)

    # ------------------------------------------------------------------ expressions
    def value(self, e: ir.Expr) -> Any:
        if isinstance(e, (ir.BinaryOp, ir.CompareOp)):
            return _lanes(
                lambda a, b: self.wrapped(e, _OPS[type(e)](a, b)), self.value(e.a), self.value(e.b)
            )
        match e:
            case ir.IntImm() | ir.FloatImm():
                return int(e.value)
            case ir.Var():
                return self.env[e]
            case ir.Cast():
                return _lanes(lambda x: self.wrapped(e, x), self.value(e.value))
            case ir.And():
                return bool(self.value(e.a)) and bool(self.value(e.b))
            case ir.Or():
                return bool(self.value(e.a)) or bool(self.value(e.b))
            case ir.Not():
                return not self.value(e.a)
            case ir.Let():
                self.env[e.var] = self.value(e.value)
                return self.value(e.body)
            case ir.Select():
                chosen = self.value(e.true_value), self.value(e.false_value)
                return chosen[0] if self.value(e.condition) else chosen[1]
            case ir.Ramp():
                base, stride = self.value(e.base), self.value(e.stride)
                return [base + stride * k for k in range(e.lanes)]
            case ir.Broadcast():
                return [self.value(e.value)] * e.lanes
            case ir.BufferLoad():
                mask = True if e.predicate is None else self.value(e.predicate)
                places = [self.value(i) for i in e.indices]
                return _lanes(
                    lambda m, *at: self.touch("reads", e.buffer, at) if m else 0, mask, *places
                )
            case ir.Call():
                return self.call(e)
            case _:
                raise NotImplementedError(type(e).__name__)

    def call(self, e: ir.Call) -> Any:
        if ir.is_atomic(e):
            place, term = ir.atomic_place(e), self.value(e.args[1])
            assert place is not None
            old, at = self.value(place), tuple(self.value(i) for i in place.indices)
            self.touch("writes", place.buffer, at, old + term)
            return old
        if e.op == "if_then_else":
            return self.value(e.args[1] if self.value(e.args[0]) else e.args[2])
        if e.op == "bitwise_and":
            return self.value(e.args[0]) & self.value(e.args[1])
        if e.op == "call_extern":
            for arg in e.args:
                if not isinstance(arg, ir.StringImm):
                    self.value(arg)
            self.calls += 1
            return self.calls % 5  # something else each time
        if e.op == "address_of":
            for index in e.args[0].children():  # the buffer, and what chooses the element
                if isinstance(index, ir.Expr):
                    self.value(index)
            return 0
        raise NotImplementedError(e.op)

    def wrapped(self, e: ir.Expr, number: Any) -> Any:
        if not e.dtype.is_int or self.sorts.is_index(e):
            return number
        low = e.dtype.min_value
        return (int(number) - low) % (e.dtype.max_value - low + 1) + low

    # ------------------------------------------------------------------ memory
    def touch(self, word: str, buffer: ir.Buffer, at: Sequence[int], new: int = 0) -> int:
        names = {buffer: tuple(at)}
        while buffer in self.views:
            if not _inside(at, self.shape(buffer)):
                return 0
            buffer, base = self.views[buffer]
            extra = len(base) - len(at)
            at = (*base[:extra], *(b + a for b, a in zip(base[extra:], at, strict=True)))
            names[buffer] = at
        data, cell = self.memory[buffer], (buffer, tuple(at))
        if not _inside(at, data.shape):
            return 0
        for instance in reversed(self.running):
            names = {b: a for b, a in names.items() if b not in instance.own}
            if not names:
                break
            if not (word == "reads" and cell in instance.begun | instance.updated):
                self.compare(instance, word, names)
        old = int(data[cell[1]])
        if word == "writes":
            data[cell[1]] = new % 1000
            self.begin(cell)
        return old

    def begin(self, cell: Cell) -> None:
        """An element is written; the initial values of which blocks are being given?"""
        for owner in self.beginning:
            for instance in self.running[:owner]:
                instance.begun.add(cell)
            self.running[owner].updated.add(cell)

    def compare(self, instance: _Instance, word: str, names: dict[ir.Buffer, Any]) -> None:
        for buffer, ends in instance.stated[word]:
            at = names.get(buffer)
            if at is not None and all(a <= x < b for x, (a, b) in zip(at, ends, strict=True)):
                return
        block = instance.block
        regions = block.reads if word == "reads" else block.writes
        places = ", ".join(f"{b.name}{list(at)}" for b, at in names.items())
        where = ", ".join(f"{it.var.name} = {self.env[it.var]}" for it in block.iter_vars)
        self.faults[f"{block.name} {word} {places} at {where}, but states {regions}"] = None

    # ------------------------------------------------------------------ statements
    def stmt(self, s: ir.Stmt) -> None:
        self.count += 1
        if self.count > MOST_STATEMENTS:
            raise TooLong
        match s:
            case ir.SeqStmt():
                for part in s.seq:
                    self.stmt(part)
            case ir.Evaluate():
                self.value(s.value)
            case ir.BufferStore():
                mask = True if s.predicate is None else self.value(s.predicate)
                places, new = [self.value(i) for i in s.indices], self.value(s.value)
                _lanes(
                    lambda m, v, *at: self.touch("writes", s.buffer, at, v) if m else 0,
                    mask,
                    new,
                    *places,
                )
            case ir.For():
                start, extent = self.value(s.min), self.value(s.extent)
                for k in range(start, start + extent):
                    self.env[s.loop_var] = k
                    self.stmt(s.body)
            case ir.While():
                rounds = 0
                while self.value(s.condition) and rounds < 5:
                    rounds += 1
                    self.stmt(s.body)
            case ir.LetStmt():
                self.env[s.var] = self.value(s.value)
                self.stmt(s.body)
            case ir.IfThenElse():
                if self.value(s.condition):
                    self.stmt(s.then_case)
                elif s.else_case is not None:
                    self.stmt(s.else_case)
            case ir.BlockRealize():
                self.realize(s)
            case _:
                raise NotImplementedError(type(s).__name__)

    def realize(self, s: ir.BlockRealize) -> None:
        block = s.block
        values = [self.value(v) for v in s.iter_values]
        if not self.value(s.predicate):
            return
        for it, value in zip(block.iter_vars, values, strict=True):
            self.env[it.var] = value
        for it, value in zip(block.iter_vars, values, strict=True):
            start = self.value(it.dom.min)
            if not start <= value < start + self.value(it.dom.extent):
                return  # outside of its domain a block is undefined
        self.instance(block, values)

    def instance(self, block: ir.Block, values: list[int]) -> None:
        reduced = [it.iter_type is ir.IterType.REDUCE for it in block.iter_vars]
        spatial = tuple(v for v, r in zip(values, reduced, strict=True) if not r)
        instance = _Instance(block, self.updated.setdefault((block, spatial), set()))
        unseen, self.running = self.running, []  # evaluating a region is no access
        for word, regions in (("reads", block.reads), ("writes", block.writes)):
            instance.stated[word] = [(r.buffer, [self.ends(x) for x in r.region]) for r in regions]
        self.running = unseen
        if block.name != "root":
            self.running.append(instance)
        for buffer in block.alloc_buffers:
            self.memory[buffer] = np.zeros(self.shape(buffer), "int64")
            instance.own.add(buffer)
        for match in block.match_buffers:
            base = tuple(self.value(r.min) for r in match.source.region)
            self.views[match.buffer] = (match.source.buffer, base)
            instance.own.add(match.buffer)
        firsts = [self.value(it.dom.min) for it in block.iter_vars]
        starts = all(v == f for v, f, r in zip(values, firsts, reduced, strict=True) if r)
        if block.init is not None and starts:
            self.beginning.append(len(self.running) - 1)
            self.stmt(block.init)
            self.beginning.pop()
        self.stmt(block.body)
        if block.name != "root":
            self.running.pop()

    def ends(self, rng: ir.Range) -> tuple[int, int]:
        start: int = self.value(rng.min)
        return start, start + self.value(rng.extent)


def _inside(at: Sequence[int], shape: Sequence[int]) -> bool:
    return all(0 <= a < n for a, n in zip(at, shape, strict=True))


def _lanes(fn: Callable[..., Any], *operands: Any) -> Any:
    """A function of scalars, lane by lane where an operand is a vector."""
    lanes = max((len(x) for x in operands if isinstance(x, list)), default=0)
    if not lanes:
        return fn(*operands)
    return [fn(*(x[k] if isinstance(x, list) else x for x in operands)) for k in range(lanes)]


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPS: dict[type[ir.Expr], Callable[[Any, Any], Any]] = {
    ir.Add: lambda a, b: a + b,
    ir.Sub: lambda a, b: a - b,
    ir.Mul: lambda a, b: a * b,
    ir.FloorDiv: lambda a, b: a // b,
    ir.FloorMod: lambda a, b: a % b,
    ir.Div: _truncated,
    ir.Mod: lambda a, b: a - b * _truncated(a, b),
    ir.Min: min,
    ir.Max: max,
    ir.EQ: lambda a, b: a == b,
    ir.NE: lambda a, b: a != b,
    ir.LT: lambda a, b: a < b,
    ir.LE: lambda a, b: a <= b,
    ir.GT: lambda a, b: a > b,
    ir.GE: lambda a, b: a >= b,
}
