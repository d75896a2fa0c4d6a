"""Read relocatable ELF objects: sections, symbols and relocations as plain records.

Only the parts that a static linker needs are kept. Objects written by LLVM are assumed to be well
formed, but headers are checked, because objects may also come from the on-disk cache.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from blockwright.support import BuildError

SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA = 1, 2, 3, 4
SHT_HASH, SHT_DYNAMIC, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 5, 6, 7, 8, 11
SHT_INIT_ARRAY, SHT_FINI_ARRAY, SHT_X86_64_UNWIND = 14, 15, 0x70000001
SHF_WRITE, SHF_ALLOC, SHF_EXEC, SHF_TLS = 1, 2, 4, 0x400
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_SECTION, STT_FILE, STT_TLS = 0, 1, 2, 3, 4, 6
SHN_UNDEF, SHN_ABS, SHN_COMMON = 0, 0xFFF1, 0xFFF2

EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
SHDR = struct.Struct("<IIQQQQIIQQ")
SYM = struct.Struct("<IBBHQQ")
RELA = struct.Struct("<QQq")


@dataclass(slots=True, eq=False)
class Section:
    """One allocated input section; `address` is set when the linker lays out the library."""

    name: str
    type: int
    flags: int
    align: int
    size: int
    data: memoryview
    address: int = 0
    relocations: list[Relocation] = field(default_factory=list["Relocation"])


@dataclass(slots=True, eq=False)
class Symbol:
    """A symbol of one object; `section` is None when undefined or absolute."""

    name: str
    binding: int
    type: int
    section: Section | None
    value: int
    size: int
    absolute: bool = False

    @property
    def defined(self) -> bool:
        return self.section is not None or self.absolute

    @property
    def address(self) -> int:
        return self.value if self.section is None else self.section.address + self.value


@dataclass(slots=True, eq=False)
class Relocation:
    offset: int
    type: int
    symbol: Symbol
    addend: int


@dataclass(slots=True, eq=False)
class ObjectFile:
    name: str
    machine: int
    sections: list[Section]
    symbols: list[Symbol]


def _text(table: memoryview, offset: int) -> str:
    end = offset
    while table[end]:
        end += 1
    return bytes(table[offset:end]).decode()


def machine_of(image: bytes | bytearray | memoryview) -> int:
    """The ELF machine number of an object."""
    return int(EHDR.unpack_from(memoryview(image).cast("B"))[2])


def read_object(image: bytes | bytearray | memoryview, name: str) -> ObjectFile:
    """Read one relocatable object.

    Arguments: `image` is the whole file; `name` is used in error messages.
    Raises: BuildError (BW660) unless the image is a little-endian 64-bit relocatable object.
    """
    view = memoryview(image).cast("B")
    if len(view) < EHDR.size or bytes(view[:6]) != b"\x7fELF\x02\x01":
        raise BuildError(f"{name} is not a 64-bit little-endian ELF object", code="BW660")
    header = EHDR.unpack_from(view)
    kind, machine, table, count, names_index = (header[i] for i in (1, 2, 6, 12, 13))
    if kind != 1 or table + count * SHDR.size > len(view):
        raise BuildError(
            f"{name} is not a complete relocatable ELF object",
            code="BW660",
            help="delete the object cache if the object came from there",
        )
    headers = [SHDR.unpack_from(view, table + i * SHDR.size) for i in range(count)]
    names = view[headers[names_index][4] :]
    sections: dict[int, Section] = {}
    for index, (label, type_, flags, _, offset, size, _, _, align, _) in enumerate(headers):
        if flags & SHF_ALLOC:
            data = view[0:0] if type_ == SHT_NOBITS else view[offset : offset + size]
            section_name = _text(names, label)
            sections[index] = Section(section_name, type_, flags, max(align, 1), size, data)
    symbols = _read_symbols(view, headers, sections, name)
    _read_relocations(view, headers, sections, symbols)
    return ObjectFile(name, machine, list(sections.values()), symbols)


def _read_symbols(
    view: memoryview,
    headers: list[tuple[int, ...]],
    sections: dict[int, Section],
    name: str,
) -> list[Symbol]:
    table = next((h for h in headers if h[1] == SHT_SYMTAB), None)
    if table is None:
        return []
    strings = view[headers[table[6]][4] :]
    symbols: list[Symbol] = []
    for label, info, _, index, value, size in SYM.iter_unpack(view[table[4] : table[4] + table[5]]):
        text = _text(strings, label)
        binding, type_ = info >> 4, info & 15
        if index == SHN_COMMON or type_ == STT_TLS:
            what = "a common symbol" if index == SHN_COMMON else "thread-local"
            raise BuildError(
                f"{name}: symbol '{text}' is {what}, which the linker does not support",
                code="BW662",
                help="initialize the global and share it between threads",
            )
        section = sections.get(index)
        if type_ == STT_SECTION and section is not None:
            text = section.name
        symbols.append(Symbol(text, binding, type_, section, value, size, index == SHN_ABS))
    return symbols


def _read_relocations(
    view: memoryview,
    headers: list[tuple[int, ...]],
    sections: dict[int, Section],
    symbols: list[Symbol],
) -> None:
    for header in headers:
        section = sections.get(header[7])
        if header[1] != SHT_RELA or section is None:
            continue
        for offset, info, addend in RELA.iter_unpack(view[header[4] : header[4] + header[5]]):
            index: int = info >> 32
            kind: int = info & 0xFFFFFFFF
            section.relocations.append(Relocation(offset, kind, symbols[index], addend))
