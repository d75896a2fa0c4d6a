"""Outer-product register tiles: `C[i, j] += A[i, 0] * B[0, j]` on rows x columns accumulators.

Names are `outer_product_<rows>x<columns>_<type>`, for example `outer_product_6x16_float32`. The
implementation is unrolled over rows, with one vector operation per row. The code generator decides
how rows map to machine registers and whether multiply and add form one FMA. A tile covers one step
of the reduction axis; it has no loop.
"""

from __future__ import annotations

import re

from blockwright import ir
from blockwright.intrin.registry import TensorIntrin

_NAME = re.compile(r"outer_product_(\d+)x(\d+)_(float16|float32|float64)\Z")


def outer_product_name(rows: int, columns: int, dtype: str = "float32") -> str:
    """Return the intrinsic name of a register tile."""
    return f"outer_product_{rows}x{columns}_{dtype}"


def outer_product(name: str) -> TensorIntrin | None:
    """Return the intrinsic for a name of this family; None for other names."""
    match = _NAME.match(name)
    if match is None:
        return None
    rows, columns, dtype = int(match[1]), int(match[2]), ir.dtype_of(match[3])
    if not (1 <= rows <= 64 and 1 <= columns <= 1024):
        return None
    return TensorIntrin(name, _meaning(rows, columns, dtype), _implementation(rows, columns, dtype))


def _buffers(rows: int, columns: int, dtype: ir.DType) -> list[ir.Buffer]:
    shapes = {"A": (rows, 1), "B": (1, columns), "C": (rows, columns)}
    return [
        ir.Buffer(n, dtype, tuple(_index(d) for d in shape), offset_factor=1)
        for n, shape in shapes.items()
    ]


def _index(value: int) -> ir.Expr:
    return ir.const(value, "int64")


def _function(name: str, buffers: list[ir.Buffer], body: ir.Stmt) -> ir.PrimFunc:
    a, b, c = buffers
    reads = tuple(ir.full_region(x) for x in (c, a, b))
    root = ir.Block("root", (), reads, (ir.full_region(c),), body)
    handles = [ir.var(f"{x.name}_handle", "handle") for x in buffers]
    return ir.PrimFunc(
        tuple(handles),
        tuple(zip(handles, buffers, strict=True)),
        ir.BlockRealize((), ir.const(True, "bool"), root),
        {"global_symbol": name},
    )


def _meaning(rows: int, columns: int, dtype: ir.DType) -> ir.PrimFunc:
    a, b, c = _buffers(rows, columns, dtype)
    kinds = [
        ("i", rows, ir.IterType.SPATIAL),
        ("j", columns, ir.IterType.SPATIAL),
        ("k", 1, ir.IterType.REDUCE),
    ]
    iters = [
        ir.IterVar(ir.var(f"v{n}", "int64"), ir.Range(_index(0), _index(e)), kind)
        for n, e, kind in kinds
    ]
    i, j, k = (it.var for it in iters)
    value = ir.load(c, i, j) + ir.load(a, i, k) * ir.load(b, k, j)
    store = ir.BufferStore(c, value, (i, j))
    reads = tuple(ir.point_region(x, at) for x, at in ((c, (i, j)), (a, (i, k)), (b, (k, j))))
    block = ir.Block("update", tuple(iters), reads, (ir.point_region(c, (i, j)),), store)
    loops = [ir.var(n, "int64") for n, _, _ in kinds]
    stmt: ir.Stmt = ir.BlockRealize(tuple(loops), ir.const(True, "bool"), block)
    for var, (_, extent, _) in reversed(list(zip(loops, kinds, strict=True))):
        stmt = ir.For(var, _index(0), _index(extent), ir.ForKind.SERIAL, stmt)
    return _function("meaning", [a, b, c], stmt)


def _implementation(rows: int, columns: int, dtype: ir.DType) -> ir.PrimFunc:
    a, b, c = _buffers(rows, columns, dtype)
    zero = _index(0)
    lane = ir.Ramp(zero, _index(1), columns) if columns > 1 else zero
    steps: list[ir.Stmt] = []
    for row in range(rows):
        at = (_index(row), lane)
        left = ir.load(a, _index(row), zero)
        if columns > 1:
            left = ir.Broadcast(left, columns)
        value = ir.BufferLoad(c, at) + left * ir.BufferLoad(b, (zero, lane))
        steps.append(ir.BufferStore(c, value, at))
    return _function("implementation", [a, b, c], ir.seq(steps))


TensorIntrin.add_family(outer_product)
