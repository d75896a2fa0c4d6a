"""Features of this machine's processor, by their LLVM names."""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Iterable

from blockwright.runtime.cpu_features import from_flags


@functools.cache
def kernel_flags() -> frozenset[str]:
    """The flags the kernel reports for the first processor; empty when it reports none.

    Without those of AMX where this process may not use its tiles.
    """
    flags = _reported()
    tiles = frozenset(flag for flag in flags if flag.startswith("amx"))
    return flags - tiles if tiles and not request_tiles() else flags


def _reported() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in ("flags", "Features"):
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()


TILE_PERMISSION = (158, 0x1023, 18)
"""Linux on x86-64: the system call, ARCH_REQ_XCOMP_PERM, and AMX's component of the state."""


@functools.cache
def request_tiles() -> bool:
    """Ask Linux to let this process use AMX tiles; whether it does.

    Without the permission, the first tile instruction ends the process. It holds for all threads
    and for forked processes, not after exec.
    """
    if machine() != "x86-64" or platform.system() != "Linux":
        return False
    return ctypes.CDLL(None).syscall(*TILE_PERMISSION) == 0


def machine() -> str:
    """The architecture: "x86-64", "aarch64", or the system's own name for it."""
    name = platform.machine().lower()
    return {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}.get(name, name)


def has_feature(feature: str) -> bool:
    """Whether this processor (and its kernel) has an LLVM feature such as "avx2" or "dotprod"."""
    return not missing_features([feature])


def missing_features(required: Iterable[str]) -> list[str]:
    """Those of `required` that this processor lacks, sorted."""
    arch = machine().replace("-", "_")
    return sorted(set(required) - from_flags(arch, kernel_flags()))
