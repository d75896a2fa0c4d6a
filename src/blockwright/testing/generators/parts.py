"""Stages that access parts of a tensor by declared views.

Views have a symbolic offset, an offset chosen by a loop, or strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blockwright import ir
from blockwright.script.compute import Tensor
from blockwright.testing.generators.maker import INT64, Maker

_Region = tuple[Tensor | ir.Buffer, Sequence[ir.Expr | ir.Range]]


class StageMakers(Maker):
    """One method per kind of stage; it returns the tensor that the stage computes."""

    def _behind(self) -> Tensor:
        """Concatenate two tensors along the first axis through views.

        The second tensor, or both, are written through a view with an offset, which may be
        symbolic.
        """
        x = self.pick(rank=1)
        more = self.size()
        y = self.param([more, *x.shape[1:]])
        whole = [ir.add(x.shape[0], more), *x.shape[1:]]
        joined = self.program.alloc(self.name("joined"), whole, x.dtype)
        parts = [(x, ir.const(0, INT64)), (y, ir.mul(x.shape[0], _product(x.shape[1:])))]
        self.chance.shuffle(parts)
        for source, offset in parts:
            if ir.is_const_int(offset, 0) and self.chance.random() < 0.5:
                self.program.compute("front", x.shape, lambda *i: x[i], into=(joined, lambda *i: i))
            else:
                self._written(joined, source, source.shape, offset)
        return joined

    def _woven(self) -> Tensor:
        """Interleave even and odd elements, written through strided views."""
        x = self.pick(rank=1)
        shape: list[ir.Expr] = [*x.shape[:-1], ir.mul(x.shape[-1], 2)]
        woven = self.program.alloc(self.name("woven"), shape, x.dtype)
        strides = [*(_product(shape[k + 1 :]) for k in range(len(shape) - 1)), ir.const(2, INT64)]
        for offset in self.chance.sample((0, 1), 2):
            self._written(woven, x, x.shape, ir.const(offset, INT64), strides)
        return woven

    def _written(
        self,
        made: Tensor,
        x: Tensor,
        shape: Sequence[ir.Expr],
        offset: ir.Expr,
        strides: Sequence[ir.Expr] = (),
    ) -> None:
        """Emit a nest that writes part of a tensor through a view, declared around the nest."""
        view = ir.Buffer(self.name("part"), x.dtype, tuple(shape), tuple(strides), offset)
        scale = self.chance.choice((0.5, 0.25))

        def store(*i: ir.Expr) -> ir.Stmt:
            return ir.BufferStore(view, ir.mul(x[i], scale), i)

        nest = _nest(self.name("written"), shape, store, [(x, "all")], [(view, "all")])
        self.program.statement(ir.DeclBuffer(view, _first(made.buffer), nest))

    def _rows(self) -> Tensor:
        """Copy rows of a tensor through a view whose offset depends on an outer iterator.

        That is a loop around the blocks, or an iterator of the enclosing block.
        """
        x = self.pick(rank=2)
        *lead, length = x.shape
        result = self.program.alloc(self.name("rows"), x.shape, x.dtype)
        inside = self.chance.random() < 0.5
        read = self.chance.random() < 0.5
        source = x if read else result

        def view_at(at: Sequence[ir.Expr]) -> ir.Buffer:
            place: ir.Expr = ir.const(0, INT64)
            for index, extent in zip(at, lead, strict=True):
                place = ir.add(ir.mul(place, extent), index)
            offset = ir.mul(place, length)
            return ir.Buffer(self.name("line"), x.dtype, (length,), (), offset)

        def store(view: ir.Buffer, *i: ir.Expr) -> ir.Stmt:
            value = ir.load(view, i[-1]) if read else x[i]
            target, at = (result.buffer, i) if read else (view, i[-1:])
            return ir.BufferStore(target, ir.mul(value, 0.5), at)

        if inside:
            self.program.statement(self._rows_inside(x, result, source, view_at, store))
        else:
            self.program.statement(self._rows_around(x, result, source, view_at, store))
        return result

    def _rows_inside(
        self,
        x: Tensor,
        made: Tensor,
        source: Tensor,
        view_at: Callable[..., ir.Buffer],
        store: Callable[..., ir.Stmt],
    ) -> ir.Stmt:
        *lead, length = x.shape

        def body(*at: ir.Expr) -> ir.Stmt:
            view, j = view_at(at), ir.Var("j", INT64)
            row = ir.For(j, ir.const(0, INT64), length, ir.ForKind.SERIAL, store(view, *at, j))
            return ir.DeclBuffer(view, _first(source.buffer), row)

        return _nest(self.name("row"), lead, body, [(x, "row")], [(made, "row")])

    def _rows_around(
        self,
        x: Tensor,
        made: Tensor,
        source: Tensor,
        view_at: Callable[..., ir.Buffer],
        store: Callable[..., ir.Stmt],
    ) -> ir.Stmt:
        loops = [ir.Var(f"i{k}", INT64) for k in range(len(x.shape))]
        view = view_at(loops[:-1])
        read, written = (view, made.buffer) if source is x else (x.buffer, view)
        stmt = _realized(
            self.name("row"),
            x.shape,
            loops,
            lambda *i: store(view, *i),
            [(read, "last" if read is view else "all")],
            [(written, "last" if written is view else "all")],
        )
        for k, (var, extent) in reversed(list(enumerate(zip(loops, x.shape, strict=True)))):
            stmt = ir.For(var, ir.const(0, INT64), extent, ir.ForKind.SERIAL, stmt)
            if k == len(loops) - 1:
                stmt = ir.DeclBuffer(view, _first(source.buffer), stmt)
        return stmt


_Touched = Sequence[tuple[Tensor | ir.Buffer, str]]
"""Buffers and the part that one block instance accesses: the element at "all" iterators, the one at
the "last" iterator, or the "row" indexed by all of them."""


def _nest(
    name: str,
    shape: Sequence[ir.Expr],
    body: Callable[..., ir.Stmt],
    reads: _Touched,
    writes: _Touched,
) -> ir.Stmt:
    loops = [ir.Var(f"i{k}", INT64) for k in range(len(shape))]
    stmt = _realized(name, shape, loops, body, reads, writes)
    for var, extent in zip(reversed(loops), reversed(shape), strict=True):
        stmt = ir.For(var, ir.const(0, INT64), extent, ir.ForKind.SERIAL, stmt)
    return stmt


def _realized(
    name: str,
    shape: Sequence[ir.Expr],
    loops: Sequence[ir.Var],
    body: Callable[..., ir.Stmt],
    reads: _Touched,
    writes: _Touched,
) -> ir.Stmt:
    iters = [
        ir.IterVar(ir.Var(f"v_{var.name}", INT64), ir.Range(ir.const(0, INT64), extent))
        for var, extent in zip(loops, shape, strict=True)
    ]
    at = [it.var for it in iters]

    def region(touched: tuple[Tensor | ir.Buffer, str]) -> ir.BufferRegion:
        given, kind = touched
        buffer = given.buffer if isinstance(given, Tensor) else given
        points = [ir.point(v) for v in (at[-1:] if kind == "last" else at)]
        if kind == "row":
            points.append(ir.Range(ir.const(0, INT64), buffer.shape[-1]))
        return ir.BufferRegion(buffer, tuple(points))

    block = ir.Block(
        name, tuple(iters), tuple(map(region, reads)), tuple(map(region, writes)), body(*at)
    )
    return ir.BlockRealize(tuple(loops), ir.const(True, "bool"), block)


def _first(buffer: ir.Buffer) -> ir.Expr:
    zeros = tuple(ir.const(0, n.dtype) for n in buffer.shape)
    return ir.call("address_of", ir.BufferLoad(buffer, zeros), dtype="handle")


def _product(sizes: Sequence[ir.Expr]) -> ir.Expr:
    total: ir.Expr = ir.const(1, INT64)
    for size in sizes:
        total = ir.mul(total, size)
    return total
