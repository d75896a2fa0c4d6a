"""Script-time values (slices, buffer specs, dtype factories) and their conversion to IR nodes.

`A[0:16, j]` is a region in a signature and a vector in arithmetic. The context decides, so the
subscript stays a `BufferSlice` until it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard, cast

import numpy as np

from blockwright import ir
from blockwright.ir import Buffer, BufferRegion, DType, Expr, IntImm, Node, Range, Var
from blockwright.ir.dtype import INT32, INT64
from blockwright.script.core import items_of
from blockwright.script.tir.builder import Builder
from blockwright.support import ScriptError
from blockwright.support.kinds import is_huge


class BufferSlice:
    """A subscripted buffer with at least one slice."""

    def __init__(self, buffer: Buffer, items: tuple[Any, ...]) -> None:
        self.buffer, self.items = buffer, items

    def region(self) -> BufferRegion:
        return BufferRegion(self.buffer, tuple(self._range(k) for k in range(len(self.items))))

    def _range(self, position: int) -> Range:
        item = self.items[position]
        if not isinstance(item, slice):
            return point(_placed(self.buffer, position, index_of(self.buffer, position, item)))
        start, stop, step = slice_parts(item)
        if step not in (None, 1):
            raise ScriptError(
                "a region has no step", code="BW107", help="regions are boxes; omit the step"
            )
        stop = self.buffer.shape[position] if stop is None else stop
        start = 0 if start is None else start
        if isinstance(start, int) and isinstance(stop, int):
            start = index_of(self.buffer, position, start)
        return span_of(start, stop)

    def load(self) -> Expr:
        return ir.BufferLoad(self.buffer, vector_indices(self.buffer, self.items))


class BufferSpec:
    """`T.Buffer(shape, dtype)` in an annotation: a buffer without its name."""

    def __init__(self, shape: Any, dtype: Any, options: dict[str, Any]) -> None:
        self.shape, self.dtype, self.options = shape, dtype, options


class NodeValue:
    """A script value with methods that becomes its node in annotations."""

    def __init__(self, node: Node) -> None:
        self.node = node


class DTypeFactory:
    """`T.float32`: a type in annotations; a call builds a constant, cast or new variable."""

    def __init__(self, dtype: DType, fresh: Callable[[DType], Var]) -> None:
        self.dtype = dtype
        self._fresh = fresh

    def __call__(self, value: Any = None, *_: Any, is_size_var: bool = False) -> Expr:
        if value is None or self.dtype.is_handle:
            return self._fresh(self.dtype)
        value = to_expr(value) if isinstance(value, BufferSlice) else value
        if isinstance(value, Expr):
            if value.dtype.lanes == 1 and self.dtype.lanes > 1:
                value = ir.Broadcast(value, self.dtype.lanes)
            return ir.cast_to(value, self.dtype)
        element = self.dtype.element
        if isinstance(value, str):
            value = _number_of(value, element)
        if element.is_int:
            if isinstance(value, float) and not value.is_integer():
                raise ScriptError(
                    f"{value} is not an integer", code="BW107", help=f'write T.Cast("{element}", …)'
                )
            if not element.min_value <= int(value) <= element.max_value:
                raise ScriptError(f"{value} does not fit {element}", code="BW107")
        return ir.const(value, self.dtype)

    def __getitem__(self, pointee: Any) -> DTypeFactory:
        """`T.Ptr[T.float32]`: the pointee type is ignored; buffers determine it."""
        if not self.dtype.is_handle:
            raise ScriptError(f"{self!r} takes no parameter", code="BW106")
        return self

    def __repr__(self) -> str:
        return f"T.{self.dtype}"


def to_expr(value: Any, dtype: DType | None = None) -> Expr:
    """Convert a script value to an expression; Python numbers get the type `dtype` if given."""
    if isinstance(value, BufferSlice):
        return value.load()
    if isinstance(value, DTypeFactory):
        raise ScriptError(
            f"{value!r} is a type, not a value", code="BW107", help=f"write {value!r}(…)"
        )
    if isinstance(value, Buffer):
        if value.ndim == 0:
            return ir.load(value)
        raise ScriptError(
            f"buffer {value.name!r} is not a value",
            code="BW107",
            help="index it, for example A[i, j]; A[()] reads a buffer without dimensions",
        )
    if isinstance(value, Expr):
        return value
    if dtype is not None and not isinstance(value, str):
        if dtype.is_int and isinstance(value, float) and not value.is_integer():
            raise ScriptError(
                f"{value} is not an integer",
                code="BW107",
                help=f"{dtype} is required; convert with T.Cast",
            )
        return ir.const(value, dtype)
    return ir.as_expr(value)


def call_type(dtype: str | DType) -> DType:
    """The declared result type of a call; int32 for calls without result ("" or "void")."""
    return INT32 if dtype in ("", "void") else ir.dtype_of(dtype)


def is_number(value: Any) -> TypeGuard[int]:
    """Whether a script value is a bare integer."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def index_type(name: str | DType) -> DType:
    """The type selected by `index_dtype=`."""
    kind = ir.dtype_of(name) if name in ("int32", "int64") else name
    if kind not in (INT32, INT64):
        raise ScriptError(
            f"index_dtype is {name!r}, and an index is int32 or int64",
            code="BW107",
            help='write index_dtype="int64"',
        )
    return kind


def to_index(value: Any) -> Expr:
    """Convert a script value in an index position; Python integers get the function's index type.

    An integer that does not fit int32 becomes int64, as elsewhere.
    """
    kind = Builder.index_dtype()
    fits = is_number(value) and kind.min_value <= value <= kind.max_value
    return to_expr(value, kind if fits else None)


def index_types(values: Sequence[Any]) -> list[Expr]:
    """As `number_types`, in index positions: if all values are Python integers, they get the index
    type."""
    if not all(map(is_number, values)):
        return number_types(values)
    result = [to_index(value) for value in values]
    kind = ir.widest_type(result)
    return [ir.cast_to(value, kind) for value in result]


def message_values(message: Any, values: Sequence[Any]) -> tuple[Expr, ...]:
    """The integer values of a message, checked against its `%d` placeholders."""
    int64 = ir.dtype_of("int64")
    result = tuple(to_expr(v, int64 if is_number(v) else None) for v in values)
    problem = ir.message_problem(message, result)
    if problem is not None:
        code, text, remedy = problem
        raise ScriptError(text, code=code, help=remedy)
    return result


def _number_of(text: str, kind: DType) -> int | float:
    """Parse an exact number: `T.int64("9007199254740993")`, `T.float32("inf")`."""
    if kind.is_int and text.strip().lstrip("+-").isdigit():
        return int(text)
    return float.fromhex(text) if "0x" in text.lower() else float(text)


def _is_data(value: Any) -> bool:
    """Whether an attribute is plain data: constants, strings, lists and dicts of these."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return all(isinstance(key, (str, int)) and _is_data(item) for key, item in pairs)
    if isinstance(value, (list, tuple)):
        return all(map(_is_data, cast("Sequence[Any]", value)))
    if is_huge(value):
        return False
    if isinstance(value, Expr):
        return not ir.free_vars(value)
    return value is None or isinstance(value, (int, float, str, DType, np.generic))


def function_attributes(attrs: Any, construct: str) -> dict[str, Any]:
    """The attributes of a function set by `func_attr`.

    Raises:
        ScriptError: BW107, BW252, BW620 for invalid values.
    """
    if not isinstance(attrs, Mapping):
        raise ScriptError(
            f"{construct} takes a dict, not {attrs!r}",
            code="BW107",
            help=f'write {construct}({{"name": value}})',
        )
    result = ir.plain_attributes(cast("Mapping[str, Any]", attrs))
    for name, value in result.items():
        if is_huge(value):
            raise ScriptError(
                f"the attribute {name} is an integer of {value.bit_length()} bits",
                code="BW107",
                help="write a number that a type of the program can hold",
            )
        if not _is_data(value):
            raise ScriptError(
                f"the attribute {name} is {value!r}, which is not plain data",
                code="BW107",
                help="write a number, a string, or a list or dict of them",
            )
    problems = ir.attribute_problems(result)
    if problems:
        code, text, remedy = problems[0]
        raise ScriptError(text, code=code, help=remedy)
    return result


def number_types(values: Sequence[Any]) -> list[Expr]:
    """Convert values to expressions; Python numbers get the type of the first expression."""
    known = [v.dtype for v in map(_maybe_expr, values) if v is not None and not v.dtype.is_handle]
    kind = known[0].element if known else None
    out: list[Expr] = []
    for value in values:
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = kind is not None and (kind.is_float or not isinstance(value, float))
        out.append(to_expr(value, kind if plain and fits else None))
    return out


def _maybe_expr(value: Any) -> Expr | None:
    return to_expr(value) if isinstance(value, (Expr, BufferSlice)) else None


def point(item: Any) -> Range:
    index = to_index(item)
    return Range(index, ir.const(1, index.dtype))


def span_of(start: Any, stop: Any) -> Range:
    """The range [start, stop); the extent is taken from the text without arithmetic if possible."""
    low, high = number_types((start, stop))
    return Range(low, extent_of(low, high))


def extent_of(low: Expr, high: Expr) -> Expr:
    """`high - low`; if `high` is `low + e`, as the printer writes ranges, the result is `e`."""
    if isinstance(low, IntImm) and isinstance(high, IntImm):
        return IntImm(high.value - low.value, high.type)
    if isinstance(low, IntImm) and low.value == 0:
        return high
    if isinstance(high, ir.Add) and ir.structural_equal(high.a, low):
        return high.b
    return ir.Sub(*ir.match_types(high, low))


def from_first_lane(buffer: Buffer, items: Sequence[Any], lanes: int) -> list[Any]:
    """The indices with a scalar last index expanded to a ramp of `lanes` elements from it on."""
    result = list(items)
    if lanes > 1 and result and not isinstance(result[-1], slice):
        check_rank(buffer, len(result))
        first = index_of(buffer, len(result) - 1, result[-1])
        if first.dtype.is_scalar:
            result[-1] = ir.Ramp(first, ir.const(1, first.dtype), lanes)
    return result


def _has_slice(items: Sequence[Any], found: Sequence[Expr]) -> bool:
    """Whether one of the indices converted so far is a ramp that was written as a slice."""
    pairs = zip(items, found, strict=False)
    return any(isinstance(item, slice) and isinstance(at, ir.Ramp) for item, at in pairs)


def vector_indices(buffer: Buffer, items: Sequence[Any]) -> tuple[Expr, ...]:
    """Convert the indices of an access; a slice of constant length becomes a ramp."""
    check_rank(buffer, len(items))
    out: list[Expr] = []
    for position, item in enumerate(items):
        if not isinstance(item, slice):
            index = index_of(buffer, position, item)
            if not index.dtype.is_int:
                raise ScriptError(
                    f"index {position} of {buffer.name!r} is {index.dtype}, not an integer",
                    code="BW107",
                )
            out.append(_placed(buffer, position, index))
            continue
        start, stop, by = slice_parts(item)
        first, stop = (
            0 if start is None else start,
            buffer.shape[position] if stop is None else stop,
        )
        if isinstance(first, int) and isinstance(stop, int):
            first = index_of(buffer, position, first)
        low, high = number_types((first, stop))
        step = to_expr(1 if by is None else by, low.dtype)
        length, stride = extent_of(low, high), ir.const_int(step)
        if not isinstance(length, IntImm) or stride is None or stride <= 0 or length.value < 1:
            raise ScriptError(
                "a vector access needs a constant length",
                code="BW107",
                help="write T.ramp(base, stride, lanes)",
            )
        lanes = math.ceil(length.value / stride)
        if lanes > 1 and _has_slice(items, out):
            raise ScriptError(
                "a vector extends along one dimension; two slices are a box",
                code="BW107",
                help="loop over one of them, or write T.ramp in both for a diagonal",
            )
        index = ir.Ramp(low, step, lanes) if lanes > 1 else low
        out.append(_placed(buffer, position, index))
    return tuple(out)


def index_of(buffer: Buffer, position: int, item: Any) -> Expr:
    """Convert an index; a Python integer gets the type of the extent of its dimension."""
    kind = buffer.shape[position].dtype if position < buffer.ndim else None
    if is_number(item) and kind is not None and kind.min_value <= item <= kind.max_value:
        return ir.const(item, kind)
    return to_index(item)


def _placed(buffer: Buffer, position: int, index: Expr) -> Expr:
    builder = Builder.active()
    return index if builder is None else builder.place(buffer, position, index)


def slice_parts(item: Any) -> tuple[Any, Any, Any]:
    """Start, stop and step of a slice."""
    return item.start, item.stop, item.step


def check_rank(buffer: Buffer, count: int) -> None:
    if count != buffer.ndim:
        word = "dimension" if buffer.ndim == 1 else "dimensions"
        raise ScriptError(
            f"{buffer.name!r} has {buffer.ndim} {word}, got {count} "
            f"{'index' if count == 1 else 'indices'}",
            code="BW105",
            help=f"its shape is {shape_text(buffer)}",
        )


def shape_text(buffer: Buffer) -> str:
    sizes = [str(e.value) if isinstance(e, IntImm) else repr(e) for e in buffer.shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def to_region(value: Any) -> BufferRegion:
    """Convert `A[…]`, or `A` for the whole buffer, to a region."""
    if isinstance(value, BufferRegion):
        return value
    if isinstance(value, BufferSlice):
        return value.region()
    if isinstance(value, Buffer):
        return ir.full_region(value)
    if isinstance(value, ir.BufferLoad):
        return BufferRegion(value.buffer, tuple(point(i) for i in value.indices))
    raise ScriptError(
        "expected a region of a buffer",
        code="BW107",
        help="write A[i, 0:16], or A for the whole buffer",
    )


def regions(values: Sequence[Any]) -> tuple[BufferRegion, ...]:
    flat: list[Any] = []
    for value in values:
        flat.extend(items_of(value))
    return tuple(to_region(v) for v in flat)
