"""Values of graph functions at run time.

tensor      NumPy array, also for rank 0
shape       `Shape`, a tuple of ints
scalar      NumPy scalar of its type
tuple       Python tuple
text        str
function    `Function`, a tensor program, an operator or foreign function, a Python callable
object      anything else that a foreign function returns
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard, cast

import msgspec
import numpy as np

from blockwright import ir
from blockwright.graph.relate import info_text
from blockwright.interp import numeric
from blockwright.runtime.arrays import as_numpy
from blockwright.support.kinds import number_text

Array = np.ndarray[Any, Any]


def is_array(value: Any) -> TypeGuard[Array]:
    return isinstance(value, np.ndarray)


def is_scalar(value: Any) -> TypeGuard[np.generic[Any]]:
    return isinstance(value, np.generic)


def is_tuple(value: Any) -> TypeGuard[tuple[Any, ...]]:
    """Whether a value is a tuple of values, not a shape."""
    return isinstance(value, tuple) and not isinstance(value, Shape)


class Mismatch(NamedTuple):
    """Why a value does not have an annotation; `code` as for an argument of a compiled call."""

    code: str
    message: str


class Shape(tuple[int, ...]):
    """A shape as a value: equal to the plain tuple of its sizes, but not a tuple of values."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Shape({', '.join(map(str, self))})"


class Function(msgspec.Struct, frozen=True, eq=False):
    """A graph function as a value, with the values and symbols of the functions around it.

    Attributes:
        function: the function; `name` as written.
        values, symbols: what it sees of the enclosing functions; empty for functions of the module.
        owner: the function of the module in which it is written.
        run: calls it; used by `__call__`, so that results that are functions can be called.
        detached: its results stand for no memory of the caller (see `memory`).
    """

    function: ir.GraphFunction
    name: str
    owner: ir.GraphFunction
    run: Callable[[Function, Sequence[Any]], Any]
    values: Mapping[ir.GraphVar, Any] = {}
    symbols: Mapping[ir.Var, Any] = {}
    detached: bool = False

    def __call__(self, *arguments: Any) -> Any:
        return self.run(self, arguments)

    def __repr__(self) -> str:
        return f"<graph function {self.name}>"


class Bound(msgspec.Struct, frozen=True, eq=False):
    """A closure that `make_closure` creates: a function with the values of its last arguments."""

    function: Any
    captured: tuple[Any, ...]
    run: Callable[[Sequence[Any]], Any]
    detached: bool = False

    def __call__(self, *arguments: Any) -> Any:
        return self.run((*arguments, *self.captured))


def described(value: Any) -> str:
    """A value in words, for messages."""
    if is_array(value):
        return f"a {value.dtype} tensor of shape {value.shape}"
    if isinstance(value, Shape):
        return f"the shape {tuple(value)}"
    if is_tuple(value):
        return f"a tuple of {len(value)}"
    if is_scalar(value):
        return f"the {value.dtype} scalar {value}"
    if is_function(value):
        return "a function"
    return f"a Python {type(value).__name__}"


def is_function(value: Any) -> bool:
    """Whether a value can be called by a graph function."""
    kinds = (Function, ir.GraphVar, ir.OpRef, ir.ExternFunc, ir.PrimFunc)
    return isinstance(value, kinds) or callable(value)


def admitted(info: ir.Info | None, value: Any) -> Any:
    """Convert a Python value from outside to a value that may have the annotation.

    Lists become tuples; sequences of ints, shapes; numbers, scalars of the annotated type; arrays
    of other frameworks, NumPy arrays. A value of another kind is returned unchanged: checking it
    against the annotation reports it.
    """
    if isinstance(info, ir.TupleInfo):
        fields = _sequence(value)
        if fields is None or len(fields) != len(info.fields):
            return value
        return tuple(admitted(f, v) for f, v in zip(info.fields, fields, strict=True))
    if isinstance(info, ir.ShapeInfo):
        sizes = _sequence(value)
        if sizes is None or any(isinstance(s, bool) for s in sizes):
            return value
        whole = all(isinstance(s, (int, np.integer)) for s in sizes)
        return Shape(int(s) for s in sizes) if whole else value
    if isinstance(info, ir.PrimInfo):
        return _scalar(info.dtype, value)
    if isinstance(value, (list, tuple)):
        anything = info is None or isinstance(info, ir.ObjectInfo)
        items = cast("Sequence[Any]", value)
        listed = anything and not isinstance(value, Shape)
        return tuple(admitted(None, v) for v in items) if listed else items
    array = value if is_array(value) else as_numpy(value)
    if isinstance(info, ir.TensorInfo) and is_array(array):
        return of_type(array, info.dtype)
    return array


def of_type(array: Array, dtype: ir.DType | None) -> Array:
    """An array as one of a type: of integers narrower than a byte, only the low bits count."""
    if dtype is None or not dtype.is_int or dtype.bits >= 8 or array.dtype != dtype.numpy():
        return array
    numbers = numeric.wrap_narrow(array, dtype)
    return array if np.array_equal(numbers, array) else numbers


def _sequence(value: Any) -> Sequence[Any] | None:
    return cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else None


def _scalar(dtype: ir.DType, value: Any) -> Any:
    """A Python number as a scalar of a type that holds it exactly; other values unchanged."""
    if isinstance(value, bool):
        return np.bool_(value) if dtype.is_bool else value
    if isinstance(value, int) and dtype.is_int:
        fits = dtype.min_value <= value <= dtype.max_value
        return numeric.constant(value, dtype) if fits else value
    is_number = isinstance(value, float) and dtype.is_float
    return numeric.constant(value, dtype) if is_number else value


def kind_mismatch(info: ir.Info, value: Any) -> Mismatch | None:
    """Why a value is of another kind or element type than its annotation says."""
    if isinstance(info, ir.TensorInfo):
        if not is_array(value) or isinstance(value, np.ma.MaskedArray):
            return _other_kind(info, value)
        if info.dtype is not None and value.dtype != info.dtype.numpy():
            found = value.dtype
            return Mismatch("BW703", f"expected elements of type {info.dtype}, got {found}")
    elif isinstance(info, ir.ShapeInfo):
        if not isinstance(value, Shape):
            return _other_kind(info, value)
    elif isinstance(info, ir.PrimInfo):
        if isinstance(value, int) and info.dtype.is_int and not isinstance(value, bool):
            return Mismatch("BW702", f"{number_text(value)} does not fit {info.dtype}")
        if not is_scalar(value):
            return _other_kind(info, value)
        if value.dtype != info.dtype.numpy():
            return Mismatch("BW703", f"expected a scalar of type {info.dtype}, got {value.dtype}")
    elif isinstance(info, ir.TupleInfo):
        if not is_tuple(value) or len(value) != len(info.fields):
            return _other_kind(info, value)
    elif isinstance(info, ir.CallableInfo):
        if not is_function(value):
            return _other_kind(info, value)
        count = len(value.function.params) if isinstance(value, Function) else None
        if isinstance(value, Bound) and isinstance(value.function, Function):
            count = len(value.function.function.params) - len(value.captured)
        if count is not None and info.params is not None and count != len(info.params):
            text = f"expected a function of {len(info.params)} parameters, got one of {count}"
            return Mismatch("BW702", text)
    return None


def _other_kind(info: ir.Info, value: Any) -> Mismatch:
    return Mismatch("BW702", f"expected {info_text(info)}, got {described(value)}")
