"""Roofline of a machine: its limits of arithmetic and memory, to compare kernel times with."""

from __future__ import annotations

import math

import msgspec


class Roofline(msgspec.Struct, frozen=True):
    """Measured arithmetic and memory throughput of a machine.

    Attributes:
        threads: number of threads in the measurement.
        flops: single-precision operations per second.
        reads: (bytes, bytes per second) of reading a working set of this size repeatedly,
            ascending.
        writes: bytes per second of writing to memory, for data that fits no cache.
    """

    threads: int
    flops: float
    reads: tuple[tuple[int, float], ...]
    writes: float

    def bandwidth(self, size: int) -> float:
        """Bytes per second of repeatedly reading `size` bytes, interpolated between the measured
        sizes linearly in the logarithm of the size."""
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
        """Lower bound in seconds for this many operations and bytes, each byte moved once.

        Data that fits a cache is read and written at the speed of that cache.
        """
        whole = read + written
        memory = whole / self.bandwidth(whole)
        if whole >= self.reads[-1][0]:
            memory = read / self.reads[-1][1] + written / self.writes
        return max(flops / self.flops, memory)
