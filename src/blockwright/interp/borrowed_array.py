"""Arrays of a caller as the memory of a program."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright.interp.memory import MemoryBlock, Pointer
from blockwright.ir import Buffer

Array = np.ndarray[Any, Any]


class BorrowedArray:
    """A caller's array as storage; a non-contiguous array is copied, and copied back."""

    def __init__(self, buffer: Buffer, array: Array, fresh: bool, written: bool) -> None:
        self.array = array
        self.copy: Array | None = None
        flat = _flat(buffer, array)
        if flat is None:
            self.copy = np.ascontiguousarray(array)
            flat = self.copy.reshape(-1)
        self.written = written
        shadow = np.zeros(flat.nbytes, np.uint8) if fresh else None
        storage = MemoryBlock(flat.view(np.uint8), shadow, array.itemsize, 0, False)
        self.pointer = Pointer(storage, 0)

    def copy_back(self) -> None:
        if self.copy is not None and self.written:
            self.array[...] = self.copy


def _flat(buffer: Buffer, array: Array) -> Array | None:
    """The memory of an array as one dimension; None if the program cannot address it in place."""
    if array.flags.c_contiguous:
        return array.reshape(-1)
    if not buffer.strides or any(s < 0 or s % array.itemsize for s in array.strides):
        return None
    reach = 1 + sum(
        (n - 1) * s // array.itemsize for n, s in zip(array.shape, array.strides, strict=True)
    )
    return np.lib.stride_tricks.as_strided(array, (reach,), (array.itemsize,))
