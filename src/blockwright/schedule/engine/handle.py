"""Handles: opaque names for blocks, loops and sampled numbers, which the schedule resolves."""

from __future__ import annotations

import secrets

import msgspec

from blockwright import ir


class BlockRV(msgspec.Struct, frozen=True):
    """A block of a program under schedule.

    `origin` distinguishes the handles of different schedules. A copy of a schedule accepts handles
    created before the copy and creates new ones with its own origin. Traces contain only `id`.
    """

    id: int
    origin: int = 0

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"b{self.id}"


class LoopRV(msgspec.Struct, frozen=True):
    """A loop of a program under schedule; `origin` as in `BlockRV`."""

    id: int
    origin: int = 0

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"l{self.id}"


def new_origin() -> int:
    """A random number that identifies a schedule, unique across processes."""
    return secrets.randbits(62) + 1


ExprRV = ir.Var
"""A number that a schedule has sampled. It is a variable, so that factors can be computed from it;
steps receive the number, and the trace keeps the variable."""

Handle = BlockRV | LoopRV | ExprRV


def handle_kind(handle: Handle) -> str:
    """The kind of a handle, as a word for error messages."""
    if isinstance(handle, ExprRV):
        return "number"
    return "block" if isinstance(handle, BlockRV) else "loop"


def handle_name(handle: Handle) -> str:
    """The name of a handle in traces."""
    return handle.name if isinstance(handle, ExprRV) else repr(handle)
