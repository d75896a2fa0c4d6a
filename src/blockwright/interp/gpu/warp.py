"""What the lanes of a warp give each other: shuffles and votes, on values of all threads at once.

Numbers of threads count within the block; a warp is 32 of them in a row, fewer at the end of a
block. The threads that a mask names have to be there, and all that are there have to be named.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WARP = 32


class Absent(Exception):
    """A lane that an operation needs is not there: (thread that needs it, what it is)."""


class WarpLanes:
    """The threads that run an operation: warp and lane of each, and which lanes exist at all."""

    def __init__(self, warp: Array, lane: Array, existing: Array) -> None:
        self.warp, self.lane = warp, lane
        self.existing = existing
        self.here = np.zeros(len(existing), np.int64)
        np.bitwise_or.at(self.here, warp, 1 << lane)

    def check(self, mask: Any) -> None:
        """All threads named by the mask of each thread are here, itself among them."""
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
        """The value of another lane: that numbered `by`, or as far up, down or across."""
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
        """Per thread, the lanes of its warp in which the condition holds."""
        votes = np.zeros(len(self.existing), np.int64)
        np.bitwise_or.at(votes, self.warp, condition.astype(np.int64) << self.lane)
        return votes[self.warp]

    def active(self) -> Array:
        """Per thread, the lanes of its warp that are here."""
        return self.here[self.warp]
