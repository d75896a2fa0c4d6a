"""`Program`: build tensor programs from index expressions (`compute`, `reduce`).

    p = Program("add_one")
    a = p.param("A", (n, 128), "float32")
    b = p.compute("B", (n, 128), lambda i, j: a[i, j] + 1.0)
    func = p.finish([b])

Every `compute` or `reduce` becomes one block in a loop nest over its domain, in program order.
Outputs become the last parameters; all other buffers are allocated in the root block. Operator
definitions and user code share this front end; `T` scripts express the same programs as statements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.analysis import (
    block_access_regions,
    builtin_name,
    builtin_reducer,
    components,
    declare_reducer,
    step,
    stores,
)
from blockwright.analysis.access.value_regions import with_value_regions
from blockwright.ir.annotations import REDUCER
from blockwright.ir.attributes import NOALIAS
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


Into = tuple[Tensor, Callable[..., Sequence[Any]]]
"""(tensor, f): a block stores to `tensor[f(iterators)]` instead of a new buffer."""


Element = tuple[Sequence[Any], ir.Expr]
"""(indices, value): an element of a tensor and the value stored to it."""


class Reducer:
    """A commutative reducer whose component types are inferred from its terms."""

    def __init__(self, combine: Callable[..., Any], identity: Callable[..., Any]) -> None:
        self._combine, self._identity = combine, identity

    def over(self, dtypes: Sequence[ir.DType]) -> ir.CommReducer:
        """The reducer over components of these types."""
        parts = components(self._identity(*dtypes))
        nothing = [ir.as_expr(e, t) for e, t in zip(parts, dtypes, strict=True)]
        return declare_reducer(self._combine, nothing)


def comm_reducer(combine: Callable[..., Any], identity: Callable[..., Any]) -> Reducer:
    """A user-defined reducer for `Program.reduce`.

        top2 = comm_reducer(lambda x, y: ..., lambda t0, t1: (smallest(t0), smallest(t1)))

    Args:
        combine: f(x, y); with several components f(x0, …, y0, …), or f(x, y) of tuples.
        identity: maps the component types to the neutral element.

    On use, raises IRError BW228 with a counterexample if the combiner is not commutative and
    associative, or `identity` is not neutral.
    """
    return Reducer(combine, identity)


AnyReducer = str | Reducer | ir.CommReducer
"""The name of a builtin reducer, or a declared reducer."""


def reducer_of(combiner: AnyReducer, dtypes: Sequence[ir.DType]) -> ir.CommReducer:
    """The reducer over components of the given types."""
    if isinstance(combiner, str):
        return builtin_reducer(combiner, dtypes)
    if isinstance(combiner, Reducer):
        return combiner.over(dtypes)
    if combiner.dtypes != tuple(dtypes):
        raise IRError(
            f"the reducer combines {_types(combiner.dtypes)}, the terms are {_types(dtypes)}",
            code="BW228",
        )
    return combiner


def _types(dtypes: Sequence[ir.DType]) -> str:
    return ", ".join(str(t) for t in dtypes)


class Program:
    """A tensor program under construction."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._params: list[ir.Buffer] = []
        self._scalars: list[ir.Var] = []
        # (buffer, statement) in program order; a block is paired with the first buffer it defines.
        self._made: list[tuple[ir.Buffer | None, ir.Stmt | None]] = []
        self._names: set[str] = set()

    def param(self, name: str, shape: Sequence[Any], dtype: str | ir.DType) -> Tensor:
        """Add an input buffer; new variables in `shape` are bound by the caller's array."""
        buffer = ir.Buffer(self._fresh(name), ir.dtype_of(dtype), _shape(shape))
        self._params.append(buffer)
        return Tensor(buffer)

    def scalar(self, variable: ir.Var) -> ir.Var:
        """Add a scalar parameter after the buffers, such as a symbol that no buffer shape binds."""
        self._scalars.append(variable)
        return variable

    def alloc(self, name: str, shape: Sequence[Any], dtype: str | ir.DType) -> Tensor:
        """Allocate a buffer that blocks with `into` fill, part by part or at computed indices."""
        buffer = ir.Buffer(self._fresh(name), ir.dtype_of(dtype), _shape(shape))
        self._made.append((buffer, None))
        return Tensor(buffer)

    def compute(
        self,
        name: str,
        shape: Sequence[Any],
        body: Callable[..., Any],
        dtype: str | ir.DType | None = None,
        *,
        axes: Sequence[str] = (),
        annotations: dict[str, Any] | None = None,
        into: Into | None = None,
    ) -> Tensor:
        """Add a spatial block: element (i, j, …) of the result is `body(i, j, …)`.

        With `into=(tensor, place)` the block stores to `tensor[place(i, j, …)]`, where `tensor`
        comes from `alloc`.
        """
        extents = _shape(shape)
        iters, loop_vars = self._iterators(extents, axes, ir.IterType.SPATIAL)
        index = tuple(it.var for it in iters)
        value = ir.as_expr(body(*index))
        type_ = ir.dtype_of(dtype) if dtype is not None else value.dtype
        if into is None:
            buffer, where = ir.Buffer(self._fresh(name), type_, extents), index
        else:
            buffer, where = into[0].buffer, _shape(into[1](*index))
        store = ir.BufferStore(buffer, ir.cast_to(value, buffer.dtype), where)
        self._add(name, () if into else (buffer,), iters, loop_vars, store, None, annotations)
        return Tensor(buffer)

    def compute_several(
        self,
        name: str,
        shape: Sequence[Any],
        domain: Sequence[Any],
        body: Callable[..., tuple[Sequence[tuple[ir.Var, ir.Expr]], Sequence[Element]]],
        dtype: str | ir.DType,
        *,
        axes: Sequence[str] = (),
    ) -> Tensor:
        """Add a spatial block that stores several elements in each iteration.

        `body(i, j, …)` over the box `domain` returns let bindings (variable, value), where each may
        use the previous ones, and the stored elements (indices, value).
        """
        iters, loop_vars = self._iterators(_shape(domain), axes, ir.IterType.SPATIAL)
        named, elements = body(*(it.var for it in iters))
        buffer = ir.Buffer(self._fresh(name), ir.dtype_of(dtype), _shape(shape))
        stmt = ir.seq(
            ir.BufferStore(buffer, ir.cast_to(value, buffer.dtype), _shape(place))
            for place, value in elements
        )
        for var, value in reversed(named):
            stmt = ir.LetStmt(var, value, stmt)
        self._add(name, (buffer,), iters, loop_vars, stmt, None, None)
        return Tensor(buffer)

    def block(
        self,
        name: str,
        domain: Sequence[Any],
        body: Callable[..., ir.Stmt],
        *,
        over: Sequence[Any] = (),
        init: Callable[..., ir.Stmt] | None = None,
        allocated: Sequence[ir.Buffer] = (),
        views: Callable[..., Sequence[ir.MatchBufferRegion]] | None = None,
        axes: Sequence[str] = (),
    ) -> None:
        """Add a block with the statement `body(i, j, …)`, which may contain loops and conditions.

        The statement stores to tensors from `alloc`.

        Args:
            domain: extents of the spatial iterators.
            over: extents of the reduction iterators, the last arguments of `body`.
            init: f(i, j, …) of the spatial iterators: the initial statement of the reduction.
            allocated: buffers allocated in the block.
            views: f(i, j, …) of all iterators: the block's `match_buffer` regions.
        """
        extents = _shape(domain)
        spatial, loops = self._iterators(extents, axes, ir.IterType.SPATIAL)
        reduced, more = self._iterators(
            _shape(over), axes[len(extents) :], ir.IterType.REDUCE, prefix="k"
        )
        first = None if init is None else init(*(it.var for it in spatial))
        iters = [*spatial, *reduced]
        stmt = body(*(it.var for it in iters))
        shown = views(*(it.var for it in iters)) if views else ()
        self._add(name, (), iters, [*loops, *more], stmt, first, None, allocated, shown)

    def together(
        self,
        domain: Sequence[Any],
        blocks: Sequence[tuple[str, ir.IterType, Callable[..., ir.Stmt]]],
        *,
        ranges: Callable[..., Sequence[ir.Range]] | None = None,
        where: Callable[..., ir.Expr] | None = None,
        kind: ir.ForKind = ir.ForKind.SERIAL,
        around: Callable[..., ir.Stmt] | None = None,
    ) -> None:
        """Add several blocks in one loop nest over the box `domain`, or over a part of it.

        Args:
            domain: extents of the blocks' iterators.
            blocks: per block its name, the type of its last iterator (the others are spatial), and
                its statement `body(i, j, …)`, which stores to tensors from `alloc`.
            ranges: f(i, j, …): the range of each loop, which may depend on outer loops; by default
                the whole axis.
            where: f(i, j, …): the predicate of the blocks, a condition on the loops.
            kind: the kind of the outermost loop.
            around: f(blocks, i, j, …): the body of the innermost loop, which contains the blocks.
        """
        extents = _shape(domain)
        loops: list[ir.Var] = []
        inside: list[ir.Stmt] = []
        for name, last, body in blocks:
            iters, variables = self._iterators(extents, (), ir.IterType.SPATIAL)
            iters[-1] = iters[-1].replace(iter_type=last)
            loops = loops or variables
            stmt = body(*(it.var for it in iters))
            realized = self._realized(self._fresh(name), iters, loops, stmt)
            inside.append(realized if where is None else realized.replace(predicate=where(*loops)))
        stmt = ir.seq(inside) if around is None else around(inside, *loops)
        taken = [ir.Range(ir.const(0, e.dtype), e) for e in extents]
        taken = taken if ranges is None else list(ranges(*loops))
        for k, (var, rng) in reversed(list(enumerate(zip(loops, taken, strict=True)))):
            stmt = ir.For(var, rng.min, rng.extent, ir.ForKind.SERIAL if k else kind, stmt)
        self._made.append((None, stmt))

    def statement(self, stmt: ir.Stmt) -> None:
        """Add a prebuilt statement with blocks, such as a nest with declared views.

        It stores to tensors from `alloc`.
        """
        self._made.append((None, stmt))

    def reduce(
        self,
        name: str,
        shape: Sequence[Any],
        over: Sequence[Any],
        body: Callable[..., Any],
        combiner: AnyReducer = "sum",
        dtype: str | ir.DType | None = None,
        *,
        axes: Sequence[str] = (),
        annotations: dict[str, Any] | None = None,
        into: Into | None = None,
    ) -> Tensor:
        """Add a reduction block: `body(spatial…, reduce…)` combined over the box `over`.

        With `into=(tensor, place)` the result for (i, j, …) is stored to `tensor[place(i, j, …)]`,
        where `tensor` comes from `alloc`.
        """
        kinds = None if dtype is None else (dtype,)
        (result,) = self._reduce(
            (name,), shape, over, body, combiner, kinds, axes, annotations, into
        )
        return result

    def reduce_tuple(
        self,
        names: Sequence[str],
        shape: Sequence[Any],
        over: Sequence[Any],
        body: Callable[..., Any],
        combiner: AnyReducer,
        dtypes: Sequence[str | ir.DType] | None = None,
        *,
        axes: Sequence[str] = (),
        annotations: dict[str, Any] | None = None,
    ) -> tuple[Tensor, ...]:
        """Add a tuple reduction, one tensor per component: `body` returns a tuple of terms.

        best, at = p.reduce_tuple(("best", "at"), (n,), (m,), lambda i, k: (x[i, k], k),
                                  "argmax", ("float32", "int64"))
        """
        return self._reduce(names, shape, over, body, combiner, dtypes, axes, annotations)

    def _reduce(
        self,
        names: Sequence[str],
        shape: Sequence[Any],
        over: Sequence[Any],
        body: Callable[..., Any],
        combiner: AnyReducer,
        dtypes: Sequence[str | ir.DType] | None,
        axes: Sequence[str],
        annotations: dict[str, Any] | None,
        into: Into | None = None,
    ) -> tuple[Tensor, ...]:
        extents, domain = _shape(shape), _shape(over)
        spatial, loops = self._iterators(extents, axes[: len(extents)], ir.IterType.SPATIAL)
        reduced, more = self._iterators(
            domain, axes[len(extents) :], ir.IterType.REDUCE, prefix="k"
        )
        parts = components(body(*(it.var for it in (*spatial, *reduced))))
        if len(parts) != len(names):
            raise IRError(f"{len(parts)} terms for {len(names)} names", code="BW229")
        values = [ir.as_expr(part) for part in parts]
        kinds = [v.dtype for v in values] if dtypes is None else [ir.dtype_of(d) for d in dtypes]
        reducer = reducer_of(combiner, kinds)
        index = tuple(it.var for it in spatial)
        if into is None:
            elements = [
                ir.BufferLoad(ir.Buffer(self._fresh(n), t, extents), index)
                for n, t in zip(names, kinds, strict=True)
            ]
        else:
            elements = [ir.BufferLoad(into[0].buffer, _shape(into[1](*index)))]
        terms = [ir.cast_to(v, t) for v, t in zip(values, kinds, strict=True)]
        notes = dict(annotations or {})
        if not builtin_name(reducer):
            notes[REDUCER] = reducer
        update, init = step(reducer, elements, terms), stores(elements, reducer.identity)
        buffers = [e.buffer for e in elements]
        self._add(
            names[0],
            () if into else buffers,
            [*spatial, *reduced],
            [*loops, *more],
            update,
            init,
            notes,
        )
        return tuple(Tensor(b) for b in buffers)

    def opaque(
        self,
        name: str,
        outputs: Sequence[tuple[str, Sequence[Any], str | ir.DType]],
        reads: Sequence[ir.Buffer],
        body: Callable[[Sequence[ir.Buffer]], ir.Stmt],
        *,
        annotations: dict[str, Any] | None = None,
    ) -> list[Tensor]:
        """Add a block without iterators that reads whole buffers and writes whole outputs.

        `body(output buffers)` returns its statement.
        """
        outs = [ir.Buffer(self._fresh(n), ir.dtype_of(d), _shape(s)) for n, s, d in outputs]
        block = ir.Block(
            name,
            (),
            tuple(map(ir.full_region, reads)),
            tuple(map(ir.full_region, outs)),
            body(outs),
            annotations=annotations or {},
        )
        stmt: ir.Stmt | None = ir.BlockRealize((), ir.const(True, "bool"), block)
        for buffer in outs:
            self._made.append((buffer, stmt))
            stmt = None
        return [Tensor(buffer) for buffer in outs]

    def finish(self, outputs: Sequence[Tensor], attrs: dict[str, Any] | None = None) -> ir.PrimFunc:
        """Build the function: parameters are the inputs, then `outputs`; the rest is allocated."""
        outs = [t.buffer for t in outputs]
        for buffer in outs:
            if all(buffer is not result for result, _ in self._made):
                raise IRError(f"output {buffer.name} is not computed by the program", code="BW213")
        result = [b for b, _ in self._made if b is not None]
        temps = tuple(b for b in result if all(b is not o for o in outs))
        body = ir.seq(stmt for _, stmt in self._made if stmt is not None)
        facts = {"global_symbol": self.name, NOALIAS: True, **(attrs or {})}
        func = ir.prim_func(
            body, [*self._params, *outs], allocated=temps, scalars=self._scalars, attrs=facts
        )
        return with_value_regions(func)

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
        name: str,
        fresh: Sequence[ir.Buffer],
        iters: list[ir.IterVar],
        loop_vars: list[ir.Var],
        body: ir.Stmt,
        init: ir.Stmt | None,
        annotations: dict[str, Any] | None,
        allocated: Sequence[ir.Buffer] = (),
        views: Sequence[ir.MatchBufferRegion] = (),
    ) -> None:
        name = fresh[0].name if fresh else self._fresh(name)
        stmt = self._realized(name, iters, loop_vars, body, init, annotations, allocated, views)
        for var, it in zip(reversed(loop_vars), reversed(iters), strict=True):
            stmt = ir.For(var, it.dom.min, it.dom.extent, ir.ForKind.SERIAL, stmt)
        self._made.append((fresh[0] if fresh else None, stmt))
        self._made += [(b, None) for b in fresh[1:]]

    def _realized(
        self,
        name: str,
        iters: Sequence[ir.IterVar],
        values: Sequence[ir.Expr],
        body: ir.Stmt,
        init: ir.Stmt | None = None,
        annotations: dict[str, Any] | None = None,
        allocated: Sequence[ir.Buffer] = (),
        views: Sequence[ir.MatchBufferRegion] = (),
    ) -> ir.BlockRealize:
        """A block realize with the given iterator values, and access regions from the body."""
        block = ir.Block(
            name,
            tuple(iters),
            (),
            (),
            body,
            init,
            tuple(allocated),
            tuple(views),
            annotations=annotations or {},
        )
        reads, writes = block_access_regions(block)
        block = block.replace(reads=reads, writes=writes)
        return ir.BlockRealize(tuple(values), ir.const(True, "bool"), block)


def _shape(shape: Sequence[Any]) -> tuple[ir.Expr, ...]:
    return tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape)
