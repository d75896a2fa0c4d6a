"""Outer-product register tiles: `C[i, j] += A[i, 0] * B[0, j]` on rows x columns accumulators.

Names are `outer_product_<rows>x<columns>_<type>`, for example `outer_product_6x16_float32`, where
all three have one type. `outer_product_6x16_float32_bfloat16` takes a B of a narrower type, which
is widened when it is loaded.

The implementation is unrolled over rows, with one vector operation per row. The code generator
decides how rows map to machine registers and whether multiply and add form one FMA. A tile covers
one step of the reduction axis; it has no loop.
"""

from __future__ import annotations

import re

from blockwright import ir
from blockwright.intrin.registry import TensorIntrin
from blockwright.intrin.tile_programs import index, product_meaning, tile_function

_NAME = re.compile(
    r"outer_product_(\d+)x(\d+)_(float16|float32|float64)(?:_(float16|bfloat16|float32))?\Z"
)


def outer_product_name(rows: int, columns: int, dtype: str = "float32", narrow: str = "") -> str:
    """Return the intrinsic name of a register tile.

    Args:
        dtype: type of A and C, and of B unless `narrow` is given.
        narrow: type of B.
    """
    return f"outer_product_{rows}x{columns}_{dtype}" + (f"_{narrow}" if narrow else "")


def outer_product(name: str) -> TensorIntrin | None:
    """Return the intrinsic for a name of this family; None for other names."""
    match = _NAME.match(name)
    if match is None:
        return None
    rows, columns, dtype = int(match[1]), int(match[2]), ir.dtype_of(match[3])
    narrow = ir.dtype_of(match[4] or match[3])
    if not (1 <= rows <= 64 and 1 <= columns <= 1024) or (match[4] and narrow.bits >= dtype.bits):
        return None
    return TensorIntrin(
        name,
        product_meaning(_buffers(rows, columns, dtype, narrow), 1, b_by_column=False),
        _implementation(rows, columns, dtype, narrow),
    )


def _buffers(rows: int, columns: int, dtype: ir.DType, narrow: ir.DType) -> list[ir.Buffer]:
    shapes = {"A": (rows, 1), "B": (1, columns), "C": (rows, columns)}
    return [
        ir.Buffer(
            name,
            narrow if name == "B" else dtype,
            tuple(index(d) for d in shape),
            offset_factor=1,
        )
        for name, shape in shapes.items()
    ]


def _implementation(rows: int, columns: int, dtype: ir.DType, narrow: ir.DType) -> ir.PrimFunc:
    a, b, c = _buffers(rows, columns, dtype, narrow)
    zero = index(0)
    lane = ir.Ramp(zero, index(1), columns) if columns > 1 else zero
    steps: list[ir.Stmt] = []
    for row in range(rows):
        at = (index(row), lane)
        left = ir.load(a, index(row), zero)
        if columns > 1:
            left = ir.Broadcast(left, columns)
        right = ir.cast_to(ir.BufferLoad(b, (zero, lane)), dtype.with_lanes(columns))
        value = ir.BufferLoad(c, at) + left * right
        steps.append(ir.BufferStore(c, value, at))
    return tile_function("implementation", [a, b, c], ir.seq(steps))


TensorIntrin.add_family(outer_product, compare=False)
