"""Statement functions of the `T` dialect: what a script calls to emit into the builder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockwright import ir
from blockwright.ir import (
    Buffer,
    DType,
    Expr,
    ForKind,
    IterType,
    MatchBufferRegion,
    Range,
    Stmt,
    Var,
    dtype_of,
)
from blockwright.script.core import MetaVar
from blockwright.script.tir.builder import (
    BlockFrame,
    Builder,
    FrameOf,
    FuncFrame,
    InitFrame,
    LoopNest,
    LoopSpec,
    ScopeFrame,
    StorageFrame,
)
from blockwright.script.tir.values import (
    BufferSpec,
    extent_of,
    number_types,
    regions,
    to_expr,
    to_region,
    vector_indices,
)
from blockwright.support import ScriptError


# ---------------------------------------------------------------------------------------- buffers
def make_buffer(
    name: str, shape: Any, dtype: str | DType = "float32", *, strides: Any = None,
    elem_offset: Any = None, scope: str = "global", align: int = 0, offset_factor: int = 0,
    axis_separators: Sequence[int] | None = None, buffer_type: str = "",
) -> Buffer:  # fmt: skip
    """A buffer from what the dialect's buffer functions accept."""
    if buffer_type not in ("", "default"):
        raise ScriptError(f"buffer_type {buffer_type!r} is not known", code="BW106")
    builder = Builder.active()
    return Buffer(
        name, dtype_of(dtype), _extents(shape), _extents(strides or ()),
        None if elem_offset is None else to_expr(elem_offset), scope, align if align > 0 else 0,
        offset_factor, tuple(axis_separators or ()), span=builder.span if builder else None,
    )  # fmt: skip


def _extents(shape: Any) -> tuple[Expr, ...]:
    items = shape if isinstance(shape, (tuple, list)) else (shape,)
    out = tuple(to_expr(item) for item in items)
    for item in out:
        if not item.dtype.is_int:
            raise ScriptError(f"a dimension is {item.dtype}, not an integer", code="BW107")
    return out


class _BufferFactory:
    """`T.Buffer(shape, dtype)`, also in the older spelling `T.Buffer[shape, dtype]`."""

    def __call__(self, shape: Any, dtype: str | DType = "float32", **options: Any) -> BufferSpec:
        return BufferSpec(shape, dtype, options)

    def __getitem__(self, items: Any) -> BufferSpec:
        shape, dtype = items if isinstance(items, tuple) and len(items) == 2 else (items, "float32")
        return BufferSpec(shape, dtype, {})


_BufferFactory.__module__ = __name__


def match_buffer(
    source: Any, shape: Any = None, dtype: str | DType | None = None, **options: Any
) -> Buffer:
    """A parameter as a buffer, or in a block a region as a buffer of its own."""
    builder = Builder.current("T.match_buffer")
    name = builder.take_name("buffer")
    if isinstance(source, Var):
        frame = builder.frame(FuncFrame, "T.match_buffer of a parameter",
                              "at the start of the function")  # fmt: skip
        if not source.dtype.is_handle or not any(p is source for p in frame.params):
            raise ScriptError(f"{source.name!r} is no handle parameter", code="BW107")
        if source in frame.buffer_map:
            raise ScriptError(f"parameter {source.name!r} already has a buffer", code="BW111")
        if shape is None:
            raise ScriptError("T.match_buffer needs the shape", code="BW106")
        buffer = make_buffer(name, shape, dtype or "float32", **options)
        frame.buffer_map[source] = buffer
        return buffer
    block = builder.frame(BlockFrame, "T.match_buffer of a region", "directly in a block")
    region = to_region(source)
    extents = tuple(r.extent for r in region.region)
    buffer = make_buffer(name, extents if shape is None else shape,
                         dtype or region.buffer.dtype, **options)  # fmt: skip
    block.match_buffers.append(MatchBufferRegion(buffer, region, span=builder.span))
    return buffer


def alloc_buffer(shape: Any, dtype: str | DType = "float32", *args: Any, **options: Any) -> Buffer:
    """A buffer that lives during the block (or function) around it."""
    builder = Builder.current("T.alloc_buffer")
    frame = builder.frame(StorageFrame, "T.alloc_buffer", "directly in a block or function")
    if args:
        raise ScriptError("T.alloc_buffer takes the shape and type by position, the rest by name",
                          code="BW106")  # fmt: skip
    buffer = make_buffer(builder.take_name("buffer"), shape, dtype, **options)
    frame.alloc_buffers.append(buffer)
    return buffer


def allocate(
    shape: Any, dtype: str | DType = "float32", scope: str = "global",
    annotations: Mapping[str, Any] | None = None, **options: Any,
) -> ScopeFrame:  # fmt: skip
    """Storage for the rest of the list, or for the body of `with … as A`."""

    def make(name: str) -> tuple[Buffer, Any]:
        buffer = make_buffer(name, shape, dtype, scope=scope, **options)
        return buffer, lambda body: ir.Allocate(buffer, body, dict(annotations or {}))

    return ScopeFrame(make, "buffer")


def decl_buffer(shape: Any, dtype: str | DType = "float32", data: Any = None,
                **options: Any) -> ScopeFrame:  # fmt: skip
    """A name for memory that starts at `data`."""
    if data is None:
        raise ScriptError("T.decl_buffer needs data=…, where the memory starts", code="BW106",
                          help="T.allocate makes new memory")  # fmt: skip

    def make(name: str) -> tuple[Buffer, Any]:
        buffer = make_buffer(name, shape, dtype, **options)
        return buffer, lambda body: ir.DeclBuffer(buffer, to_expr(data), body)

    return ScopeFrame(make, "buffer")


def buffer_store(buffer: Buffer, value: Any, indices: Any, predicate: Any = None) -> None:
    """`A[indices] = value`."""
    builder = Builder.current("a store")
    items = tuple(indices) if isinstance(indices, (tuple, list)) else (indices,)
    places = vector_indices(buffer, items)
    lanes = places[-1].dtype.lanes if places else 1
    kind = buffer.dtype.with_lanes(buffer.dtype.lanes * lanes)
    mask = None if predicate is None else to_expr(predicate)
    stored = _stored(value, kind)
    builder.emit(ir.BufferStore(buffer, stored, places, mask, span=builder.span))


def _stored(value: Any, kind: DType) -> Expr:
    """The value in the type of the element: numbers at once, scalars repeated, others cast."""
    plain = isinstance(value, (int, float))
    node = to_expr(value, kind.element if plain else None)
    if node.dtype.lanes == 1 and kind.lanes > 1:
        node = ir.Broadcast(node, kind.lanes)
    if node.dtype is kind:
        return node
    if node.dtype.lanes != kind.lanes or node.dtype.is_handle:
        raise ScriptError(f"the value is {node.dtype}, the buffer holds {kind}", code="BW107")
    return ir.cast_to(node, kind)


def vstore(buffer: Buffer, indices: Any, value: Any, predicate: Any = None) -> None:
    """`A.vstore([i], value, predicate=mask)`: a store with a mask."""
    buffer_store(buffer, value, indices, predicate)


# ------------------------------------------------------------------------------------------ loops
def _loop(kind: ForKind, start: Any, stop: Any, annotations: Mapping[str, Any] | None,
          thread: str = "") -> LoopNest:  # fmt: skip
    if stop is None:
        extent = to_expr(start)
        low: Expr = ir.const(0, extent.dtype)
    else:
        low, high = number_types((start, stop))
        extent = extent_of(low, high)
    if not extent.dtype.is_int:
        raise ScriptError(f"a loop over {extent.dtype} is not possible", code="BW107")
    return LoopNest([LoopSpec(low, extent, kind, thread, annotations)])


def serial(start: Any, stop: Any = None, *, annotations: Mapping[str, Any] | None = None) -> LoopNest:
    return _loop(ForKind.SERIAL, start, stop, annotations)


def parallel(start: Any, stop: Any = None, *, annotations: Mapping[str, Any] | None = None) -> LoopNest:
    return _loop(ForKind.PARALLEL, start, stop, annotations)


def vectorized(start: Any, stop: Any = None, *, annotations: Mapping[str, Any] | None = None) -> LoopNest:
    return _loop(ForKind.VECTORIZED, start, stop, annotations)


def unroll(start: Any, stop: Any = None, *, annotations: Mapping[str, Any] | None = None) -> LoopNest:
    return _loop(ForKind.UNROLLED, start, stop, annotations)


def thread_binding(start: Any, stop: Any = None, thread: str = "", *,
                   annotations: Mapping[str, Any] | None = None) -> LoopNest:  # fmt: skip
    """A loop whose iterations are the threads of an axis such as "threadIdx.x"."""
    if isinstance(stop, str):  # the classic spelling has the axis second
        stop, thread = None, stop
    return _loop(ForKind.THREAD_BINDING, start, stop, annotations, thread)


def grid(*extents: Any) -> LoopNest:
    """Nested serial loops from zero."""
    if not extents:
        raise ScriptError("T.grid needs at least one extent", code="BW106")
    specs = [_loop(ForKind.SERIAL, e, None, None).specs[0] for e in extents]
    return LoopNest(specs, grid=True)


# ----------------------------------------------------------------------------------------- blocks
class AxisDomain:
    """A domain with its kind, in the list form of `T.block`."""

    def __init__(self, domain: Range, kind: IterType) -> None:
        self.domain, self.kind = domain, kind


def _domain(spec: Any, like: Any = None) -> Range:
    """`n` for [0, n), `(a, b)` for [a, b); numbers take the type of the bound value."""
    if isinstance(spec, Range):
        return spec
    if isinstance(spec, (tuple, list)):
        if len(spec) != 2:
            raise ScriptError("a domain is an extent or a pair (begin, end)", code="BW107")
        low, high = number_types((*spec, like) if isinstance(like, Expr) else spec)[:2]
        return Range(low, extent_of(low, high))
    plain = isinstance(spec, int) and isinstance(like, Expr) and like.dtype.is_int
    extent = to_expr(spec, like.dtype if plain and isinstance(like, Expr) else None)
    return Range(ir.const(0, extent.dtype), extent)


def reduce_axis(begin: Any, end: Any) -> AxisDomain:
    return AxisDomain(_domain((begin, end)), IterType.REDUCE)


def scan_axis(begin: Any, end: Any) -> AxisDomain:
    return AxisDomain(_domain((begin, end)), IterType.SCAN)


def opaque_axis(begin: Any, end: Any) -> AxisDomain:
    return AxisDomain(_domain((begin, end)), IterType.OPAQUE)


def range_axis(begin: Any, end: Any) -> AxisDomain:
    return AxisDomain(_domain((begin, end)), IterType.SPATIAL)


def block(first: Any = "", name: str | None = None, *, exec_scope: str = "",
          no_realize: bool = False) -> BlockFrame:  # fmt: skip
    """`T.block("C")`; or `T.block([n, T.reduce_axis(0, k)], "C") as [i, j]`.

    In the second form, and whenever no axis states a value, a loop nest over the domains is made.
    """
    domains: list[tuple[Range, IterType]] = []
    if isinstance(first, (list, tuple)):
        for item in first:
            domain = item if isinstance(item, AxisDomain) else AxisDomain(_domain(item), IterType.SPATIAL)
            domains.append((domain.domain, domain.kind))
        first = name or ""
    elif name is not None:
        raise ScriptError("T.block takes one name", code="BW106")
    if not isinstance(first, str):
        raise ScriptError("the name of a block is a string", code="BW106")
    return BlockFrame(first, domains, exec_scope)


def _block(what: str) -> BlockFrame:
    return Builder.current(what).frame(BlockFrame, what, "directly in a block")


def bind(axis: Var, value: Any) -> None:
    """Give an axis of the enclosing block the value it has here."""
    frame = _block("T.bind")
    for position, item in enumerate(frame.iter_vars):
        if item.var is axis:
            frame.values[position] = to_expr(value, axis.dtype if isinstance(value, int) else None)
            return
    raise ScriptError("T.bind names no axis of this block", code="BW107")


class _Axis:
    """`T.axis`: declares block iterators."""

    def _declare(self, kind: IterType, domain: Any, value: Any, dtype: Any) -> Var:
        builder = Builder.current("T.axis")
        frame = builder.frame(BlockFrame, "T.axis", "directly in a block")
        if dtype is not None and isinstance(domain, int):
            domain = ir.const(domain, dtype)
        node = None if value is None else value if isinstance(value, int) else to_expr(value)
        dom = _domain(domain, node)
        if isinstance(node, int):
            node = ir.const(node, dom.extent.dtype)
        return frame.axis(builder, builder.take_name("v"), dom, kind, node)

    def spatial(self, domain: Any, value: Any = None, dtype: Any = None) -> Var:
        return self._declare(IterType.SPATIAL, domain, value, dtype)

    def reduce(self, domain: Any, value: Any = None, dtype: Any = None) -> Var:
        return self._declare(IterType.REDUCE, domain, value, dtype)

    def scan(self, domain: Any, value: Any = None, dtype: Any = None) -> Var:
        return self._declare(IterType.SCAN, domain, value, dtype)

    def opaque(self, domain: Any, value: Any = None, dtype: Any = None) -> Var:
        return self._declare(IterType.OPAQUE, domain, value, dtype)

    S, R = spatial, reduce

    def remap(self, kinds: str, values: Sequence[Any], dtype: Any = None) -> Any:
        """One axis per loop variable, over exactly its loop: "S" spatial, "R" reduction."""
        builder = Builder.current("T.axis.remap")
        frame = builder.frame(BlockFrame, "T.axis.remap", "directly in a block")
        if len(kinds) != len(values) or set(kinds) - {"S", "R"}:
            raise ScriptError(f"T.axis.remap({kinds!r}, …) needs one S or R per loop variable, "
                              f"{len(values)} here", code="BW106")  # fmt: skip
        domains = {var: Range(spec.low, spec.extent) for nest in builder.frames
                   if isinstance(nest, LoopNest)
                   for var, spec in zip(nest.vars, nest.specs, strict=False)}  # fmt: skip
        out: list[Var] = []
        for kind, value in zip(kinds, values, strict=True):
            if not isinstance(value, Var) or value not in domains:
                raise ScriptError("T.axis.remap takes variables of loops around the block",
                                  code="BW107", help="write T.axis.spatial(extent, value)")  # fmt: skip
            name = builder.take_name(f"v{value.name}")
            out.append(frame.axis(builder, name, domains[value], IterType(kind), value))
        return out if len(out) != 1 else out[0]


_Axis.__module__ = __name__


def where(predicate: Any) -> None:
    """The block runs only where this holds."""
    frame = _block("T.where")
    if frame.predicate is not None:
        raise ScriptError("a block has one T.where", code="BW111", help="join conditions with `and`")
    frame.predicate = to_expr(predicate)


def reads(*items: Any) -> None:
    frame = _block("T.reads")
    if frame.reads is not None:
        raise ScriptError("a block has one T.reads", code="BW111")
    frame.reads = regions(items)


def writes(*items: Any) -> None:
    frame = _block("T.writes")
    if frame.writes is not None:
        raise ScriptError("a block has one T.writes", code="BW111")
    frame.writes = regions(items)


def block_attr(attrs: Mapping[str, Any]) -> None:
    _block("T.block_attr").annotations.update(attrs)


def init() -> InitFrame:
    """What runs before the first step of the block's reduction."""
    frame = _block("T.init")
    if frame.init is not None:
        raise ScriptError("a block has one T.init", code="BW111")
    return InitFrame(frame)


# ------------------------------------------------------------------------------- other statements
def func_attr(attrs: Mapping[str, Any]) -> None:
    builder = Builder.current("T.func_attr")
    frame = builder.frame(FuncFrame, "T.func_attr", "at the start of the function")
    frame.attrs = {**(frame.attrs or {}), **attrs}


def evaluate(value: Any) -> None:
    """An expression for its effect."""
    builder = Builder.current("T.evaluate")
    builder.emit(ir.Evaluate(to_expr(value), span=builder.span))


def Assert(condition: Any, message: str) -> None:
    builder = Builder.current("T.Assert")
    builder.emit(ir.AssertStmt(to_expr(condition), message, span=builder.span))


def attr(node: Any, key: str, value: Any) -> ScopeFrame:
    expr = to_expr(value)
    return ScopeFrame(lambda _: (None, lambda body: ir.AttrStmt(node, key, expr, body)), "")


def launch_thread(tag: str, extent: Any) -> ScopeFrame:
    """A thread axis over the rest of the list."""
    size = to_expr(extent)

    def make(name: str) -> tuple[Var, Any]:
        var = Builder.current().define(Var(name, size.dtype))
        axis = ir.IterVar(var, Range(ir.const(0, size.dtype), size), IterType.SPATIAL, tag)
        return var, lambda body: ir.AttrStmt(axis, "thread_extent", size, body)

    return ScopeFrame(make, "thread")


def LetStmt(value: Any, dtype: str | DType | None = None) -> ScopeFrame:
    """A variable for the body of `with … as x`."""
    node = to_expr(value, None if dtype is None else dtype_of(dtype))

    def make(name: str) -> tuple[Var, Any]:
        var = Builder.current().define(Var(name, node.dtype))
        return var, lambda body: ir.LetStmt(var, node, body)

    return ScopeFrame(make, "x")


def let(var: Var, value: Any) -> ScopeFrame:
    """`with T.let(x, value):` gives a declared variable its value."""
    node = to_expr(value, var.dtype)
    return ScopeFrame(lambda _: (var, lambda body: ir.LetStmt(var, node, body)), var.name)


def If(condition: Any, then: Any, orelse: Any = None) -> None:
    """`if` for Python helpers: the branches are functions that emit."""
    builder = Builder.current("T.If")
    taken: list[Stmt] = []
    for branch in (then, orelse):
        if branch is not None:
            with FrameOf(taken.append):
                branch()
    builder.emit(ir.IfThenElse(to_expr(condition), *taken, span=builder.span))


def meta_var(value: Any) -> MetaVar:
    return MetaVar(value)


class Reducer:
    """`T.comm_reducer(lambda x, y: x + y, identity)` with the step of early scripts."""

    def __init__(self, combine: Any, identity: Any) -> None:
        self._combine, self._identity = combine, identity

    def step(self, target: Any, value: Any) -> None:
        """target = combine(target, value), starting at the identity."""
        frame = _block("reducer.step")
        if not isinstance(target, ir.BufferLoad) or frame.init is not None:
            raise ScriptError("reducer.step takes an element of a buffer, once in a block",
                              code="BW107")  # fmt: skip
        with InitFrame(frame):
            buffer_store(target.buffer, self._identity, target.indices)
        buffer_store(target.buffer, self._combine(target, to_expr(value)), target.indices)


def comm_reducer(combine: Any, identity: Any) -> Reducer:
    items = identity if isinstance(identity, (list, tuple)) else (identity,)
    return Reducer(combine, items[0])


Buffer_ = _BufferFactory()
axis = _Axis()
__all__ = [
    "Assert", "If", "LetStmt", "alloc_buffer", "allocate", "attr", "axis", "bind", "block",
    "block_attr", "buffer_store", "comm_reducer", "decl_buffer", "evaluate", "func_attr", "grid",
    "init", "launch_thread", "let", "match_buffer", "meta_var", "opaque_axis", "parallel",
    "range_axis", "reads", "reduce_axis", "scan_axis", "serial", "thread_binding", "unroll",
    "vectorized", "where", "writes",
]  # fmt: skip
