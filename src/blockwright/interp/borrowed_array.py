"""Arrays of a caller as the memory of a program."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright.interp.memory import MemoryBlock, Pointer
from blockwright.interp.numeric import wrap_narrow
from blockwright.ir.dtype import DType

Array = np.ndarray[Any, Any]


class BorrowedArray:
    """A caller's array as storage: in place, or as a contiguous copy that is copied back.

    Only the low bits of elements of a sub-byte integer type count; if others are set, the copy has
    the numbers that the low bits stand for.
    """

    def __init__(
        self, array: Array, dtype: DType, in_place: bool, fresh: bool, written: bool
    ) -> None:
        self.array = array
        self.copy: Array | None = None if in_place else np.ascontiguousarray(array)
        if dtype.is_int and dtype.element.bits < 8:
            numbers = wrap_narrow(array, dtype.element)
            if not np.array_equal(numbers, array):
                self.copy = np.ascontiguousarray(numbers)
        flat = _flat(array) if self.copy is None else self.copy.reshape(-1)
        self.written = written
        shadow = np.zeros(flat.nbytes, np.uint8) if fresh else None
        storage = MemoryBlock(flat.view(np.uint8), shadow, array.itemsize, 0, False)
        self.pointer = Pointer(storage, 0)

    def copy_back(self) -> None:
        if self.copy is not None and self.written:
            self.array[...] = self.copy


def _flat(array: Array) -> Array:
    """The memory of an array, from its first element to the last, as one dimension."""
    if array.flags.c_contiguous:
        return array.reshape(-1)
    reach = 1 + sum(
        (n - 1) * s // array.itemsize for n, s in zip(array.shape, array.strides, strict=True)
    )
    return np.lib.stride_tricks.as_strided(array, (reach,), (array.itemsize,))
