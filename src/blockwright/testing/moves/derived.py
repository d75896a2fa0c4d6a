"""Moves derived from primitive records, for primitives without a move of their own.

Arguments are drawn by the types of the record's fields. A hand-written move draws better ones where
a step needs arguments that fit each other, and states whether the step reassociates sums: results
of a derived move must agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, cast

import msgspec

from blockwright.schedule import BlockRV, Handle, LoopRV, ScheduleError
from blockwright.schedule.engine.record import Primitive, fields_of
from blockwright.schedule.primitive import PRIMITIVES
from blockwright.testing.moves.player import Move, Player

_TRIES = 6  # arguments drawn per move; random ones are often refused


def _some_loops(p: Player) -> tuple[LoopRV, ...]:
    loops = p.loops(p.block())
    return tuple(p.chance.sample(loops, p.chance.randint(1, len(loops))))


def _some_blocks(p: Player) -> tuple[BlockRV, ...]:
    blocks = p.blocks()
    return tuple(p.chance.sample(blocks, p.chance.randint(1, len(blocks))))


_DRAWN: dict[str, Callable[[Player], Any]] = {
    "LoopRV": Player.loop,
    "BlockRV": Player.block,
    "BlockRV | LoopRV": lambda p: p.block() if p.likely(0.5) else p.loop(),
    "tuple[LoopRV, ...]": _some_loops,
    "tuple[BlockRV, ...]": _some_blocks,
    "bool": lambda p: p.likely(0.5),
    "int": lambda p: p.chance.randint(0, 3),
    "tuple[Factor, ...]": lambda p: p.chance.choice([(None, 2), (None, 3), (2, None)]),
}


def derived_moves(written: Container[str]) -> dict[str, Move]:
    """Moves for all primitives without a written one whose arguments can be drawn."""
    records = [r for r in PRIMITIVES if not r.pure and r.method not in written]
    moves = {r.method: derived_move(r) for r in records}
    return {name: move for name, move in moves.items() if move is not None}


def derived_move(record: type[Primitive]) -> Move | None:
    """A move for a primitive, or None if a field has a type without a draw."""
    notes = dict(fields_of(record))
    fields = msgspec.structs.fields(record)
    if any(field.required and notes[field.name] not in _DRAWN for field in fields):
        return None

    def drawn(p: Player) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for field in fields:
            draw = _DRAWN.get(notes[field.name])
            if draw is None or (not field.required and p.likely(0.5)):
                continue
            if field.name == record.variadic:
                args += draw(p)
            else:
                kwargs[field.name] = draw(p)
        return args, kwargs

    def run(p: Player) -> None:
        for attempt in range(1, _TRIES + 1):
            args, kwargs = drawn(p)
            try:
                result = getattr(p.sch, record.method)(*args, **kwargs)
            except ScheduleError as error:
                if attempt == _TRIES or not error.code.startswith("BW3") or error.code == "BW309":
                    raise
            else:
                p.kept(*_handles(result))
                return

    return Move(run)


def _handles(result: Any) -> list[Handle]:
    items = cast("list[Any]", result) if isinstance(result, list) else [result]
    return [item for item in items if isinstance(item, (BlockRV, LoopRV))]
