"""Read-only memory for the constants of compiled code.

Constants live in the largest pages the system offers: streaming weights then crosses fewer page
boundaries, at which hardware prefetchers stop. Large arrays computed at compile time, such as
packed weights, are written directly to this memory, and loaded libraries read them in place.
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
_LARGE = 1 << 20  # bytes from which a constant gets pages of its own
_HUGE = 1 << 21  # bytes of a huge page
_LINE = 64  # alignment that compiled code expects of constants, in bytes
_PIECE = 1 << 23  # bytes per copy task
_MOST = 4  # maximum number of copying threads; with more, memory is the bottleneck
_WORTH = 1 << 26  # bytes from which memory is faulted in ahead of use
_system = ctypes.CDLL(None, use_errno=True)


class _Pages(mmap.mmap):
    """Private anonymous memory, released with the last array that uses it."""

    def __new__(cls, size: int) -> _Pages:
        """Zeroed pages; a large mapping has spare room to align its start to a huge page."""
        spare = _HUGE if size >= _HUGE else 0
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = super().__new__(cls, -1, size + spare, flags=kind)
        if spare:
            pages.madvise(mmap.MADV_HUGEPAGE)  # small pages work too, so errors do not matter
        whole = np.frombuffer(pages, np.uint8)
        pages.begin = -whole.ctypes.data % spare if spare else 0
        return pages

    begin: int
    """Offset of the first usable byte."""

    def at(self, offset: int, size: int) -> _Bytes:
        """A part of the pages as an array; other arrays are views of it."""
        return np.frombuffer(self, np.uint8, size, self.begin + offset)


class _Reserve:
    """Memory that a background thread faults in before it is needed.

    The first access to a page makes the kernel clear it, or fetch it from the host of a virtual
    machine. For large weights this takes longer than packing them.
    """

    def __init__(self, size: int) -> None:
        self._pages, self._size, self._taken = _Pages(size), size, 0
        self._address = self._pages.at(0, 1).ctypes.data
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._provide, daemon=True)
        self._thread.start()

    def _provide(self) -> None:
        """Fault pages in by writing to them.

        `madvise` would hold the lock of the address space meanwhile, and importing a model maps
        memory all the time.
        """
        at = 0
        while at < self._size:
            with self._lock:
                at = max(at, self._taken)
                piece = min(_HUGE - at % _HUGE, self._size - at)
                ctypes.memset(self._address + at, 0, piece)
                at += piece

    def take(self, size: int) -> _Bytes | None:
        """Memory in whole pages; None when the reserve has too little left."""
        whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            start = self._taken
            if start + whole > self._size:
                return None
            self._taken += whole
        array = self._pages.at(start, size)
        weakref.finalize(array, _release_pages, array.ctypes.data, whole).atexit = False
        return array

    def holds(self, array: NDArray[Any]) -> bool:
        return 0 <= array.ctypes.data - self._address < self._size

    def close(self) -> None:
        """Release the unused part and make the used part read-only."""
        with self._lock:
            used, self._taken = self._taken, self._size
        self._thread.join()
        _release_pages(self._address + used, self._size - used)
        if used:
            _protect(self._address, used)


_reserve: ContextVar[_Reserve | None] = ContextVar("constants", default=None)


@contextmanager
def reserved(size: int) -> Generator[None]:
    """Reserve memory for the constants created inside, which need about `size` bytes in all."""
    reserve = _try_reserve(size)
    token = _reserve.set(reserve)
    try:
        yield
    finally:
        _reserve.reset(token)
        if reserve is not None:
            reserve.close()


def _try_reserve(size: int) -> _Reserve | None:
    """A reserve; None when it is not worthwhile, or not available: it is only an optimization."""
    try:
        return _Reserve(size) if size >= _WORTH else None
    except OSError:
        return None


def _memory(size: int) -> _Bytes:
    reserve = _reserve.get()
    taken = reserve.take(size) if reserve is not None else None
    return _Pages(size).at(0, size) if taken is None else taken


def empty(shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """An uninitialized array for a constant that will be computed."""
    wanted = np.dtype(dtype)
    size = wanted.itemsize * int(np.prod(shape, dtype=np.int64))
    if size < _LARGE:
        return np.empty(shape, wanted)
    return _memory(size).view(wanted).reshape(shape)


def seal(array: NDArray[Any]) -> None:
    """Make a completed array read-only.

    Raises: ArtefactError (BW806) when the system call fails.
    """
    array.flags.writeable = False
    if _is_ours(array):
        _seal_pages(array)


def _seal_pages(array: NDArray[Any]) -> None:
    """Protect the array's pages now, or when the reserve that holds them is closed."""
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


def _release_pages(address: int, size: int) -> None:
    """Release whole pages whose contents are no longer needed."""
    _system.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


class Constants:
    """The constants of a library, in read-only memory.

    Attributes: `addresses` by symbol, valid for the lifetime of this object.
    """

    def __init__(self, contents: Mapping[str, NDArray[Any]]) -> None:
        """Arguments: `contents` by symbol; arrays that are not `owned` are copied.

        Raises: ArtefactError (BW806) when memory cannot be made read-only.
        """
        self._arrays = owned(contents)
        self.addresses = {symbol: array.ctypes.data for symbol, array in self._arrays.items()}


def owned(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays of the same contents that nobody can change, aligned for compiled code.

    Sealed arrays are returned as they are, and others are copied. But large arrays of equal
    contents share memory in the whole process.

    Raises: ArtefactError (BW806) when memory cannot be made read-only.
    """
    result = {name: _SHARED.find(array) for name, array in arrays.items()}
    copied = {n: a for n, a in arrays.items() if result[n] is None and not _may_lend(a)}
    places, size = _places(copied)
    room = _memory(max(size, 1)) if copied else np.empty(0, np.uint8)
    pieces = [
        (room[places[name] + at :][: len(data)], data)
        for name, array in copied.items()
        for at, data in _pieces(array)
    ]
    if pieces:
        with ThreadPoolExecutor(min(_MOST, default_num_threads())) as pool:
            list(pool.map(_copy, pieces))
    if copied:
        seal(room)
    for name, array in arrays.items():
        if name in copied:
            part = room[places[name] : places[name] + array.nbytes]
            array = part.view(array.dtype).reshape(array.shape)
        known = result[name]
        result[name] = _SHARED.add(array) if known is None else known
    return {name: array for name, array in result.items() if array is not None}


class _Shared:
    """Large arrays of the process that `owned` returned, found by their contents."""

    def __init__(self) -> None:
        # size and some of the bytes → places: the array that holds the memory, and the offset in it
        self._known: dict[tuple[int, bytes], list[tuple[weakref.ref[NDArray[Any]], int]]] = {}

    def find(self, array: NDArray[Any]) -> NDArray[Any] | None:
        """A known array of the same contents, as an array of this type and shape."""
        if array.nbytes < _LARGE:
            return None
        data = _bytes_of(array)
        for place, offset in self._known.get(_key(data), ()):
            memory = place()
            if memory is not None:
                part = memory.view(np.uint8)[offset : offset + len(data)]
                if _equal(part, data):
                    return part.view(array.dtype).reshape(array.shape)
        return None

    def add(self, array: NDArray[Any]) -> NDArray[Any]:
        """Remember a sealed array as long as its memory is in use; return it."""
        if array.nbytes >= _LARGE:
            memory = _holder(array)
            key = _key(_bytes_of(array))
            living = [each for each in self._known.get(key, ()) if each[0]() is not None]
            offset = array.ctypes.data - memory.ctypes.data
            self._known[key] = [*living, (weakref.ref(memory), offset)]
        return array


_SHARED = _Shared()


def _holder(array: NDArray[Any]) -> NDArray[Any]:
    """The array whose memory an array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _key(data: _Bytes) -> tuple[int, bytes]:
    return len(data), data[:: max(1, len(data) // 256)].tobytes()


def _equal(a: _Bytes, b: _Bytes) -> bool:
    """Whether two arrays of one size have equal bytes."""
    starts = range(0, len(a), _LARGE)
    return all(np.array_equal(a[at : at + _LARGE], b[at : at + _LARGE]) for at in starts)


def _may_lend(array: NDArray[Any]) -> bool:
    flags, aligned = array.flags, array.ctypes.data % _LINE == 0
    return _is_ours(array) and flags.c_contiguous and aligned and not flags.writeable


def _places(arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, int], int]:
    """The offset of each array when packed with alignment, and the total size in bytes."""
    result: dict[str, int] = {}
    end = 0
    for symbol, array in arrays.items():
        result[symbol] = end
        end += -(-array.nbytes // _LINE) * _LINE
    return result, end


def _pieces(array: NDArray[Any]) -> list[tuple[int, _Bytes]]:
    data = _bytes_of(array)
    return [(at, data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]


def _bytes_of(array: NDArray[Any]) -> _Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _copy(piece: tuple[_Bytes, _Bytes]) -> None:
    room, data = piece
    room[:] = data
