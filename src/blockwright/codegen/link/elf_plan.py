"""The linker's decisions: symbol resolution, and the GOT slots and stubs each relocation needs.

Addresses are not known at this stage. The plan determines the size of every generated table, so
that the layout can be computed before contents are written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from blockwright.codegen.link.elf_arch import Architecture, Formula
from blockwright.codegen.link.elf_dynamic import DEFAULT_IMPORTS, DEFAULT_NEEDED
from blockwright.codegen.link.elf_image import DataSegment
from blockwright.codegen.link.elf_object import (
    SHF_ALLOC,
    SHF_WRITE,
    SHT_NOTE,
    SHT_PROGBITS,
    STB_GLOBAL,
    STB_LOCAL,
    STB_WEAK,
    STT_NOTYPE,
    STT_OBJECT,
    ObjectFile,
    Relocation,
    Section,
    Symbol,
)
from blockwright.support import BuildError

_FAR = 1 << 30
"""Total size of data segments, in bytes, from which they are addressed through the GOT."""


class Note(msgspec.Struct, frozen=True):
    """A note near the start of the file, for readers that do not load the library."""

    owner: str
    kind: int
    contents: bytes


class LinkOptions(msgspec.Struct, frozen=True):
    """Options of the linker.

    Attributes:
        exports: names that other code may look up; all other symbols become local.
        soname: the library's own name, or None.
        needed: libraries to load first; imports are bound to them.
        imports: names that may stay undefined.
        notes: contents of the note segment.
    """

    exports: Collection[str]
    soname: str | None = None
    needed: Sequence[str] = DEFAULT_NEEDED
    imports: Collection[str] = DEFAULT_IMPORTS
    notes: Sequence[Note] = ()


def synthetic(name: str, align: int = 8) -> Section:
    """A section created by the linker; its contents are set later."""
    return Section(name, SHT_PROGBITS, SHF_ALLOC, align, 0, memoryview(b""))


class LinkPlan:
    """Symbols, imports, GOT slots and call stubs of one library.

    Attributes:
        imports: symbols left to the loader; slots and stubs: (index, target), by target identity.
        relaxed: relocations (by identity) whose instructions address their targets directly.
        dynamic_count: number of relocations that the loader applies.
    """

    def __init__(
        self,
        objects: list[ObjectFile],
        arch: Architecture,
        options: LinkOptions,
        segments: Sequence[DataSegment],
        numbers: Mapping[str, int],
    ) -> None:
        self.objects, self.arch, self.options, self.segments = objects, arch, options, segments
        self.numbers = numbers
        self.symbols: dict[str, Symbol] = {}
        self.imports: dict[str, Symbol] = {}
        self.slots: dict[int, tuple[int, Symbol]] = {}
        self.stubs: dict[int, tuple[int, Symbol]] = {}
        self.relaxed: set[int] = set()
        self.dynamic_count = 0
        self.got = synthetic(".got")
        self.segment_sections = [self._segment(item) for item in segments]
        self.near = sum(section.size for section in self.segment_sections) < _FAR
        self.define()
        self.scan()

    def _segment(self, item: DataSegment) -> Section:
        view = memoryview(item.data)
        section = synthetic(item.symbol, item.align)
        section.data, section.size = view, view.nbytes
        return section

    def define(self) -> None:
        """Collect global definitions: a strong one overrides weak ones; two strong ones clash."""
        owners: dict[str, str] = {}
        for item in self.objects:
            for symbol in item.symbols:
                if symbol.binding == STB_LOCAL or not symbol.defined:
                    continue
                old = self.symbols.get(symbol.name)
                if old is None or (old.binding == STB_WEAK and symbol.binding != STB_WEAK):
                    self.symbols[symbol.name], owners[symbol.name] = symbol, item.name
                elif symbol.binding != STB_WEAK:
                    self._duplicate(symbol.name, owners[symbol.name], item.name)
        given = [
            Symbol(item.symbol, STB_GLOBAL, STT_OBJECT, section, 0, section.size)
            for item, section in zip(self.segments, self.segment_sections, strict=True)
        ]
        given += [
            Symbol(name, STB_GLOBAL, STT_OBJECT, None, value, 0, absolute=True)
            for name, value in self.numbers.items()
        ]
        for symbol in given:
            if symbol.name in self.symbols:
                where = owners.get(symbol.name, "another data segment")
                self._duplicate(symbol.name, where, "a data segment")
            self.symbols[symbol.name] = symbol
        self.symbols["_GLOBAL_OFFSET_TABLE_"] = Symbol(
            "_GLOBAL_OFFSET_TABLE_", STB_LOCAL, STT_NOTYPE, self.got, 0, 0
        )
        missing = sorted(name for name in self.options.exports if name not in self.symbols)
        if missing:
            raise BuildError(
                f"exported but defined in no object: {', '.join(missing)}", code="BW664"
            )

    def _duplicate(self, name: str, first: str, second: str) -> None:
        raise BuildError(
            f"symbol '{name}' is defined in both {first} and {second}",
            code="BW661",
            help="give one of them internal linkage or another name",
        )

    def resolve(self, symbol: Symbol) -> Symbol:
        """The definition of a referenced symbol, or one shared undefined symbol per import."""
        if symbol.binding == STB_LOCAL:
            return symbol
        result = self.symbols.get(symbol.name)
        return result if result is not None else self.imports.setdefault(symbol.name, symbol)

    def scan(self) -> None:
        """Decide whether each relocation needs a GOT slot, a stub, or a dynamic relocation."""
        for item in self.objects:
            for section in item.sections:
                if section.type == SHT_NOTE:
                    continue
                for relocation in section.relocations:
                    self._scan_one(item, section, relocation)
        undefined = sorted(name for name in self.imports if name not in self.options.imports)
        if undefined:
            raise BuildError(
                f"undefined symbols: {', '.join(undefined)}",
                code="BW663",
                help="call functions of the C library, its math library or the FFI only; objects "
                "of other origin may define them, or LinkOptions.imports list them and "
                "LinkOptions.needed their library",
            )

    def _scan_one(self, item: ObjectFile, section: Section, relocation: Relocation) -> None:
        rule = self.arch.rules.get(relocation.type)
        target = self.resolve(relocation.symbol)
        where = f"{item.name}: {section.name}+{relocation.offset:#x}"
        if rule is None:
            raise BuildError(
                f"{where}: unsupported {self.arch.name} relocation type {relocation.type} against "
                f"'{target.name}'",
                code="BW662",
                help="compile with relocation model 'pic', code model 'small', no thread-locals",
            )
        if rule.formula is Formula.ABSOLUTE:
            if not section.flags & SHF_WRITE:
                raise BuildError(
                    f"{where}: address of '{target.name}' stored in read-only memory",
                    code="BW662",
                    help="compile with relocation model 'pic'",
                )
            self.dynamic_count += not target.absolute
        elif rule.formula is Formula.SLOT_RELATIVE:
            can = rule.relaxable and self.arch.can_relax(section.data, relocation.offset)
            if can and self._is_near(target):
                self.relaxed.add(id(relocation))
            else:
                self._slot(target)
        elif rule.formula is Formula.CALL and not target.defined:
            self.stubs.setdefault(id(target), (len(self.stubs), target))
            self._slot(target)
        elif rule.formula in (Formula.RELATIVE, Formula.TABLE_OFFSET) and target.section is None:
            raise BuildError(
                f"{where}: '{target.name}' is undefined, but addressed as a local symbol",
                code="BW663",
                help="define it, or declare it without hidden visibility and dso_local",
            )

    def _is_near(self, target: Symbol) -> bool:
        section = target.section
        return section is not None and (self.near or section not in self.segment_sections)

    def _slot(self, target: Symbol) -> None:
        if id(target) not in self.slots:
            self.slots[id(target)] = (len(self.slots), target)
            self.dynamic_count += not target.absolute
