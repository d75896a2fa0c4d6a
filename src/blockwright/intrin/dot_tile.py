"""Dot-product register tiles: `C[i, j] += A[i, k] * B[j, k]` over one group of k.

Names are `<operation>_<rows>x<columns>`, for example `dot4_u8s8_6x16`, where the operation is a row
of `intrin.hardware`. A and B hold one group of k, contiguous, per row of A and per column of C: B
is a slice of a panel `[n / columns][k / group][columns][group]`. Each row of the implementation
broadcasts a group of A and issues one dot product of all columns.
"""

from __future__ import annotations

import re

from blockwright import ir
from blockwright.intrin.hardware import DOT_PRODUCTS, DotProduct
from blockwright.intrin.registry import TensorIntrin
from blockwright.intrin.tile_programs import index, product_meaning, tile_function

_LANES = 16
"""Lanes of one dot product: a register of 512 bits; narrower targets split it."""

_NAME = re.compile(r"(dot\d_\w+?)_(\d+)x(\d+)\Z")


def dot_tile_name(operation: str, rows: int, columns: int) -> str:
    """Return the intrinsic name of a dot-product tile."""
    return f"{operation}_{rows}x{columns}"


def dot_tile(name: str) -> TensorIntrin | None:
    """Return the intrinsic for a name of this family; None for other names."""
    match = _NAME.match(name)
    if match is None or match[1] not in DOT_PRODUCTS:
        return None
    dot, rows, columns = DOT_PRODUCTS[match[1]], int(match[2]), int(match[3])
    if dot.odd or not (1 <= rows <= 64 and 1 <= columns <= 1024):
        return None
    return TensorIntrin(
        name,
        product_meaning(_buffers(dot, rows, columns), dot.group, b_by_column=True),
        _implementation(dot, rows, columns),
    )


def _buffers(dot: DotProduct, rows: int, columns: int) -> list[ir.Buffer]:
    rows_of = {"A": (dot.a, rows, dot.group), "B": (dot.b, columns, dot.group)}
    rows_of["C"] = (dot.accumulator, rows, columns)
    return [
        ir.Buffer(name, ir.dtype_of(kind), (index(m), index(n)), offset_factor=1)
        for name, (kind, m, n) in rows_of.items()
    ]


def _implementation(dot: DotProduct, rows: int, columns: int) -> ir.PrimFunc:
    a, b, c = _buffers(dot, rows, columns)
    group = dot.group
    chunks = [(n, min(_LANES, columns - n)) for n in range(0, columns, _LANES)]
    steps: list[ir.Stmt] = []
    for row in range(rows):
        word = ir.BufferLoad(a, (index(row), _lanes(0, group)))
        for first, count in chunks:
            element, each = _lanes(first * group, count * group), index(group)
            place = ir.Broadcast(each, count * group)
            panel = ir.BufferLoad(b, (ir.FloorDiv(element, place), ir.FloorMod(element, place)))
            left = ir.Shuffle((word,), tuple(range(group)) * count)
            at = (index(row), _lanes(first, count))
            total = ir.BufferLoad(c, at)
            value = ir.Call(dot.name, (total, left, panel), total.dtype)
            steps.append(ir.BufferStore(c, value, at))
    return tile_function("implementation", [a, b, c], ir.seq(steps))


def _lanes(first: int, count: int) -> ir.Expr:
    """Consecutive indices; a scalar for one."""
    return ir.Ramp(index(first), index(1), count) if count > 1 else index(first)


TensorIntrin.add_family(dot_tile, compare=False)
