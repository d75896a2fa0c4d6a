"""Random loop nests with every kind of dependence: lanes must never change a bit of the result."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.interp import interpret
from blockwright.support import InterpretError

SIZE = 24
I64, F32 = ir.dtype_of("int64"), ir.dtype_of("float32")


def c(value: int) -> ir.Expr:
    return ir.const(value, I64)


class Nests:
    """Statements over three vectors and a small matrix, some of them inside blocks."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.vectors = [ir.Buffer(n, F32, (c(SIZE),)) for n in "ABC"]
        self.matrix = ir.Buffer("M", F32, (c(6), c(6)))
        self.rows = ir.Buffer("rows", I64, (c(SIZE),))
        self.names = 0
        self.locals: list[ir.Buffer] = []

    def index(self, loops: list[ir.Var], most: int) -> ir.Expr:
        """A sum of loop variables (each below 5), cut to stay inside `most` elements."""
        total: ir.Expr = c(self.chance.choice([0, 0, 1, 3]))
        for var in self.chance.sample(loops, min(len(loops), self.chance.randint(0, 2))):
            total = total + var * self.chance.choice([1, 1, 2, 5])
        if self.chance.random() < 0.1:
            total = ir.load(self.rows, ir.floormod(total, SIZE))
        return (
            ir.floormod(total, most) if self.chance.random() < 0.7 else ir.minimum(total, most - 1)
        )

    def place(self, loops: list[ir.Var]) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        if self.locals and self.chance.random() < 0.3:
            return self.chance.choice(self.locals), (self.index(loops, 4),)
        if self.chance.random() < 0.3:
            return self.matrix, (self.index(loops, 6), self.index(loops, 6))
        return self.chance.choice(self.vectors), (self.index(loops, SIZE),)

    def value(self, loops: list[ir.Var]) -> ir.Expr:
        one, two = (ir.BufferLoad(*self.place(loops)) for _ in range(2))
        if self.chance.random() < 0.3:
            return ir.if_then_else(self.index(loops, 5) < 2, one, two)
        return one * 0.5 + two

    def statement(self, loops: list[ir.Var]) -> ir.Stmt:
        roll = self.chance.random()
        if len(loops) >= 4 or (loops and roll < 0.3):
            buffer, indices = self.place(loops)
            return ir.BufferStore(buffer, self.value(loops), indices)
        if roll < 0.4:
            test, then = self.index(loops, 5) < 3, self.statement(loops)
            other = self.statement(loops) if self.chance.random() < 0.5 else None
            return ir.IfThenElse(test, then, other)
        if loops and roll < 0.5:
            return self.block(loops)
        if loops and roll < 0.6:
            return self.scratch(loops)
        self.names += 1
        var = ir.Var(f"i{self.names}", I64)
        extent: ir.Expr = c(self.chance.randint(1, 5))
        if loops and self.chance.random() < 0.2:
            extent = ir.minimum(self.chance.choice(loops), 4)
        parts = [self.statement([*loops, var]) for _ in range(self.chance.choice([1, 1, 2]))]
        return ir.For(var, c(0), extent, ir.ForKind.SERIAL, ir.seq(parts))

    def block(self, loops: list[ir.Var]) -> ir.Stmt:
        self.names += 1
        outer = self.chance.choice(loops)
        v = ir.IterVar(ir.Var(f"v{self.names}", I64), ir.Range(c(0), c(8)))
        body = self.statement([v.var])
        block = ir.Block(f"b{self.names}", (v,), (), (), body)
        return ir.BlockRealize((outer,), outer < self.chance.randint(1, 5), block)

    def scratch(self, loops: list[ir.Var]) -> ir.Stmt:
        self.names += 1
        local = ir.Buffer(f"t{self.names}", F32, (c(4),))
        k = ir.Var(f"k{self.names}", I64)
        fill = ir.For(
            k, c(0), c(4), ir.ForKind.SERIAL, ir.BufferStore(local, self.value([*loops, k]), (k,))
        )
        self.locals.append(local)
        rest = self.statement(loops)
        self.locals.remove(local)
        return ir.Allocate(local, ir.seq([fill, rest]))

    def function(self) -> ir.PrimFunc:
        body = ir.seq([self.statement([]) for _ in range(self.chance.randint(1, 3))])
        buffers = [*self.vectors, self.matrix, self.rows]
        handles = tuple(ir.Var(f"h{k}", ir.dtype_of("handle")) for k in range(len(buffers)))
        return ir.PrimFunc(handles, tuple(zip(handles, buffers, strict=True)), body)


@pytest.mark.fuzz
def test_lanes_never_change_a_result(fuzz_factor: int) -> None:
    for seed in (1439, *range(150 * fuzz_factor)):
        func = Nests(seed).function()
        rng = np.random.default_rng(seed)
        arrays: list[Any] = [rng.standard_normal(SIZE).astype(np.float32) for _ in range(3)]
        arrays += [rng.standard_normal((6, 6)).astype(np.float32), rng.integers(0, 4, SIZE)]
        results = [run(func, arrays, vectorize) for vectorize in (True, False)]
        assert results[0] == results[1], f"seed {seed}\n{func!r}"


def run(func: ir.PrimFunc, arrays: list[Any], vectorize: bool) -> Any:
    copies = [a.copy() for a in arrays]
    try:
        interpret(func, *copies, vectorize=vectorize)
    except InterpretError as error:
        return error.code
    return [a.tobytes() for a in copies]
