"""Race detection between the threads of a block with vector clocks.

Two accesses race if neither happens before the other. The clock holds, for each thread, the latest
moment of every other thread that it has synchronized with; barriers and waits advance it. Every
element records its last write, last read and last atomic update with their moments. Of several
unsynchronized readers only the last moment is kept, and their warp if they share one. The result
does not depend on the order in which the interpreter runs the threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Clock:
    """Vector clock of the threads of one block.

    Attributes:
        now: the current moment; every synchronization begins a new one.
        full: the last moment that all threads have synchronized with.
    """

    def __init__(self, warps: Array, start: int) -> None:
        self.count = len(warps)
        self.warps = warps
        self.now = start
        self.full = start - 1
        self._seen: Array | None = None  # [me, other]; None if no thread knows more than `full`

    @property
    def seen(self) -> Array:
        """The last moment of one thread (column) that another one (row) has synchronized with."""
        if self._seen is None:
            self._seen = np.full((self.count, self.count), self.full)
        return self._seen

    def join_all(self) -> None:
        """A barrier of the whole block."""
        self.full, self._seen = self.now, None
        self.now += 1

    def join(self, members: Array) -> None:
        """A barrier of some threads: each then knows what any of them knew and did."""
        if len(members) == self.count:
            self.join_all()
            return
        known = self.seen[members].max(axis=0)
        known[members] = self.now
        self.seen[members] = known
        self.now += 1

    def released(self, members: Array) -> Array:
        """Release: the clock of `members`, for a later `acquire`."""
        known = self.seen[members].max(axis=0)
        known[members] = self.now
        self.now += 1
        return known

    def acquire(self, members: Array, known: Array) -> None:
        """Acquire: `members` have waited for a clock returned by `released`."""
        self.seen[members] = np.maximum(self.seen[members], known)

    def before(self, who: Array, when: Array, me: Array) -> Array:
        """Whether accesses by `who` at the moments `when` happened before accesses by `me` now."""
        known = (when <= self.full) | (who == me)
        if self._seen is None or known.all():
            return known
        others = np.minimum(who, self.count - 1)
        return known | (when <= self._seen[me, others])

    def before_all(self, when: Array, warp: Array, me: Array) -> Array:
        """The same for all threads of a warp, or of the block (warp -1)."""
        known = when <= self.full
        if self._seen is None or known.all():
            return known
        smallest = np.full((self.count, int(self.warps.max()) + 2), self.now)
        for number in range(smallest.shape[1] - 1):
            smallest[:, number] = self._seen[:, self.warps == number].min(axis=1)
        smallest[:, -1] = self._seen.min(axis=1)
        return known | (when <= smallest[me, np.where(warp < 0, smallest.shape[1] - 1, warp)])


class Last:
    """Shadow state of one access kind: last and concurrent accesses of each element."""

    def __init__(self, count: int) -> None:
        self.who: Array = np.zeros(count, np.int64)
        self.when: Array = np.zeros(count, np.int64)
        self.site: Array = np.zeros(count, np.int64)
        self.many: Array = np.zeros(count, np.int64)
        self.warp: Array = np.zeros(count, np.int64)

    def repeat(self, times: int) -> None:
        for name, value in vars(self).items():
            setattr(self, name, np.repeat(value, times))

    def unordered(self, clock: Clock, cells: Array, me: Array) -> Array:
        """Mask of accesses to `cells` by `me` that are unordered with a recorded access."""
        who, when, count = self.who[cells], self.when[cells], self.many[cells]
        bad = ~clock.before(who, when, me)
        if count.max(initial=0) > clock.full:
            bad |= ~clock.before_all(count, self.warp[cells], me)
        return bad

    def note(self, clock: Clock, cells: Array, me: Array, site: int) -> None:
        """Record accesses; recorded ones that did not happen before are marked as concurrent."""
        who, when = self.who[cells], self.when[cells]
        apart = ~clock.before(who, when, me)
        self.who[cells], self.when[cells], self.site[cells] = me, clock.now, site
        crowd = apart | (self.who[cells] != me)
        if not crowd.any():
            return
        mine = clock.warps[me]
        theirs = clock.warps[np.minimum(who, clock.count - 1)]
        mixed = (self.many[cells] > clock.full) & (self.warp[cells] != mine)
        mixed |= apart & (theirs != mine)
        where, group = cells[crowd], np.where(mixed, -1, mine)[crowd]
        self.many[where], self.warp[where] = clock.now, group
        self.warp[where[self.warp[where] != group]] = -1


class Meeting(NamedTuple):
    """Two racing accesses to one element.

    Attributes:
        at: index of the second access among those checked.
        how: kind of the first access.
        who: thread of the first access.
        site: number of its program location.
    """

    at: int
    how: str
    who: int
    site: int


class ThreadShadow:
    """The last accesses to each granule of a storage that the threads of a block share."""

    def __init__(self, count: int) -> None:
        self.last = {how: Last(count) for how in ("write", "read", "atomic")}

    def repeat(self, times: int) -> None:
        for last in self.last.values():
            last.repeat(times)

    def touch(self, clock: Clock, cells: Array, me: Array, how: str, site: int) -> Meeting | None:
        """Record an access, unless it races; then return the race."""
        against = {
            "read": ("write", "atomic"),
            "atomic": ("write", "read"),
            "write": ("write", "read", "atomic"),
        }[how]
        for kind in against:
            last = self.last[kind]
            bad = last.unordered(clock, cells, me)
            if bad.any():
                at = int(np.argmax(bad))
                cell = cells[at]
                return Meeting(at, kind, int(last.who[cell]), int(last.site[cell]))
        if how != "write":
            self.last[how].note(clock, cells, me, site)
            return None
        mine = self.last["write"]
        mine.who[cells], mine.when[cells], mine.site[cells] = me, clock.now, site
        twice = mine.who[cells] != me
        if not twice.any():
            return None
        at = int(np.argmax(twice))
        return Meeting(at, "write", int(mine.who[cells[at]]), site)
