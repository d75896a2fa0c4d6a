"""Give random programs second names: views of buffers, and let-bound values in bindings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from blockwright import ir
from blockwright.analysis import block_access_regions

KINDS = ("same", "flat", "rows", "bits")


class _View(NamedTuple):
    """A view of a buffer: how to index it, and how to convert elements.

    Attributes:
        into, back: convert a value of the buffer to the view's element type, and the reverse.
    """

    buffer: ir.Buffer
    at: Callable[[Sequence[ir.Expr]], tuple[ir.Expr, ...]]
    into: Callable[[ir.Expr], ir.Expr]
    back: Callable[[ir.Expr], ir.Expr]


def with_second_names(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc:
    """Access some buffers through views, and bind some iterators to let-bound values.

    Every second view is declared on a let-bound pointer.
    """
    root = func.root
    assert isinstance(func.body, ir.BlockRealize)
    taken = [
        b
        for b in (*func.buffers, *root.alloc_buffers)
        if b.ndim and not b.strides and b.dtype.is_float and b.dtype.is_scalar
    ]
    chosen = chance.sample(taken, min(len(taken), chance.randint(1, 3)))
    views = {b: _view(b, chance.choice(KINDS), k) for k, b in enumerate(chosen)}
    body = _Rename(views, chance)(root.body)
    for number, (buffer, view) in enumerate(views.items()):
        first = tuple(ir.const(0, n.dtype) for n in buffer.shape)
        source = ir.call("address_of", ir.BufferLoad(buffer, first), dtype="handle")
        if number % 2:
            pointer = ir.Var(f"pointer{number}", source.dtype)
            body = ir.LetStmt(pointer, source, ir.DeclBuffer(view.buffer, pointer, body))
        else:
            body = ir.DeclBuffer(view.buffer, source, body)
    return func.replace(body=func.body.replace(block=root.replace(body=body)))


def _view(buffer: ir.Buffer, kind: str, number: int) -> _View:
    def same(value: Any) -> Any:
        return value

    name, shape, dtype = f"view{number}", buffer.shape, buffer.dtype
    if kind == "flat":
        size = shape[0]
        for extent in shape[1:]:
            size = ir.mul(size, extent)

        def flat(indices: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
            place = indices[0]
            for index, extent in zip(indices[1:], shape[1:], strict=True):
                place = ir.add(ir.mul(place, extent), index)
            return (place,)

        return _View(ir.Buffer(name, dtype, (size,), scope=buffer.scope), flat, same, same)
    length = ir.const_int(shape[-1])
    if kind == "rows" and length is not None and length % 2 == 0:
        half = length // 2
        split = (*shape[:-1], ir.const(half, shape[-1].dtype), ir.const(2, shape[-1].dtype))

        def pairs(i: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
            return (*i[:-1], ir.floordiv(i[-1], 2), ir.floormod(i[-1], 2))

        return _View(ir.Buffer(name, dtype, split, scope=buffer.scope), pairs, same, same)
    if kind == "bits" and str(dtype) == "float32":
        bits = ir.Buffer(name, ir.dtype_of("int32"), shape, scope=buffer.scope)
        return _View(
            bits, tuple, partial(_reinterpreted, "int32"), partial(_reinterpreted, "float32")
        )
    return _View(ir.Buffer(name, dtype, shape, scope=buffer.scope), tuple, same, same)


def _reinterpreted(dtype: str, value: ir.Expr) -> ir.Expr:
    return ir.call("reinterpret", value, dtype=dtype)


class _Rename(ir.Mutator):
    """Redirects the reads of some blocks, and the writes of some, to views."""

    def __init__(self, views: dict[ir.Buffer, _View], chance: random.Random) -> None:
        super().__init__()
        self.views, self.chance = views, chance
        self.reads: set[ir.Buffer] = set()
        self.writes: set[ir.Buffer] = set()
        self.names = 0

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_BlockRealize(self, node: ir.BlockRealize) -> Any:
        values: list[ir.Expr] = list(node.iter_values)
        lets: list[tuple[ir.Var, ir.Expr]] = []
        for k, value in enumerate(values):
            if not isinstance(value, ir.IntImm) and self.chance.random() < 0.05:
                self.names += 1
                lets.append((ir.Var(f"at{self.names}", value.dtype), value))
                values[k] = lets[-1][0]
        result: ir.Stmt = node.replace(iter_values=tuple(values), block=self(node.block))
        for var, value in lets:
            result = ir.LetStmt(var, value, result)
        return result

    def rewrite_Block(self, node: ir.Block) -> Any:
        around = self.reads, self.writes
        self.reads, self.writes = (
            {b for b in self.views if self.chance.random() < 0.5} for _ in range(2)
        )
        self._memo = {}  # a node shared by two blocks may be renamed differently
        init = None if node.init is None else self(node.init)
        new = node.replace(body=self(node.body), init=init)
        self.reads, self.writes = around
        self._memo = {}
        reads, writes = block_access_regions(new)
        return new.replace(reads=reads, writes=writes)

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> Any:
        new = self.descend(node)
        if new.buffer not in self.reads or not _scalar(new):
            return new
        view = self.views[new.buffer]
        return view.back(ir.BufferLoad(view.buffer, view.at(new.indices)))

    def rewrite_BufferStore(self, node: ir.BufferStore) -> Any:
        new = self.descend(node)
        if new.buffer not in self.writes or not _scalar(new):
            return new
        view = self.views[new.buffer]
        return ir.BufferStore(view.buffer, view.into(new.value), view.at(new.indices))

    def rewrite_Call(self, node: ir.Call) -> Any:
        return (
            node
            if node.op in ("address_of", "tensor") or ir.is_atomic(node)
            else (self.descend(node))
        )


def _scalar(node: ir.BufferLoad | ir.BufferStore) -> bool:
    """Whether an access is scalar and its indices contain no loads.

    For gather indices, argument generation must see which axis of which buffer they index.
    """
    plain = node.predicate is None and all(i.dtype.is_scalar for i in node.indices)
    return plain and not any(ir.collect(i, ir.BufferLoad) for i in node.indices)
