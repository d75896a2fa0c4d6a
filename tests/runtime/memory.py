"""How much memory this process has."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path


def resident() -> int:
    """Bytes of this process in memory, without what the C library has back and keeps for later, as
    it does where earlier tests left large holes in its heap."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
