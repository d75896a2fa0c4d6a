"""Dot products lane by lane: `C[j] += A[j, k] * B[j, k]` over one group of k.

Names are `<operation>_lanes<count>`, for example `dot2_bf16_lanes16`, where the operation is a row
of `intrin.hardware`. A and B hold the group of a lane in neighbouring elements, as in memory where
the reduction is contiguous: lane j adds the elements `2 * j` and `2 * j + 1` of every run of 32.
"""

from __future__ import annotations

import re

from blockwright import ir
from blockwright.intrin.hardware import DOT_PRODUCTS, DotProduct
from blockwright.intrin.registry import TensorIntrin
from blockwright.intrin.tile_programs import index, tile_function

_NAME = re.compile(r"(dot\d_\w+?)_lanes(\d+)\Z")


def dot_lanes_name(operation: str, lanes: int) -> str:
    """Return the intrinsic name of a dot product of lanes."""
    return f"{operation}_lanes{lanes}"


def dot_lanes(name: str) -> TensorIntrin | None:
    """Return the intrinsic for a name of this family; None for other names."""
    match = _NAME.match(name)
    if match is None or match[1] not in DOT_PRODUCTS:
        return None
    dot, lanes = DOT_PRODUCTS[match[1]], int(match[2])
    if dot.odd or not 2 <= lanes <= 16:
        return None
    return TensorIntrin(name, _meaning(dot, lanes), _implementation(dot, lanes))


def _buffers(dot: DotProduct, lanes: int) -> list[ir.Buffer]:
    rows = (("A", dot.a, (lanes, dot.group)), ("B", dot.b, (lanes, dot.group)))
    return [
        ir.Buffer(name, ir.dtype_of(kind), tuple(map(index, shape)), offset_factor=1)
        for name, kind, shape in (*rows, ("C", dot.accumulator, (lanes,)))
    ]


def _meaning(dot: DotProduct, lanes: int) -> ir.PrimFunc:
    a, b, c = _buffers(dot, lanes)
    kinds = [("j", lanes, ir.IterType.SPATIAL), ("k", dot.group, ir.IterType.REDUCE)]
    iters = [
        ir.IterVar(ir.var(f"v{n}", "int64"), ir.Range(index(0), index(extent)), kind)
        for n, extent, kind in kinds
    ]
    j, k = (it.var for it in iters)
    places = ((c, (j,)), (a, (j, k)), (b, (j, k)))
    total, x, y = (ir.cast_to(ir.load(v, *at), c.dtype) for v, at in places)
    reads = tuple(ir.point_region(v, at) for v, at in places)
    store = ir.BufferStore(c, total + x * y, (j,))
    block = ir.Block("update", tuple(iters), reads, (ir.point_region(c, (j,)),), store)
    loops = [ir.var(n, "int64") for n, _, _ in kinds]
    stmt: ir.Stmt = ir.BlockRealize(tuple(loops), ir.const(True, "bool"), block)
    for var, (_, extent, _) in reversed(list(zip(loops, kinds, strict=True))):
        stmt = ir.For(var, index(0), index(extent), ir.ForKind.SERIAL, stmt)
    return tile_function("meaning", [a, b, c], stmt)


def _implementation(dot: DotProduct, lanes: int) -> ir.PrimFunc:
    a, b, c = _buffers(dot, lanes)
    count = lanes * dot.group
    element = ir.Ramp(index(0), index(1), count)
    group = ir.Broadcast(index(dot.group), count)
    place = (ir.FloorDiv(element, group), ir.FloorMod(element, group))
    at = (ir.Ramp(index(0), index(1), lanes),)
    total = ir.BufferLoad(c, at)
    value = ir.Call(
        dot.name, (total, ir.BufferLoad(a, place), ir.BufferLoad(b, place)), total.dtype
    )
    return tile_function("implementation", [a, b, c], ir.BufferStore(c, value, at))


TensorIntrin.add_family(dot_lanes, compare=False)
