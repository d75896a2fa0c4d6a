"""Statement functions of the `T` dialect: what a script calls to emit into the builder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockwright import ir
from blockwright.ir import (
    Buffer,
    DType,
    Expr,
    IterType,
    MatchBufferRegion,
    Range,
    Stmt,
    Var,
    dtype_of,
)
from blockwright.script.core import MetaVar, items_of
from blockwright.script.tir.builder import (
    BlockFrame,
    Builder,
    FrameOf,
    FuncFrame,
    ScopeFrame,
    StorageFrame,
    Wrap,
)
from blockwright.script.tir.values import (
    BufferSpec,
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
    out = tuple(to_expr(item) for item in items_of(shape))
    for item in out:
        if not item.dtype.is_int:
            raise ScriptError(f"a dimension is {item.dtype}, not an integer", code="BW107")
    return out


class _BufferFactory:
    """`T.Buffer(shape, dtype)`, also in the older spelling `T.Buffer[shape, dtype]`."""

    def __call__(self, shape: Any, dtype: str | DType = "float32", **options: Any) -> BufferSpec:
        return BufferSpec(shape, dtype, options)

    def __getitem__(self, args: Any) -> BufferSpec:
        items = items_of(args)
        if len(items) == 2 and isinstance(items[1], (str, DType)):
            return BufferSpec(items[0], items[1], {})
        return BufferSpec(items, "float32", {})


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

    def make(name: str) -> tuple[Buffer, Wrap]:
        buffer = make_buffer(name, shape, dtype, scope=scope, **options)
        return buffer, lambda body: ir.Allocate(buffer, body, dict(annotations or {}))

    return ScopeFrame(make, "buffer")


def decl_buffer(shape: Any, dtype: str | DType = "float32", data: Any = None,
                **options: Any) -> ScopeFrame:  # fmt: skip
    """A name for memory that starts at `data`."""
    if data is None:
        raise ScriptError("T.decl_buffer needs data=…, where the memory starts", code="BW106",
                          help="T.allocate makes new memory")  # fmt: skip

    def make(name: str) -> tuple[Buffer, Wrap]:
        buffer = make_buffer(name, shape, dtype, **options)
        return buffer, lambda body: ir.DeclBuffer(buffer, to_expr(data), body)

    return ScopeFrame(make, "buffer")


def buffer_store(buffer: Buffer, value: Any, indices: Any, predicate: Any = None) -> None:
    """`A[indices] = value`."""
    builder = Builder.current("a store")
    places = vector_indices(buffer, items_of(indices))
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

    def make(name: str) -> tuple[Var, Wrap]:
        var = Builder.current().define(Var(name, size.dtype))
        axis = ir.IterVar(var, Range(ir.const(0, size.dtype), size), IterType.SPATIAL, tag)
        return var, lambda body: ir.AttrStmt(axis, "thread_extent", size, body)

    return ScopeFrame(make, "thread")


def LetStmt(value: Any, dtype: str | DType | None = None) -> ScopeFrame:
    """A variable for the body of `with … as x`."""
    node = to_expr(value, None if dtype is None else dtype_of(dtype))

    def make(name: str) -> tuple[Var, Wrap]:
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


Buffer_ = _BufferFactory()
__all__ = [
    "Assert", "If", "LetStmt", "alloc_buffer", "allocate", "attr", "buffer_store", "decl_buffer",
    "evaluate", "func_attr", "launch_thread", "let", "match_buffer", "meta_var",
]  # fmt: skip
