"""Annotations of the `R` dialect: `R.Tensor((n, 4), "float32")`, `R.Shape`, `R.Tuple`, ….

In a signature the symbols are not defined as Python names yet, so dimensions may be strings such as
"n" or "n * 2". The active parser resolves them; it registers its resolver with `symbols`, one per
thread.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, SupportsIndex, cast

from blockwright import ir
from blockwright.ir import DType, Expr, Info, dtype_of
from blockwright.ir.device_names import canonical_device
from blockwright.script.core import NodeFacts, items_of
from blockwright.support import IRError, ScriptError

Resolver = Callable[[str], Expr]
_local = threading.local()

# Python evaluates annotations before the parser reads them, and helpers may build annotations
# outside functions. A string then becomes a placeholder variable until a parser resolves it.
_unresolved: NodeFacts[str] = NodeFacts()


@contextmanager
def symbols(resolver: Resolver) -> Generator[None]:
    """Use `resolver` for string dimensions within the context."""
    before: Resolver | None = getattr(_local, "resolver", None)
    _local.resolver = resolver
    try:
        yield
    finally:
        _local.resolver = before


def dimension(value: Any) -> Expr:
    """Convert a dimension: an expression, an int (becomes int64), or the text of one."""
    if isinstance(value, str):
        resolver: Resolver | None = getattr(_local, "resolver", None)
        if resolver is None:
            placeholder = ir.Var(value, dtype_of("int64"))
            _unresolved[placeholder] = value
            return placeholder
        return resolver(value)
    if isinstance(value, Expr) and value.dtype.is_int:
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = operator.index(value)
        if not -(2**63) <= number < 2**63:
            raise ScriptError(f"a dimension of {number} does not fit int64", code="BW107")
        return ir.const(number, "int64")
    kind = value.dtype if isinstance(value, Expr) else type(value).__name__
    raise ScriptError(f"a dimension is an integer, not {kind}", code="BW107")


def _rank(ndim: Any, dims: tuple[Expr, ...] | None) -> int:
    """The declared number of dimensions, checked against `dims`; -1 for unknown."""
    if type(ndim) is not int or ndim < -1:
        raise ScriptError(f"ndim is a number of dimensions, not {ndim!r}", code="BW107")
    if dims is not None and ndim not in (-1, len(dims)):
        raise ScriptError(f"{len(dims)} dimensions, but ndim={ndim}", code="BW107")
    return ndim


def dimensions(values: Any) -> tuple[Expr, ...]:
    return tuple(dimension(v) for v in cast("Iterable[Any]", values))


def _device_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ScriptError(
        f"a device is a name, not {type(value).__name__}",
        code="BW107",
        help='write vdevice="cpu:1": the kind, and which of the devices of that kind',
    )


class _Factory:
    """An annotation that may be written with or without arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Info:
        raise NotImplementedError

    def __getitem__(self, args: Any) -> Info:
        return self(*items_of(args))


def _names_type(value: Any) -> bool:
    """Whether a string is the name of an element type, not of a symbol."""
    try:
        return isinstance(value, str) and dtype_of(value).is_scalar
    except IRError:
        return False


class _Tensor(_Factory):
    """`R.Tensor(shape, dtype)`; the shape or the type may be unknown."""

    def __call__(
        self,
        shape: Any = None,
        dtype: str | DType | None = None,
        ndim: int = -1,
        device: str = "",
        vdevice: str = "",
    ) -> Info:
        if isinstance(shape, (str, DType)) and dtype is None:
            shape, dtype = None, shape
        dims = None
        if shape is not None:
            dims = shape.values if isinstance(shape, ir.ShapeExpr) else dimensions(shape)
        kind = None if dtype is None else dtype_of(dtype)
        place = canonical_device(_device_text(device or vdevice))
        return ir.TensorInfo(dims, kind, _rank(ndim, dims), place)

    def __getitem__(self, args: Any) -> Info:
        items = items_of(args)
        if len(items) == 1 and _names_type(items[0]):
            return self(None, items[0])
        return self(*items) if any(isinstance(a, (tuple, list)) for a in items) else self(items)


def scalar(value: Any) -> Expr:
    """Convert a number, a bool, or the name of a symbol."""
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return dimension(value)
    return ir.as_expr(value)


class _Shape(_Factory):
    """`R.Shape([n, 4])` or `R.Shape(ndim=2)`."""

    def __call__(self, values: Any = None, ndim: int = -1) -> Info:
        dims = None if values is None else dimensions(values)
        return ir.ShapeInfo(dims, _rank(ndim, dims))


class _Prim(_Factory):
    """`R.Prim("int64")` or `R.Prim(value=n)`."""

    def __call__(self, dtype: str | DType | None = None, value: Any = None) -> Info:
        known = None if value is None else scalar(value)
        if known is None and dtype is None:
            raise ScriptError("R.Prim needs a type or a value", code="BW106")
        return ir.PrimInfo(known.dtype if known is not None else dtype_of(dtype or "int64"), known)


class _Tuple(_Factory):
    """`R.Tuple(a, b)`."""

    def __call__(self, *fields: Any) -> Info:
        items = items_of(fields[0]) if len(fields) == 1 else fields
        return ir.TupleInfo(tuple(as_info(f) for f in items))


class _Object(_Factory):
    """`R.Object`: any runtime value."""

    def __call__(self) -> Info:
        return ir.ObjectInfo()


class _Callable(_Factory):
    """`R.Callable((a, b), result)`; if `params` is None, any function with that result."""

    def __call__(
        self, params: Any = None, ret: Any = None, pure: bool = True, purity: bool = True
    ) -> Info:
        known = None if params is None else tuple(as_info(p) for p in params)
        result = ir.ObjectInfo() if ret is None else as_info(ret)
        return ir.CallableInfo(known, result, pure and purity)


def as_info(value: Any) -> Info:
    """Convert an annotation value, `R.Tensor(…)` or the bare `R.Tensor`, and resolve strings."""
    if isinstance(value, _Factory):
        return value()
    if isinstance(value, Info):
        resolver: Resolver | None = getattr(_local, "resolver", None)
        if resolver is None or not _unresolved:
            return value
        texts = {v: _unresolved.get(v) for v in ir.collect(value, ir.Var)}
        return ir.substitute(value, {v: resolver(t) for v, t in texts.items() if t is not None})
    raise ScriptError(
        "expected an annotation",
        code="BW112",
        help='write R.Tensor((n, 4), "float32"), R.Shape, R.Tuple(…), R.Object, …',
    )


Tensor, Shape, Prim, Tuple = _Tensor(), _Shape(), _Prim(), _Tuple()
Object, Callable_ = _Object(), _Callable()
for _factory in (_Factory, _Tensor, _Shape, _Prim, _Tuple, _Object, _Callable):
    _factory.__module__ = __name__
