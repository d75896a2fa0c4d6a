"""Which lane of a warp holds which elements of a matrix.

A fragment of an `mma` operand is 32-bit registers of each lane, filled with as many elements as
fit. Lanes stand in groups of four: a group holds a row (of the left operand and the result) or a
column (of the right one), its members neighbouring elements. Tables are arrays of rows and of
columns, one line per lane and one entry per element.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from blockwright.ir import DType

Array = np.ndarray[Any, Any]
LANES = np.arange(32)
GROUP, MEMBER = LANES // 4, LANES % 4

DEPTHS: dict[int, tuple[int, ...]] = {32: (4, 8), 16: (8, 16), 8: (16, 32)}
"""Lengths of the reduction of m16n8 products, by the bits of an element."""


class FragmentLayout(NamedTuple):
    """Rows and columns that each lane (first axis) holds, in the order of its registers."""

    rows: Array
    columns: Array


def _table(count: int) -> tuple[Array, Array]:
    return np.arange(count)[None, :], np.zeros((32, count), np.int64)


@functools.cache
def left(depth: int, bits: int) -> FragmentLayout:
    """The left operand, 16 × depth: registers take turns between the upper and the lower half."""
    packed = 32 // bits
    element, zero = _table(16 * depth // 32)
    register, within = element // packed, element % packed
    rows = GROUP[:, None] + 8 * (register % 2) + zero
    columns = MEMBER[:, None] * packed + within + register // 2 * (4 * packed) + zero
    return FragmentLayout(rows, columns)


@functools.cache
def right(depth: int, bits: int) -> FragmentLayout:
    """The right operand, depth × 8."""
    packed = 32 // bits
    element, zero = _table(8 * depth // 32)
    register, within = element // packed, element % packed
    rows = MEMBER[:, None] * packed + within + register * (4 * packed) + zero
    return FragmentLayout(rows, GROUP[:, None] + zero)


@functools.cache
def result() -> FragmentLayout:
    """Addend and result, 16 × 8: two neighbours in the upper half, then two in the lower one."""
    element, zero = _table(4)
    rows = GROUP[:, None] + 8 * (element // 2) + zero
    return FragmentLayout(rows, MEMBER[:, None] * 2 + element % 2 + zero)


@functools.cache
def square() -> FragmentLayout:
    """A result of 16 × 16: that of two products side by side."""
    half = result()
    return FragmentLayout(
        np.concatenate([half.rows, half.rows], 1),
        np.concatenate([half.columns, half.columns + 8], 1),
    )


def loaded(rows: Array, transposed: bool) -> Array:
    """What `ldmatrix` gives each lane of one matrix of eight rows of 16 bytes.

    Args:
        rows: [..., 8, elements of a row].
    """
    packed = int(rows.shape[-1]) // 4
    across: Array = MEMBER[:, None] * packed + np.arange(packed)[None, :]
    group = np.broadcast_to(GROUP[:, None], across.shape)
    return rows[..., across, group] if transposed else rows[..., group, across]


def product(a: Array, b: Array, c: Array, dtype: DType) -> Array:
    """a @ b + c of many warps at once, rounded once (for integers, wrapped)."""
    exact = np.int64 if dtype.is_int else np.float64
    total = a.astype(exact) @ b.astype(exact) + c.astype(exact)
    return total.astype(dtype.numpy())


def shortened(value: Array) -> Array:
    """float32 as tensor cores see it in "tf32": the last 13 bits do not count."""
    return (value.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
