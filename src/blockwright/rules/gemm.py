"""GEMM: a matrix product with whatever element-wise work follows it.

    out[m, n] = epilogue(sum over k of A[m, k] * W[n, k], bias[n], residual[m, n], …)

Any number of row axes, symbolic extents included; see `contraction` for the steps.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.rules.contraction import canonicalize, node, tile_registers, vector_rows
from blockwright.rules.facts import contraction_of, extent_of, is_spatial, leaf_blocks, windowed
from blockwright.rules.inline import extent
from blockwright.rules.rule import Rule
from blockwright.rules.tiles import panel_chunk
from blockwright.schedule import BlockRV, Schedule
from blockwright.support import ScheduleError
from blockwright.target import Target

_ROW_TILES = 16  # row tiles of a task: enough to hide its start, few enough to share work evenly


def refuses(func: ir.PrimFunc, target: Target) -> str:
    found = leaf_blocks(func)
    contractions = [b for b in found if contraction_of(b) is not None]
    if len(contractions) != 1:
        return f"{len(contractions)} contractions, one is wanted"
    facts = contraction_of(contractions[0])
    assert facts is not None
    if facts.batch:
        return "the contraction is batched"
    if not all(is_spatial(b) for b in found if b is not contractions[0]):
        return "other blocks reduce too"
    product = contractions[0]
    if windowed(product):
        return "a window slides over an operand"
    if any(extent_of(product, axes) == 1 for axes in (facts.n, facts.k)):
        return "an operand is a vector"
    result = product.writes[0].buffer.dtype
    if not result.is_float or facts.a.dtype is not result or facts.b.dtype is not result:
        return "operands and result are not of one floating-point type"
    return ""


def apply(sch: Schedule, target: Target) -> None:
    block, tail = _inline_neighbours(sch)
    facts = contraction_of(node(sch, block))
    if facts is None:
        raise ScheduleError("with producers inlined, both operands are one buffer", code="BW340")
    depth, columns = (extent_of(node(sch, block), axes) for axes in (facts.k, facts.n))
    form = canonicalize(sch, block, tail, target)
    if tail is None:
        (tail,) = sch.get_consumers(block)
    m, n, k = sch.get_loops(block)
    m0, m1 = sch.split(m, [None, form.tile.rows])
    n0, n1 = sch.split(n, [None, form.tile.columns])
    mo, mi = sch.split(m0, [None, min(_ROW_TILES, extent(sch, m0) or _ROW_TILES)])
    chunk = panel_chunk(target, form.tile, depth, columns)
    no, ni = sch.split(n0, [None, chunk])
    sch.reorder(mo, no, mi, ni, k, m1, n1)
    sch.reverse_compute_at(tail, ni)
    tile_registers(sch, form, m1, k)
    vector_rows(sch, tail, form.tile.columns)
    sch.parallel(sch.fuse(mo, no))


def _inline_neighbours(sch: Schedule) -> tuple[BlockRV, BlockRV | None]:
    """Inline all work before and behind the contraction, except the last block behind it."""
    handles = sch.get_child_blocks(sch.get_block("root"))
    at = next(k for k, h in enumerate(handles) if contraction_of(node(sch, h)) is not None)
    for handle in (*handles[:at], *handles[at + 1 : -1]):
        sch.compute_inline(handle)
    tail = handles[-1] if at + 1 < len(handles) else None
    return handles[at], tail


RULE = Rule("gemm", refuses, apply)
