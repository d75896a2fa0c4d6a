"""Moves that exercise lowering: tiles with remainders, and nested annotations."""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.schedule import LoopRV
from blockwright.testing.moves.location import MOVES as LOCATION
from blockwright.testing.moves.loops import MOVES as LOOPS
from blockwright.testing.moves.movement import MOVES as MOVEMENT
from blockwright.testing.moves.overlap import body_of, loop_with_statements, passed_on
from blockwright.testing.moves.player import Move, NothingToTry, Player
from blockwright.testing.moves.reduction import MOVES as REDUCTION
from blockwright.testing.moves.storage import MOVES as STORAGE

PARTITION = "loop_partition"
_FACTORS = (
    [None, 2],
    [None, 3],
    [None, 4],
    [None, 5],
    [None, 6],
    [2, None],
    [3, None],
    [None, 2, 3],
    [None, 4, 2],
)
_NOTES: dict[str, tuple[Any, ...]] = {
    PARTITION: (True,),
    "llvm.unroll": ("disable", 2, 4),
    "register_pressure": (1,),
    "pragma_auto_unroll_max_step": (4, 16, 64),
    "pragma_unroll_explicit": (True,),
    "prefetch_read": (1, 2),
    "prefetch_shared": (1, 2),
    "nontemporal_stores": (0, 64),
    "unroll_explicit": (True,),
    "prefetch_write": (1, 2),
}


def _tiles(p: Player) -> None:
    """Split a loop, and its parts again, mostly by sizes that do not divide it.

    Most of the loops are annotated for partitioning; sometimes the innermost one is vectorized or
    unrolled.
    """
    loops = [p.loop()]
    for _ in range(p.chance.randint(1, 3)):
        at = p.chance.randrange(len(loops))
        loops[at : at + 1] = p.sch.split(loops[at], p.chance.choice(_FACTORS))
    p.kept(*loops)
    end = p.chance.choice([None, None, p.sch.unroll, p.sch.vectorize])
    rest = loops
    if end is not None and ir.is_const_int(p.for_of(loops[-1]).extent):
        end(loops[-1])
        rest = loops[:-1]
    for loop in rest:
        if p.likely() and PARTITION not in p.for_of(loop).annotations:
            p.sch.annotate(loop, PARTITION, True)


def _partitions(p: Player) -> None:
    """Annotate all loops above a block, or one of them, for partitioning."""
    loops = p.loops(p.block())
    for loop in loops if p.likely(0.5) else [p.chance.choice(loops)]:
        if PARTITION not in p.for_of(loop).annotations:
            p.sch.annotate(loop, PARTITION, True)


def _note(p: Player) -> None:
    """Add any annotation known to lowering; explicit unrolling mostly on constant extents."""
    key = p.chance.choice(list(_NOTES))
    loop = p.loop()
    known = ir.is_const_int(p.for_of(loop).extent)
    if key.endswith("unroll_explicit") and not known and p.likely():
        raise NothingToTry
    p.sch.annotate(loop, key, p.chance.choice(_NOTES[key]))


def _asked_pipeline(p: Player) -> None:
    """Annotate a loop as a software pipeline, which lowering then creates."""
    loop = loop_with_statements(p)
    count = len(body_of(p, loop))
    stages = sorted(p.chance.randint(0, 2) for _ in range(count))
    p.sch.annotate(loop, "software_pipeline_stage", stages)
    p.sch.annotate(loop, "software_pipeline_order", list(range(count)))


def _asked_double_buffer(p: Player) -> None:
    result = passed_on(p)
    if not result:
        raise NothingToTry
    block, at = p.chance.choice(result)
    p.sch.annotate(block, "double_buffer_scope", at)


def _lanes(p: Player) -> None:
    """Vectorize the innermost loop of a block, split first if needed."""
    loop = _innermost(p)
    if not ir.is_const_int(p.for_of(loop).extent) or p.likely(0.5):
        _, loop = p.sch.split(loop, [None, p.chance.choice([2, 3, 4, 8])])
    p.sch.vectorize(loop)


def _copies(p: Player) -> None:
    """Unroll one of the two innermost loops."""
    loops = p.loops(p.block())
    p.sch.unroll(p.chance.choice(loops[-2:]))


def _innermost(p: Player) -> LoopRV:
    return p.loops(p.block())[-1]


WISHES = {
    "asked_double_buffer": Move(_asked_double_buffer),
    "asked_pipeline": Move(_asked_pipeline),
    "copies": Move(_copies),
    "lanes": Move(_lanes, reassociates=True),
    "note": Move(_note),
    "partitions": Move(_partitions),
    "tiles": Move(_tiles, reassociates=True),
    **{name: LOCATION[name] for name in ("compute_at", "reverse_compute_at")},
    **{name: LOOPS[name] for name in ("fuse", "parallel", "reorder", "split", "vectorize")},
    **{name: MOVEMENT[name] for name in ("cache_read", "cache_write", "set_scope")},
    "decompose_reduction": REDUCTION["decompose_reduction"],
    "storage_align": STORAGE["storage_align"],
}
"""Name → move; names of primitives are those in `MOVES`."""

OFTEN: tuple[str, ...] = ("tiles", "tiles", "partitions", "lanes")
"""Moves drawn half of the time; tiles twice as often as the others."""
