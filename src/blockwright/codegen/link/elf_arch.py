"""Processor descriptions for the linker: relocations, PLT stubs and page size.

A relocation is a formula over the usual quantities of the ELF specifications (S symbol address,
A addend, P place, G slot in the global offset table, GOT its start) and a rule to store the value.
To support another processor, add an `Architecture`; the linker itself does not change.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass

from blockwright.support import BuildError


class Formula(enum.Enum):
    ABSOLUTE = "S + A"
    RELATIVE = "S + A - P"
    CALL = "L + A - P"
    SLOT_RELATIVE = "G + A - P"
    TABLE_RELATIVE = "GOT + A - P"
    TABLE_OFFSET = "S + A - GOT"


@dataclass(frozen=True, slots=True)
class RelocationRule:
    """`width` is the field size in bytes; with `relaxable`, the linker may omit the GOT slot."""

    name: str
    formula: Formula
    width: int
    relaxable: bool = False


@dataclass(frozen=True, slots=True)
class Architecture:
    """A processor supported by the linker.

    `relax(code, at)` rewrites the instruction with its field at `at` to address its target directly
    instead of loading the address from a GOT slot; `can_relax` tests whether that is possible."""

    name: str
    machine: int
    page_size: int
    rules: dict[int, RelocationRule]
    dynamic_absolute: int
    dynamic_slot: int
    dynamic_relative: int
    stub_size: int
    stub: Callable[[int, int], bytes]
    can_relax: Callable[[memoryview, int], bool]
    relax: Callable[[bytearray, int], None]


def store(buffer: bytearray, at: int, value: int, rule: RelocationRule, symbol: str) -> None:
    """Store a relocated value; BW665 when it does not fit the field."""
    limit = 1 << (8 * rule.width - 1)
    if rule.width == 8:
        struct.pack_into("<Q", buffer, at, value & 0xFFFFFFFFFFFFFFFF)
    elif -limit <= value < limit:
        struct.pack_into("<i", buffer, at, value)
    else:
        raise BuildError(
            f"relocation {rule.name} against '{symbol}' is out of range ({value:+d} bytes)",
            code="BW665",
            help="refer to large constants as external symbols without hidden visibility, "
            "so that their address comes from the global offset table",
        )


def _x86_stub(place: int, slot: int) -> bytes:
    """`jmp *slot(%rip)`, padded with breakpoints."""
    return b"\xff\x25" + struct.pack("<i", slot - place - 6) + b"\xcc" * 10


def _x86_can_relax(code: memoryview, at: int) -> bool:
    """Whether the instruction is `mov slot(%rip), %reg` or `call *slot(%rip)`."""
    if at < 2:
        return False
    return code[at - 2] == 0x8B or (code[at - 2] == 0xFF and code[at - 1] == 0x15)


def _x86_relax(code: bytearray, at: int) -> None:
    if code[at - 2] == 0x8B:
        code[at - 2] = 0x8D  # mov becomes lea
    else:
        code[at - 2 : at] = b"\x67\xe8"  # the prefix pads the shorter direct call


X86_64 = Architecture(
    name="x86-64",
    machine=62,
    page_size=4096,
    rules={
        1: RelocationRule("R_X86_64_64", Formula.ABSOLUTE, 8),
        2: RelocationRule("R_X86_64_PC32", Formula.RELATIVE, 4),
        4: RelocationRule("R_X86_64_PLT32", Formula.CALL, 4),
        9: RelocationRule("R_X86_64_GOTPCREL", Formula.SLOT_RELATIVE, 4),
        24: RelocationRule("R_X86_64_PC64", Formula.RELATIVE, 8),
        25: RelocationRule("R_X86_64_GOTOFF64", Formula.TABLE_OFFSET, 8),
        26: RelocationRule("R_X86_64_GOTPC32", Formula.TABLE_RELATIVE, 4),
        29: RelocationRule("R_X86_64_GOTPC64", Formula.TABLE_RELATIVE, 8),
        41: RelocationRule("R_X86_64_GOTPCRELX", Formula.SLOT_RELATIVE, 4, relaxable=True),
        42: RelocationRule("R_X86_64_REX_GOTPCRELX", Formula.SLOT_RELATIVE, 4, relaxable=True),
    },
    dynamic_absolute=1,
    dynamic_slot=6,
    dynamic_relative=8,
    stub_size=16,
    stub=_x86_stub,
    can_relax=_x86_can_relax,
    relax=_x86_relax,
)

ARCHITECTURES: dict[int, Architecture] = {X86_64.machine: X86_64}
