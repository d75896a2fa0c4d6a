"""Winograd convolution: transforms of tiles around one batched product.

    V = transform(tiles of x);  M[t, p, co] = V[t, p, ci] * U[t, ci, co];  out = transform(M)

The rule looks for a contraction whose operands come from blocks that make several elements at once,
and whose result goes into such a block. Transforms run on a vector of channels: both passes of one
tile happen in registers.
"""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.rules.elementwise import spread
from blockwright.rules.facts import contraction_of, leaf_blocks
from blockwright.rules.gemm import contract
from blockwright.rules.inline import block_of, inline_where
from blockwright.rules.rows import inner_loops
from blockwright.rules.rule import Rule
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.support import ScheduleError
from blockwright.target import Target


class Parts(msgspec.Struct, frozen=True):
    """The blocks of the algorithm, by what they make.

    Attributes:
        before: what makes the input of the transforms.
        inputs, filters, results: the two passes of each transform, in order.
        product: the contraction.
        tail: reads the results by pixel.
        after: blocks behind the tail that are not part of it.
    """

    before: list[BlockRV]
    inputs: list[BlockRV]
    filters: list[BlockRV]
    product: BlockRV
    results: list[BlockRV]
    tail: BlockRV
    after: list[BlockRV]


def makes_several(block: ir.Block) -> bool:
    """Whether a spatial block stores several elements in each iteration."""
    spatial = all(it.iter_type is ir.IterType.SPATIAL for it in block.iter_vars)
    return spatial and block.init is None and len(ir.collect(block.body, ir.BufferStore)) > 1


def refuses(func: ir.PrimFunc, target: Target) -> str:
    found = leaf_blocks(func)
    products = [b for b in found if contraction_of(b) is not None]
    if len(products) != 1:
        return f"{len(products)} contractions, one is wanted"
    facts = contraction_of(products[0])
    assert facts is not None
    made = {r.buffer for b in found if makes_several(b) for r in b.writes}
    read = {r.buffer for b in found if makes_several(b) for r in b.reads}
    if facts.a not in made or facts.b not in made or products[0].writes[0].buffer not in read:
        return "the contraction does not stand between transforms"
    return ""


def apply(sch: Schedule, target: Target) -> None:
    parts = _parts(sch)
    _tiles_in(sch, parts.inputs, target)
    _tiles_in(sch, parts.filters, target)
    _tiles_out(sch, parts, target)
    contract(sch, parts.product, None, target)
    for handle in (*parts.before, *parts.after):
        spread(sch, [handle], target)


# ---------------------------------------------------------------------------------- finding blocks
def _parts(sch: Schedule) -> Parts:
    handles = sch.get_child_blocks(sch.get_block("root"))
    at = next(k for k, h in enumerate(handles) if contraction_of(block_of(sch, h)) is not None)
    facts = contraction_of(block_of(sch, handles[at]))
    assert facts is not None
    inputs = _passes_before(sch, handles[:at], facts.a)
    filters = _passes_before(sch, handles[:at], facts.b)
    before = [h for h in handles[:at] if h not in (*inputs, *filters)]
    behind = handles[at + 1 :]
    results = [h for h in behind if makes_several(block_of(sch, h))]
    tail, *after = (h for h in behind if h not in results)
    while after and _follows(block_of(sch, tail), block_of(sch, after[0])):
        sch.compute_inline(tail)
        tail, *after = after
    return Parts(_inlined(sch, before),
                 inputs, filters, handles[at], results, tail, _inlined(sch, after))  # fmt: skip


def _inlined(sch: Schedule, handles: list[BlockRV]) -> list[BlockRV]:
    """All but the last inlined where that is possible."""
    return [*inline_where(sch, handles[:-1]), *handles[-1:]]


def _passes_before(sch: Schedule, handles: list[BlockRV], buffer: ir.Buffer) -> list[BlockRV]:
    """The chain of blocks that make several elements, up to the one that makes `buffer`."""
    found: list[BlockRV] = []
    for handle in reversed(handles):
        block = block_of(sch, handle)
        if makes_several(block) and block.writes[0].buffer is buffer:
            found.insert(0, handle)
            buffer = block.reads[0].buffer
    return found


def _follows(block: ir.Block, after: ir.Block) -> bool:
    """Whether a block computes element by element from what `block` makes."""
    store = after.body
    if not isinstance(store, ir.BufferStore):
        return False
    own = tuple(it.var for it in after.iter_vars)
    made = block.writes[0].buffer
    loads = [n for n in ir.collect(store, ir.BufferLoad) if n.buffer is made]
    return all(
        len(access.indices) == len(own)
        and all(a is b for a, b in zip(access.indices, own, strict=True))
        for access in (store, *loads)
    )


# -------------------------------------------------------------------------------------- transforms
def _lanes(sch: Schedule, handle: BlockRV, target: Target) -> int:
    return target.lanes(block_of(sch, handle).writes[0].buffer.dtype)


def _tiles_in(sch: Schedule, passes: list[BlockRV], target: Target) -> None:
    """Both passes of a transform for one vector of channels after the other, as tasks."""
    first, last = passes
    *outer, line, channels = _lines_inside(sch, first, last)
    c0, c1 = sch.split(channels, [None, _lanes(sch, last, target)])
    sch.reorder(*outer, c0, line, c1)
    _in_registers(sch, first, c0)
    sch.unroll(line)
    sch.vectorize(c1)
    sch.parallel(sch.fuse(*outer, c0))


def _lines_inside(sch: Schedule, first: BlockRV, last: BlockRV) -> list[LoopRV]:
    """Loops of the second pass with the loop over lines last but one.

    A line is what the first pass makes across: where it stores several elements at once.
    """
    made = block_of(sch, first).writes[0]
    across = next(k for k, r in enumerate(made.region) if not ir.is_const_int(r.extent, 1))
    block = block_of(sch, last)
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is made.buffer)
    line = next(k for k, it in enumerate(block.iter_vars) if load.indices[across] is it.var)
    loops = sch.get_loops(last)
    others = [loop for k, loop in enumerate(loops) if k != line]
    return [*others[:-1], loops[line], others[-1]]


def _in_registers(sch: Schedule, handle: BlockRV, loop: LoopRV) -> None:
    """Compute a pass where it is needed, in registers, written out."""
    sch.set_scope(handle, 0, "local")
    sch.compute_at(handle, loop)
    *lines, lanes = inner_loops(sch, handle, loop)
    sch.vectorize(lanes)
    for line in lines:
        sch.unroll(line)


def _tiles_out(sch: Schedule, parts: Parts, target: Target) -> None:
    """The transform of results at the tail: a tile of pixels, a vector of channels."""
    n, h, w, c, m = _pixel_loops(sch, parts)
    h0, h1 = sch.split(h, [None, m])
    w0, w1 = sch.split(w, [None, m])
    c0, c1 = sch.split(c, [None, _lanes(sch, parts.tail, target)])
    sch.reorder(n, h0, w0, c0, h1, w1, c1)
    for handle in reversed(parts.results):
        _in_registers(sch, handle, c0)
    sch.unroll(h1)
    sch.unroll(w1)
    sch.vectorize(c1)
    sch.parallel(sch.fuse(n, h0, w0, c0))


def _pixel_loops(sch: Schedule, parts: Parts) -> tuple[LoopRV, LoopRV, LoopRV, LoopRV, int]:
    """The tail's loops over images, rows, columns and channels, and the edge of a tile."""
    results = block_of(sch, parts.results[-1]).writes[0].buffer
    block = block_of(sch, parts.tail)
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is results)
    axes = [it.var for it in block.iter_vars]
    loops = sch.get_loops(parts.tail)
    at = [next((k for k, v in enumerate(axes) if ir.uses_var(i, v)), -1) for i in load.indices[1:]]
    rest = [k for k in range(len(axes)) if k not in at]
    m = ir.const_int(results.shape[1])
    if len(loops) != 4 or len(rest) != 1 or m is None:
        raise ScheduleError("the results are not read by pixel", code="BW340")
    h, w, c = (loops[k] for k in at)
    return loops[rest[0]], h, w, c, m


RULE = Rule("winograd", refuses, apply)
