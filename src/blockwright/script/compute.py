"""The `compute` front end: tensor programs from index expressions.

    p = Program("add_one")
    a = p.param("A", (n, 128), "float32")
    b = p.compute("B", (n, 128), lambda i, j: a[i, j] + 1.0)
    func = p.finish([b])

Every `compute` or `reduce` becomes one block in a loop nest over its domain, in the order written.
Outputs become the last parameters; everything else is allocated in the root block. Operator rows
and user code share this front end; `T` scripts say the same things in statements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.analysis import block_access_regions
from blockwright.support import IRError


class Tensor:
    """A buffer that can be indexed with expressions: `t[i, j]` is a load."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: ir.Buffer) -> None:
        self.buffer = buffer

    @property
    def shape(self) -> tuple[ir.Expr, ...]:
        return self.buffer.shape

    @property
    def dtype(self) -> ir.DType:
        return self.buffer.dtype

    def __getitem__(self, indices: Any) -> ir.Expr:
        if not isinstance(indices, tuple):
            indices = (indices,)
        return ir.load(self.buffer, *indices)


# Combiner name → (identity of a type, combination).
def _min_of(dtype: ir.DType) -> ir.Expr:
    return ir.const(float("-inf") if dtype.is_float else dtype.min_value, dtype)


def _max_of(dtype: ir.DType) -> ir.Expr:
    return ir.const(float("inf") if dtype.is_float else dtype.max_value, dtype)


COMBINERS: dict[
    str, tuple[Callable[[ir.DType], ir.Expr], Callable[[ir.Expr, ir.Expr], ir.Expr]]
] = {
    "sum": (lambda t: ir.const(0, t), ir.add),
    "prod": (lambda t: ir.const(1, t), ir.mul),
    "max": (_min_of, ir.maximum),
    "min": (_max_of, ir.minimum),
    "any": (lambda t: ir.const(False, t), ir.logical_or),
    "all": (lambda t: ir.const(True, t), ir.logical_and),
}


class Program:
    """A tensor program under construction."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._params: list[ir.Buffer] = []
        self._scalars: list[ir.Var] = []
        self._made: list[tuple[ir.Buffer, ir.Stmt]] = []
        self._names: set[str] = set()

    def param(self, name: str, shape: Sequence[Any], dtype: str | ir.DType) -> Tensor:
        """An input buffer; new dimension variables in `shape` are bound by the caller's array."""
        buffer = ir.Buffer(self._fresh(name), ir.dtype_of(dtype), _shape(shape))
        self._params.append(buffer)
        return Tensor(buffer)

    def scalar(self, variable: ir.Var) -> ir.Var:
        """A scalar parameter, such as a symbol no buffer shape binds; comes after the buffers."""
        self._scalars.append(variable)
        return variable

    def compute(
        self,
        name: str,
        shape: Sequence[Any],
        body: Callable[..., Any],
        dtype: str | ir.DType | None = None,
        *,
        axes: Sequence[str] = (),
        annotations: dict[str, Any] | None = None,
    ) -> Tensor:
        """A spatial block: element (i, j, …) of the result is `body(i, j, …)`."""
        extents = _shape(shape)
        iters, loop_vars = self._iterators(extents, axes, ir.IterType.SPATIAL)
        value = ir.as_expr(body(*(it.var for it in iters)))
        type_ = ir.dtype_of(dtype) if dtype is not None else value.dtype
        buffer = ir.Buffer(self._fresh(name), type_, extents)
        store = ir.BufferStore(buffer, ir.cast_to(value, type_), tuple(it.var for it in iters))
        self._add(buffer, iters, loop_vars, store, None, annotations)
        return Tensor(buffer)

    def reduce(
        self,
        name: str,
        shape: Sequence[Any],
        over: Sequence[Any],
        body: Callable[..., Any],
        combiner: str = "sum",
        dtype: str | ir.DType | None = None,
        *,
        axes: Sequence[str] = (),
        annotations: dict[str, Any] | None = None,
    ) -> Tensor:
        """A reduction block: `body(spatial…, reduce…)` combined over the box `over`."""
        extents, domain = _shape(shape), _shape(over)
        spatial, loops = self._iterators(extents, axes[: len(extents)], ir.IterType.SPATIAL)
        reduced, more = self._iterators(
            domain, axes[len(extents) :], ir.IterType.REDUCE, prefix="k"
        )
        value = ir.as_expr(body(*(it.var for it in (*spatial, *reduced))))
        type_ = ir.dtype_of(dtype) if dtype is not None else value.dtype
        buffer = ir.Buffer(self._fresh(name), type_, extents)
        index = tuple(it.var for it in spatial)
        identity, combine = COMBINERS[combiner]
        old = ir.BufferLoad(buffer, index)
        update = ir.BufferStore(buffer, combine(old, ir.cast_to(value, type_)), index)
        init = ir.BufferStore(buffer, identity(type_), index)
        self._add(buffer, [*spatial, *reduced], [*loops, *more], update, init, annotations)
        return Tensor(buffer)

    def opaque(
        self,
        name: str,
        outputs: Sequence[tuple[str, Sequence[Any], str | ir.DType]],
        reads: Sequence[ir.Buffer],
        body: Callable[[Sequence[ir.Buffer]], ir.Stmt],
        *,
        annotations: dict[str, Any] | None = None,
    ) -> list[Tensor]:
        """A block without iterators that reads whole buffers and writes whole outputs.

        `body(buffers of the outputs)` is its statement.
        """
        outs = [ir.Buffer(self._fresh(n), ir.dtype_of(d), _shape(s)) for n, s, d in outputs]
        block = ir.Block(name, (), tuple(map(ir.full_region, reads)),
                         tuple(map(ir.full_region, outs)), body(outs),
                         annotations=annotations or {})  # fmt: skip
        stmt: ir.Stmt = ir.BlockRealize((), ir.const(True, "bool"), block)
        for buffer in outs:
            self._made.append((buffer, stmt))
            stmt = ir.seq(())
        return [Tensor(buffer) for buffer in outs]

    def finish(self, outputs: Sequence[Tensor], attrs: dict[str, Any] | None = None) -> ir.PrimFunc:
        """The function: inputs, then `outputs`, are parameters; the rest is allocated inside."""
        outs = [t.buffer for t in outputs]
        for buffer in outs:
            if all(buffer is not made for made, _ in self._made):
                raise IRError(f"output {buffer.name} is not computed by the program", code="BW213")
        temps = tuple(b for b, _ in self._made if all(b is not o for o in outs))
        body = ir.seq(stmt for _, stmt in self._made)
        root = ir.Block("root", (), (), (), body, alloc_buffers=temps)
        realize = ir.BlockRealize((), ir.const(True, "bool"), root)
        buffers = [*self._params, *outs]
        handles = tuple(ir.Var(f"{b.name}_handle", ir.dtype_of("handle")) for b in buffers)
        facts = {"global_symbol": self.name, "tir.noalias": True, **(attrs or {})}
        pairs = tuple(zip(handles, buffers, strict=True))
        return ir.PrimFunc((*handles, *self._scalars), pairs, realize, facts)

    def _fresh(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self._names:
            candidate = f"{name}_{number}"
            number += 1
        self._names.add(candidate)
        return candidate

    def _iterators(
        self,
        extents: Sequence[ir.Expr],
        axes: Sequence[str],
        kind: ir.IterType,
        prefix: str = "i",
    ) -> tuple[list[ir.IterVar], list[ir.Var]]:
        iters: list[ir.IterVar] = []
        loops: list[ir.Var] = []
        for position, extent in enumerate(extents):
            name = axes[position] if position < len(axes) else f"{prefix}{position}"
            loops.append(ir.Var(name, extent.dtype))
            dom = ir.Range(ir.const(0, extent.dtype), extent)
            iters.append(ir.IterVar(ir.Var(f"v_{name}", extent.dtype), dom, kind))
        return iters, loops

    def _add(
        self,
        buffer: ir.Buffer,
        iters: list[ir.IterVar],
        loop_vars: list[ir.Var],
        body: ir.Stmt,
        init: ir.Stmt | None,
        annotations: dict[str, Any] | None,
    ) -> None:
        block = ir.Block(buffer.name, tuple(iters), (), (), body, init,
                         annotations=annotations or {})  # fmt: skip
        reads, writes = block_access_regions(block)
        block = block.replace(reads=reads, writes=writes)
        stmt: ir.Stmt = ir.BlockRealize(tuple(loop_vars), ir.const(True, "bool"), block)
        for var, it in zip(reversed(loop_vars), reversed(iters), strict=True):
            stmt = ir.For(var, it.dom.min, it.dom.extent, ir.ForKind.SERIAL, stmt)
        self._made.append((buffer, stmt))


def _shape(shape: Sequence[Any]) -> tuple[ir.Expr, ...]:
    return tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape)
