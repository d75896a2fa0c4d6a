"""Link relocatable objects into one shared library, in memory, without an external linker.

The library has the usual four loadable segments (headers and constants, code, data that becomes
read-only after relocation, writable data) and a fifth for large constants such as packed weights.
The fifth is page-aligned, so the loader maps it from the file without copying. Symbols between
objects are resolved here; the loader binds the remaining ones at load time, not lazily. Section
headers and a symbol table are kept, so that profilers and debuggers show kernel names. Library code
may outlive every handle to the library (pool threads, deleters of returned tensors), so libraries
are marked as not unloadable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from blockwright.codegen.link.elf_arch import ARCHITECTURES
from blockwright.codegen.link.elf_dynamic import DEFAULT_IMPORTS, DEFAULT_NEEDED
from blockwright.codegen.link.elf_emit import Emitter
from blockwright.codegen.link.elf_image import DataSegment, Image
from blockwright.codegen.link.elf_object import STB_LOCAL, ObjectFile, read_object
from blockwright.codegen.link.elf_plan import LinkOptions, LinkPlan, Note
from blockwright.support import BuildError

__all__ = [
    "DEFAULT_IMPORTS",
    "DEFAULT_NEEDED",
    "DataSegment",
    "Image",
    "LinkOptions",
    "Note",
    "Part",
    "link",
]


class Part(msgspec.Struct, frozen=True):
    """Objects whose names are their own: two parts may define the same symbols.

    A symbol that an object of the part defines is called `symbol + suffix` in the library. Symbols
    that no object of the part defines are those of the library.

    Attributes:
        objects: (name for messages, ELF bytes).
        suffix: appended to the names that the part defines.
        names: other names in the library of symbols that the part uses.
    """

    objects: Sequence[tuple[str, bytes]]
    suffix: str
    names: Mapping[str, str] = {}


def link(
    objects: Sequence[tuple[str, bytes]],
    options: LinkOptions,
    segments: Sequence[DataSegment] = (),
    numbers: Mapping[str, int] = MappingProxyType({}),
    parts: Sequence[Part] = (),
) -> Image:
    """Link position-independent objects into a shared library.

    Arguments: `objects` are (name for messages, ELF bytes); `segments` are large constants, each
    exported under its symbol; `numbers` are values of additional absolute symbols, such as
    addresses in the process that loads the library; `parts` are objects with names of their own.
    Requires: objects compiled with relocation model "pic".
    Raises: BuildError with BW660 damaged object, BW661 duplicate symbol, BW662 unsupported
    relocation or section, BW663 undefined symbol, BW664 missing export, BW665 out of range,
    BW666 mixed or unsupported processor.
    """
    parsed = [read_object(image, name) for name, image in objects]
    parsed += [item for part in parts for item in _renamed(part)]
    machines = {item.machine for item in parsed}
    if len(machines) != 1 or not machines <= ARCHITECTURES.keys():
        known = ", ".join(f"{m} ({a.name})" for m, a in ARCHITECTURES.items())
        raise BuildError(
            f"cannot link objects for ELF machine numbers {sorted(machines)}",
            code="BW666",
            help=f"pass at least one object, all for one of: {known}",
        )
    plan = LinkPlan(parsed, ARCHITECTURES[machines.pop()], options, segments, numbers)
    return Emitter(plan).run()


def _renamed(part: Part) -> list[ObjectFile]:
    """The objects of a part with their names in the library."""
    parsed = [read_object(image, name + part.suffix) for name, image in part.objects]
    shared = [s for item in parsed for s in item.symbols if s.binding != STB_LOCAL]
    own = {symbol.name for symbol in shared if symbol.defined}
    for symbol in shared:
        if symbol.name in own:
            symbol.name += part.suffix
        else:
            symbol.name = part.names.get(symbol.name, symbol.name)
    return parsed
