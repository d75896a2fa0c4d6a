"""Stages whose extents are 0 or 1 for small sizes: halves, remainders, every second element."""

from __future__ import annotations

import random
from collections.abc import Callable

from blockwright import ir
from blockwright.analysis.access.regions import block_access_regions
from blockwright.arith import Analyzer
from blockwright.script.compute import Tensor
from blockwright.testing.generators.maker import INT64, Maker

_ANALYZER = Analyzer()
_FEWER = 0.5
"""Fraction of partial sums over constant axes whose step count shrinks as a symbol grows."""


class Extents(Maker):
    """One method per kind of stage; it returns the tensor that the stage computes."""

    def _part(self) -> Tensor:
        """Part of one axis; of an axis of size 1, one element or none."""
        x = self.pick(rank=1)
        axis = self.chance.randrange(len(x.shape))
        extent, place = self._drawn_part(x.shape[axis])

        def body(*i: ir.Expr) -> ir.Expr:
            return ir.mul(x[(*i[:axis], place(i[axis]), *i[axis + 1 :])], 0.5)

        return self.compute([*x.shape[:axis], extent, *x.shape[axis + 1 :]], body)

    def _steps(self) -> Tensor:
        """Differences of neighbors along an axis; none if it has a single element."""
        x = self.pick(rank=1)
        axis = self.chance.randrange(len(x.shape))
        if ir.is_const_int(x.shape[axis], 1) and not self.empty:
            return self._part()

        def body(*i: ir.Expr) -> ir.Expr:
            return ir.sub(x[(*i[:axis], ir.add(i[axis], 1), *i[axis + 1 :])], x[i])

        return self.compute([*x.shape[:axis], _less_one(x.shape[axis]), *x.shape[axis + 1 :]], body)

    def _part_sum(self) -> Tensor:
        """A sum or maximum over part of each row, which may be empty."""
        x = self.pick(rank=1)
        extent, place = self._drawn_part(x.shape[-1])
        combiner = self.chance.choice(("sum", "sum", "max"))
        name = self.name("p")
        apart = random.Random(f"{self.program.name} {name}")  # so that other stages do not change
        rows = [s for s in self.symbols if any(ir.uses_var(n, s) for n in x.shape[:-1])]
        if rows and ir.const_int(x.shape[-1]) is not None and apart.random() < _FEWER:
            # A nonempty sum implies that the symbol is below the extent; an empty sum does not.
            extent, place = ir.sub(x.shape[-1], apart.choice(rows)), _same
        return self.program.reduce(
            name, x.shape[:-1], [extent], lambda *i: x[(*i[:-1], place(i[-1]))], combiner
        )

    def _short_sum(self) -> Tensor:
        """A sum over the first steps of its domain, or none, into initial values of the caller."""
        x = self.pick(rank=1)
        *lead, length = x.shape
        result = self.param(list(lead))
        loops = [ir.Var(f"i{k}", INT64) for k in range(len(x.shape))]
        extents = [ir.floordiv(length, 2), ir.floordiv(length, 3), _less_one(length)]
        if lead:
            extents.append(ir.minimum(loops[-2], length))
        counts = [*lead, self.chance.choice(extents)]
        kinds = [*(ir.IterType.SPATIAL for _ in lead), ir.IterType.REDUCE]
        zero = ir.const(0, INT64)
        iters = tuple(
            ir.IterVar(ir.Var(f"v{k}", INT64), ir.Range(zero, n), kind)
            for k, (n, kind) in enumerate(zip(x.shape, kinds, strict=True))
        )
        at = tuple(it.var for it in iters[:-1])
        total = ir.add(result[at], x[tuple(it.var for it in iters)])
        step = ir.BufferStore(result.buffer, total, at)
        first = ir.BufferStore(result.buffer, ir.const(0, x.dtype), at)
        block = ir.Block(self.name("short"), iters, (), (), step, first)
        reads, writes = block_access_regions(block)
        block = block.replace(reads=reads, writes=writes)
        nest: ir.Stmt = ir.BlockRealize(tuple(loops), ir.const(True, "bool"), block)
        for var, count in reversed(list(zip(loops, counts, strict=True))):
            nest = ir.For(var, zero, count, ir.ForKind.SERIAL, nest)
        self.program.statement(nest)
        return self.compute(lead, lambda *i: ir.mul(result[i], 0.5))

    def _blended(self) -> Tensor:
        """Copy a tensor, then change part of its last axis in place."""
        x = self.pick(rank=1)
        extent, place = self._drawn_part(x.shape[-1])
        result = self.program.alloc(self.name("blend"), x.shape, x.dtype)
        self.program.compute("frame", x.shape, lambda *i: x[i], into=(result, lambda *i: i))
        self.program.compute(
            "part",
            [*x.shape[:-1], extent],
            lambda *i: ir.sub(ir.mul(x[(*i[:-1], place(i[-1]))], 0.5), 1.0),
            into=(result, lambda *i: (*i[:-1], place(i[-1]))),
        )
        return result

    def _drawn_part(self, size: ir.Expr) -> tuple[ir.Expr, Callable[[ir.Expr], ir.Expr]]:
        """Draw a part of an axis: its extent, and the position of each of its elements."""
        half, third = ir.floordiv(size, 2), ir.floordiv(size, 3)
        parts: list[tuple[ir.Expr, Callable[[ir.Expr], ir.Expr]]] = [
            (half, lambda i: i),
            (half, lambda i: ir.add(ir.mul(i, 2), 1)),
            (half, lambda i: ir.sub(ir.sub(size, 1), i)),
            (ir.sub(size, half), lambda i: ir.add(i, half)),
            (ir.floordiv(ir.add(size, 1), 2), lambda i: ir.mul(i, 2)),
            (third, lambda i: ir.add(i, third)),
            (_less_one(size), lambda i: ir.add(i, 1)),
            (ir.minimum(size, ir.const(2, INT64)), lambda i: i),
            (ir.minimum(size, ir.const(1, INT64)), lambda i: i),
        ]
        known = [(_ANALYZER.simplify(extent), place) for extent, place in parts]
        if self.empty and self.chance.random() < 0.3:
            known.append((ir.const(0, INT64), lambda i: i))
        return self.chance.choice([p for p in known if self.empty or not ir.is_const_int(p[0], 0)])


def _same(i: ir.Expr) -> ir.Expr:
    return i


def _less_one(size: ir.Expr) -> ir.Expr:
    """One less than an extent, but at least 0."""
    return _ANALYZER.simplify(ir.maximum(ir.sub(size, 1), ir.const(0, INT64)))
