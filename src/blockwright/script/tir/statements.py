"""Statement functions of the `T` dialect, which emit into the IR builder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ir import (
    Buffer,
    DType,
    Expr,
    IterType,
    MatchBufferRegion,
    Range,
    Var,
    dtype_of,
)
from blockwright.script.core import MetaVar, items_of
from blockwright.script.tir.builder import (
    BlockFrame,
    Builder,
    FuncFrame,
    ScopeFrame,
    StorageFrame,
    Wrap,
    frozen,
)
from blockwright.script.tir.classic import OpenAxis, first_element
from blockwright.script.tir.pointers import name_pointer
from blockwright.script.tir.values import (
    BufferSlice,
    BufferSpec,
    DTypeFactory,
    NodeValue,
    from_first_lane,
    function_attributes,
    message_values,
    to_expr,
    to_index,
    to_region,
    vector_indices,
)
from blockwright.support import ScriptError


# ---------------------------------------------------------------------------------------- buffers
def make_buffer(
    name: str,
    shape: Any,
    dtype: str | DType = "float32",
    *,
    strides: Any = None,
    elem_offset: Any = None,
    scope: str = "global",
    align: int = 0,
    offset_factor: int = 0,
    axis_separators: Sequence[int] | None = None,
    buffer_type: str = "",
) -> Buffer:
    """Build a buffer from the options of the dialect's buffer functions."""
    if buffer_type not in ("", "default", "auto", "auto_broadcast"):
        raise ScriptError(
            f"buffer_type {buffer_type!r} is not known",
            code="BW106",
            help='write "default" or "auto"',
        )
    numbers: dict[str, Any] = {"align": align, "offset_factor": offset_factor}
    for what, number in numbers.items():
        if not isinstance(number, (int, np.integer)):
            raise ScriptError(f"{what} of a buffer is a number, not {number!r}", code="BW107")
    builder = Builder.active()
    buffer = Buffer(
        name,
        dtype_of(dtype),
        _extents(shape),
        _extents(strides or ()),
        None if elem_offset is None else _offset(elem_offset),
        scope,
        align if align > 0 else 0,
        offset_factor,
        tuple(axis_separators or ()),
        span=builder.span if builder else None,
    )
    if builder is not None and buffer_type.startswith("auto"):
        builder.broadcasting.add(buffer)
    return buffer


# Positional parameters after shape and type, in the order of TVM's signatures.
_OPTIONS = (
    "data",
    "strides",
    "elem_offset",
    "scope",
    "align",
    "offset_factor",
    "buffer_type",
    "axis_separators",
)


def _options(args: Sequence[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Merge positional and keyword buffer options; None selects the default."""
    if len(args) > len(_OPTIONS):
        raise ScriptError(
            "too many arguments for a buffer",
            code="BW106",
            help=f"after shape and type come {', '.join(_OPTIONS)}",
        )
    given = dict(zip(_OPTIONS, args, strict=False))
    return {k: v for k, v in {**given, **options}.items() if v is not None}


def _with_symbols(strides: Any) -> tuple[Any, ...]:
    """Replace strings in strides, as in `strides=("s0", "s1")`, by new symbols.

    Matching binds the symbol to the stride of the argument. The symbol is local to this buffer: the
    same string in another buffer is another symbol.
    """
    items = items_of(strides)
    symbols = {name: Var(name, Builder.index_dtype()) for name in items if isinstance(name, str)}
    return tuple(symbols[item] if isinstance(item, str) else item for item in items)


def _extents(shape: Any) -> tuple[Expr, ...]:
    items = items_of(shape)
    for item in items:
        if isinstance(item, str):
            raise ScriptError(
                f"{item!r} names no size of this buffer",
                code="BW107",
                help=f"define {item} = T.int32() before; strings can only name the strides of "
                "T.match_buffer and the sizes of a T.Buffer parameter",
            )
    out = tuple(map(to_index, items))
    for item in out:
        if not item.dtype.is_int:
            raise ScriptError(f"a dimension is {item.dtype}, not an integer", code="BW107")
    return out


def _offset(value: Any) -> Expr:
    offset = to_index(value)
    if not (offset.dtype.is_int and offset.dtype.is_scalar):
        given = repr(value) if isinstance(value, str) else f"of type {offset.dtype}"
        raise ScriptError(
            f"elem_offset is {given}, not an integer",
            code="BW107",
            help="define a variable for a symbolic offset: off = T.int32() before",
        )
    return offset


class _BufferFactory:
    """`T.Buffer(shape, dtype)`, also in the older syntax `T.Buffer[shape, dtype]`."""

    def __call__(
        self, shape: Any, dtype: str | DType = "float32", *args: Any, **options: Any
    ) -> BufferSpec:
        return BufferSpec(shape, dtype, _options(args, options))

    def __getitem__(self, args: Any) -> BufferSpec:
        items = items_of(args)
        if len(items) == 2 and isinstance(items[1], (str, DType)):
            return BufferSpec(items[0], items[1], {})
        return BufferSpec(items, "float32", {})


_BufferFactory.__module__ = __name__


def match_buffer(
    source: Any, shape: Any = None, dtype: str | DType | None = None, *args: Any, **options: Any
) -> Buffer:
    """Bind a parameter to a buffer or, in a block, a region to a new buffer (a view)."""
    options = _options(args, options)
    if options.pop("data", None) is not None:
        raise ScriptError(
            "T.match_buffer uses the memory of the parameter or region",
            code="BW106",
            help="omit data",
        )
    if "strides" in options:
        options["strides"] = _with_symbols(options["strides"])
    builder = Builder.current("T.match_buffer")
    name = builder.take_name("buffer")
    if isinstance(source, Var):
        frame = builder.frame(
            FuncFrame, "T.match_buffer of a parameter", "at the start of the function"
        )
        if not source.dtype.is_handle or not any(p is source for p in frame.params):
            raise ScriptError(f"{source.name!r} is not a handle parameter", code="BW107")
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
    buffer = make_buffer(
        name, extents if shape is None else shape, dtype or region.buffer.dtype, **options
    )
    block.match_buffers.append(MatchBufferRegion(buffer, region, span=builder.span))
    return buffer


def alloc_buffer(shape: Any, dtype: str | DType = "float32", *args: Any, **options: Any) -> Buffer:
    """Allocate a buffer with the lifetime of the enclosing block or function."""
    builder = Builder.current("T.alloc_buffer")
    frame = builder.frame(StorageFrame, "T.alloc_buffer", "directly in a block or function")
    options = _options(args, options)
    if "data" in options:
        raise ScriptError(
            "T.alloc_buffer allocates new memory",
            code="BW106",
            help="use T.decl_buffer(…, data=…) for existing memory",
        )
    buffer = make_buffer(builder.take_name("buffer"), shape, dtype, **options)
    frame.alloc_buffers.append(buffer)
    return buffer


def allocate(
    shape: Any,
    dtype: str | DType = "float32",
    scope: str = "global",
    condition: Any = None,
    annotations: Mapping[str, Any] | None = None,
    **options: Any,
) -> ScopeFrame:
    """Allocate storage for the rest of the statement list, or for the body of `with … as A`."""
    if not (condition is None or condition is True or ir.is_const_int(condition, 1)):
        raise ScriptError(
            "an allocation cannot have a condition",
            code="BW106",
            help="allocate unconditionally, and guard the uses with `if`",
        )

    def make(name: str) -> tuple[Buffer, Wrap]:
        buffer = make_buffer(name, shape, dtype, scope=scope, **options)
        return buffer, lambda body: ir.Allocate(buffer, body, frozen(dict(annotations or {})))

    return ScopeFrame(make, "buffer")


def allocate_const(
    data: Any, dtype: str | DType, extents: Any, annotations: Mapping[str, Any] | None = None
) -> ScopeFrame:
    """A small table of constants: storage that is initialized by stores at its definition."""
    values: Any = np.asarray(data).ravel()
    sizes = [ir.const_int(e) for e in _extents(extents)]
    total = math.prod(s for s in sizes if s is not None)
    if None in sizes or total != values.size:
        raise ScriptError(f"{values.size} values do not fill {shape_words(extents)}", code="BW107")
    if total > LARGEST_TABLE:
        raise ScriptError(
            f"a table of {total} values is too long to be written out",
            code="BW106",
            help="pass it as a parameter, or keep it in the module: T.constant_data(name)",
        )

    def make(name: str) -> tuple[Buffer, Wrap]:
        buffer = make_buffer(name, extents, dtype)
        places = np.ndindex(*(s or 0 for s in sizes))
        stores = [
            ir.BufferStore(buffer, ir.const(v.item(), buffer.dtype), vector_indices(buffer, at))
            for at, v in zip(places, values, strict=True)
        ]
        return buffer, lambda body: ir.Allocate(
            buffer, ir.seq([*stores, body]), dict(annotations or {})
        )

    return ScopeFrame(make, "table")


LARGEST_TABLE = 256


def shape_words(shape: Any) -> str:
    return " x ".join(str(item) for item in items_of(shape))


def decl_buffer(
    shape: Any, dtype: str | DType = "float32", *args: Any, **options: Any
) -> ScopeFrame:
    """Declare a buffer at the address `data`; without `data`, allocate new memory."""
    given = _options(args, options)
    data = given.pop("data", None)
    if data is None:
        return allocate(shape, dtype, **given)
    source = first_element(data) if isinstance(data, Buffer) else to_expr(data)

    def make(name: str) -> tuple[Buffer, Wrap]:
        buffer = make_buffer(name, shape, dtype, **given)
        return buffer, lambda body: ir.DeclBuffer(buffer, source, body)

    return ScopeFrame(make, "buffer")


buffer_decl = decl_buffer


def declared(spec: BufferSpec) -> ScopeFrame:
    """`B = T.Buffer(shape, dtype, data=…)` in a body."""
    if "data" not in spec.options:
        raise ScriptError(
            "T.Buffer in a body needs existing memory",
            code="BW106",
            help="write data=A.data, or T.alloc_buffer for new memory",
        )
    return decl_buffer(spec.shape, spec.dtype, **spec.options)


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
    """Convert a value to the element type: numbers directly, scalars broadcast, others cast."""
    plain = isinstance(value, (int, float))
    node = to_expr(value, kind.element if plain else None)
    if node.dtype.lanes == 1 and kind.lanes > 1:
        node = ir.Broadcast(node, kind.lanes)
    if node.dtype is kind:
        return node
    if node.dtype.lanes != kind.lanes or node.dtype.is_handle:
        raise ScriptError(
            f"the value is {node.dtype}, the stored element is {kind}",
            code="BW107",
            help="vectors extend along the last index; a scalar value is broadcast",
        )
    return ir.cast_to(node, kind)


def vstore(buffer: Buffer, indices: Any, value: Any, predicate: Any = None) -> None:
    """`A.vstore([i], value, predicate=mask)`: a masked store; a vector is stored from i on."""
    items = items_of(indices)
    if isinstance(value, (Expr, BufferSlice)):
        value = to_expr(value)
        items = from_first_lane(buffer, items, value.dtype.lanes // buffer.dtype.lanes)
    buffer_store(buffer, value, items, predicate)


# ------------------------------------------------------------------------------- other statements
def func_name(name: str) -> None:
    """Set the name of a function built with the IR builder."""
    Builder.current("T.func_name").frame(FuncFrame, "T.func_name", "in T.prim_func").name = name


def arg(name: str, kind: Any) -> Any:
    """Add a parameter to a function built with the IR builder: a type, or `T.Buffer(…)`."""
    frame = Builder.current("T.arg").frame(FuncFrame, "T.arg", "in T.prim_func")
    if isinstance(kind, BufferSpec):
        handle = Var(f"{name}_handle", dtype_of("handle"))
        buffer = make_buffer(name, kind.shape, kind.dtype, **kind.options)
        frame.params.append(handle)
        frame.buffer_map[handle] = buffer
        return buffer
    if not isinstance(kind, (DTypeFactory, Var)):
        raise ScriptError(
            "a parameter is a scalar or a buffer",
            code="BW112",
            help="write T.int32(), T.handle() or T.Buffer(shape, dtype)",
        )
    var = Builder.current().define(Var(name, kind.dtype))
    frame.params.append(var)
    return var


def func_attr(attrs: Mapping[str, Any]) -> None:
    builder = Builder.current("T.func_attr")
    frame = builder.frame(FuncFrame, "T.func_attr", "at the start of the function")
    frame.attrs = {**(frame.attrs or {}), **function_attributes(attrs, "T.func_attr")}


def evaluate(value: Any) -> None:
    """Evaluate an expression for its side effect."""
    builder = Builder.current("T.evaluate")
    builder.emit(ir.Evaluate(to_expr(value), span=builder.span))


def Assert(condition: Any, message: str, *values: Any) -> nullcontext[None]:
    """Abort with the message if the condition is false; also usable as `with T.Assert(…):`.

    `values` are integers; the message has one `%d` for each.
    """
    builder = Builder.current("T.Assert")
    result = message_values(message, values)
    builder.emit(ir.AssertStmt(to_expr(condition), message, result, span=builder.span))
    return nullcontext()


def attr(node: Any, key: str, value: Any) -> ScopeFrame:
    if isinstance(node, NodeValue):
        node = node.node
    if isinstance(node, OpenAxis):
        node = node.over(key, value)
        value = node.dom.extent
    expr = to_expr(value)
    return ScopeFrame(lambda _: (None, lambda body: ir.AttrStmt(node, key, expr, body)), "")


def env_thread(tag: str, dtype: str | DType | None = None) -> Var:
    """The variable of a thread axis, for a later `T.launch_thread`; it has the index type."""
    builder = Builder.current("T.env_thread")
    kind = Builder.index_dtype() if dtype is None else dtype_of(dtype)
    var = builder.define(Var(builder.take_name("thread"), kind))
    builder.threads[var] = tag
    return var


def launch_thread(thread: str | Var, extent: Any) -> ScopeFrame:
    """Launch a thread axis for the rest of the list, by tag or variable of `T.env_thread`."""
    known = thread if isinstance(thread, Var) else None
    builder = Builder.current("T.launch_thread")
    tag = str(thread) if known is None else builder.threads.get(known, "")
    if not tag:
        raise ScriptError(
            "this variable is not a thread axis",
            code="BW107",
            help='write tx = T.env_thread("threadIdx.x")',
        )
    size = to_index(extent) if known is None else to_expr(extent, known.type)
    span = builder.span

    def make(name: str) -> tuple[Var, Wrap]:
        var = Builder.current().define(Var(name, size.dtype)) if known is None else known
        axis = ir.IterVar(var, Range(ir.const(0, size.dtype), size), IterType.SPATIAL, tag)
        return var, lambda body: ir.AttrStmt(axis, "thread_extent", size, body, span=span)

    return ScopeFrame(make, "thread")


def LetStmt(value: Any, dtype: Any = None, *, var: Var | None = None) -> ScopeFrame:
    """A let binding for the body of `with … as x`, or of the previously declared variable `var`.

    `dtype` is the type of a Python number, as a string or annotation.
    """
    if var is not None:
        return let(var, value)
    kind = dtype.dtype if isinstance(dtype, (DTypeFactory, Var)) else dtype
    node = to_expr(value, None if kind is None else dtype_of(kind))
    if node.dtype.is_handle:
        return name_pointer(node, "p")

    def make(name: str) -> tuple[Var, Wrap]:
        var = Builder.current().define(Var(name, node.dtype))
        return var, lambda body: ir.LetStmt(var, node, body)

    return ScopeFrame(make, "x")


class _LetFactory:
    """`with T.let(x, value):` binds a declared variable; `T.let(x, v, e)` is a let expression.

    In `x: T.let[T.int32] = value`, the syntax of newer TVM programs, it is an annotation.
    """

    def __call__(self, var: Var, value: Any, body: Any = None) -> Any:
        node = to_expr(value, var.dtype)
        if body is not None:
            return ir.Let(var, node, to_expr(body))
        if node.dtype.is_handle:
            return name_pointer(node, var.name, var)
        return ScopeFrame(lambda _: (var, lambda rest: ir.LetStmt(var, node, rest)), var.name)

    def __getitem__(self, kind: Any) -> Any:
        return kind


let = _LetFactory()


def meta_var(value: Any) -> MetaVar:
    return MetaVar(value)


Buffer_ = _BufferFactory()
__all__ = [
    "Assert", "LetStmt", "alloc_buffer", "allocate", "allocate_const", "arg", "attr", "buffer_decl",
    "buffer_store", "decl_buffer", "env_thread", "evaluate", "func_attr",
    "func_name", "launch_thread", "let", "match_buffer", "meta_var",
]  # fmt: skip
