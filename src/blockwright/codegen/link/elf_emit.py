"""Write a planned library: place sections, build the loader's tables, apply relocations."""

from __future__ import annotations

import hashlib
import struct

from blockwright.codegen.link import elf_dynamic as dyn
from blockwright.codegen.link.elf_arch import Formula, RelocationRule, store
from blockwright.codegen.link.elf_image import (
    PHDR,
    Area,
    Image,
    SegmentLayout,
    align_up,
    section_table,
)
from blockwright.codegen.link.elf_object import (
    EHDR,
    RELA,
    SHDR,
    SHF_ALLOC,
    SHF_EXEC,
    SHF_TLS,
    SHF_WRITE,
    SHT_DYNAMIC,
    SHT_DYNSYM,
    SHT_FINI_ARRAY,
    SHT_HASH,
    SHT_INIT_ARRAY,
    SHT_NOBITS,
    SHT_NOTE,
    SHT_PROGBITS,
    SHT_RELA,
    SHT_STRTAB,
    SHT_SYMTAB,
    STB_GLOBAL,
    STB_LOCAL,
    STB_WEAK,
    STT_FUNC,
    STT_NOTYPE,
    STT_OBJECT,
    SYM,
    Relocation,
    Section,
    Symbol,
)
from blockwright.codegen.link.elf_plan import LinkPlan, Note, synthetic
from blockwright.support import BuildError

_WRITE, _RUN = SHF_ALLOC | SHF_WRITE, SHF_ALLOC | SHF_EXEC


def _areas() -> tuple[tuple[Area, ...], ...]:
    """Fresh output sections, grouped by segment, in file order."""
    return (
        (
            Area(".note", SHT_NOTE, SHF_ALLOC),
            Area(".hash", SHT_HASH, SHF_ALLOC, entry=4, link=".dynsym"),
            Area(".dynsym", SHT_DYNSYM, SHF_ALLOC, entry=SYM.size, link=".dynstr", info=1),
            Area(".dynstr", SHT_STRTAB, SHF_ALLOC),
            Area(".rela.dyn", SHT_RELA, SHF_ALLOC, entry=RELA.size, link=".dynsym"),
            Area(".rodata", SHT_PROGBITS, SHF_ALLOC),
            Area(".eh_frame_hdr", SHT_PROGBITS, SHF_ALLOC),
            Area(".eh_frame", SHT_PROGBITS, SHF_ALLOC),
        ),
        (Area(".plt", SHT_PROGBITS, _RUN), Area(".text", SHT_PROGBITS, _RUN)),
        (
            Area(".dynamic", SHT_DYNAMIC, _WRITE, entry=16, link=".dynstr"),
            Area(".got", SHT_PROGBITS, _WRITE, entry=8),
            Area(".init_array", SHT_INIT_ARRAY, _WRITE, entry=8),
            Area(".fini_array", SHT_FINI_ARRAY, _WRITE, entry=8),
            Area(".data.rel.ro", SHT_PROGBITS, _WRITE),
        ),
        (Area(".data", SHT_PROGBITS, _WRITE), Area(".bss", SHT_NOBITS, _WRITE)),
        (Area(".bw.data", SHT_PROGBITS, SHF_ALLOC),),
    )


def _fill(section: Section, data: bytes | bytearray) -> None:
    section.data, section.size = memoryview(data), len(data)


class Emitter:
    """Turns a plan into a file; the methods run in the order of their definition."""

    def __init__(self, plan: LinkPlan) -> None:
        self.plan, self.arch, self.options = plan, plan.arch, plan.options
        names = ".note .hash .dynsym .dynstr .rela.dyn .eh_frame_hdr .plt .dynamic"
        self.made = {name: synthetic(name) for name in names.split()} | {".got": plan.got}
        self.layout = SegmentLayout(self.arch.page_size, _areas())
        self.areas = {area.name: area for area in self.layout.areas()}

    def run(self) -> Image:
        self.arrange()
        self.size_tables()
        self.layout.place()
        front = bytearray(self.layout.front_size)
        self.fill_tables(front)
        self.relocate(front)
        return self.finish(front)

    def arrange(self) -> None:
        """Assign input sections to output areas."""
        for name, section in self.made.items():
            self.areas[name].sections.append(section)
        for item in self.plan.objects:
            for section in item.sections:
                if name := _area_of(section, item.name):
                    self.areas[name].sections.append(section)
        self.areas[".bw.data"].sections = self.plan.segment_sections
        self._end_frames()
        self.places = {
            id(section): index + 1
            for index, area in enumerate(self.layout.used())
            for section in area.sections
        }

    def _end_frames(self) -> None:
        """Make frames contiguous, without padding, and terminate them with a zero length."""
        frames = self.areas[".eh_frame"].sections
        if not frames:
            self.areas[".eh_frame_hdr"].sections.clear()
            return
        for section in frames[1:]:
            section.align = 4
        end = synthetic("", 4)
        _fill(end, bytes(4))
        frames.append(end)

    def size_tables(self) -> None:
        """Build the tables whose sizes must be known before addresses are assigned."""
        plan, options, result = self.plan, self.options, self.made
        exported = sorted({*options.exports, *(item.symbol for item in plan.segments)})
        self.dynamic_symbols = [*plan.imports, *exported]
        self.dynamic_index = {name: i + 1 for i, name in enumerate(self.dynamic_symbols)}
        soname = [options.soname] if options.soname else []
        strings, self.strings = dyn.string_table([*self.dynamic_symbols, *options.needed, *soname])
        encoded = [name.encode() for name in self.dynamic_symbols]
        _fill(result[".hash"], dyn.hash_table([b"", *encoded]))
        _fill(result[".dynstr"], strings)
        notes = [Note("GNU", 3, bytes(20)), *options.notes]
        _fill(result[".note"], b"".join(dyn.pack_note(n.owner, n.kind, n.contents) for n in notes))
        result[".dynstr"].align, result[".note"].align, result[".eh_frame_hdr"].align = 1, 4, 4
        result[".eh_frame_hdr"].size = 8
        result[".dynsym"].size = SYM.size * (1 + len(self.dynamic_symbols))
        result[".rela.dyn"].size = RELA.size * plan.dynamic_count
        result[".got"].size = 8 * len(plan.slots)
        result[".plt"].size, result[".plt"].align = self.arch.stub_size * len(plan.stubs), 16
        result[".dynamic"].size = len(dyn.pack_dynamic(self._dynamic()))

    def _dynamic(self) -> list[tuple[int, int]]:
        result, options = self.made, self.options
        out = [(dyn.DT_NEEDED, self.strings[name]) for name in options.needed]
        if options.soname:
            out.append((dyn.DT_SONAME, self.strings[options.soname]))
        out += [
            (dyn.DT_HASH, result[".hash"].address),
            (dyn.DT_STRTAB, result[".dynstr"].address),
            (dyn.DT_SYMTAB, result[".dynsym"].address),
            (dyn.DT_STRSZ, result[".dynstr"].size),
            (dyn.DT_SYMENT, SYM.size),
            (dyn.DT_FLAGS, dyn.DF_BIND_NOW),
            (dyn.DT_FLAGS_1, dyn.DF_1_NOW | dyn.DF_1_NODELETE),
        ]
        if self.plan.dynamic_count:
            table = result[".rela.dyn"]
            out += [(dyn.DT_RELA, table.address), (dyn.DT_RELASZ, table.size)]
            out.append((dyn.DT_RELAENT, RELA.size))
        for tag, size_tag, name in (
            (dyn.DT_INIT_ARRAY, dyn.DT_INIT_ARRAYSZ, ".init_array"),
            (dyn.DT_FINI_ARRAY, dyn.DT_FINI_ARRAYSZ, ".fini_array"),
        ):
            if self.areas[name].sections:
                out += [(tag, self.areas[name].address), (size_tag, self.areas[name].size)]
        return out

    def fill_tables(self, front: bytearray) -> None:
        """Write input sections and all generated tables except relocations."""
        result, plan = self.made, self.plan
        rows = [bytes(SYM.size)]
        for name in self.dynamic_symbols:
            symbol = plan.symbols.get(name) or plan.imports[name]
            rows.append(self._symbol_row(self.strings[name], symbol, STB_GLOBAL))
        _fill(result[".dynsym"], b"".join(rows))
        stubs, got = result[".plt"].address, result[".got"].address
        code = bytearray()
        for index, target in plan.stubs.values():
            place = stubs + index * self.arch.stub_size
            code += self.arch.stub(place, got + 8 * plan.slots[id(target)][0])
        _fill(result[".plt"], code)
        _fill(result[".dynamic"], dyn.pack_dynamic(self._dynamic()))
        if frames := self.areas[".eh_frame"].sections:
            head = result[".eh_frame_hdr"]
            _fill(head, dyn.eh_frame_header(head.address, frames[0].address))
        for area in self.layout.used():
            if area.type != SHT_NOBITS and area.name != ".bw.data":
                for section in area.sections:
                    front[section.address : section.address + len(section.data)] = section.data

    def _symbol_row(self, name: int, symbol: Symbol, binding: int) -> bytes:
        if not symbol.defined:
            binding = STB_WEAK if symbol.binding == STB_WEAK else STB_GLOBAL
            return SYM.pack(name, binding << 4, 0, 0, 0, 0)
        index = 0xFFF1 if symbol.section is None else self.places[id(symbol.section)]
        return SYM.pack(name, binding << 4 | symbol.type, 0, index, symbol.address, symbol.size)

    def relocate(self, front: bytearray) -> None:
        """Apply all relocations; those that depend on the load address are left to the loader."""
        self.dynamic: list[tuple[int, int, int]] = []
        got = self.made[".got"].address
        for index, target in self.plan.slots.values():
            self._absolute(front, got + 8 * index, target, 0, self.arch.dynamic_slot)
        for item in self.plan.objects:
            for section in item.sections:
                if section.type != SHT_NOTE:
                    for relocation in section.relocations:
                        self._relocate_one(front, section, relocation)
        table = b"".join(RELA.pack(*row) for row in self.dynamic)
        at = self.made[".rela.dyn"].address
        front[at : at + len(table)] = table

    def _absolute(
        self, front: bytearray, place: int, target: Symbol, addend: int, kind: int
    ) -> None:
        """Store a full address in data; unless it is a plain number, the loader relocates it."""
        if target.absolute:
            struct.pack_into("<Q", front, place, (target.value + addend) & (1 << 64) - 1)
        elif target.defined:
            self.dynamic.append((place, self.arch.dynamic_relative, target.address + addend))
        else:
            index = self.dynamic_index[target.name]
            self.dynamic.append((place, index << 32 | kind, addend))

    def _relocate_one(self, front: bytearray, section: Section, item: Relocation) -> None:
        rule: RelocationRule = self.arch.rules[item.type]
        target, plan = self.plan.resolve(item.symbol), self.plan
        place, got = section.address + item.offset, self.made[".got"].address
        formula = rule.formula
        if formula is Formula.ABSOLUTE:
            self._absolute(front, place, target, item.addend, self.arch.dynamic_absolute)
            return
        if formula is Formula.SLOT_RELATIVE and id(item) in plan.relaxed:
            self.arch.relax(front, place)
            base, origin = target.address, place
        elif formula is Formula.SLOT_RELATIVE:
            base, origin = got + 8 * plan.slots[id(target)][0], place
        elif formula is Formula.CALL and id(target) in plan.stubs:
            index = plan.stubs[id(target)][0]
            base, origin = self.made[".plt"].address + self.arch.stub_size * index, place
        elif formula is Formula.TABLE_RELATIVE:
            base, origin = got, place
        elif formula is Formula.TABLE_OFFSET:
            base, origin = target.address, got
        else:
            base, origin = target.address, place
        store(front, place, base + item.addend - origin, rule, target.name)

    def finish(self, front: bytearray) -> Image:
        """Write headers, build ID, data segments, symbol table and section headers."""
        layout, note = self.layout, self.made[".note"].address
        digest = hashlib.sha256(front).digest()[:20]
        front[note + 16 : note + 36] = digest
        image = Image(front)
        at = note + 36
        for item in self.options.notes:
            owner = align_up(len(item.owner) + 1, 4)
            image.notes[item.owner] = at + 12 + owner
            at += 12 + owner + align_up(len(item.contents), 4)
        area = self.areas[".bw.data"]
        for item, section in zip(self.plan.segments, area.sections, strict=True):
            offset = area.offset + section.address - area.address
            image.append(offset, item.data)
            image.symbols[item.symbol] = (offset, section.size)
        tail, headers = self._tail(align_up(image.size, 8))
        segments = layout.program_headers()
        image.append(align_up(image.size, 8), tail)
        ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        count = len(layout.used()) + 4
        fields = (ident, 3, self.arch.machine, 1, 0, EHDR.size, headers, 0)
        sizes = (EHDR.size, PHDR.size, len(segments), SHDR.size, count, count - 1)
        image.patch(0, EHDR.pack(*fields, *sizes) + b"".join(segments))
        return image

    def _tail(self, at: int) -> tuple[bytes, int]:
        """Symbol table, names and section headers, for offset `at`; and the headers' offset."""
        known = (STT_NOTYPE, STT_OBJECT, STT_FUNC)
        local: list[Symbol] = []
        other: list[Symbol] = []
        for item in self.plan.objects:
            for symbol in item.symbols:
                if symbol.name and symbol.type in known and self._kept(symbol):
                    shared = symbol.binding != STB_LOCAL and symbol.name in self.dynamic_index
                    (other if shared else local).append(symbol)
        other += [self.plan.symbols[item.symbol] for item in self.plan.segments]
        strings, places = dyn.string_table(symbol.name for symbol in local + other)
        rows = [bytes(SYM.size)]
        rows += [self._symbol_row(places[s.name], s, STB_LOCAL) for s in local]
        rows += [self._symbol_row(places[s.name], s, STB_GLOBAL) for s in other]
        symtab = Area(".symtab", SHT_SYMTAB, 0, entry=SYM.size, link=".strtab")
        strtab = Area(".strtab", SHT_STRTAB, 0)
        symtab.info, symtab.offset, symtab.size = 1 + len(local), at, SYM.size * len(rows)
        strtab.offset, strtab.size = at + symtab.size, len(strings)
        areas = [*self.layout.used(), symtab, strtab]
        names, name_places = dyn.string_table([*(area.name for area in areas), ".shstrtab"])
        names_at = strtab.offset + strtab.size
        headers = align_up(names_at + len(names), 8)
        table = section_table(areas, name_places, (names_at, len(names)))
        body = b"".join(rows) + bytes(strings) + bytes(names)
        return body.ljust(headers - at, b"\0") + table, headers

    def _kept(self, symbol: Symbol) -> bool:
        """Whether the symbol is defined in this library (for duplicates: is the chosen one)."""
        if symbol.section is None or id(symbol.section) not in self.places:
            return False
        return symbol.binding == STB_LOCAL or self.plan.symbols[symbol.name] is symbol


def _area_of(section: Section, owner: str) -> str:
    """The output section of an input section; empty when it is dropped."""
    name = section.name
    if section.flags & SHF_TLS:
        raise BuildError(f"{owner}: thread-local section {name} is unsupported", code="BW662")
    if section.type == SHT_NOTE:
        return ""
    if section.flags & SHF_EXEC:
        return ".text"
    if name.startswith((".ctors", ".init_array")):
        return ".init_array"
    if name.startswith((".dtors", ".fini_array")):
        return ".fini_array"
    if name == ".eh_frame":
        return ".eh_frame"
    if section.type == SHT_NOBITS:
        return ".bss"
    if section.flags & SHF_WRITE:
        return ".data.rel.ro" if name.startswith(".data.rel.ro") else ".data"
    return ".rodata"
