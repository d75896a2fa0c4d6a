"""Stages with several reductions in one block, and with atomic updates."""

from __future__ import annotations

import math
from collections.abc import Callable

from blockwright import ir
from blockwright.script.compute import Tensor
from blockwright.testing.generators.maker import Maker

_Step = tuple[Callable[[ir.Expr, ir.Expr], ir.Expr], float]
_STEPS: tuple[_Step, ...] = (
    (ir.add, 0.0),
    (lambda total, x: ir.add(total, ir.mul(x, x)), 0.0),
    (ir.maximum, -4.0),
    (ir.minimum, 4.0),
)
"""Pairs of an update function and its initial value."""


class Beside(Maker):
    """One method per kind of stage; it returns the tensor that the stage computes."""

    def _sums(self) -> Tensor:
        """Two or three independent reductions over the same terms in one block."""
        x = self.pick(rank=1)
        *lead, length = x.shape
        steps = self.chance.sample(_STEPS, self.chance.choice((2, 2, 3)))
        result = [self.program.alloc(self.name("sum"), lead, x.dtype) for _ in steps]
        named = self.chance.random() < 0.5

        def body(*i: ir.Expr) -> ir.Stmt:
            term = ir.Var("term", x.dtype) if named else x[i]
            stores = ir.seq(
                ir.BufferStore(t.buffer, step(t[i[:-1]], term), i[:-1])
                for t, (step, _) in zip(result, steps, strict=True)
            )
            return ir.LetStmt(term, x[i], stores) if isinstance(term, ir.Var) else stores

        def init(*at: ir.Expr) -> ir.Stmt:
            return ir.seq(
                ir.BufferStore(t.buffer, ir.const(first, x.dtype), at)
                for t, (_, first) in zip(result, steps, strict=True)
            )

        self.program.block("sums", lead, body, over=[length], init=init)
        for tensor in result[1:]:
            self.made(tensor)
        return result[0]

    def _best(self) -> Tensor:
        """Argmax or argmin of the rows of an input: two let-bound values, selected by comparison.

        Rows of an input, because rounding of computed values could change the position.
        """
        shape = [self.size() for _ in range(self.chance.choice((1, 2)))]
        x = self.param([*shape, self.size()])
        self.use(x)
        kind = ir.dtype_of(self.chance.choice(("int64", "int32")))
        best = self.program.alloc(self.name("best"), shape, x.dtype)
        place = self.program.alloc(self.name("where"), shape, kind)
        largest = self.chance.random() < 0.5
        wins, first = (ir.GE, -math.inf) if largest else (ir.LE, math.inf)

        def body(*i: ir.Expr) -> ir.Stmt:
            at = i[:-1]
            stays = ir.compare(wins, best[at], x[i])
            v_place = ir.Var("v_place", kind)
            v_best = ir.Var("v_best", x.dtype)
            stmt = ir.seq(
                [ir.BufferStore(place.buffer, v_place, at), ir.BufferStore(best.buffer, v_best, at)]
            )
            stmt = ir.LetStmt(v_best, ir.select(stays, best[at], x[i]), stmt)
            index = ir.cast_to(i[-1], kind)
            return ir.LetStmt(v_place, ir.select(stays, place[at], index), stmt)

        def init(*at: ir.Expr) -> ir.Stmt:
            return ir.seq(
                [
                    ir.BufferStore(place.buffer, ir.const(-1, kind), at),
                    ir.BufferStore(best.buffer, ir.const(first, x.dtype), at),
                ]
            )

        self.program.block("best", shape, body, over=[x.shape[-1]], init=init)
        self.unused.append(place)
        return best

    def _atomic(self) -> Tensor:
        """Update elements at data-dependent positions atomically, in loops that may be parallel.

        Added values are small integers, whose sum does not depend on the order.
        """
        x = self.pick(rank=1)
        rows = self.param([x.shape[0]], "int64")
        given = self.param(list(x.shape), "int32")
        result = self.program.alloc(self.name("atomic"), x.shape, x.dtype)
        zero = ir.const(0, x.dtype)
        self.program.compute("frame", x.shape, lambda *i: zero, into=(result, lambda *i: i))
        op = self.chance.choice(("atomic_add", "atomic_add", "atomic_max", "atomic_min"))

        def update(*i: ir.Expr) -> ir.Stmt:
            whole = ir.cast_to(ir.call("bitwise_and", given[i], ir.const(3, "int32")), x.dtype)
            value = whole if op == "atomic_add" else x[i]
            return ir.Evaluate(ir.call(op, result[(rows[i[0]], *i[1:])], value, dtype=x.dtype))

        last = self.chance.choice((ir.IterType.SPATIAL, ir.IterType.REDUCE))
        kind = self.chance.choice((ir.ForKind.PARALLEL, ir.ForKind.PARALLEL, ir.ForKind.SERIAL))
        self.program.together(x.shape, [("atomic", last, update)], kind=kind)
        return result

    def _tallied(self) -> Tensor:
        """Sum columns of integers by atomic updates in parallel rows."""
        x = self.pick(rank=1)
        given = self.param([self.size(), x.shape[-1]], "int32")
        result = self.program.alloc(self.name("tallied"), [x.shape[-1]], x.dtype)
        zero = ir.const(0, x.dtype)
        self.program.compute("frame", result.shape, lambda *i: zero, into=(result, lambda *i: i))

        def update(*i: ir.Expr) -> ir.Stmt:
            whole = ir.call("bitwise_and", given[i], ir.const(3, "int32"))
            value = ir.cast_to(whole, x.dtype)
            return ir.Evaluate(ir.call("atomic_add", result[i[1]], value, dtype=x.dtype))

        kind = self.chance.choice((ir.ForKind.PARALLEL, ir.ForKind.SERIAL))
        self.program.together(given.shape, [("tallied", ir.IterType.SPATIAL, update)], kind=kind)
        return self.compute(x.shape, lambda *i: ir.add(ir.mul(x[i], 0.5), result[i[-1]]))

    def _picked(self) -> Tensor:
        """Gather or scatter rows at positions that an earlier block computes from data.

        Positions are computed in integers that may wrap around, and stored in some integer type.
        """
        x = self.pick(rank=1)
        rows = x.shape[0]
        given = self.param([rows], self.chance.choice(("int8", "int32", "int64", "uint8")))
        stored = self.chance.choice(("int8", "uint8", "int32", "int64"))
        factor = self.chance.choice((1, 3, 5))

        def number(*i: ir.Expr) -> ir.Expr:
            scaled = ir.mul(given[i], ir.const(factor, given.dtype))
            return ir.cast_to(ir.add(scaled, ir.const(1, given.dtype)), stored)

        numbers = self.program.compute(self.name("number"), [rows], number, stored)

        def place(i: ir.Expr) -> ir.Expr:
            return ir.floormod(ir.cast_to(numbers[i], "int64"), rows)

        if self.chance.random() < 0.5:
            places = self.compute([rows], place)
        else:
            places = None

        def at(i: ir.Expr) -> ir.Expr:
            return place(i) if places is None else places[i]

        kind = self.chance.choice(("read", "both", "written"))
        if kind != "written":
            turned = self.chance.random() < 0.5

            def body(*i: ir.Expr) -> ir.Expr:
                value = ir.mul(x[(at(i[0]), *i[1:])], 0.5)
                other = ir.sub(ir.sub(rows, 1), i[0]) if turned else i[0]
                return value if kind == "read" else ir.add(value, x[(at(other), *i[1:])])

            return self.compute(x.shape, body)
        result = self.program.alloc(self.name("put"), x.shape, x.dtype)
        zero = ir.const(0, x.dtype)
        self.program.compute("frame", x.shape, lambda *i: zero, into=(result, lambda *i: i))
        self.program.compute(
            "put", x.shape, lambda *i: x[i], into=(result, lambda *i: (at(i[0]), *i[1:]))
        )
        return result
