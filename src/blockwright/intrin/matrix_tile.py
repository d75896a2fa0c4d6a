"""Tiles of the matrix instructions: `C[i, j] += A[i, k] * B[k, j]`, one instruction per tile.

Names are those of the rows of `intrin.hardware`, for example `mma_16x16x64_s8s8`. Each operand is
contiguous. Where the instruction reads B in groups of k, the position within a group is an axis of
both operands: A is `[m][k / group][group]`, B is `[k / group][n][group]`, and the block has two
reduction iterators; all operands are in tile registers. Otherwise A is `[m][k]` and B `[n][k]`.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.intrin.hardware import MATRIX_PRODUCTS, MatrixProduct
from blockwright.intrin.registry import TensorIntrin
from blockwright.intrin.tile_programs import (
    contiguous,
    product_meaning,
    tile_function,
    whole_index,
)
from blockwright.target.scopes import TILE_SCOPE


def matrix_tile(name: str) -> TensorIntrin | None:
    """Return the intrinsic of a matrix instruction; None for other names."""
    row = MATRIX_PRODUCTS.get(name)
    if row is None or row.odd:
        return None
    meaning = product_meaning(_buffers(row), row.group, b_by_column=True, groups=row.groups)
    return TensorIntrin(name, meaning, _implementation(row))


def _buffers(row: MatrixProduct) -> list[ir.Buffer]:
    if row.groups > 1:
        a, b = (row.m, row.groups, row.group), (row.groups, row.n, row.group)
    else:
        a, b = (row.m, row.depth), (row.n, row.depth)
    shapes = {"A": (row.a, a), "B": (row.b, b), "C": (row.accumulator, (row.m, row.n))}
    scope = TILE_SCOPE if row.in_tiles else "global"
    return [contiguous(name, kind, shape, scope) for name, (kind, shape) in shapes.items()]


def _implementation(row: MatrixProduct) -> ir.PrimFunc:
    a, b, c = buffers = _buffers(row)
    total, left, right = (ir.BufferLoad(buffer, whole_index(buffer)) for buffer in (c, a, b))
    value = ir.Call(row.name, (total, left, right), total.dtype)
    return tile_function("implementation", buffers, ir.BufferStore(c, value, whole_index(c)))


TensorIntrin.add_family(matrix_tile, compare=False)
