"""Handles: what a schedule's user holds. A name; the schedule knows what it stands for now."""

from __future__ import annotations

import secrets

import msgspec

from blockwright import ir


class BlockRV(msgspec.Struct, frozen=True):
    """A block of a program under schedule.

    `origin` tells the handles of schedules apart. A copy of a schedule knows those made before it
    was copied and makes its own from then on. Traces write the number alone.
    """

    id: int
    origin: int = 0

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"b{self.id}"


class LoopRV(msgspec.Struct, frozen=True):
    """A loop of a program under schedule; `origin` as of blocks."""

    id: int
    origin: int = 0

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"l{self.id}"


def new_origin() -> int:
    """A number that no other schedule has, in this process or another."""
    return secrets.randbits(62) + 1


ExprRV = ir.Var
"""A number that a schedule has drawn. A variable, so that factors can be computed from it; what a
step is given is the number, and the trace keeps the variable."""

Handle = BlockRV | LoopRV | ExprRV


def handle_kind(handle: Handle) -> str:
    """What a handle stands for, as a word for errors."""
    if isinstance(handle, ExprRV):
        return "number"
    return "block" if isinstance(handle, BlockRV) else "loop"


def handle_name(handle: Handle) -> str:
    """How a handle is written in traces."""
    return handle.name if isinstance(handle, ExprRV) else repr(handle)
