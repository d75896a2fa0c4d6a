"""Stages with blocks that do more than store one element.

Conditions, loops with early exits, several stores, in-place updates, data-dependent positions, and
ordered instances.
"""

from __future__ import annotations

from collections.abc import Callable

from blockwright import ir
from blockwright.script.compute import Element, Tensor
from blockwright.testing.generators.maker import INT64, Maker


class Unusual(Maker):
    """One method per kind of stage; it returns the tensor that the stage computes."""

    def _chosen(self) -> Tensor:
        """Conditional stores: over existing values, or read only where they happened."""
        x = self.pick(rank=1)
        kind = self.chance.choice(("even", "beyond", "mask"))
        mask = self.param(list(x.shape), "int64") if kind == "mask" else None

        def holds(*i: ir.Expr) -> ir.Expr:
            if kind == "beyond":
                return ir.compare(ir.GE, i[-1], 1)
            return ir.compare(ir.EQ, ir.floormod(i[-1] if mask is None else mask[i], 2), 0)

        framed, other = self.chance.random() < 0.5, self.chance.random() < 0.3
        result = (
            self._framed("chosen", x)
            if framed
            else self.program.alloc(self.name("chosen"), x.shape, x.dtype)
        )

        def body(*i: ir.Expr) -> ir.Stmt:
            store = ir.BufferStore(result.buffer, x[i], i)
            rest = ir.BufferStore(result.buffer, ir.mul(x[i], 0.5), i) if other else None
            return ir.IfThenElse(holds(*i), store, rest)

        self.program.block("choice", x.shape, body)
        return result if framed or other else self._where_made(result, holds)

    def _where_made(self, x: Tensor, holds: Callable[..., ir.Expr]) -> Tensor:
        zero = ir.const(0, x.dtype)
        return self.compute(x.shape, lambda *i: ir.if_then_else(holds(*i), x[i], zero))

    def _inner(self) -> Tensor:
        """A block that computes a row, a prefix of it, or every second element, in its own loop."""
        x = self.pick(rank=2)
        length = x.shape[-1]
        kind = self.chance.choice(("whole", "short", "gaps"))
        result = self.program.alloc(self.name("inner"), x.shape, x.dtype)

        def body(*lead: ir.Expr) -> ir.Stmt:
            j = ir.Var("j", length.dtype)
            extent, at = length, ir.as_expr(j)
            if kind == "short":
                extent = ir.minimum(lead[-1], length)
            elif kind == "gaps":
                extent, at = ir.floordiv(ir.add(length, 1), 2), ir.mul(j, 2)
            store = ir.BufferStore(result.buffer, ir.mul(x[(*lead, at)], 0.5), (*lead, at))
            return _loop(j, extent, store)

        def holds(*i: ir.Expr) -> ir.Expr:
            if kind == "short":
                return ir.compare(ir.LT, i[-1], i[-2])
            return ir.compare(ir.EQ, ir.floormod(i[-1], 2), 0)

        self.program.block("row", x.shape[:-1], body)
        return result if kind == "whole" else self._where_made(result, holds)

    def _several(self) -> Tensor:
        """A block that computes two neighbors along the last axis per iteration."""
        x = self.pick(rank=1)
        shape: list[ir.Expr] = [*x.shape[:-1], ir.mul(x.shape[-1], 2)]

        def body(*i: ir.Expr) -> tuple[list[tuple[ir.Var, ir.Expr]], list[Element]]:
            first = ir.mul(i[-1], 2)
            half = ir.Var("half", x.dtype)
            places = [[*i[:-1], first], [*i[:-1], ir.add(first, 1)]]
            return [(half, ir.mul(x[i], 0.5))], [(places[0], half), (places[1], ir.sub(half, 1.0))]

        return self.program.compute_several(self.name("pairs"), shape, x.shape, body, x.dtype)

    def _update(self) -> Tensor:
        """Compute a tensor, then change it in place."""
        x = self.pick(rank=1)
        result = self.program.alloc(self.name("changed"), x.shape, x.dtype)
        self.program.compute("frame", x.shape, lambda *i: x[i], into=(result, lambda *i: i))
        self.program.compute(
            "change",
            x.shape,
            lambda *i: ir.add(ir.mul(result[i], 0.5), 1.0),
            into=(result, lambda *i: i),
        )
        return result

    def _scatter(self) -> Tensor:
        """Scatter rows to data-dependent positions, over zeros; the last write wins."""
        x = self.pick(rank=1)
        rows = self.param([x.shape[0]], "int64")
        result = self.program.alloc(self.name("put"), x.shape, x.dtype)
        zero = ir.const(0, x.dtype)
        self.program.compute("frame", x.shape, lambda *i: zero, into=(result, lambda *i: i))
        self.program.compute(
            "put", x.shape, lambda *i: x[i], into=(result, lambda *i: (rows[i[0]], *i[1:]))
        )
        return result

    def _early(self) -> Tensor:
        """Overwrite a row in a loop with `break` or `continue`, before the store or after it.

        The jump depends on the position or on data.
        """
        x = self.pick(rank=2)
        length = x.shape[-1]
        mask = self.param(list(x.shape), "int64") if self.chance.random() < 0.5 else None
        jump = self.chance.choice(("break", "continue"))
        behind = self.chance.random() < 0.3
        result = self._framed("early", x)

        def body(*lead: ir.Expr) -> ir.Stmt:
            j = ir.Var("j", length.dtype)
            at = (*lead, j)
            met = ir.compare(ir.GE, j, lead[-1]) if mask is None else ir.compare(ir.GT, mask[at], 3)
            leave = ir.IfThenElse(met, ir.Evaluate(ir.call(jump)))
            store = ir.BufferStore(result.buffer, ir.mul(x[at], 0.5), at)
            return _loop(j, length, ir.seq([store, leave] if behind else [leave, store]))

        self.program.block("row", x.shape[:-1], body)
        return result

    def _counted(self) -> Tensor:
        """Overwrite a row in a `while` loop with a counter in a buffer of the block."""
        x = self.pick(rank=2)
        length, stride = x.shape[-1], self.chance.choice((1, 2))
        result = self._framed("counted", x)
        counter = ir.Buffer(self.name("c"), INT64, (ir.const(1, INT64),))

        def body(*lead: ir.Expr) -> ir.Stmt:
            at = ir.load(counter, 0)
            place = (*lead, at)
            round_ = [
                ir.BufferStore(result.buffer, ir.mul(x[place], 0.5), place),
                _put(counter, ir.add(at, stride)),
            ]
            return ir.seq(
                [
                    _put(counter, ir.const(0, INT64)),
                    ir.While(ir.compare(ir.LT, at, length), ir.seq(round_)),
                ]
            )

        self.program.block("row", x.shape[:-1], body, allocated=[counter])
        return result

    def _guarded(self) -> Tensor:
        """A reduction over the elements below a diagonal, or over those selected by data.

        Sometimes the other elements are included too, halved.
        """
        x = self.pick(rank=2)
        *lead, length = x.shape
        mask = self.param(list(x.shape), "int64") if self.chance.random() < 0.5 else None
        fn, nothing = self.chance.choice(((ir.add, 0.0), (ir.maximum, -4.0)))
        other = self.chance.random() < 0.3
        result = self.program.alloc(self.name("guarded"), lead, x.dtype)

        def body(*i: ir.Expr) -> ir.Stmt:
            at, k = i[:-1], i[-1]
            met = ir.compare(ir.LE, k, at[-1]) if mask is None else ir.compare(ir.GT, mask[i], 2)
            total = result[at]
            taken = ir.BufferStore(result.buffer, fn(total, x[i]), at)
            half = ir.BufferStore(result.buffer, fn(total, ir.mul(x[i], 0.5)), at)
            return ir.IfThenElse(met, taken, half if other else None)

        def init(*at: ir.Expr) -> ir.Stmt:
            return ir.BufferStore(result.buffer, ir.const(nothing, x.dtype), at)

        self.program.block("guarded", lead, body, over=[length], init=init)
        return result

    def _tally(self) -> Tensor:
        """Sum each row in a buffer of the block, in a loop that may exit early."""
        x = self.pick(rank=2)
        *lead, length = x.shape
        kind = self.chance.choice(("all", "some", "until"))
        mask = None if kind == "all" else self.param(list(x.shape), "int64")
        result = self.program.alloc(self.name("tally"), lead, x.dtype)
        total = ir.Buffer(self.name("sum"), x.dtype, (ir.const(1, INT64),))

        def body(*at: ir.Expr) -> ir.Stmt:
            k = ir.Var("k", length.dtype)
            place = (*at, k)
            add: ir.Stmt = _put(total, ir.add(ir.load(total, 0), x[place]))
            if mask is not None:
                met = ir.compare(ir.GT, mask[place], 3)
                leave = ir.IfThenElse(met, ir.Evaluate(ir.call("break")))
                add = ir.IfThenElse(met, add) if kind == "some" else ir.seq([leave, add])
            return ir.seq(
                [
                    _put(total, ir.const(0, x.dtype)),
                    _loop(k, length, add),
                    ir.BufferStore(result.buffer, ir.load(total, 0), at),
                ]
            )

        self.program.block("tally", lead, body, allocated=[total])
        return result

    def _recur(self) -> Tensor:
        """A recurrence: each element depends on the previous one, so instances run in order."""
        x = self.pick(rank=1)
        result = self.program.alloc(self.name("recur"), x.shape, x.dtype)

        def body(*i: ir.Expr) -> ir.Stmt:
            before = result[(*i[:-1], ir.maximum(ir.sub(i[-1], 1), 0))]
            begun = ir.compare(ir.GE, i[-1], 1)
            carried = ir.if_then_else(begun, ir.mul(before, 0.5), ir.const(0, x.dtype))
            return ir.BufferStore(result.buffer, ir.add(x[i], carried), i)

        self.program.together(x.shape, [("recur", ir.IterType.OPAQUE, body)])
        return result

    def _running(self) -> Tensor:
        """Two blocks in one nest: one updates a state, the other reads its current value.

        The state is one running sum or mean per row, or one per data-dependent position.
        """
        x = self.pick(rank=1)
        places = self.param([x.shape[-1]], "int64") if self.chance.random() < 0.5 else None
        summed = self.chance.random() < 0.5
        state = self.program.alloc(
            self.name("state"), x.shape[:-1] if places is None else x.shape, x.dtype
        )
        zero = ir.const(0, x.dtype)
        self.program.compute("begin", state.shape, lambda *i: zero, into=(state, lambda *i: i))
        result = self.program.alloc(self.name("running"), x.shape, x.dtype)

        def change(*i: ir.Expr) -> ir.Stmt:
            at = i[:-1] if places is None else (*i[:-1], places[i[-1]])
            kept = state[at] if summed else ir.mul(state[at], 0.5)
            return ir.BufferStore(state.buffer, ir.add(kept, x[i]), at)

        def take(*i: ir.Expr) -> ir.Stmt:
            now = state[i[:-1] if places is None else i]
            return ir.BufferStore(result.buffer, ir.mul(now, 0.5), i)

        order = ir.IterType.REDUCE if summed else ir.IterType.OPAQUE
        free = self.chance.choice((ir.IterType.SPATIAL, ir.IterType.OPAQUE))
        self.program.together(x.shape, [("change", order, change), ("take", free, take)])
        if self.chance.random() < 0.5:
            self.made(state)
        return result

    def _framed(self, prefix: str, x: Tensor) -> Tensor:
        """A new tensor of the same shape, filled with a constant, for later updates."""
        result = self.program.alloc(self.name(prefix), x.shape, x.dtype)
        half = ir.const(0.5, x.dtype)
        self.program.compute("frame", x.shape, lambda *i: half, into=(result, lambda *i: i))
        return result


def _loop(var: ir.Var, extent: ir.Expr, body: ir.Stmt) -> ir.For:
    return ir.For(var, ir.const(0, var.dtype), extent, ir.ForKind.SERIAL, body)


def _put(buffer: ir.Buffer, value: ir.Expr) -> ir.Stmt:
    """Store the only element of a buffer."""
    return ir.BufferStore(buffer, value, (ir.const(0, INT64),))
