"""Throughput and latency of one CPU core.

The figures describe current server and desktop cores by architecture and vector width, not one
product, and are not measured on the host: a `Target` always leads to the same choices. To use other
figures, pass a record: `Target("native", core=Core(...))`.
"""

from __future__ import annotations

import msgspec

_AMPLE = 1.5  # ratio of work to chain beyond which the shorter one is hidden completely
_GAPS = 1.09  # slowdown if work and chain take about as long


class Core(msgspec.Struct, frozen=True):
    """Figures of one core. Rates are per cycle, times in cycles, sizes in bytes.

    Attributes:
        arithmetic: vector instructions (FMA, addition, maximum) started.
        narrow_arithmetic: the same for vectors of at most half the width. Processors that join two
            units for the widest vectors, or pass these through one unit in halves, start twice as
            many.
        loads, stores: loads and stores started.
        load_bytes, store_bytes: bytes that they move; limits wide vectors.
        issue: instructions of any kind issued.
        latency: from an FMA to a dependent one.
        reorder_window: instructions in flight; those after a chain start while it is computed.
        division_issue: instructions that could be issued in the time of a division.
        lone_store_cycles: time to store one element of a vector on its own, which computation does
            not hide.
        cache_bandwidth: bytes from each cache but L1, nearest first, then from memory.
        dram_bandwidth: bytes from memory, all cores together.
        miss_latency: time per cache line from each of these if no prefetcher fetched it, with
            several misses in flight.
        exposed: share of the shorter of computation and traffic that is not hidden by the longer.
        late_rows: share of the lines that arrive late when a loop reads several rows at a time.
        skipped_lines: lines that a store skips per step, from which on it waits for each line.
        reorder_flops: operations of a dense convolution with channels first, whose gathers and
            scattered results cost as much time as copying one byte to another layout.
        parallel_launch_cycles: time to start and join the threads of a parallel loop.
        task_dispatch_cycles: time to hand out one task of a parallel loop.
        mispredict_cycles: time lost by a mispredicted loop exit.
        predicted_iterations: most iterations of a loop of constant length whose exit is predicted.
        page_bytes: size of a page.
        tlb_entries: pages that the first and the second TLB hold.
        tlb_miss_cycles: time for a page that misses the first TLB, and one that misses both.
        frequency_hz: cycles per second.
        source: where the figures come from.
    """

    arithmetic: float
    narrow_arithmetic: float = 2
    loads: float = 2
    stores: float = 1
    issue: float = 4
    load_bytes: float = 64.0
    store_bytes: float = 32.0
    latency: int = 4
    reorder_window: int = 224
    division_issue: float = 5
    lone_store_cycles: float = 1.0
    cache_bandwidth: tuple[float, ...] = (28.0, 21.0, 10.0)
    dram_bandwidth: float = 16.0
    miss_latency: tuple[float, ...] = (4.0, 12.0, 40.0)
    exposed: float = 0.05
    late_rows: float = 0.25
    skipped_lines: float = 2
    reorder_flops: float = 200.0
    parallel_launch_cycles: int = 8000
    task_dispatch_cycles: int = 60
    mispredict_cycles: int = 20
    predicted_iterations: int = 32
    page_bytes: int = 4096
    tlb_entries: tuple[int, int] = (64, 1536)
    tlb_miss_cycles: tuple[int, int] = (7, 30)
    frequency_hz: float = 3.5e9
    source: str = (
        "issue rates and latencies: Agner Fog, Instruction tables; bandwidths, misses, stalls and "
        "launch costs: chosen so that predictions fit measurements on AVX2 and AVX-512 servers; "
        "predicted loops: partial sums of 16 and 32 terms (Winograd, 56x56x64 and 14x14x256) take "
        "the time of their multiplications, with no time for mispredicted exits; "
        "lone stores: what scattered results of a product cost beyond contiguous ones "
        "(1x1, 64 to 256 channels of 56x56) is 0.6 (256 bits) to 1.2 (512 bits) cycles each; "
        "layouts: chosen so that choices between schedules fit such measurements"
    )

    def strided_line_cycles(self, line: int) -> float:
        """Time for a line of `line` bytes from the second-level cache that is not prefetched."""
        return line / self.cache_bandwidth[0] + self.miss_latency[0]

    def dram_bandwidth_per_core(self, threads: int) -> float:
        """Bytes per cycle from memory for one of `threads` cores that all read."""
        return min(self.cache_bandwidth[-1], self.dram_bandwidth / threads)

    def chained(self, work: float, chain: float) -> float:
        """Cycles of vector instructions that need `work` cycles of throughput and hold a dependent
        chain of `chain` cycles. If both are close, some issue slots stay empty."""
        close = chain / _AMPLE < work < chain * _AMPLE
        return max(work, chain) * (_GAPS if close and self.arithmetic > 1 else 1)


_WITH_TILES = Core(
    arithmetic=2,
    narrow_arithmetic=2,
    stores=2,
    issue=6,
    load_bytes=128.0,
    store_bytes=64.0,
    reorder_window=512,
    cache_bandwidth=(42.0, 7.0, 4.0),
    source=(
        "issue rates and latencies: Agner Fog, Instruction tables; bandwidths of the caches and of "
        "memory: measured on a server core with AMX, one core reading; the others as for AVX-512 "
        "without AMX"
    ),
)


def core_of(arch: str, vector_bits: int, features: frozenset[str] = frozenset()) -> Core:
    """The core assumed for an architecture, vector width and features.

    512 bits: one 512-bit FMA per cycle, as on cores that join two 256-bit units. Those with AMX are
    server cores with two 512-bit units, a large second-level cache and a slow third level.
    """
    if arch == "aarch64":
        return Core(arithmetic=2, load_bytes=32, store_bytes=16, cache_bandwidth=(28.0, 16.0, 8.0))
    if "amx-tile" in features:
        return _WITH_TILES
    return Core(arithmetic=1, issue=6) if vector_bits == 512 else Core(arithmetic=2)
