"""Moves of several steps: tiling, zooming, sampled factors and locations, undo."""

from __future__ import annotations

from blockwright import ir
from blockwright.schedule import BlockRV
from blockwright.testing.moves.player import Move, NothingToTry, Player
from blockwright.testing.moves.threads import cooperative_copy, share_terms


def _tile(p: Player) -> None:
    """Tile some axes with unique names, each into one to three factors, in random order."""
    block = p.block()
    p.loops(block)
    axes = p.sch.loops(block)
    if not axes.names:
        raise NothingToTry
    names = list(axes.names)
    chosen = names[: p.chance.randint(1, len(names))]
    parts: list[str] = []
    sizes: dict[str, int] = {}
    levels: list[list[str]] = [[], [], []]
    left: list[str] = []
    for axis in chosen:
        count = p.chance.randint(1, 3)
        factors = [f"{axis}_{k}x" for k in range(count)]
        left.append(f"{axis}=({' '.join(factors)})")
        for level, factor in enumerate(factors):
            levels[level].append(factor)
        sizes |= {factor: p.chance.choice([2, 3, 4]) for factor in factors[1:]}
    for level in levels:
        parts += level
    if p.chance.random() < 0.3:
        p.chance.shuffle(parts)
    if p.chance.random() < 0.3:
        parts.insert(p.chance.randint(0, len(parts)), "...")
    p.kept(*p.sch.tile(block, f"{' '.join(left)} -> {' '.join(parts)}", **sizes))


def _zoomed_copy(p: Player) -> None:
    """Cache an operand or result in each iteration of a loop around its block."""
    block, at, _ = p.region(kind := p.chance.choice(["read", "write"]))
    inner = p.sch.zoom(p.chance.choice(p.loops(block)))
    copy = inner.cache_read if kind == "read" else inner.cache_write
    p.kept(copy(block, at, "global"))


def _drawn_split(p: Player) -> None:
    loop = p.loop()
    extent = p.sch.get(loop).extent
    if ir.const_int(extent) is not None and p.chance.random() < 0.5:
        p.kept(*p.sch.split(loop, p.sch.sample_perfect_tile(loop, 2)))
    else:
        p.kept(*p.sch.split(loop, [None, *p.sch.sample_imperfect_tile(loop, 2, 4)]))


def _drawn_place(p: Player) -> None:
    block = p.block()
    p.sch.compute_at(block, p.sch.sample_compute_location(block))


def _halo(p: Player) -> None:
    """Compute a producer within a tile of a consumer that reads windows of it.

    Then reorder, split or fuse the producer's loops inside the tile.
    """
    windows = [b for b in p.blocks() if _reads_windows(p, b)]
    places = [(maker, block) for block in windows for maker in p.sch.get_producers(block)]
    if not places:
        raise NothingToTry
    maker, block = p.chance.choice(places)
    loops = p.loops(block)
    at = p.chance.randrange(len(loops))
    outer, inner = p.sch.split(loops[at], p.chance.choice(_TILES))
    p.kept(outer, inner)
    if at and p.chance.random() < 0.5:
        p.sch.reorder(outer, *loops[:at])
    p.sch.compute_at(maker, outer)
    above = {p.for_of(f) for f in p.sch.get_loops(block)}
    own = [f for f in p.loops(maker) if p.for_of(f) not in above]
    if not own:
        raise NothingToTry
    what = p.chance.choice(("reorder", "split", "fuse", "both"))
    if what in ("split", "both"):
        k = p.chance.randrange(len(own))
        own[k : k + 1] = p.sch.split(own[k], p.chance.choice(_TILES))
    if what in ("reorder", "both") and len(own) > 1:
        p.sch.reorder(*p.chance.sample(own, len(own)))
    if what == "fuse" and len(own) > 1:
        own = [p.sch.fuse(*own)]
    p.kept(*own)


_TILES: tuple[list[int | None], ...] = ([None, 2], [None, 3], [None, 4], [2, None], [3, None])


def _reads_windows(p: Player, block: BlockRV) -> bool:
    """Whether a block reads neighbors: an index is a sum of iterators, or of one and a constant."""
    node = p.node(block)
    mine = {it.var for it in node.iter_vars}
    indices = [i for load in ir.collect(node.body, ir.BufferLoad) for i in load.indices]
    return any(isinstance(i, (ir.Add, ir.Sub)) and ir.uses_var(i, mine) for i in indices)


def _undo(p: Player) -> None:
    """Undo one or two calls; remaining handles must resolve as before."""
    calls = len(p.sch.history) - 1
    if calls == 0:
        raise NothingToTry
    wanted = p.sch.history
    count = p.chance.randint(1, min(2, calls))
    p.sch.undo(count)
    assert p.sch.func is wanted[-1 - count].func, "undo restores a different program"


COMPOSED = {
    "cooperative_copy": Move(cooperative_copy, reassociates=True),
    "share_terms": Move(share_terms, reassociates=True),
    "drawn_place": Move(_drawn_place),
    "drawn_split": Move(_drawn_split),
    "halo": Move(_halo),
    "tile": Move(_tile, reassociates=True),
    "undo": Move(_undo),
    "zoomed_copy": Move(_zoomed_copy),
}
"""Moves that are not primitives themselves; `MOVES` has one move per primitive."""
