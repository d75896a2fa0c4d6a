"""What the statements of a random program may use: buffers, indices, numbers."""

from __future__ import annotations

import dataclasses

import msgspec


class Buffer(msgspec.Struct, frozen=True):
    """A buffer of a program.

    Attributes:
        shape: its sizes; of a symbolic one, the name.
        memory: buffers with a name of memory in common may share elements.
        written: whether the program may write it.
        plain: whether different indices are different elements, one after the other in memory.
        small: whether all elements are from 0 to 7, unless the program changes them.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    memory: frozenset[str]
    written: bool = True
    plain: bool = True
    small: bool = False

    @property
    def count(self) -> int:
        """The number of its elements; 0 if it is symbolic."""
        result = 1
        for size in self.shape:
            result *= size if isinstance(size, int) else 0
        return result


class Index(msgspec.Struct, frozen=True):
    """A variable that is an index: it is from 0 to `end` - 1.

    Attributes:
        symbol: the size below which it is, if that is known.
    """

    name: str
    end: int
    symbol: str = ""


class Lane(msgspec.Struct, frozen=True):
    """The iteration of a concurrent loop: each has elements of its own.

    Attributes:
        places: how each buffer that the loop writes is indexed, with "*" for any index.
        memory: the memory of these buffers, of which no other name may be used.
    """

    variable: str
    kind: str
    places: dict[str, tuple[str, ...]]
    memory: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Scope:
    """What a statement may use.

    Attributes:
        indices: variables that are indices, which end at the border of a block.
        values: names of values with their types; likewise.
        scalars: scalar parameters with their types.
        sizes: symbolic sizes.
        callees: whether other functions may be called here.
        jumps: whether the innermost loop may be left.
        returns: whether the program may end here.
    """

    buffers: tuple[Buffer, ...]
    indices: tuple[Index, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    scalars: tuple[tuple[str, str], ...] = ()
    sizes: tuple[str, ...] = ()
    lane: Lane | None = None
    depth: int = 0
    callees: bool = False
    jumps: bool = False
    returns: bool = True

    def new(self, **changes: object) -> Scope:
        """This scope with changes."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def inside(self, *indices: Index) -> Scope:
        """The scope below a statement, with further variables."""
        return self.new(depth=self.depth + 1, indices=(*self.indices, *indices))

    def readable(self, dtype: str | None = None) -> list[Buffer]:
        """Buffers that may be read here, of a type."""
        return [b for b in self.buffers if dtype in (None, b.dtype) and self._allowed(b)]

    def writable(self, dtype: str | None = None) -> list[Buffer]:
        """Buffers that may be written here, of a type."""
        lane = self.lane
        return [
            b
            for b in self.readable(dtype)
            if b.written and (lane is None or b.name in lane.places or _private(b, lane))
        ]

    def _allowed(self, buffer: Buffer) -> bool:
        lane = self.lane
        return lane is None or buffer.name in lane.places or not buffer.memory & lane.memory

    def place(self, buffer: Buffer) -> tuple[str, ...]:
        """What the indices of a buffer must be here, each "*" if any."""
        anywhere = ("*",) * len(buffer.shape)
        return anywhere if self.lane is None else self.lane.places.get(buffer.name, anywhere)


def _private(buffer: Buffer, lane: Lane) -> bool:
    return f"of {lane.variable}" in buffer.memory
