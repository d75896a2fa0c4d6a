"""What a machine does at most: the bound that the times of kernels are held against."""

from __future__ import annotations

import math

import msgspec


class Roofline(msgspec.Struct, frozen=True):
    """Arithmetic and memory of a machine, as so many threads use them.

    Attributes:
        threads: how many took part in the measurement.
        flops: operations per second of single precision.
        reads: (bytes, bytes per second) of reading so many bytes again and again, ascending.
        writes: bytes per second of writing what no cache holds, beside reading.
    """

    threads: int
    flops: float
    reads: tuple[tuple[int, float], ...]
    writes: float

    def bandwidth(self, size: int) -> float:
        """Bytes per second of reading `size` bytes again and again; between the measured sizes it
        changes with their logarithm."""
        (smallest, fastest), (largest, slowest) = self.reads[0], self.reads[-1]
        if size <= smallest:
            return fastest
        if size >= largest:
            return slowest
        for (low, fast), (high, slow) in zip(self.reads, self.reads[1:], strict=False):
            if size <= high:
                part = math.log(size / low) / math.log(high / low)
                return fast + (slow - fast) * part
        return slowest

    def seconds(self, flops: float, read: int, written: int = 0) -> float:
        """The least time for so many operations and bytes, each byte moved once.

        What fits into a cache together is read and written at that cache's speed.
        """
        whole = read + written
        memory = whole / self.bandwidth(whole)
        if whole >= self.reads[-1][0]:
            memory = read / self.reads[-1][1] + written / self.writes
        return max(flops / self.flops, memory)
