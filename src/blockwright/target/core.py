"""What one processor core does in a cycle, and what it waits for.

The figures are those of current server and desktop cores of an architecture and vector width, not
of one product, and nothing is measured: a `Target` always means the same choices. Whoever knows
better passes a record of their own, `Target("native", core=Core(...))`.
"""

from __future__ import annotations

import msgspec

_AMPLE = 1.5  # times the cycles of a chain, that others should give to do meanwhile
_GAPS = 1.09  # times the cycles, where they give less


class Core(msgspec.Struct, frozen=True):
    """One core as the cost model sees it; rates are per cycle.

    Attributes:
        arithmetic: vector instructions (FMA, addition, maximum) that begin.
        loads, stores: loads and stores that begin, and
        load_bytes, store_bytes: bytes that they move; wide vectors take more than their turn.
        issue: instructions of any kind.
        latency: cycles from an FMA to the next one that needs its result.
        cache_bandwidth: bytes from each cache but L1, nearest first, then from memory.
        dram_bandwidth: bytes out of memory for all cores together.
        miss_latency: cycles for a line from each of these that was not fetched in advance, because
            the one before it lay elsewhere; several such lines are on their way at a time.
        parallel_launch_cycles: cycles until the threads have begun a parallel loop, and ended it.
        task_dispatch_cycles: cycles to hand out one of its tasks.
        mispredict_cycles: cycles lost where a loop ends otherwise than predicted.
        page_bytes: bytes of a page of memory.
        tlb_entries: pages the first translation buffer holds, and the second one.
        tlb_miss_cycles: cycles for a page in the second buffer only, and for one in none.
        frequency_hz: cycles per second.
    """

    arithmetic: float
    loads: float = 2
    stores: float = 1
    issue: float = 4
    load_bytes: float = 64.0
    store_bytes: float = 32.0
    latency: int = 4
    cache_bandwidth: tuple[float, ...] = (28.0, 21.0, 10.0)
    dram_bandwidth: float = 16.0
    miss_latency: tuple[float, ...] = (4.0, 12.0, 40.0)
    parallel_launch_cycles: int = 8000
    task_dispatch_cycles: int = 60
    mispredict_cycles: int = 20
    page_bytes: int = 4096
    tlb_entries: tuple[int, int] = (64, 1536)
    tlb_miss_cycles: tuple[int, int] = (7, 30)
    frequency_hz: float = 3.5e9

    def dram_bandwidth_per_core(self, threads: int) -> float:
        """Bytes per cycle out of memory for one core, while so many of them read."""
        return min(self.cache_bandwidth[-1], self.dram_bandwidth / threads)

    def chained(self, work: float, chain: float) -> float:
        """Cycles for vector instructions that take `work` by themselves, of which a chain of those
        that wait for each other takes `chain`. Where both take about as long, one of several units
        now and then has nothing that is ready."""
        close = chain / _AMPLE < work < chain * _AMPLE
        return max(work, chain) * (_GAPS if close and self.arithmetic > 1 else 1)


def core_of(arch: str, vector_bits: int) -> Core:
    """The core that an architecture with vectors of some width is taken to have.

    512 bits: two units of 256 that work together, or one of 512. Cores with two of 512 do more; a
    schedule that suits the narrower ones suits them too.
    """
    if arch == "aarch64":
        return Core(arithmetic=2, load_bytes=32, store_bytes=16, cache_bandwidth=(28.0, 16.0, 8.0))
    return Core(arithmetic=1, issue=6) if vector_bits == 512 else Core(arithmetic=2)
