"""Moves of storage primitives: in-place, region and index caches, alignment, padding."""

from __future__ import annotations

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.testing.moves.movement import map_of
from blockwright.testing.moves.player import Move, NothingToTry, Player


def _in_place(block: ir.Block) -> bool:
    return any(r.buffer is w.buffer for r in block.reads for w in block.writes)


def _cache_inplace(p: Player) -> None:
    block = p.block_where(_in_place) if p.likely() else p.block()
    node = p.node(block)
    written = {w.buffer for w in node.writes}
    at = [k for k, r in enumerate(node.reads) if r.buffer in written]
    p.kept(*p.sch.cache_inplace(block, p.chance.choice(at or [0]), "global"))


def _computes_indices(block: ir.Block) -> bool:
    loads = ir.collect(block.body, ir.BufferLoad)
    return any(isinstance(i, ir.BinaryOp) for load in loads for i in load.indices)


def _cache_index(p: Player) -> None:
    block = p.block_where(_computes_indices) if p.likely() else p.block()
    p.kept(*p.sch.cache_index(block, "global", p.chance.choice([0, 0, 1])))


def _read_at(p: Player) -> None:
    block, at, _ = p.region("read")
    p.kept(p.sch.read_at(p.chance.choice(p.loops(block)), block, at, "global"))


def _write_at(p: Player) -> None:
    block, at, _ = p.region("write")
    p.kept(p.sch.write_at(p.chance.choice(p.loops(block)), block, at, "global"))


def _map_of_block(p: Player, block: ir.Block, buffer: ir.Buffer, kind: str) -> IndexMap:
    """A random map of the iterators that index the buffer, as a function of all iterators."""
    regions = block.reads if kind == "read" else block.writes
    region = next(r for r in regions if r.buffer is buffer)
    used = [k for k, it in enumerate(block.iter_vars) if ir.uses_var(region, it.var)]
    inner = map_of(len(used), p.chance)

    def final(*i: ir.Expr) -> tuple[ir.Expr, ...]:
        mapping = {v: i[k] for v, k in zip(inner.initial, used, strict=True)}
        return tuple(ir.substitute(e, mapping) for e in inner.final)

    return IndexMap.from_func(final, len(block.iter_vars))


def _reindex_cache_read(p: Player) -> None:
    block, at, buffer = p.region("read")
    mapping = _map_of_block(p, p.node(block), buffer, "read")
    p.kept(p.sch.reindex_cache_read(block, at, "global", mapping))


def _reindex_cache_write(p: Player) -> None:
    block, at, buffer = p.region("write")
    mapping = _map_of_block(p, p.node(block), buffer, "write")
    p.kept(p.sch.reindex_cache_write(block, at, "global", mapping))


def _storage_align(p: Player) -> None:
    block, at, buffer = p.region("write")
    if buffer.ndim == 0:
        raise NothingToTry
    axis = p.chance.randrange(-buffer.ndim, buffer.ndim)
    p.sch.storage_align(block, at, axis, p.chance.choice([1, 4, 8]), p.chance.choice([0, 1, 3]))


def _set_axis_separator(p: Player) -> None:
    kind = p.chance.choice(["read", "write"])
    block, at, buffer = p.region(kind)
    if buffer.ndim < 2:
        raise NothingToTry
    p.sch.set_axis_separator(block, (kind, at), [p.chance.randrange(1, buffer.ndim)])


def _pads(block: ir.Block) -> bool:
    body = block.body
    value = body.value if isinstance(body, ir.BufferStore) else None
    return isinstance(value, ir.Call) and value.op == "if_then_else"


def _decompose_padding(p: Player) -> None:
    block = p.block_where(_pads) if p.likely() else p.block()
    p.kept(p.sch.decompose_padding(block, p.chance.choice(p.loops(block))))


def _annotate_buffer_access(p: Player) -> None:
    block, at, buffer = p.region("read")
    whole = [(0, size) for size in buffer.shape]
    ends = [end for pair in whole for end in pair]

    def final(*_: ir.Expr) -> list[ir.Expr | int]:
        return ends

    result = IndexMap.from_func(final, len(p.node(block).iter_vars))
    mapping = IndexMap(result.initial, result.final, tuple(range(0, len(ends), 2)))
    p.sch.annotate_buffer_access(block, at, "read", mapping)


MOVES = {
    "annotate_buffer_access": Move(_annotate_buffer_access),
    "cache_index": Move(_cache_index),
    "cache_inplace": Move(_cache_inplace),
    "decompose_padding": Move(_decompose_padding),
    "read_at": Move(_read_at),
    "reindex_cache_read": Move(_reindex_cache_read),
    "reindex_cache_write": Move(_reindex_cache_write),
    "set_axis_separator": Move(_set_axis_separator),
    "storage_align": Move(_storage_align),
    "write_at": Move(_write_at),
}
