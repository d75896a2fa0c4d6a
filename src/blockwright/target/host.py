"""What this machine is: read from the kernel's files, without foreign libraries."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import msgspec

from blockwright.runtime.cpu import kernel_flags
from blockwright.runtime.cpu_features import from_flags
from blockwright.target.features import AARCH64_BASE, X86_LEVELS

_CPU_DIR = Path("/sys/devices/system/cpu")

_SHARE, _ALONE = 6 << 20, 32 << 20
"""Bytes of a last cache for each processor of a process, and what one may have for itself. Servers
are built with 1 to 5 MiB for each processor, desktops with 2 to 6."""


class CacheLevel(msgspec.Struct, frozen=True):
    """One cache as the kernel describes it."""

    level: int
    size: int
    ways: int
    line: int
    shared_by: int


def host_arch() -> str:
    """Architecture name as used in triples: "x86_64", "aarch64", …"""
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


@functools.cache
def host_features() -> frozenset[str]:
    """Features of the first processor; the ABI's baseline where the kernel tells nothing."""
    arch = host_arch()
    base = X86_LEVELS["x86-64"] if arch == "x86_64" else AARCH64_BASE
    return from_flags(arch, kernel_flags()) | frozenset(base)


@functools.cache
def host_cpu_name() -> str:
    """The processor's name for the code generator; loads it, so only code generation asks."""
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name())


@functools.cache
def host_caches() -> tuple[CacheLevel, ...]:
    """Data and unified caches of the first processor, smallest level first; may be empty."""
    result: list[CacheLevel] = []
    for index in sorted((_CPU_DIR / "cpu0" / "cache").glob("index*")):
        kind = _read(index / "type")
        size = _bytes(_read(index / "size"))
        if kind == "Instruction" or not size:
            continue
        result.append(
            CacheLevel(
                level=_int(_read(index / "level"), 1),
                size=size,
                ways=_int(_read(index / "ways_of_associativity"), 8),
                line=_int(_read(index / "coherency_line_size"), 64),
                shared_by=_count(_read(index / "shared_cpu_list")),
            )
        )
    return tuple(sorted(result, key=lambda c: c.level))


def counted_on(levels: tuple[CacheLevel, ...], processors: int) -> tuple[CacheLevel, ...]:
    """The caches as far as a process on so many processors can count on them.

    A virtual machine is told of the whole last cache of a socket, of whose processors it has a few,
    and shares it with others unseen: 16 processors are told of 300 MiB. A result of 128 MiB that is
    taken to stay there does not, and is written at half the speed of one that passes it by.
    """
    if not levels:
        return levels
    *near, last = levels
    size = min(last.size, max(_ALONE, _SHARE * processors))
    return (*near, msgspec.structs.replace(last, size=size))


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii", errors="replace").strip() if path.is_file() else ""


def _int(text: str, default: int) -> int:
    return int(text) if text.isdigit() else default


def _bytes(text: str) -> int:
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text.rstrip("KMGkmg")
    return int(digits) * scale if digits.isdigit() else 0


def _count(text: str) -> int:
    total = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return max(1, total)
