"""Handles: what a schedule's user holds. A name; the schedule knows what it stands for now."""

from __future__ import annotations

import msgspec

from blockwright import ir


class BlockRV(msgspec.Struct, frozen=True):
    """A block of a program under schedule."""

    id: int

    def __repr__(self) -> str:
        return f"b{self.id}"


class LoopRV(msgspec.Struct, frozen=True):
    """A loop of a program under schedule."""

    id: int

    def __repr__(self) -> str:
        return f"l{self.id}"


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
