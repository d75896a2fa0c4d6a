"""Stages with unusual loops, views or nested blocks.

Triangular and conditional nests, ranges with an offset, parallel loops, views of tensors, computed
positions, and blocks next to conditions, jumps and statements outside of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.analysis import block_access_regions
from blockwright.script.compute import Tensor
from blockwright.testing.generators.maker import INT64, Maker


class Nests(Maker):
    """One method per kind of stage; it returns the tensor that the stage computes."""

    def _triangle(self) -> Tensor:
        """Change elements of a frame in a nest whose inner range depends on an outer loop.

        The range lies below or above a diagonal, or may be empty.
        """
        x = self.pick(rank=2)
        length = x.shape[-1]
        kind = self.chance.choice(("lower", "strict", "upper", "late", "band"))

        def last(i: ir.Expr) -> ir.Range:
            if kind == "lower":
                return _range(0, ir.minimum(ir.add(i, 1), length))
            if kind == "strict":
                return _range(0, ir.minimum(i, length))
            if kind == "upper":
                return _range(i, ir.sub(length, i))
            if kind == "late":
                return _range(0, ir.minimum(ir.sub(i, 2), length))
            return _range(ir.minimum(i, ir.sub(length, 1)), 1)

        def ranges(*i: ir.Expr) -> list[ir.Range]:
            return [*(_range(0, n) for n in x.shape[:-1]), last(i[-2])]

        return self._changed("triangle", x, ranges=ranges)

    def _corner(self) -> Tensor:
        """Change elements of a frame in blocks with a predicate on the loops."""
        x = self.pick(rank=1)
        length = x.shape[-1]
        kind = self.chance.choice(("sum", "odd", "middle"))

        def where(*i: ir.Expr) -> ir.Expr:
            if kind == "sum":
                return ir.compare(ir.LT, ir.add(i[0], i[-1]), length)
            if kind == "odd":
                return ir.compare(ir.EQ, ir.floormod(i[-1], 2), 1)
            low = ir.compare(ir.GE, i[-1], 1)
            return ir.logical_and(low, ir.compare(ir.LT, i[-1], ir.sub(length, 1)))

        return self._changed("corner", x, where=where)

    def _interior(self) -> Tensor:
        """Change the interior of a frame, which may be empty."""
        x = self.pick(rank=1)
        width = self.chance.choice((1, 1, 2))

        def ranges(*_: ir.Expr) -> list[ir.Range]:
            return [_range(width, ir.sub(n, 2 * width)) for n in x.shape]

        return self._changed("interior", x, ranges=ranges)

    def _parallel(self) -> Tensor:
        """Change all elements of a frame in parallel rows."""
        return self._changed("parallel", self.pick(rank=1), kind=ir.ForKind.PARALLEL)

    def _branch(self) -> Tensor:
        """Change elements of a frame in blocks under an `if`."""
        x = self.pick(rank=1)
        where = self._decision(x)

        def around(blocks: list[ir.Stmt], *i: ir.Expr) -> ir.Stmt:
            return ir.IfThenElse(where(*i), ir.seq(blocks))

        return self._changed("branch", x, around=around)

    def _skipped(self) -> Tensor:
        """Change elements of a frame in a loop body with a conditional `break` or `continue`."""
        x = self.pick(rank=1)
        where = self._decision(x)
        word, late = self.chance.choice(("continue", "continue", "break")), self.chance.random()

        def around(blocks: list[ir.Stmt], *i: ir.Expr) -> ir.Stmt:
            leave = ir.IfThenElse(where(*i), ir.Evaluate(ir.call(word)))
            at = len(blocks) if late < 0.2 else len(blocks) // 2
            return ir.seq([*blocks[:at], leave, *blocks[at:]])

        return self._changed("skipped", x, around=around)

    def _bare(self) -> Tensor:
        """Change elements of a frame in blocks next to a statement outside of any block."""
        x = self.pick(rank=1)
        also = self._frame("beside", x) if self.chance.random() < 0.7 else None
        first = self.chance.random() < 0.5
        if also is not None:
            self.made(also)

        def around(blocks: list[ir.Stmt], *i: ir.Expr) -> ir.Stmt:
            result = next(n.buffer for n in ir.collect(blocks[0], ir.BufferStore))
            stored = result if also is None else also.buffer
            store = ir.BufferStore(stored, ir.add(ir.load(result, *i), x[i]), i)
            return ir.seq([store, *blocks] if first else [*blocks, store])

        return self._changed("bare", x, around=around)

    def _decision(self, x: Tensor) -> Callable[..., ir.Expr]:
        """A condition on loops or on an input.

        Computed values are not used, because rounding could change the result.
        """
        if self.chance.random() < 0.5:
            given = self.param(list(x.shape), "int32")
            return lambda *i: ir.compare(ir.GT, given[i], 0)
        if self.chance.random() < 0.5:
            return lambda *i: ir.compare(ir.EQ, ir.floormod(i[-1], 3), 0)
        return lambda *i: ir.compare(ir.GE, i[0], 1)

    def _diagonal(self) -> Tensor:
        """The diagonal element of every row, clamped to the length of the row."""
        x = self.pick(rank=2)
        rows, length = (ir.const_int(n) for n in x.shape[-2:])
        inside = rows is not None and length is not None and rows <= length

        def taken(*i: ir.Expr) -> ir.Expr:
            at = i[-1] if inside else ir.minimum(i[-1], ir.sub(x.shape[-1], 1))
            return ir.mul(x[(*i, at)], 0.5)

        return self.compute(x.shape[:-1], taken)

    def _viewed(self) -> Tensor:
        """A block that computes rows and reads, writes, or both, through match-buffer views."""
        x = self.pick(rank=2)
        length = x.shape[-1]
        result = self.program.alloc(self.name("viewed"), x.shape, x.dtype)
        lead = tuple(ir.Var(f"r{k}", INT64) for k in range(len(x.shape) - 1))
        which = self.chance.choice(("read", "written", "both"))
        views = {t: _row(self.name("view"), t, lead) for t in (x, result)}
        if which != "both":
            del views[result if which == "read" else x]

        def body(*i: ir.Expr) -> ir.Stmt:
            j = ir.Var("j", INT64)
            value = ir.mul(ir.load(views[x].buffer, j) if x in views else x[(*i, j)], 0.5)
            store = (
                ir.BufferStore(views[result].buffer, value, (j,))
                if result in views
                else ir.BufferStore(result.buffer, value, (*i, j))
            )
            return ir.For(j, ir.const(0, INT64), length, ir.ForKind.SERIAL, store)

        def shown(*i: ir.Expr) -> list[ir.MatchBufferRegion]:
            here = dict(zip(lead, i, strict=True))
            return [ir.substitute(view, here) for view in views.values()]

        self.program.block("row", x.shape[:-1], body, views=shown)
        return result

    def _places(self) -> Tensor:
        """Gather rows at positions that an earlier block computes."""
        x = self.pick(rank=1)
        rows = x.shape[0]
        step = self.chance.choice((1, 3, -1))

        def place(*i: ir.Expr) -> ir.Expr:
            return ir.floormod(ir.add(ir.mul(i[0], step), 1), rows)

        places = self.compute([rows], place)
        return self.compute(x.shape, lambda *i: ir.mul(x[(places[i[0]], *i[1:])], 0.5))

    def _nested(self) -> Tensor:
        """Rows computed by nested blocks: one writes a buffer of the outer block, one reads it."""
        x = self.pick(rank=2)
        length = x.shape[-1]
        result = self.program.alloc(self.name("nested"), x.shape, x.dtype)
        row = ir.Buffer(self.name("row"), x.dtype, (length,))

        def body(*lead: ir.Expr) -> ir.Stmt:
            def make(j: ir.Expr) -> ir.Stmt:
                return ir.BufferStore(row, ir.mul(x[(*lead, j)], 0.5), (j,))

            def take(j: ir.Expr) -> ir.Stmt:
                before = ir.load(row, ir.maximum(ir.sub(j, 1), 0))
                return ir.BufferStore(result.buffer, ir.sub(ir.load(row, j), before), (*lead, j))

            return ir.seq(
                [_swept(self.name("make"), length, make), _swept(self.name("take"), length, take)]
            )

        self.program.block("rows", x.shape[:-1], body, allocated=[row])
        return result

    def _changed(self, prefix: str, x: Tensor, **nest: Any) -> Tensor:
        """Change elements of a frame by one block, or by two in the same nest."""
        result = self._frame(prefix, x)

        def change(*i: ir.Expr) -> ir.Stmt:
            return ir.BufferStore(result.buffer, ir.mul(x[i], 0.5), i)

        blocks = [("half", ir.IterType.SPATIAL, change)]
        if self.chance.random() < 0.3:
            blocks.append(("follow", ir.IterType.SPATIAL, self._follow(prefix, result, x)))
        self.program.together(x.shape, blocks, **nest)
        return result

    def _frame(self, prefix: str, x: Tensor) -> Tensor:
        """A new tensor of the same shape, with a value in every element."""
        result = self.program.alloc(self.name(prefix), x.shape, x.dtype)
        self.program.compute(
            "frame", x.shape, lambda *i: ir.mul(x[i], 0.25), into=(result, lambda *i: i)
        )
        return result

    def _follow(self, prefix: str, changed: Tensor, x: Tensor) -> Callable[..., ir.Stmt]:
        """A statement that copies the changed elements to another tensor."""
        also = self.program.alloc(self.name(prefix), x.shape, x.dtype)
        zero = ir.const(0, x.dtype)
        self.program.compute("frame", x.shape, lambda *i: zero, into=(also, lambda *i: i))
        self.made(also)
        return lambda *i: ir.BufferStore(also.buffer, ir.add(changed[i], x[i]), i)


def _range(low: ir.Expr | int, extent: ir.Expr | int) -> ir.Range:
    return ir.Range(ir.as_expr(low, INT64), ir.as_expr(extent, INT64))


def _row(name: str, x: Tensor, lead: Sequence[ir.Expr]) -> ir.MatchBufferRegion:
    """A view of the last axis of a tensor."""
    one = [_range(i, 1) for i in lead]
    source = ir.BufferRegion(x.buffer, (*one, _range(0, x.shape[-1])))
    return ir.MatchBufferRegion(ir.Buffer(name, x.dtype, (x.shape[-1],)), source)


def _swept(name: str, length: ir.Expr, body: Callable[[ir.Expr], ir.Stmt]) -> ir.Stmt:
    """A nested block in a loop over its only axis."""
    j, at = ir.Var("j", INT64), ir.Var("vj", INT64)
    it = ir.IterVar(at, _range(0, length))
    block = ir.Block(name, (it,), (), (), body(at))
    reads, writes = block_access_regions(block)
    inside = ir.BlockRealize(
        (j,), ir.const(True, "bool"), block.replace(reads=reads, writes=writes)
    )
    return ir.For(j, ir.const(0, INT64), length, ir.ForKind.SERIAL, inside)
