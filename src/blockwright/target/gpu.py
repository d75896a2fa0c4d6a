"""GPUs: multiprocessors, memories and launch costs, one row per compute capability."""

from __future__ import annotations

import msgspec

KIB, MIB = 1 << 10, 1 << 20


class Multiprocessors(msgspec.Struct, frozen=True):
    """The multiprocessors of a GPU, and the memories that they share.

    Attributes:
        product: the device whose figures these are.
        count: multiprocessors.
        clock_hz: cycles per second under load.
        threads, blocks: resident threads and blocks per multiprocessor, at most.
        shared_bytes: shared memory of a multiprocessor.
        block_shared_bytes: shared memory that one block may use.
        l2_bytes: size of the second-level cache.
        l2_bandwidth: bytes per cycle, all multiprocessors together.
        dram_bytes: size of device memory.
        dram_bandwidth: bytes per second.
        shared_latency, l2_latency, dram_latency: cycles of a dependent load.
        cluster: blocks of a cluster, at most; 1 where there are no clusters.
        launch_seconds: from the call to the first instruction of an empty kernel.
        source: where the figures come from.
    """

    product: str
    count: int
    clock_hz: float
    threads: int
    blocks: int
    shared_bytes: int
    block_shared_bytes: int
    l2_bytes: int
    l2_bandwidth: float
    dram_bytes: int
    dram_bandwidth: float
    shared_latency: int = 30
    l2_latency: int = 250
    dram_latency: int = 550
    cluster: int = 1
    launch_seconds: float = 3e-6
    source: str = (
        "NVIDIA data sheet, architecture white paper and CUDA C++ Programming Guide; latencies "
        "and L2 bandwidth rounded from published microbenchmarks, not measured per device"
    )


def _gpu(
    product: str, count: int, clock: float, resident: tuple[int, int], shared: tuple[int, int],
    l2: tuple[float, float], dram: tuple[int, float], cluster: int = 1,
) -> Multiprocessors:  # fmt: skip
    """A row in the units of data sheets: GHz, KiB, MiB, GiB, GB/s."""
    return Multiprocessors(
        product, count, clock * 1e9, *resident, shared[0] * KIB, shared[1],
        int(l2[0] * MIB), l2[1], dram[0] << 30, dram[1] * 1e9, cluster=cluster,
    )  # fmt: skip


MULTIPROCESSORS: dict[int, Multiprocessors] = {
    70: _gpu("V100 SXM2", 80, 1.53, (2048, 32), (96, 98304), (6, 2000), (32, 900)),
    75: _gpu("T4", 40, 1.59, (1024, 16), (64, 65536), (4, 1300), (16, 320)),
    80: _gpu("A100 SXM4", 108, 1.41, (2048, 32), (164, 166912), (40, 5120), (80, 2039)),
    86: _gpu("A10", 72, 1.695, (1536, 16), (100, 101376), (6, 2000), (24, 600)),
    87: _gpu("Jetson AGX Orin", 16, 1.3, (1536, 16), (164, 166912), (4, 500), (64, 204.8)),
    89: _gpu("GeForce RTX 4090", 128, 2.52, (1536, 24), (100, 101376), (72, 2000), (24, 1008)),
    90: _gpu("H100 SXM5", 132, 1.83, (2048, 32), (228, 232448), (50, 5500), (80, 3350), 16),
    100: _gpu("B200", 148, 1.85, (2048, 32), (228, 232448), (126, 10000), (180, 8000), 16),
    103: _gpu("B300", 148, 1.85, (2048, 32), (228, 232448), (126, 10000), (270, 8000), 16),
    120: _gpu("GeForce RTX 5090", 170, 2.407, (1536, 24), (100, 101376), (96, 4000), (32, 1792), 8),
}
"""Compute capability → a common device that has it."""
