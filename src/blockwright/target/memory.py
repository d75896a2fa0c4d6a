"""Memory spaces: where values can live, how many fit, and what moving them costs."""

from __future__ import annotations

import msgspec

from blockwright.target.core import Core
from blockwright.target.gpu import Multiprocessors
from blockwright.target.isa import VectorISA
from blockwright.target.scopes import TILE_MEMORY, MemoryScope


class Cache(msgspec.Struct, frozen=True):
    """A data cache: capacity and line in bytes, ways, processors that share it."""

    size: int
    ways: int = 8
    line: int = 64
    shared_by: int = 1


class MemorySpace(msgspec.Struct, frozen=True):
    """One level of the memory hierarchy.

    Attributes:
        name: "registers", "L1", "L2", "L3", "shared", "device memory", …
        size: bytes; 0 where the target does not say.
        bandwidth: bytes per cycle that one core or multiprocessor reads; 0 for registers.
        latency: cycles. CPU: added by a cache line that no prefetcher fetched, while several lines
            are in flight. GPU: of a dependent load.
        shared_by: cores, or multiprocessors, that share the space.
        scope: the storage scope in which programs allocate in it; "" for caches.
        source: where the figures come from; "" if they are those of the core or GPU.
    """

    name: str
    size: int
    bandwidth: float
    latency: float
    shared_by: int
    scope: str = ""
    source: str = ""


def scope_of(space: MemorySpace) -> MemoryScope:
    """The storage scope of a memory space that belongs to a compute unit of each core."""
    return MemoryScope(space.scope, "thread", constant_size=True, max_bytes=space.size)


def cpu_spaces(
    core: Core, isa: VectorISA, caches: tuple[Cache, ...], cores: int, tiles: bool = False
) -> tuple[MemorySpace, ...]:
    """The memory spaces of a CPU, nearest first; `tiles`: whether it has the registers of AMX."""
    registers = [MemorySpace("registers", isa.registers * isa.bits // 8, 0, 0, 1, "local")]
    if tiles:
        registers.append(MemorySpace("tiles", TILE_MEMORY.max_bytes, 0, 0, 1, TILE_MEMORY.name))
    first = MemorySpace("L1", caches[0].size, core.load_bytes, 0, caches[0].shared_by)
    rates = zip(caches[1:], core.cache_bandwidth, core.miss_latency, strict=False)
    outer = [
        MemorySpace(f"L{level}", cache.size, rate, wait, cache.shared_by)
        for level, (cache, rate, wait) in enumerate(rates, 2)
    ]
    rate, wait = core.dram_bandwidth_per_core(cores), core.miss_latency[-1]
    return (*registers, first, *outer, MemorySpace("memory", 0, rate, wait, cores, "global"))


def gpu_spaces(gpu: Multiprocessors) -> tuple[MemorySpace, ...]:
    """The memory spaces of a GPU, nearest first; bandwidth is one multiprocessor's share."""
    registers = 64 << 10  # of 32 bits, on all compute capabilities here
    lines = 128  # bytes per cycle: 32 banks of 4 bytes
    dram = gpu.dram_bandwidth / gpu.clock_hz / gpu.count
    l2 = gpu.l2_bandwidth / gpu.count
    return (
        MemorySpace("registers", registers * 4, 0, 0, 1, "local"),
        MemorySpace("shared", gpu.shared_bytes, lines, gpu.shared_latency, 1, "shared"),
        MemorySpace("L2", gpu.l2_bytes, l2, gpu.l2_latency, gpu.count),
        MemorySpace("memory", gpu.dram_bytes, dram, gpu.dram_latency, gpu.count, "global"),
    )
