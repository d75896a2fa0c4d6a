"""Links relocatable objects into one shared library, in memory, without an external linker.

The library has the usual four loadable parts (headers and constants, code, data that becomes
read-only after relocation, writable data) and a fifth for data segments: large constants such as
packed weights, page-aligned so that the loader maps them from the file and copies nothing.
Symbols between objects are resolved here; what stays undefined is bound by the loader at load
time, never lazily. Section headers and a symbol table are kept so that profilers and debuggers
name the kernels. Code in a library may outlive every handle to it (pool threads, deleters of
returned tensors), hence libraries are marked as never to be unloaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from blockwright.codegen.link.elf_arch import ARCHITECTURES
from blockwright.codegen.link.elf_dynamic import DEFAULT_IMPORTS, DEFAULT_NEEDED
from blockwright.codegen.link.elf_emit import Emitter
from blockwright.codegen.link.elf_image import DataSegment, Image
from blockwright.codegen.link.elf_object import read_object
from blockwright.codegen.link.elf_plan import LinkOptions, LinkPlan, Note
from blockwright.support import BuildError

__all__ = [
    "DEFAULT_IMPORTS",
    "DEFAULT_NEEDED",
    "DataSegment",
    "Image",
    "LinkOptions",
    "Note",
    "link",
]


def link(
    objects: Sequence[tuple[str, bytes]],
    options: LinkOptions,
    segments: Sequence[DataSegment] = (),
    numbers: Mapping[str, int] = MappingProxyType({}),
) -> Image:
    """Links position-independent objects into a shared library.

    Arguments: `objects` are (name for messages, ELF bytes); `segments` are large constants, each
    exported under its symbol; `numbers` are values of further symbols, such as addresses in the
    process that is to load the library. Requires: objects compiled with relocation model "pic".
    Raises: BuildError with BW660 damaged object, BW661 duplicate symbol, BW662 unsupported
    relocation or section, BW663 undefined symbol, BW664 missing export, BW665 out of range,
    BW666 mixed or unsupported processor.
    """
    parsed = [read_object(image, name) for name, image in objects]
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
