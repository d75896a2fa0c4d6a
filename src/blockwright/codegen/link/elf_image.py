"""Layout of a shared library, and the assembly of its bytes into a file.

Areas are output sections; each holds input sections in order. Up to the end of the initialized
data, file offsets equal addresses, which simplifies all computations. Only the data segments after
the zero-initialized memory have addresses that differ from their offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import msgspec

from blockwright.codegen.link.elf_object import EHDR, SHDR, SHT_NOBITS, SHT_STRTAB, Section

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PT_LOAD, PT_DYNAMIC, PT_NOTE = 1, 2, 4
PT_GNU_EH_FRAME, PT_GNU_STACK, PT_GNU_RELRO = 0x6474E550, 0x6474E551, 0x6474E552
PF_X, PF_W, PF_R = 1, 2, 4
PHDR = struct.Struct("<IIQQQQQQ")
MAX_PROGRAM_HEADERS = 9


def align_up(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment


class DataSegment(msgspec.Struct, frozen=True, eq=False):
    """A large constant: `symbol` is its exported name, `data` any contiguous buffer.

    The buffer is written to the file without a copy; it must not change before that.
    """

    symbol: str
    data: ReadableBuffer
    align: int = 64


class Area:
    """One output section: name, flags, and its input sections."""

    def __init__(
        self, name: str, type_: int, flags: int, *, entry: int = 0, link: str = "", info: int = 0
    ) -> None:
        self.name, self.type, self.flags = name, type_, flags
        self.entry, self.link, self.info = entry, link, info
        self.sections: list[Section] = []
        self.address = self.offset = self.size = 0

    @property
    def end(self) -> int:
        return self.address + self.size

    def place(self, address: int, offset: int) -> None:
        """Assign addresses to the area and its sections; `offset` corresponds to `address`."""
        start = align_up(address, max((s.align for s in self.sections), default=1))
        self.address, self.offset = start, offset + start - address
        for section in self.sections:
            section.address = start = align_up(start, section.align)
            start += section.size
        self.size = start - self.address


class SegmentLayout:
    """Areas in the order of their segments: constants, code, data that is read-only after
    relocation, writable data, and data segments mapped from the end of the file."""

    def __init__(self, page: int, groups: tuple[tuple[Area, ...], ...]) -> None:
        self.page = page
        self.constants, self.code, self.relro, self.data, self.mapped = groups
        self.front_size = 0

    def areas(self) -> list[Area]:
        groups = (self.constants, self.code, self.relro, self.data, self.mapped)
        return [area for group in groups for area in group]

    def used(self) -> list[Area]:
        """The nonempty areas, in file order."""
        return [area for area in self.areas() if area.sections]

    def place(self) -> None:
        at = EHDR.size + MAX_PROGRAM_HEADERS * PHDR.size
        for group in (self.constants, self.code, self.relro, self.data):
            if group is not self.constants:
                at = align_up(at, self.page)
            for area in group:
                area.place(at, at)
                at = area.end
                if area.type != SHT_NOBITS:
                    self.front_size = at
        offset = self.front_size
        for area in self.mapped:
            offset, at = align_up(offset, self.page), align_up(at, self.page)
            area.place(at, offset)

    def program_headers(self) -> list[bytes]:
        """Headers of the loadable segments and of the other segments the loader requires."""
        out: list[bytes] = []
        for group, flags in (
            (self.constants, PF_R),
            (self.code, PF_R | PF_X),
            ((*self.relro, *self.data), PF_R | PF_W),
            (self.mapped, PF_R),
        ):
            areas = [area for area in group if area.sections]
            if areas:
                start = 0 if group is self.constants else areas[0].address
                offset = 0 if group is self.constants else areas[0].offset
                filled = [area for area in areas if area.type != SHT_NOBITS]
                file_end = filled[-1].offset + filled[-1].size if filled else offset
                sizes = (file_end - offset, areas[-1].end - start)
                out.append(PHDR.pack(PT_LOAD, flags, offset, start, start, *sizes, self.page))
        by_name = {area.name: area for area in self.used()}
        for kind, name, flags in (
            (PT_DYNAMIC, ".dynamic", PF_R | PF_W),
            (PT_NOTE, ".note", PF_R),
            (PT_GNU_EH_FRAME, ".eh_frame_hdr", PF_R),
        ):
            if area := by_name.get(name):
                place = (area.offset, area.address, area.address, area.size, area.size)
                out.append(PHDR.pack(kind, flags, *place, 8 if kind == PT_DYNAMIC else 4))
        start = self.relro[0].address
        size = align_up(self.relro[-1].end, self.page) - start
        out.append(PHDR.pack(PT_GNU_RELRO, PF_R, start, start, start, size, size, 1))
        out.append(PHDR.pack(PT_GNU_STACK, PF_R | PF_W, 0, 0, 0, 0, 0, 16))
        return out


class Sink(Protocol):
    """A binary file."""

    def write(self, data: memoryview, /) -> object: ...


class Digest(Protocol):
    """A hash object."""

    def update(self, data: memoryview, /) -> None: ...


class Image:
    """A finished library: the pieces of the file in order, without copying them together.

    Attributes:
        size: bytes of the whole file.
        symbols: file offset and size of each data segment, by symbol.
        notes: file offset of each note's contents, by owner.
    """

    def __init__(self, front: bytearray) -> None:
        self._pieces: list[tuple[int, memoryview]] = [(0, memoryview(front))]
        self.size = len(front)
        self.symbols: dict[str, tuple[int, int]] = {}
        self.notes: dict[str, int] = {}

    def append(self, offset: int, data: ReadableBuffer) -> None:
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        self._pieces.append((offset, view))
        self.size = offset + len(view)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite bytes of the front, such as the contents of a note."""
        self._pieces[0][1][offset : offset + len(data)] = data

    def chunks(self) -> Iterable[memoryview]:
        """The bytes of the file in order, including gaps."""
        at = 0
        for offset, view in self._pieces:
            if offset > at:
                yield memoryview(bytes(offset - at))
            yield view
            at = offset + len(view)

    def write(self, file: Sink, *digests: Digest) -> None:
        """Write the library to an open binary file and feed `digests` with the same bytes."""
        for chunk in self.chunks():
            file.write(chunk)
            for digest in digests:
                digest.update(chunk)

    def tobytes(self) -> bytes:
        return b"".join(self.chunks())


def section_table(areas: list[Area], names: dict[str, int], name_table: tuple[int, int]) -> bytes:
    """Section headers for `areas`, then for the name table (its offset and size)."""
    index = {area.name: i + 1 for i, area in enumerate(areas)}
    rows = [bytes(SHDR.size)]
    for area in areas:
        align = max((s.align for s in area.sections), default=1)
        head = (names[area.name], area.type, area.flags, area.address, area.offset, area.size)
        rows.append(SHDR.pack(*head, index.get(area.link, 0), area.info, align, area.entry))
    rows.append(SHDR.pack(names[".shstrtab"], SHT_STRTAB, 0, 0, *name_table, 0, 0, 1, 0))
    return b"".join(rows)
