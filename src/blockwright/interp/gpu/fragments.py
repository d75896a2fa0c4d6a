"""Fragment layouts: which lane of a warp holds which elements of a matrix.

A fragment of an `mma` operand consists of 32-bit registers of each lane, packed with as many
elements as fit. Lanes form groups of four: a group holds a row (of the left operand and the result)
or a column (of the right operand), and its members hold adjacent elements. Layouts are tables of
rows and columns, with one line per lane and one entry per element.
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
"""Element bits → reduction lengths (K) of m16n8 products."""


class FragmentLayout(NamedTuple):
    """Rows and columns of the elements of each lane (first axis), in register order."""

    rows: Array
    columns: Array


def _table(count: int) -> tuple[Array, Array]:
    return np.arange(count)[None, :], np.zeros((32, count), np.int64)


@functools.cache
def left(depth: int, bits: int) -> FragmentLayout:
    """The left operand, 16 × depth: registers alternate between the upper and the lower half."""
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
    """Accumulator and result, 16 × 8: two adjacent elements in the upper half, two in the lower."""
    element, zero = _table(4)
    rows = GROUP[:, None] + 8 * (element // 2) + zero
    return FragmentLayout(rows, MEMBER[:, None] * 2 + element % 2 + zero)


@functools.cache
def square() -> FragmentLayout:
    """A 16 × 16 result: two 16 × 8 results side by side."""
    half = result()
    return FragmentLayout(
        np.concatenate([half.rows, half.rows], 1),
        np.concatenate([half.columns, half.columns + 8], 1),
    )


def loaded(rows: Array, transposed: bool) -> Array:
    """The elements of one matrix that `ldmatrix` loads into each lane.

    Args:
        rows: [..., 8, elements of a row]: eight rows of 16 bytes.
    """
    packed = int(rows.shape[-1]) // 4
    across: Array = MEMBER[:, None] * packed + np.arange(packed)[None, :]
    group = np.broadcast_to(GROUP[:, None], across.shape)
    return rows[..., across, group] if transposed else rows[..., group, across]


def product(a: Array, b: Array, c: Array, dtype: DType) -> Array:
    """a @ b + c for many warps at once, rounded once (wrapped for integers)."""
    exact = np.int64 if dtype.is_int else np.float64
    total = a.astype(exact) @ b.astype(exact) + c.astype(exact)
    return total.astype(dtype.numpy())


def shortened(value: Array) -> Array:
    """Truncate float32 to "tf32" as tensor cores do: the low 13 bits are dropped."""
    return (value.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
