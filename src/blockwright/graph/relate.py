"""Relations between annotations: implication, refinement, join, contradiction."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from blockwright import ir
from blockwright.analysis.sizes import divides_by_zero
from blockwright.arith import Analyzer
from blockwright.ir.printer.graph import ScriptPrinter


def info_text(info: ir.Info | None) -> str:
    """Format an annotation for messages."""
    return "no annotation" if info is None else ScriptPrinter().info(info)


_MOST_BYTES = 2**63 - 1
_MOST_DIMENSIONS = 64  # as in NumPy and PyTorch
SIZES = (ir.dtype_of("int64"), ir.dtype_of("int32"))
"""The types of sizes."""


def impossible_size(info: ir.Info) -> str | None:
    """Why no tensor can have the sizes of an annotation: a negative size, one of another type, too
    many bytes or dimensions.

    Zero sizes do not reduce the total, because strides are products of the other sizes. Symbols
    count as 1, in a product with a number as that number.
    """
    if isinstance(info, ir.TupleInfo):
        return next((why for f in info.fields if (why := impossible_size(f))), None)
    if isinstance(info, (ir.TensorInfo, ir.ShapeInfo)) and info.rank > _MOST_DIMENSIONS:
        return f"a tensor has at most {_MOST_DIMENSIONS} dimensions, not {info.rank}"
    if isinstance(info, ir.ShapeInfo):
        return _other_type(info.values or ())
    if not isinstance(info, ir.TensorInfo) or info.shape is None:
        return None
    if (why := _other_type(info.shape)) is not None:
        return why
    total = 1 if info.dtype is None else info.dtype.nbytes
    for dim in info.shape:
        value = _value(dim)
        if value is not None and value < 0:
            return "a size must be at least 0"
        if value is None and divides_by_zero(dim):
            return "a size divides by 0"
        total *= max(_factor(dim) if value is None else value, 1)
    return f"{total} bytes exceed the maximum size of a tensor" if total > _MOST_BYTES else None


def _other_type(dims: tuple[ir.Expr, ...]) -> str | None:
    """Why not all of some sizes have a type of sizes."""
    other = next((dim.dtype for dim in dims if dim.dtype not in SIZES), None)
    return None if other is None else f"a size is an integer, int64 or int32, not {other}"


_EXACT: dict[type[ir.BinaryOp], Callable[[int, int], int]] = {
    ir.Add: operator.add, ir.Sub: operator.sub, ir.Mul: operator.mul, ir.Min: min, ir.Max: max,
}  # fmt: skip


def _value(dim: ir.Expr) -> int | None:
    """The exact value of a size without symbols, also if it does not fit 64 bits; else None."""
    function = _EXACT.get(type(dim)) if isinstance(dim, ir.BinaryOp) else None
    if function is None or not isinstance(dim, ir.BinaryOp):
        return ir.const_int(dim)
    a, b = _value(dim.a), _value(dim.b)
    return None if a is None or b is None else function(a, b)


def _factor(dim: ir.Expr) -> int:
    """The constant factor of a product size; 1 for other expressions."""
    if isinstance(dim, ir.Mul):
        return _factor(dim.a) * _factor(dim.b)
    return (ir.const_int(dim) or 1) if isinstance(dim, ir.IntImm) else 1


def implied(stated: ir.Info, deduced: ir.Info, analyzer: Analyzer) -> bool:
    """Whether every value annotated `deduced` provably has the annotation `stated`."""
    if isinstance(stated, ir.ObjectInfo):
        return True
    if isinstance(stated, ir.TensorInfo):
        return isinstance(deduced, ir.TensorInfo) and _tensor_implied(stated, deduced, analyzer)
    if isinstance(stated, ir.ShapeInfo):
        return isinstance(deduced, ir.ShapeInfo) and _dims_implied(
            (stated.values, stated.ndim), (deduced.values, deduced.ndim), analyzer
        )
    if isinstance(stated, ir.PrimInfo):
        return isinstance(deduced, ir.PrimInfo) and _prim_implied(stated, deduced, analyzer)
    if isinstance(stated, ir.TupleInfo):
        return (
            isinstance(deduced, ir.TupleInfo)
            and len(stated.fields) == len(deduced.fields)
            and all(
                implied(s, d, analyzer) for s, d in zip(stated.fields, deduced.fields, strict=True)
            )
        )
    assert isinstance(stated, ir.CallableInfo)
    return isinstance(deduced, ir.CallableInfo) and _callable_implied(stated, deduced, analyzer)


def _tensor_implied(stated: ir.TensorInfo, deduced: ir.TensorInfo, analyzer: Analyzer) -> bool:
    if stated.dtype is not None and stated.dtype is not deduced.dtype:
        return False
    if stated.device and stated.device != deduced.device:
        return False
    return _dims_implied((stated.shape, stated.ndim), (deduced.shape, deduced.ndim), analyzer)


Dims = tuple[tuple[ir.Expr, ...] | None, int]


def _rank(dims: Dims) -> int:
    return dims[1] if dims[0] is None else len(dims[0])


def _dims_implied(stated: Dims, deduced: Dims, analyzer: Analyzer) -> bool:
    if _rank(stated) not in (-1, _rank(deduced)):
        return False
    if stated[0] is None:
        return True
    if deduced[0] is None:
        return False
    pairs = zip(stated[0], deduced[0], strict=True)
    return all(analyzer.prove_equal(s, d) for s, d in pairs)


def _prim_implied(stated: ir.PrimInfo, deduced: ir.PrimInfo, analyzer: Analyzer) -> bool:
    if stated.dtype is not deduced.dtype:
        return False
    if stated.value is None:
        return True
    return deduced.value is not None and analyzer.prove_equal(stated.value, deduced.value)


def _callable_implied(
    stated: ir.CallableInfo, deduced: ir.CallableInfo, analyzer: Analyzer
) -> bool:
    if stated.pure and not deduced.pure:
        return False
    if stated.params is not None:
        if deduced.params is None or len(stated.params) != len(deduced.params):
            return False
        pairs = zip(stated.params, deduced.params, strict=True)
        if not all(implied(d, s, analyzer) for s, d in pairs):
            return False
    return implied(stated.ret, deduced.ret, analyzer)


def refined(stated: ir.Info | None, deduced: ir.Info) -> ir.Info:
    """The more precise of an annotation and one that implies it; `stated` if equally precise."""
    if isinstance(stated, ir.TensorInfo) and isinstance(deduced, ir.TensorInfo):
        known = stated.shape is not None or (deduced.shape is None and stated.rank == deduced.rank)
        same = stated.dtype is deduced.dtype and stated.device == deduced.device
        return stated if known and same else deduced
    if isinstance(stated, ir.TupleInfo) and isinstance(deduced, ir.TupleInfo):
        pairs = zip(stated.fields, deduced.fields, strict=True)
        fields = tuple(refined(s, d) for s, d in pairs)
        same = all(a is b for a, b in zip(fields, stated.fields, strict=True))
        return stated if same else ir.TupleInfo(fields)
    if isinstance(stated, ir.ShapeInfo) and stated.values is not None:
        return stated
    return deduced


def joined(a: ir.Info, b: ir.Info, analyzer: Analyzer, scope: Collection[ir.Var] = ()) -> ir.Info:
    """The common annotation of a value that has one of two annotations.

    Args:
        scope: bound symbols; others in the signature of a function stand for all sizes.
    """
    if implied(a, b, analyzer):
        return a
    if implied(b, a, analyzer):
        return b
    if isinstance(a, ir.TensorInfo) and isinstance(b, ir.TensorInfo):
        dtype = a.dtype if a.dtype is b.dtype else None
        rank = a.rank if a.rank == b.rank else -1
        shapes = ir.TensorInfo(a.shape), ir.TensorInfo(b.shape)
        same = a.shape is not None and implied(*shapes, analyzer)
        shape = a.shape if same else None
        return ir.TensorInfo(shape, dtype, rank, a.device if a.device == b.device else "")
    if (
        isinstance(a, ir.TupleInfo)
        and isinstance(b, ir.TupleInfo)
        and len(a.fields) == len(b.fields)
    ):
        pairs = zip(a.fields, b.fields, strict=True)
        return ir.TupleInfo(tuple(joined(x, y, analyzer, scope) for x, y in pairs))
    if isinstance(a, ir.CallableInfo) and isinstance(b, ir.CallableInfo):
        return _callables_joined(a, b, analyzer, scope)
    return ir.ObjectInfo()


def _callables_joined(
    a: ir.CallableInfo, b: ir.CallableInfo, analyzer: Analyzer, scope: Collection[ir.Var]
) -> ir.CallableInfo:
    for stated, other in ((a, b), (b, a)):
        if implied(stated, instance(other, stated, scope), analyzer):
            return stated
    other = instance(b, a, scope)
    pure, params = a.pure and b.pure, None
    if a.params is not None and other.params is not None and len(a.params) == len(other.params):
        pairs = list(zip(a.params, other.params, strict=True))
        if all(implied(x, y, analyzer) and implied(y, x, analyzer) for x, y in pairs):
            params = a.params
    result = ir.ObjectInfo() if params is None else joined(a.ret, other.ret, analyzer, scope)
    return ir.CallableInfo(params, result, pure)


_Info = TypeVar("_Info", bound=ir.Info)


def instance(info: _Info, wanted: ir.Info, scope: Collection[ir.Var]) -> _Info:
    """An annotation with the signatures of functions for the sizes of those in another one.

    Symbols of a signature that are not in scope stand for all sizes: a parameter whose sizes are
    such symbols, each of which no other size of a parameter has, takes tensors of unknown shape.
    """
    known: dict[ir.Var, ir.Expr] = {}
    if isinstance(info, ir.TupleInfo) and isinstance(wanted, ir.TupleInfo):
        if len(info.fields) != len(wanted.fields):
            return info
        pairs = zip(info.fields, wanted.fields, strict=True)
        return info.replace(fields=tuple(instance(f, w, scope) for f, w in pairs))
    if not isinstance(info, ir.CallableInfo) or not isinstance(wanted, ir.CallableInfo):
        return info
    for param, given in zip(info.params or (), wanted.params or (), strict=False):
        for dim, size in _paired(param, given):
            if isinstance(dim, ir.Var) and dim not in scope:
                known.setdefault(dim, size)
    return ir.substitute(_for_unknown_sizes(info, wanted, scope), known)


def _paired(a: ir.Info, b: ir.Info) -> Iterator[tuple[ir.Expr, ir.Expr]]:
    """Pairs of the sizes in two annotations of the same kinds and ranks."""
    if isinstance(a, ir.TensorInfo) and isinstance(b, ir.TensorInfo):
        yield from zip(a.shape or (), b.shape or (), strict=False)
    elif isinstance(a, ir.ShapeInfo) and isinstance(b, ir.ShapeInfo):
        yield from zip(a.values or (), b.values or (), strict=False)
    elif isinstance(a, ir.PrimInfo) and isinstance(b, ir.PrimInfo):
        if a.value is not None and b.value is not None:
            yield a.value, b.value
    elif isinstance(a, ir.TupleInfo) and isinstance(b, ir.TupleInfo):
        for x, y in zip(a.fields, b.fields, strict=False):
            yield from _paired(x, y)
    elif isinstance(a, ir.CallableInfo) and isinstance(b, ir.CallableInfo):
        for x, y in zip((*(a.params or ()), a.ret), (*(b.params or ()), b.ret), strict=False):
            yield from _paired(x, y)


def _for_unknown_sizes(
    info: ir.CallableInfo, wanted: ir.CallableInfo, scope: Collection[ir.Var]
) -> ir.CallableInfo:
    """A signature for arguments whose shapes another signature does not state."""
    if info.params is None or wanted.params is None or len(info.params) != len(wanted.params):
        return info
    uses = Counter(v for param in info.params for v in ir.collect(param, ir.Var))
    params, lost = list[ir.Info](), set[ir.Expr]()
    for param, given in zip(info.params, wanted.params, strict=True):
        dims = param.shape if isinstance(param, ir.TensorInfo) else None
        loose = (
            dims is not None
            and isinstance(given, ir.TensorInfo)
            and given.shape is None
            and given.rank == len(dims)
            and all(isinstance(d, ir.Var) and d not in scope and uses[d] == 1 for d in dims)
        )
        lost.update(dims if loose and dims else ())
        params.append(_without_shape(param) if loose else param)
    if not lost:
        return info
    return info.replace(params=tuple(params), ret=without_sizes(info.ret, lost))


def _without_shape(info: ir.Info) -> ir.Info:
    if isinstance(info, ir.TensorInfo):
        return ir.TensorInfo(None, info.dtype, info.rank, info.device)
    if isinstance(info, ir.ShapeInfo):
        return ir.ShapeInfo(None, info.rank)
    if isinstance(info, ir.CallableInfo):
        return ir.CallableInfo(None, ir.ObjectInfo(), info.pure)
    return ir.PrimInfo(info.dtype) if isinstance(info, ir.PrimInfo) else ir.ObjectInfo()


def without_sizes(info: ir.Info, symbols: Collection[ir.Expr]) -> ir.Info:
    """An annotation whose sizes are unknown where they depend on the symbols."""
    if isinstance(info, ir.TupleInfo):
        return ir.TupleInfo(tuple(without_sizes(f, symbols) for f in info.fields))
    return _without_shape(info) if any(v in symbols for v in ir.collect(info, ir.Var)) else info


def narrowed(pattern: ir.Info, value: ir.Info) -> ir.Info:
    """The annotation of a value annotated `value` after a successful check against `pattern`."""
    if isinstance(pattern, ir.ObjectInfo):
        return value
    if isinstance(pattern, ir.TensorInfo) and isinstance(value, ir.TensorInfo):
        return ir.TensorInfo(
            value.shape if pattern.shape is None else pattern.shape,
            pattern.dtype or value.dtype,
            max(pattern.rank, value.rank) if pattern.shape is value.shape is None else -1,
            pattern.device or value.device,
        )
    if isinstance(pattern, ir.ShapeInfo) and isinstance(value, ir.ShapeInfo):
        return value if pattern.values is None else pattern
    if isinstance(pattern, ir.TupleInfo) and isinstance(value, ir.TupleInfo):
        pairs = zip(pattern.fields, value.fields, strict=True)
        return ir.TupleInfo(tuple(narrowed(p, v) for p, v in pairs))
    return pattern


def contradicts(pattern: ir.Info, value: ir.Info, analyzer: Analyzer) -> bool:
    """Whether no value annotated `value` can have `pattern`, so that a cast always fails."""
    if isinstance(pattern, ir.ObjectInfo) or isinstance(value, ir.ObjectInfo):
        return False
    if isinstance(pattern, ir.TensorInfo) and isinstance(value, ir.TensorInfo):
        if None not in (pattern.dtype, value.dtype) and pattern.dtype is not value.dtype:
            return True
        if pattern.device and value.device and pattern.device != value.device:
            return True
        return _dims_contradict((pattern.shape, pattern.ndim), (value.shape, value.ndim), analyzer)
    if isinstance(pattern, ir.ShapeInfo) and isinstance(value, ir.ShapeInfo):
        return _dims_contradict(
            (pattern.values, pattern.ndim), (value.values, value.ndim), analyzer
        )
    if isinstance(pattern, ir.PrimInfo) and isinstance(value, ir.PrimInfo):
        if pattern.dtype is not value.dtype:
            return True
        known = pattern.value is not None and value.value is not None
        return known and differ(pattern.value, value.value, analyzer)
    if isinstance(pattern, ir.TupleInfo) and isinstance(value, ir.TupleInfo):
        if len(pattern.fields) != len(value.fields):
            return True
        pairs = zip(pattern.fields, value.fields, strict=True)
        return any(contradicts(p, v, analyzer) for p, v in pairs)
    return not (isinstance(pattern, ir.CallableInfo) and isinstance(value, ir.CallableInfo))


def _dims_contradict(pattern: Dims, value: Dims, analyzer: Analyzer) -> bool:
    if -1 not in (_rank(pattern), _rank(value)) and _rank(pattern) != _rank(value):
        return True
    if pattern[0] is None or value[0] is None:
        return False
    return any(differ(p, v, analyzer) for p, v in zip(pattern[0], value[0], strict=True))


def differ(a: ir.Expr | None, b: ir.Expr | None, analyzer: Analyzer) -> bool:
    """Whether two sizes differ for all values of their symbols."""
    if a is None or b is None:
        return False
    low, high = analyzer.const_bounds(ir.sub(a, b))
    return (low is not None and low > 0) or (high is not None and high < 0)
