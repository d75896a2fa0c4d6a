"""Memory of a running program: storage with shadow memory, typed views, and race detection.

Every storage has one shadow byte per byte that records whether it has been written. A view reads
the shadow as integers of its own element size, so that one gather checks whole elements, whichever
types access the same bytes. Race detection keeps five more shadows per parallel loop: the last
writer, the last reader, the last atomic updater, and for the latter two whether there were several.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from blockwright.interp.gpu.vector_clock import ThreadShadow
from blockwright.ir import DType

Array = np.ndarray[Any, Any]
Touch = Literal["read", "write", "atomic"]
_ONES = {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}


class MemoryBlock:
    """Bytes accessed through one or more views.

    Attributes:
        raw: the bytes, shared with the caller's array for parameters.
        written: one byte (0 or 1) per byte, or None if everything counts as initialized.
        level: number of parallel loops open at allocation; only later loops can race on it.
        owned: allocated by the program, not by the caller.
        banked: whether it is banked shared memory.
        threads: accesses by the threads of a block; None before the first.
        flight: per byte, the number of asynchronous copies that write (row 0) and read (row 1) it.
    """

    __slots__ = (
        "_shadow_views",
        "_typed",
        "banked",
        "flight",
        "granule",
        "level",
        "owned",
        "races",
        "raw",
        "threads",
        "written",
    )

    def __init__(
        self, raw: Array, written: Array | None, granule: int, level: int, owned: bool
    ) -> None:
        self.raw = raw
        self.written = written
        self.granule = granule
        self.level = level
        self.owned = owned
        self.races: dict[int, RaceShadow] = {}
        self.banked = False
        self.threads: ThreadShadow | None = None
        self.flight: Array | None = None
        self._typed: dict[tuple[str, int], Array] = {}
        self._shadow_views: dict[tuple[int, int], Array] = {}

    @classmethod
    def fresh(cls, nbytes: int, granule: int, level: int) -> MemoryBlock:
        return cls(np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8), granule, level, True)

    def typed(self, dtype: np.dtype[Any], phase: int) -> Array:
        """All elements of `dtype` at byte offsets equal to `phase` modulo its size."""
        key = (dtype.str if dtype.kind != "V" else dtype.name, phase)
        result = self._typed.get(key)
        if result is None:
            result = self._cut(self.raw, phase, dtype.itemsize).view(dtype)
            self._typed[key] = result
        return result

    def shadow(self, size: int, phase: int) -> Array | None:
        """The initialization shadow as integers of `size` bytes; None if all is initialized."""
        if self.written is None:
            return None
        result = self._shadow_views.get((size, phase))
        if result is None:
            result = self._cut(self.written, phase, size).view(f"u{size}")
            self._shadow_views[size, phase] = result
        return result

    @staticmethod
    def _cut(raw: Array, phase: int, size: int) -> Array:
        return raw[phase : phase + (len(raw) - phase) // size * size]

    def race_shadow(self, depth: int) -> RaceShadow:
        result = self.races.get(depth)
        if result is None:
            result = self.races[depth] = RaceShadow(len(self.raw) // self.granule + 1)
        return result

    def refine(self, size: int) -> None:
        """Reduce race granules to at most `size` bytes; recorded accesses are kept."""
        if size < self.granule:
            for shadow in self.races.values():
                shadow.repeat(self.granule // size)
            if self.threads is not None:
                self.threads.repeat(self.granule // size)
            self.granule = size


class RaceShadow:
    """Accesses to each granule at one nesting depth of parallel loops; 0 means no access.

    Attributes:
        writers, readers, updaters: the last iteration to do so; `written_at`, `read_at` and
            `updated_at` are the numbers of the program locations.
        shared, updated: whether several iterations read, or updated atomically.
    """

    __slots__ = (
        "read_at",
        "readers",
        "shared",
        "updated",
        "updated_at",
        "updaters",
        "writers",
        "written_at",
    )

    def __init__(self, count: int) -> None:
        for name in self.__slots__:
            setattr(self, name, np.zeros(count, np.int64))

    writers: Array
    readers: Array
    shared: Array
    updaters: Array
    updated: Array
    written_at: Array
    read_at: Array
    updated_at: Array

    def repeat(self, times: int) -> None:
        for name in self.__slots__:
            setattr(self, name, np.repeat(getattr(self, name), times))

    def conflicts(self, cells: Any, level: ParallelScope, how: Touch) -> bool:
        """Whether an access conflicts with another iteration's; atomic updates do not conflict."""
        base, me = level.base, level.current
        met = _others(self.writers[cells], base, me)
        if how != "atomic":
            met = met | _others(self.updaters[cells], base, me) | (self.updated[cells] == base)
        if how != "read":
            met = met | _others(self.readers[cells], base, me) | (self.shared[cells] == base)
        return bool(np.any(met))

    def first(self, cells: Any, level: ParallelScope, how: Touch) -> tuple[Touch, int] | None:
        """Kind and program location of the recorded access that conflicts, if known."""
        kinds: list[tuple[Touch, Array, Array]] = [("write", self.writers, self.written_at)]
        if how != "atomic":
            kinds.append(("atomic", self.updaters, self.updated_at))
        if how != "read":
            kinds.append(("read", self.readers, self.read_at))
        for kind, who, places in kinds:
            met = np.atleast_1d(_others(who[cells], level.base, level.current)).reshape(-1)
            if met.any():
                return kind, int(np.atleast_1d(places[cells]).reshape(-1)[np.argmax(met)])
        return None

    def note(self, cells: Any, level: ParallelScope, how: Touch, place: int) -> None:
        """Record an access and its program location."""
        base, me = level.base, level.current
        if how == "write":
            self.writers[cells] = me
            self.written_at[cells] = place
            return
        (self.read_at if how == "read" else self.updated_at)[cells] = place
        last, several = (
            (self.readers, self.shared) if how == "read" else (self.updaters, self.updated)
        )
        several[cells] = np.where(_others(last[cells], base, me), base, several[cells])
        last[cells] = me


def _others(who: Any, base: int, me: int) -> Any:
    return (who >= base) & (who != me)


class ParallelScope:
    """A running parallel loop: iteration ids start at `base`, and `current` is the current id."""

    __slots__ = ("base", "current", "name")

    def __init__(self, name: str, base: int) -> None:
        self.name = name
        self.base = base
        self.current = base


class TypedView:
    """A buffer at run time: its storage, shape and element strides.

    The position of element 0 (in elements of `data`) is kept separately, because it may differ
    between lanes.
    """

    __slots__ = (
        "data",
        "dtype",
        "lanes",
        "ones",
        "phase",
        "shadow",
        "shape",
        "size",
        "storage",
        "strides",
    )

    def __init__(
        self,
        storage: MemoryBlock,
        dtype: DType,
        phase: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> None:
        self.storage = storage
        self.dtype = dtype
        element = dtype.numpy()
        self.lanes = dtype.lanes
        self.size = element.itemsize
        self.phase = phase
        self.shape = shape
        self.strides = strides
        self.data = storage.typed(element, phase)
        self.shadow = storage.shadow(self.size, phase)
        self.ones = _ONES[self.size]
        if self.size < storage.granule:
            storage.refine(self.size)

    def first(self) -> int:
        """The lowest element, counted from element 0: below it if a stride is negative."""
        return self._way(negative=True) * self.lanes

    def reach(self) -> int:
        """Number of elements from element 0 to one past the last."""
        if any(n <= 0 for n in self.shape):
            return 0
        return (self._way(negative=False) + 1) * self.lanes

    def _way(self, negative: bool) -> int:
        """How far the strides of one direction lead from element 0."""
        steps = [(max(n, 1), s) for n, s in zip(self.shape, self.strides, strict=True)]
        return sum((n - 1) * s for n, s in steps if (s < 0) is negative)


class Pointer:
    """The address of an element: a storage and a byte offset, which may differ between lanes."""

    __slots__ = ("byte", "storage")

    def __init__(self, storage: MemoryBlock, byte: Any) -> None:
        self.storage = storage
        self.byte = byte


def coordinates(flat: int, view: TypedView) -> str:
    """The indices of the element at a flat offset from the first."""
    flat //= view.lanes
    return ", ".join(
        str(flat // stride % max(extent, 1) if stride else 0)
        for stride, extent in zip(view.strides, view.shape, strict=True)
    )


def compact_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major element strides."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 0)
    return tuple(reversed(strides))


def granules(view: TypedView, at: Any) -> Any:
    """Race granules covered by the elements at positions `at` of a view's data."""
    storage = view.storage
    start = (np.asarray(at) * view.size + view.phase) // storage.granule
    count = -(-view.size // storage.granule)
    if count == 1:
        return start
    return (start[..., None] + np.arange(count)).reshape(-1)


def record(
    levels: list[ParallelScope], view: TypedView, at: Any, how: Touch, place: int
) -> tuple[ParallelScope, tuple[Touch, int] | None] | None:
    """Record an access in every open parallel loop; return the loop whose iterations race, if any.

    The loop comes with the kind and program location of the conflicting access, if known.
    """
    storage = view.storage
    if storage.level >= len(levels):
        return None
    cells = granules(view, at)
    for depth in range(storage.level, len(levels)):
        level, shadow = levels[depth], storage.race_shadow(depth)
        if shadow.conflicts(cells, level, how):
            return level, shadow.first(cells, level, how)
        shadow.note(cells, level, how, place)
    return None
