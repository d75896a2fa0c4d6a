"""Memory for the constants of compiled code: written once, then read only.

It comes in pages as large as the system has: streams of weights cross fewer page borders, at which
processors stop to fetch ahead. Large results that are computed while a model is compiled, such as
packed weights, are written there at once; a library that is loaded reads them where they are.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from blockwright.runtime.threads import default_num_threads
from blockwright.support import ArtefactError

_Bytes = NDArray[np.uint8]
_LARGE = 1 << 20  # bytes from which a constant has pages of its own
_HUGE = 1 << 21  # bytes of the larger pages
_LINE = 64  # what compiled code expects constants to be aligned to
_PIECE = 1 << 23  # bytes copied at a time
_MOST = 4  # threads that copy: more of them wait for memory
_WORTH = 1 << 26  # bytes from which memory is provided ahead
_system = ctypes.CDLL(None, use_errno=True)


class _Pages(mmap.mmap):
    """Memory of this process alone, which goes back with the last array in it."""

    def __new__(cls, size: int) -> _Pages:
        """Zeroed; with room to begin at a large page, where it has one."""
        spare = _HUGE if size >= _HUGE else 0
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = super().__new__(cls, -1, size + spare, flags=kind)
        if spare:
            pages.madvise(mmap.MADV_HUGEPAGE)  # where there are none, small ones do
        whole = np.frombuffer(pages, np.uint8)
        pages.begin = -whole.ctypes.data % spare if spare else 0
        return pages

    begin: int
    """Where the first of them begins."""

    def at(self, offset: int, size: int) -> _Bytes:
        """A part of it, as an array of which others are views."""
        return np.frombuffer(self, np.uint8, size, self.begin + offset)


class _Reserve:
    """Memory that the system provides on another core before it is asked for.

    It clears pages, or fetches them from the host of a virtual machine, when they are used for the
    first time: for large weights that takes longer than to pack them.
    """

    def __init__(self, size: int) -> None:
        self._pages, self._size, self._taken = _Pages(size), size, 0
        self._address = self._pages.at(0, 1).ctypes.data
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._provide, daemon=True)
        self._thread.start()

    def _provide(self) -> None:
        """By writing there. (To ask the system keeps it from other changes of the process's memory
        meanwhile, which the import of a model makes all the time.)"""
        at = 0
        while at < self._size:
            with self._lock:
                at = max(at, self._taken)
                piece = min(_HUGE - at % _HUGE, self._size - at)
                ctypes.memset(self._address + at, 0, piece)
                at += piece

    def take(self, size: int) -> _Bytes | None:
        """Memory in whole pages, or None where not enough is left."""
        whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            start = self._taken
            if start + whole > self._size:
                return None
            self._taken += whole
        array = self._pages.at(start, size)
        weakref.finalize(array, _give_back, array.ctypes.data, whole).atexit = False
        return array

    def holds(self, array: NDArray[Any]) -> bool:
        return 0 <= array.ctypes.data - self._address < self._size

    def close(self) -> None:
        """What is left goes back; nobody writes to the rest any more."""
        with self._lock:
            used, self._taken = self._taken, self._size
        self._thread.join()
        _give_back(self._address + used, self._size - used)
        if used:
            _protect(self._address, used)


_reserve: ContextVar[_Reserve | None] = ContextVar("constants", default=None)


@contextmanager
def reserved(size: int) -> Generator[None]:
    """Constants that are made inside are expected to take so many bytes in all."""
    reserve = _try_reserve(size)
    token = _reserve.set(reserve)
    try:
        yield
    finally:
        _reserve.reset(token)
        if reserve is not None:
            reserve.close()


def _try_reserve(size: int) -> _Reserve | None:
    """None where it is not worth it, or not to be had: it may turn out not to be needed."""
    try:
        return _Reserve(size) if size >= _WORTH else None
    except OSError:
        return None


def _memory(size: int) -> _Bytes:
    reserve = _reserve.get()
    taken = reserve.take(size) if reserve is not None else None
    return _Pages(size).at(0, size) if taken is None else taken


def empty(shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """An array for a constant that is to be computed, whose contents do not matter yet."""
    wanted = np.dtype(dtype)
    size = wanted.itemsize * int(np.prod(shape, dtype=np.int64))
    if size < _LARGE:
        return np.empty(shape, wanted)
    return _memory(size).view(wanted).reshape(shape)


def seal(array: NDArray[Any]) -> None:
    """The array has its contents: nobody writes there any more.

    Raises: ArtefactError (BW806) where the system refuses.
    """
    array.flags.writeable = False
    if _is_ours(array):
        _seal_pages(array)


def _seal_pages(array: NDArray[Any]) -> None:
    """Nobody may write there, now or as soon as the reserve that it is from is closed."""
    reserve = _reserve.get()
    if reserve is None or not reserve.holds(array):
        _protect(array.ctypes.data, array.nbytes)


def _is_ours(array: NDArray[Any]) -> bool:
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return isinstance(base, _Pages)


def _protect(address: int, size: int) -> None:
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    span = ctypes.c_size_t(address + size - start)
    if _system.mprotect(ctypes.c_void_p(start), span, mmap.PROT_READ):
        reason = os.strerror(ctypes.get_errno())
        raise ArtefactError(f"constants cannot be made read-only: {reason}", code="BW806")


def _give_back(address: int, size: int) -> None:
    """The contents of whole pages are not needed any more."""
    _system.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


class Constants:
    """Constants of a library, in memory where nobody writes.

    Attributes: `addresses` by symbol, for as long as this is kept.
    """

    def __init__(self, contents: Mapping[str, NDArray[Any]]) -> None:
        """Arguments: `contents` by symbol; those that are not sealed are copied.

        Raises: ArtefactError (BW806) where the system refuses.
        """
        lent = {symbol: array for symbol, array in contents.items() if _may_lend(array)}
        copied = {symbol: a for symbol, a in contents.items() if symbol not in lent}
        self._lent = tuple(lent.values())
        places, size = _places(copied)
        self._room = _memory(max(size, 1))
        pieces = [
            (self._room[places[symbol] + at :][: len(data)], data)
            for symbol, array in copied.items()
            for at, data in _pieces(array)
        ]
        with ThreadPoolExecutor(min(_MOST, default_num_threads())) as pool:
            list(pool.map(_copy, pieces))
        _seal_pages(self._room)
        room = self._room.ctypes.data
        self.addresses = {symbol: array.ctypes.data for symbol, array in lent.items()}
        self.addresses |= {symbol: room + place for symbol, place in places.items()}


def _may_lend(array: NDArray[Any]) -> bool:
    flags, aligned = array.flags, array.ctypes.data % _LINE == 0
    return _is_ours(array) and flags.c_contiguous and aligned and not flags.writeable


def _places(arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, int], int]:
    """Where each begins if they lie next to each other, and the bytes of all."""
    result: dict[str, int] = {}
    end = 0
    for symbol, array in arrays.items():
        result[symbol] = end
        end += -(-array.nbytes // _LINE) * _LINE
    return result, end


def _pieces(array: NDArray[Any]) -> list[tuple[int, _Bytes]]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [(at, data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]


def _copy(piece: tuple[_Bytes, _Bytes]) -> None:
    room, data = piece
    room[:] = data
