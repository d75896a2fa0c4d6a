"""Tile registers of AMX: fill them with zeros, load them, store them.

    tile_zero_float32       Y[i, j] = 0
    tile_load_bfloat16      Y[r, g, e] = X[r, g, e]      X: 16 rows of 64 bytes, at any distance
    tile_load_rows_bfloat16 Y[r, g, e] = X[r, 2 * g + e]
    tile_store_float32      Y[i, j] = X[i, j]            Y: 16 rows of 64 bytes, at any distance

The other operand has scope "amx.tile". A tile of elements narrower than 32 bits is
`[16][16][elements of a group]`, as `matrix_tile` multiplies it.
"""

from __future__ import annotations

import re

from blockwright import ir
from blockwright.intrin.registry import TensorIntrin
from blockwright.intrin.tile_programs import contiguous, index, tile_function, whole_index
from blockwright.target.scopes import TILE_SCOPE

_NAME = re.compile(
    r"tile_(?:(zero|store)_(float32|int32)|(load|load_rows)_(bfloat16|int8|uint8))\Z"
)
_EXTENT = 16


def tile_register(name: str) -> TensorIntrin | None:
    """Return the intrinsic for a name of this family; None for other names."""
    match = _NAME.match(name)
    if match is None:
        return None
    kind, dtype = match[1] or match[3], match[2] or match[4]
    return TensorIntrin(name, _each(*_operands(kind, dtype)), _at_once(*_operands(kind, dtype)))


def _operands(kind: str, dtype: str) -> tuple[ir.Buffer | None, ir.Buffer]:
    """What is read, if anything, and what is written."""
    group = 32 // ir.dtype_of(dtype).bits
    shape = (_EXTENT, _EXTENT, group) if group > 1 else (_EXTENT, _EXTENT)
    tile = contiguous("X" if kind == "store" else "Y", dtype, shape, TILE_SCOPE)
    if kind == "zero":
        return None, tile
    if kind == "store":
        return tile, _rows("Y", dtype, shape)
    return _rows("X", dtype, shape if kind == "load" else (_EXTENT, _EXTENT * group)), tile


def _rows(name: str, dtype: str, shape: tuple[int, ...]) -> ir.Buffer:
    """Rows of 64 bytes in memory; the distance between them is a variable."""
    inner = contiguous(name, dtype, shape[1:])
    distance = ir.var("s", "int64")
    return inner.replace(shape=(index(shape[0]), *inner.shape), strides=(distance, *inner.strides))


def _each(source: ir.Buffer | None, result: ir.Buffer) -> ir.PrimFunc:
    """Element by element."""
    loops = [ir.var(f"i{k}", "int64") for k in range(result.ndim)]
    iters = tuple(
        ir.IterVar(ir.var(f"v{k}", "int64"), ir.Range(index(0), extent), ir.IterType.SPATIAL)
        for k, extent in enumerate(result.shape)
    )
    at: tuple[ir.Expr, ...] = tuple(it.var for it in iters)
    store = (ir.point_region(result, at),)
    value, reads = ir.const(0, result.dtype), ()
    if source is not None:
        place = at if source.ndim == len(at) else (at[0], at[1] * result.shape[-1] + at[2])
        value, reads = ir.load(source, *place), (ir.point_region(source, place),)
    block = ir.Block("tile", iters, reads, store, ir.BufferStore(result, value, at))
    stmt: ir.Stmt = ir.BlockRealize(tuple(loops), ir.const(True, "bool"), block)
    for var, extent in reversed(list(zip(loops, result.shape, strict=True))):
        stmt = ir.For(var, index(0), extent, ir.ForKind.SERIAL, stmt)
    return tile_function("meaning", _buffers(source, result), stmt, updates=False)


def _at_once(source: ir.Buffer | None, result: ir.Buffer) -> ir.PrimFunc:
    """All elements by one statement."""
    at = whole_index(result)
    value: ir.Expr = ir.Broadcast(ir.const(0, result.dtype), at[0].dtype.lanes)
    if source is not None:
        value = ir.BufferLoad(source, whole_index(source))
    body = ir.BufferStore(result, value, at)
    return tile_function("implementation", _buffers(source, result), body, updates=False)


def _buffers(source: ir.Buffer | None, result: ir.Buffer) -> list[ir.Buffer]:
    return [result] if source is None else [source, result]


TensorIntrin.add_family(tile_register, compare=False)
