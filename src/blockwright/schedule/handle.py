"""Handles: what a schedule's user holds. A number; the schedule knows what it stands for now."""

from __future__ import annotations

import msgspec


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


Handle = BlockRV | LoopRV
