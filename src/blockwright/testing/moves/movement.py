"""Moves of data primitives: caches, scopes, and layouts of buffers and blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.testing.moves.player import Move, NothingToTry, Player

_UNUSUAL = 0.35
"""Fraction of maps with a reversed axis or interleaved digits."""


def map_of(
    rank: int,
    chance: random.Random,
    kinds: Sequence[str] = ("plain", "split", "shift"),
    shape: Sequence[ir.Expr] = (),
) -> IndexMap:
    """A bijective map of some indices: a permutation with a split or a shift.

    With a shape, also a reversed axis, or digits of two axes interleaved.
    """
    if rank == 0:
        raise NothingToTry
    if shape and chance.random() < _UNUSUAL:
        return (
            _backwards(shape, chance)
            if rank < 2 or chance.random() < 0.5
            else (_interleaved(shape, chance))
        )
    order = list(range(rank))
    chance.shuffle(order)
    kind = chance.choice(kinds)

    def final(*i: ir.Expr) -> Sequence[ir.Expr]:
        moved = [i[k] for k in order]
        if kind == "split":
            return (*moved[:-1], moved[-1] // 4, moved[-1] % 4)
        if kind == "shift":
            return (moved[0] + 2, *moved[1:])
        return moved

    return IndexMap.from_func(final, rank)


def _backwards(shape: Sequence[ir.Expr], chance: random.Random) -> IndexMap:
    """Reverse one axis or all of them, sometimes in tiles."""
    rank = len(shape)
    turned = {chance.randrange(rank)} if chance.random() < 0.6 else set(range(rank))
    tile = chance.choice((0, 0, 2, 3))

    def final(*i: ir.Expr) -> Sequence[ir.Expr]:
        moved = [shape[k] - 1 - i[k] if k in turned else i[k] for k in range(rank)]
        return (*moved[:-1], moved[-1] // tile, moved[-1] % tile) if tile else moved

    return IndexMap.from_func(final, rank)


def _interleaved(shape: Sequence[ir.Expr], chance: random.Random) -> IndexMap:
    """Place the digits of one axis between, above or below those of another."""
    rank = len(shape)
    a, b = chance.sample(range(rank), 2)
    low, high = chance.choice((2, 3, 4)), chance.choice((2, 3, 5))
    count = ir.ceildiv(shape[b], high)
    kind = chance.choice(("between", "above", "digits"))

    def final(*i: ir.Expr) -> Sequence[ir.Expr]:
        x, y = i[a], i[b]
        others = [i[k] for k in range(rank) if k not in (a, b)]
        if kind == "between":
            return (*others, x // low * (count * low) + y // high * low + x % low, y % high)
        if kind == "above":
            return (*others, x // low, y // high, x % low * high + y % high)
        return (*others, y // high, x // low * high + y % high, x % low)

    return IndexMap.from_func(final, rank)


def flat(columns: ir.Expr) -> IndexMap:
    """Flatten two dimensions; the size may be symbolic."""

    def final(i: ir.Expr, j: ir.Expr) -> Sequence[ir.Expr]:
        return (i * columns + j,)

    return IndexMap.from_func(final, 2)


def _cache_read(p: Player) -> None:
    block, at, buffer = p.region("read")
    consumers = None
    if p.chance.random() < 0.4:
        others = [p.block(), block]
        consumers = [b for b in others if any(r.buffer is buffer for r in p.node(b).reads)]
    p.kept(p.sch.cache_read(block, at, "global", consumers))


def _cache_write(p: Player) -> None:
    block, at, _ = p.region("write")
    consumers = p.sch.get_consumers(block) if p.chance.random() < 0.5 else None
    p.kept(p.sch.cache_write(block, at, "global", consumers))


def _reindex(p: Player) -> None:
    kind = p.chance.choice(["read", "write"])
    block, at, _ = p.region(kind)
    p.kept(p.sch.reindex(block, (kind, at)))


def _set_scope(p: Player) -> None:
    block, at, _ = p.region("write")
    p.sch.set_scope(block, at, p.chance.choice(["local", "global"]))


_WIDER = ("int16", "int32", "int64", "float32", "float64")


def _widen_dtype(p: Player) -> None:
    """Widen a buffer, often the copy of a narrow operand."""
    if p.likely(0.5):
        block = p.block_where(lambda b: any(r.buffer.dtype.bits in (8, 16) for r in b.reads))
        _, at, buffer = p.region("read", block)
        copy = p.sch.cache_read(block, at, "global")
        wider = ("float32", "float64") if buffer.dtype.is_float else ("int32", "int64", "float64")
        p.sch.widen_dtype(copy, 0, p.chance.choice(wider))
    else:
        block, at, _ = p.region("write")
        p.sch.widen_dtype(block, at, p.chance.choice(_WIDER))


def _pad_value(p: Player, rank: int) -> float | IndexMap | None:
    """A constant or a function of the new indices; sometimes None."""
    if p.likely(0.3):
        return IndexMap.from_func(lambda *i: (i[0] * 2,), rank)
    return p.chance.choice([None, 0, 1.5])


def _transform_layout(p: Player) -> None:
    kind = p.chance.choice(["read", "write"])
    block, at, buffer = p.region(kind)
    together = buffer.ndim == 2 and p.chance.random() < 0.3
    index_map = (
        flat(buffer.shape[1]) if together else (map_of(buffer.ndim, p.chance, shape=buffer.shape))
    )
    p.sch.transform_layout(block, (kind, at), index_map, _pad_value(p, len(index_map.final)))


def _transform_block_layout(p: Player) -> None:
    """Transform mostly a block whose iterators start at 0 and have their own loops."""
    block = p.untouched() if p.likely() else p.block()
    kinds = ["plain", "split"] if p.likely() else ["shift"]
    shape = [it.dom.extent for it in p.node(block).iter_vars]
    p.sch.transform_block_layout(block, map_of(len(shape), p.chance, kinds, shape))


MOVES = {
    "cache_read": Move(_cache_read),
    "cache_write": Move(_cache_write),
    "reindex": Move(_reindex),
    "set_scope": Move(_set_scope),
    "transform_block_layout": Move(_transform_block_layout, reassociates=True),
    "transform_layout": Move(_transform_layout),
    "widen_dtype": Move(_widen_dtype),
}
