"""Tiles of the matrix instructions: `C[i, j] += A[i, k] * B[k, j]`, one instruction per tile.

Names are those of the rows of `intrin.hardware`, for example `mma_16x16x64_s8s8`. Each operand is
contiguous. Where the instruction reads B in groups of k, the position within a group is an axis of
both operands: A is `[m][k / group][group]`, B is `[k / group][n][group]`, and the block has two
reduction iterators. Otherwise A is `[m][k]` and B `[n][k]`.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.intrin.hardware import MATRIX_PRODUCTS, MatrixProduct
from blockwright.intrin.registry import TensorIntrin
from blockwright.intrin.tile_programs import index, product_meaning, tile_function


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
    return [_contiguous(name, kind, shape) for name, (kind, shape) in shapes.items()]


def _contiguous(name: str, kind: str, shape: tuple[int, ...]) -> ir.Buffer:
    strides, step = list[ir.Expr](), 1
    for extent in reversed(shape):
        strides.insert(0, index(step))
        step *= extent
    return ir.Buffer(
        name, ir.dtype_of(kind), tuple(map(index, shape)), strides=tuple(strides), offset_factor=1
    )


def _implementation(row: MatrixProduct) -> ir.PrimFunc:
    a, b, c = buffers = _buffers(row)
    total, left, right = (ir.BufferLoad(buffer, _whole(buffer)) for buffer in (c, a, b))
    value = ir.Call(row.name, (total, left, right), total.dtype)
    return tile_function("implementation", buffers, ir.BufferStore(c, value, _whole(c)))


def _whole(buffer: ir.Buffer) -> tuple[ir.Expr, ...]:
    """Indices of all elements in their order in memory, as vectors."""
    extents = [ir.const_int(extent) or 0 for extent in buffer.shape]
    count = 1
    for extent in extents:
        count *= extent
    rest: ir.Expr = ir.Ramp(index(0), index(1), count)
    result: list[ir.Expr] = []
    for extent in reversed(extents[1:]):
        size = ir.Broadcast(index(extent), count)
        result.insert(0, ir.FloorMod(rest, size))
        rest = ir.FloorDiv(rest, size)
    return (rest, *result)


TensorIntrin.add_family(matrix_tile, compare=False)
