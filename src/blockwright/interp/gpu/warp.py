"""Warp shuffles and votes, on values of all threads at once.

Threads are numbered within the block; a warp is 32 consecutive threads, fewer at the end of a
block. All threads named by a mask must be active, and each thread's mask must name itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WARP = 32


class Absent(Exception):
    """A lane that an operation needs is inactive: (thread that needs it, description)."""


class WarpLanes:
    """The threads that run an operation: warp and lane of each, and the existing lanes."""

    def __init__(self, warp: Array, lane: Array, existing: Array) -> None:
        self.warp, self.lane = warp, lane
        self.existing = existing
        self.here = np.zeros(len(existing), np.int64)
        np.bitwise_or.at(self.here, warp, 1 << lane)

    def check(self, mask: Any) -> None:
        """Check that all threads named by each thread's mask are active, including itself."""
        named = np.broadcast_to(np.asarray(mask).astype(np.int64), self.warp.shape)
        missing = named & self.existing[self.warp] & ~self.here[self.warp]
        if missing.any():
            at = int(np.argmax(missing != 0))
            lane = (int(missing[at]) & -int(missing[at])).bit_length() - 1
            raise Absent(at, f"its mask names lane {lane} of the warp, which is not here")
        unnamed = (named >> self.lane) & 1 == 0
        if unnamed.any():
            raise Absent(int(np.argmax(unnamed)), "its mask does not name itself")

    def shuffle(self, how: str, value: Array, by: Any, width: int) -> Array:
        """The value of another lane: number `by`, or at distance `by` up, down or across (xor)."""
        first = self.lane & ~(width - 1)
        if how == "index":
            source, inside = first + np.mod(by, width), np.ones(len(self.lane), bool)
        elif how == "up":
            source = self.lane - by
            inside = source >= first
        elif how == "down":
            source = self.lane + by
            inside = source < first + width
        else:
            source = self.lane ^ np.asarray(by)
            inside = (source < first + width) & (source >= 0)
        source = np.where(inside, source, self.lane)
        absent = (self.here[self.warp] >> source) & 1 == 0
        if absent.any():
            at = int(np.argmax(absent))
            raise Absent(at, f"it takes the value of lane {int(source[at])}, which is not here")
        table = np.zeros((len(self.existing) * WARP, *value.shape[1:]), value.dtype)
        table[self.warp * WARP + self.lane] = value
        return table[self.warp * WARP + source]

    def ballot(self, condition: Array) -> Array:
        """Per thread, the bit mask of lanes of its warp in which the condition holds."""
        votes = np.zeros(len(self.existing), np.int64)
        np.bitwise_or.at(votes, self.warp, condition.astype(np.int64) << self.lane)
        return votes[self.warp]

    def active(self) -> Array:
        """Per thread, the bit mask of active lanes of its warp."""
        return self.here[self.warp]
