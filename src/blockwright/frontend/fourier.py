"""Discrete Fourier transforms as products with matrices, for all importers.

A transform of n = p·q elements is one of p elements for each of q offsets, a product with factors
of modulus 1, and a transform of q elements (Cooley and Tukey). Short ones, and those of a prime
number of elements, are products with a matrix of cosines and sines. If the number of elements is
known only at the call, or is a large prime number, the matrix is made there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from blockwright import ir
from blockwright.graph import shape_value

Apply = Callable[..., ir.GraphExpr]
"""Adds a call of an operator row to the graph: `op(name, *operands, **attrs)`."""
_DIRECT = 128
"""Most elements of a transform that is one product."""
_LARGEST = 4096
"""Largest prime number of elements whose matrix is part of the program."""


Count = int | ir.Expr
"""A number of elements, which may be an expression of sizes."""


class Complex(msgspec.Struct, frozen=True):
    """Complex numbers as two tensors of one shape; without `imaginary`, real numbers."""

    real: ir.GraphExpr
    imaginary: ir.GraphExpr | None = None


def transformed(
    op: Apply,
    x: Complex,
    axis: int,
    count: Count,
    rows: Count | None = None,
    inverse: bool = False,
    factor: float | ir.GraphExpr = 1.0,
) -> Complex:
    """The transform of an axis that is padded with zeros or cut to `count` elements.

    The inverse transform is not divided by `count`; `factor` may do so.

    Args:
        axis: not negative.
        rows: the number of frequencies of the result, from 0 on; all of them by default.
        factor: multiplies the result; a tensor of one element if it depends on sizes.
    """
    rows = count if rows is None else rows
    sign = 1 if inverse else -1
    size, number = _shape(x.real)[axis], _plain(count)
    x = _each(x, lambda t: _last(op, t, axis))
    scale = factor if isinstance(factor, float) else 1.0
    known = ir.const_int(size)
    if known is not None and isinstance(number, int):
        width = _plain(rows)
        assert isinstance(width, int)
        kept = min(known, number)
        x = _each(x, lambda t: _first(op, t, kept))
        x = _along_last(op, x, kept, number, width, sign, scale)
    else:
        cut = _shorter(size, count)
        x = _each(x, lambda t: _first(op, t, cut))
        x = _times_run_time_matrix(op, x, rows, count, sign)
        x = _scaled(op, x, scale)
    if not isinstance(factor, float):
        x = _scaled(op, x, factor)
    return _each(x, lambda t: _back(op, t, axis))


def real_inverse(
    op: Apply, x: Complex, axis: int, count: Count, factor: float | ir.GraphExpr = 1.0
) -> ir.GraphExpr:
    """`count` real numbers whose spectrum begins with x, times `count` and a factor.

    The other half of the spectrum is its mirror image with the opposite imaginary part.
    """
    size, number = ir.const_int(_shape(x.real)[axis]), _plain(count)
    x = _each(x, lambda t: _last(op, t, axis))
    scale = factor if isinstance(factor, float) else 1.0
    if size is not None and isinstance(number, int):
        result = _known_inverse(op, x, size, number, scale)
    else:
        result = _scaled(op, Complex(_unknown_inverse(op, x, count)), scale).real
    if not isinstance(factor, float):
        result = _scaled(op, Complex(result), factor).real
    return _back(op, result, axis)


def reciprocal(op: Apply, total: Count, root: bool = False) -> float | ir.GraphExpr:
    """1 / total, or 1 / √total if `root`: a factor for a transform."""
    total = _plain(total)
    if isinstance(total, int):
        return 1 / math.sqrt(total) if root else 1 / total
    number = _number(op, total, "float64")
    number = op("sqrt", number) if root else number
    return op("divide", number, scalar=1.0, scalar_side="left")


def half_of(count: Count) -> Count:
    """The number of frequencies of a spectrum without those that mirror others."""
    if isinstance(count, int):
        return count // 2 + 1
    return ir.add(ir.floordiv(count, ir.const(2, "int64")), ir.const(1, "int64"))


def _known_inverse(op: Apply, x: Complex, size: int, count: int, factor: float) -> ir.GraphExpr:
    half = count // 2 + 1
    kept = min(size, half)
    x = _each(x, lambda t: _first(op, t, kept))
    if count > _DIRECT:
        whole = _mirrored(op, x, kept, count)
        return _along_last(op, whole, count, count, count, 1, factor).real
    angle = 2 * np.pi * np.outer(np.arange(kept), np.arange(count)) / count
    weight = np.full((kept, 1), 2 * factor)  # each frequency stands for its mirror image too
    weight[0] = factor
    if count % 2 == 0 and kept == half:
        weight[-1] = factor
    result = _product(op, x.real, np.cos(angle) * weight)
    paired = _mirrored_frequencies(kept, count)
    if x.imaginary is not None and paired.start < paired.stop:
        part = _slice(op, x.imaginary, paired.start, paired.stop)
        sine = _product(op, part, (np.sin(angle) * weight)[paired.start : paired.stop])
        result = op("subtract", result, sine)
    return result


def _unknown_inverse(op: Apply, x: Complex, count: Count) -> ir.GraphExpr:
    kept = _shorter(_shape(x.real)[-1], half_of(count))
    place = op("arange", begin=0, end=kept, step=1, dtype="int64")
    ends = op("equal", place, scalar=0, scalar_side="right")
    middle = op("equal", op("add", place, place), _number(op, count, "int64"))
    alone = op("logical_or", ends, middle)
    dtype = _dtype(x.real).name
    twice = op("full_like", alone, fill_value=2, dtype=dtype)
    weight = op("subtract", twice, op("astype", alone, dtype=dtype))
    x = _each(x, lambda t: op("multiply", _first(op, t, kept), weight))
    if x.imaginary is not None:
        zeros = op("full_like", alone, fill_value=0, dtype=dtype)
        x = Complex(x.real, op("where", alone, zeros, x.imaginary))
    return _times_run_time_matrix(op, x, count, count, 1).real


def _mirrored(op: Apply, x: Complex, kept: int, count: int) -> Complex:
    """The whole spectrum of real numbers from its first elements, along the last axis."""
    imaginary = x.imaginary
    assert imaginary is not None
    half, axis = count // 2 + 1, _rank(x.real) - 1
    paired = _mirrored_frequencies(kept, count)
    imaginary = _padded(op, _slice(op, imaginary, 1, paired.stop), paired.stop - 1, half - 1)
    zero = op("zeros", shape=(*_shape(imaginary)[:-1], 1), dtype=_dtype(imaginary).name)
    imaginary = op("concat", zero, imaginary, axis=axis)
    real = _padded(op, x.real, kept, half)

    def behind(tensor: ir.GraphExpr) -> ir.GraphExpr:
        return op("flip", _slice(op, tensor, 1, count - half + 1), axis=axis)

    mirror = op("negative", behind(imaginary))
    return Complex(
        op("concat", real, behind(real), axis=axis), op("concat", imaginary, mirror, axis=axis)
    )


def _mirrored_frequencies(kept: int, count: int) -> range:
    """Those of the first `kept` frequencies that have a mirror image in a spectrum of `count`.

    The others, 0 and count / 2, are real for real numbers; their imaginary part is ignored, also
    if it is not finite.
    """
    return range(1, min(kept, (count + 1) // 2))


# --------------------------------------------------------------------------------- the last axis
def _along_last(
    op: Apply, x: Complex, kept: int, count: int, rows: int, sign: int, factor: float = 1.0
) -> Complex:
    """The transform along the last axis, which has the first `kept` of `count` elements."""
    p = _divisor(count)
    if p == 1 and count > _LARGEST:
        return _scaled(op, _times_run_time_matrix(op, x, rows, count, sign), factor)
    if p == 1:
        angle = 2 * np.pi * (np.outer(np.arange(kept), np.arange(rows)) % count) / count
        return _times_matrix(op, x, factor * np.cos(angle), factor * sign * np.sin(angle))
    x = _each(x, lambda t: _padded(op, t, kept, count))
    q, rank = count // p, _rank(x.real)
    batch = _shape(x.real)[:-1]
    swapped = (*range(rank - 1), rank, rank - 1)

    def split(tensor: ir.GraphExpr) -> ir.GraphExpr:  # element a·q + b at [b, a]
        return op("permute_dims", _reshaped(op, tensor, (*batch, p, q)), axes=swapped)

    inner = _along_last(op, _each(x, split), p, p, p, sign, factor)
    turn = 2 * np.pi * np.outer(np.arange(q), np.arange(p)) / count
    inner = _times(op, inner, np.cos(turn), sign * np.sin(turn))
    inner = _each(inner, lambda t: op("permute_dims", t, axes=swapped))
    outer = _along_last(op, inner, q, q, q, sign)  # frequency a + b·p at [a, b]

    def joined(tensor: ir.GraphExpr) -> ir.GraphExpr:
        flat = _reshaped(op, op("permute_dims", tensor, axes=swapped), (*batch, count))
        return flat if rows == count else _first(op, flat, rows)

    return _each(outer, joined)


def _divisor(count: int) -> int:
    """A divisor near the square root; 1 if the transform is one product."""
    if count <= _DIRECT:
        return 1
    return next((d for d in range(math.isqrt(count), 1, -1) if count % d == 0), 1)


def _times_run_time_matrix(op: Apply, x: Complex, rows: Count, count: Count, sign: int) -> Complex:
    """The product of the last axis, j, with exp(sign·2πi·j·k / count) for k < rows.

    The real and the imaginary part are multiplied by the cosines and the sines in one product: a
    program with products of unknown sizes compiles in a time that is proportional to their number.
    """
    kept = _shape(x.real)[-1]
    number = _number(op, count, "int64")
    circle = op("arange", begin=0, end=count, step=1, dtype="float64")
    part = op("divide", circle, op("astype", number, dtype="float64"))
    angle = op("multiply", part, scalar=sign * 2 * math.pi, scalar_side="right")
    j = op("expand_dims", op("arange", begin=0, end=kept, step=1, dtype="int64"), axis=1)
    k = op("arange", begin=0, end=rows, step=1, dtype="int64")
    place = op("remainder", op("multiply", j, k), number)
    both = [op("take", op(name, angle), place, axis=0) for name in ("cos", "sin")]
    matrix = op("astype", op("concat", *both, axis=1), dtype=_dtype(x.real).name)
    parts = [t for t in (x.real, x.imaginary) if t is not None]
    stacked = op("concat", *(op("expand_dims", t, axis=0) for t in parts), axis=0)
    product = op("matmul", stacked, matrix)

    def block(of: int, by: int) -> ir.GraphExpr:  # part `of` times the cosines (0) or sines (1)
        own = op("take", product, np.array(of), axis=0)
        begin, end = (0, rows) if by == 0 else (rows, _twice(rows))
        return _slice(op, own, begin, end)

    if x.imaginary is None:
        return Complex(block(0, 0), block(0, 1))
    real = op("subtract", block(0, 0), block(1, 1))
    return Complex(real, op("add", block(0, 1), block(1, 0)))


def _times_matrix(op: Apply, x: Complex, cosine: np.ndarray, sine: np.ndarray) -> Complex:
    real, imaginary = _product(op, x.real, cosine), _product(op, x.real, sine)
    if x.imaginary is not None:
        real = op("subtract", real, _product(op, x.imaginary, sine))
        imaginary = op("add", imaginary, _product(op, x.imaginary, cosine))
    return Complex(real, imaginary)


def _times(op: Apply, x: Complex, cosine: np.ndarray, sine: np.ndarray) -> Complex:
    """Element-wise products with factors of modulus 1."""
    assert x.imaginary is not None
    dtype = _dtype(x.real)
    a, b = cosine.astype(dtype), sine.astype(dtype)
    real = op("subtract", op("multiply", x.real, a), op("multiply", x.imaginary, b))
    return Complex(real, op("add", op("multiply", x.real, b), op("multiply", x.imaginary, a)))


def _product(op: Apply, x: ir.GraphExpr, matrix: np.ndarray) -> ir.GraphExpr:
    return op("matmul", x, matrix.astype(_dtype(x)))


def _scaled(op: Apply, x: Complex, factor: float | ir.GraphExpr) -> Complex:
    """The product with a factor, which may be a tensor of one element."""
    if isinstance(factor, float):
        if factor == 1.0:
            return x
        return _each(x, lambda t: op("multiply", t, scalar=factor, scalar_side="right"))
    scale = op("astype", factor, dtype=_dtype(x.real).name)
    return _each(x, lambda t: op("multiply", t, scale))


# ---------------------------------------------------------------------------------------- numbers
def _plain(count: Count) -> Count:
    """A Python number if the expression is one."""
    number = ir.const_int(count) if isinstance(count, ir.Expr) else count
    return count if number is None else number


def _twice(count: Count) -> Count:
    return 2 * count if isinstance(count, int) else ir.add(count, count)


def _shorter(a: Count, b: Count) -> Count:
    a, b = (ir.as_expr(v, ir.dtype_of("int64")) for v in (a, b))
    return a if ir.structural_equal(a, b) else ir.minimum(a, b)


def _number(op: Apply, count: Count, dtype: str) -> ir.GraphExpr:
    """A number of elements as a tensor of one element."""
    end = count + 1 if isinstance(count, int) else ir.add(count, ir.const(1, "int64"))
    return op("arange", begin=count, end=end, step=1, dtype=dtype)


# ---------------------------------------------------------------------------------------- tensors
def _each(x: Complex, change: Callable[[ir.GraphExpr], ir.GraphExpr]) -> Complex:
    return Complex(change(x.real), None if x.imaginary is None else change(x.imaginary))


def _shape(x: ir.GraphExpr) -> tuple[ir.Expr, ...]:
    shape = x.tensor_info.shape
    assert shape is not None
    return shape


def _rank(x: ir.GraphExpr) -> int:
    return len(_shape(x))


def _dtype(x: ir.GraphExpr) -> np.dtype:
    dtype = x.tensor_info.dtype
    assert dtype is not None
    return dtype.numpy()


def _reshaped(op: Apply, x: ir.GraphExpr, shape: tuple[ir.Expr | int, ...]) -> ir.GraphExpr:
    return op("reshape", x, shape_value(shape))


def _first(op: Apply, x: ir.GraphExpr, count: Count) -> ir.GraphExpr:
    """The first elements along the last axis."""
    whole = ir.structural_equal(_shape(x)[-1], ir.as_expr(count, ir.dtype_of("int64")))
    return x if whole else _slice(op, x, 0, count)


def _slice(op: Apply, x: ir.GraphExpr, begin: Count, end: Count) -> ir.GraphExpr:
    """A part of the last axis."""
    return op("slice", x, axis=_rank(x) - 1, begin=begin, end=end, step=1)


def _padded(op: Apply, x: ir.GraphExpr, kept: int, count: int) -> ir.GraphExpr:
    """The last axis, with zeros behind it up to `count` elements."""
    if kept == count:
        return x
    zeros = op("zeros", shape=(*_shape(x)[:-1], count - kept), dtype=_dtype(x).name)
    return op("concat", x, zeros, axis=_rank(x) - 1)


def _last(op: Apply, x: ir.GraphExpr, axis: int) -> ir.GraphExpr:
    """Move an axis behind the others."""
    rank = _rank(x)
    order = (*(k for k in range(rank) if k != axis), axis)
    return x if axis == rank - 1 else op("permute_dims", x, axes=order)


def _back(op: Apply, x: ir.GraphExpr, axis: int) -> ir.GraphExpr:
    """Move the last axis to its place."""
    rank = _rank(x)
    order = (*range(axis), rank - 1, *range(axis, rank - 1))
    return x if axis == rank - 1 else op("permute_dims", x, axes=order)
