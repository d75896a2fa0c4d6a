"""Constants of a library that was loaded without them.

They go into memory of the process, in pages as large as the system has: streams of weights cross
fewer page borders, at which processors stop to fetch ahead.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blockwright.runtime.threads import default_num_threads
from blockwright.support import ArtefactError

_Bytes = NDArray[np.uint8]
_PIECE = 1 << 23  # bytes copied at a time
_MOST = 4  # threads that copy: more of them wait for memory


def fill(path: Path, constants: Mapping[str, memoryview]) -> tuple[int, int]:
    """Copies constants to their symbols in a loaded library, and then lets nobody write there.

    Returns the memory that they fill: its start, and bytes in whole pages.

    Args:
        path: what the library was loaded from.
        constants: contents by symbol; the library has room for them, next to each other, that may
            be written.

    Raises: ArtefactError (BW806) where the system refuses.
    """
    full = {name: data for name, data in constants.items() if data.nbytes}
    if not full:
        return 0, 0
    library = ctypes.CDLL(str(path))
    rooms = {name: _room(library, name, data.nbytes) for name, data in full.items()}
    start = min(room.ctypes.data for room in rooms.values()) // mmap.PAGESIZE * mmap.PAGESIZE
    end = max(room.ctypes.data + room.nbytes for room in rooms.values())
    whole = ctypes.c_void_p(start), ctypes.c_size_t(end - start)
    system = ctypes.CDLL(None, use_errno=True)
    system.madvise(*whole, mmap.MADV_HUGEPAGE)  # where there are none, small ones do
    pieces = [
        (rooms[name][at : at + _PIECE], np.frombuffer(data[at : at + _PIECE], np.uint8))
        for name, data in full.items()
        for at in range(0, data.nbytes, _PIECE)
    ]
    with ThreadPoolExecutor(min(_MOST, default_num_threads())) as pool:
        list(pool.map(_copy, pieces))
    if system.mprotect(*whole, mmap.PROT_READ):
        reason = os.strerror(ctypes.get_errno())
        raise ArtefactError(f"the constants of {path} cannot be made read-only: {reason}",
                            code="BW806")  # fmt: skip
    return start, end - start


def _copy(piece: tuple[_Bytes, _Bytes]) -> None:
    room, data = piece
    room[:] = data


def _room(library: ctypes.CDLL, symbol: str, size: int) -> _Bytes:
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).in_dll(library, symbol)), np.uint8)
