"""Discrete Fourier transforms as products with matrices, for all importers.

A transform of n = p·q elements is one of p elements for each of q offsets, a product with factors
of modulus 1, and a transform of q elements (Cooley and Tukey). Short ones, and those of a prime
number of elements, are products with a matrix of cosines and sines.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from blockwright import ir
from blockwright.graph import shape_value
from blockwright.support import ImporterError

Apply = Callable[..., ir.GraphExpr]
"""Adds a call of an operator row to the graph: `op(name, *operands, **attrs)`."""
_DIRECT = 128
"""Most elements of a transform that is one product."""
_LARGEST = 4096
"""Largest prime factor of a transform."""


class Complex(msgspec.Struct, frozen=True):
    """Complex numbers as two tensors of one shape; without `imaginary`, real numbers."""

    real: ir.GraphExpr
    imaginary: ir.GraphExpr | None = None


def transformed(
    op: Apply,
    x: Complex,
    axis: int,
    count: int,
    rows: int | None = None,
    inverse: bool = False,
    factor: float = 1.0,
) -> Complex:
    """The transform of an axis that is padded with zeros or cut to `count` elements.

    The inverse transform is not divided by `count`; `factor` may do so.

    Args:
        axis: not negative; its size is a number.
        rows: the number of frequencies of the result, from 0 on; all of them by default.
        factor: multiplies the result.

    Raises:
        ImporterError: BW507 the size of the axis is not a number, or has a large prime factor.
    """
    kept = min(_size(x.real, axis), count)
    x = _each(x, lambda t: _first(op, _last(op, t, axis), kept))
    rows = count if rows is None else rows
    x = _along_last(op, x, kept, count, rows, 1 if inverse else -1, factor)
    return _each(x, lambda t: _back(op, t, axis))


def real_inverse(op: Apply, x: Complex, axis: int, count: int, factor: float = 1.0) -> ir.GraphExpr:
    """`count` real numbers whose spectrum begins with x, times `count` and a factor.

    The other half of the spectrum is its mirror image with the opposite imaginary part.
    """
    half = count // 2 + 1
    kept = min(_size(x.real, axis), half)
    x = _each(x, lambda t: _first(op, _last(op, t, axis), kept))
    if count <= _DIRECT:
        angle = 2 * np.pi * np.outer(np.arange(kept), np.arange(count)) / count
        weight = np.full((kept, 1), 2 * factor)  # each frequency stands for its mirror image too
        weight[0] = factor
        if count % 2 == 0 and kept == half:
            weight[-1] = factor
        result = _product(op, x.real, np.cos(angle) * weight)
        if x.imaginary is not None:
            sine = _product(op, x.imaginary, np.sin(angle) * weight)
            result = op("subtract", result, sine)
    else:
        whole = _mirrored(op, x, kept, count)
        result = _along_last(op, whole, count, count, count, 1, factor).real
    return _back(op, result, axis)


def _mirrored(op: Apply, x: Complex, kept: int, count: int) -> Complex:
    """The whole spectrum of real numbers from its first elements, along the last axis."""
    imaginary = x.imaginary
    assert imaginary is not None
    half, axis = count // 2 + 1, _rank(x.real) - 1
    real, imaginary = (_padded(op, part, kept, half) for part in (x.real, imaginary))

    def behind(tensor: ir.GraphExpr) -> ir.GraphExpr:
        part = op("slice", tensor, axis=axis, begin=1, end=count - half + 1, step=1)
        return op("flip", part, axis=axis)

    mirror = op("negative", behind(imaginary))
    return Complex(
        op("concat", real, behind(real), axis=axis), op("concat", imaginary, mirror, axis=axis)
    )


# --------------------------------------------------------------------------------- the last axis
def _along_last(
    op: Apply, x: Complex, kept: int, count: int, rows: int, sign: int, factor: float = 1.0
) -> Complex:
    """The transform along the last axis, which has the first `kept` of `count` elements."""
    p = _divisor(count)
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
    root = math.isqrt(count)
    found = next((d for d in range(root, 1, -1) if count % d == 0), 1)
    if found == 1 and count > _LARGEST:
        raise ImporterError(
            f"a Fourier transform of {count} elements, a large prime number",
            code="BW507",
            help="pad the signal with zeros to another length",
        )
    return found


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


def _size(x: ir.GraphExpr, axis: int) -> int:
    size = ir.const_int(_shape(x)[axis])
    if size is None:
        raise ImporterError(
            "a Fourier transform of an axis of unknown size",
            code="BW507",
            help="make the size of this axis a number; others may be dynamic",
        )
    return size


def _reshaped(op: Apply, x: ir.GraphExpr, shape: tuple[ir.Expr | int, ...]) -> ir.GraphExpr:
    return op("reshape", x, shape_value(shape))


def _first(op: Apply, x: ir.GraphExpr, count: int) -> ir.GraphExpr:
    """The first elements along the last axis."""
    axis = _rank(x) - 1
    whole = ir.is_const_int(_shape(x)[axis], count)
    return x if whole else op("slice", x, axis=axis, begin=0, end=count, step=1)


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
