"""Memory and execution scopes per kind of machine.

Lowering asks where a buffer of a scope may live, the validator asks which scope a program may name.
Targets and tensor intrinsics declare scopes of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class MemoryScope(msgspec.Struct, frozen=True):
    """A storage scope.

    Attributes:
        name: as written in programs, for example "shared".
        owner: the execution scope whose members share one copy ("device" for everyone).
        constant_size: whether the size must be known when compiling.
        max_bytes: capacity per owner; 0 means bounded by memory only.
        fragment: held in registers, of a matrix unit or across a warp; elements have no addresses.
    """

    name: str
    owner: str
    constant_size: bool = False
    max_bytes: int = 0
    fragment: bool = False


class ExecutionScope(msgspec.Struct, frozen=True):
    """A level of the machine that runs iterations.

    Attributes:
        name: "thread", "gpu_block", …
        thread_tags: axes that bind a loop to this level; empty where loop kinds do it.
        max_size: members per parent; 0 means unbounded.
    """

    name: str
    thread_tags: tuple[str, ...] = ()
    max_size: int = 0


class LaunchLimits(msgspec.Struct, frozen=True):
    """What one launch may ask for.

    Attributes:
        block_threads: threads per block; block: the same along x, y and z.
        grid: blocks along x, y and z.
        warp: threads that run in step.
        shared_bytes: shared memory per block, of fixed and of dynamic size together.
        thread_registers: 32-bit registers a thread can have; block_registers: all of a block's.
        local_bytes: private memory per thread, registers spilled included.
    """

    block_threads: int
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    warp: int
    shared_bytes: int
    thread_registers: int
    block_registers: int
    local_bytes: int


def cuda_limits(shared_bytes: int) -> LaunchLimits:
    """The limits common to all CUDA devices from compute capability 7.0 on."""
    return LaunchLimits(
        1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 32, shared_bytes, 255, 65536, 512 * 1024
    )


CPU_MEMORY: tuple[MemoryScope, ...] = (
    MemoryScope("global", "device"),
    MemoryScope("local", "thread", constant_size=True, max_bytes=32 * 1024),
)
"""`local` beyond its capacity becomes per-thread scratch, so that stacks stay small."""

TILE_SCOPE = "amx.tile"
TILE_BYTES = 1024  # 16 rows of 64 bytes
TILES = 8
TILE_MEMORY = MemoryScope(
    TILE_SCOPE, "thread", constant_size=True, max_bytes=TILES * TILE_BYTES, fragment=True
)
"""The tile registers of AMX."""

CPU_EXECUTION: tuple[ExecutionScope, ...] = (
    ExecutionScope("device"),
    ExecutionScope("thread"),
    ExecutionScope("lane"),
)

_FRAGMENTS = (
    "wmma.matrix_a",
    "wmma.matrix_b",
    "wmma.accumulator",
    "m16n8k8.matrixA",
    "m16n8k8.matrixB",
    "m16n8k8.matrixC",
    "mma.accumulator",
)


def gpu_memory(shared_bytes: int) -> tuple[MemoryScope, ...]:
    """Scopes of a GPU with the given shared memory per block."""
    return (
        MemoryScope("global", "device"),
        MemoryScope("shared", "gpu_block", constant_size=True, max_bytes=48 * 1024),
        MemoryScope("shared.dyn", "gpu_block", max_bytes=shared_bytes),
        MemoryScope("warp", "gpu_warp", constant_size=True),
        MemoryScope("local", "gpu_thread", constant_size=True, max_bytes=512 * 1024),
        *(MemoryScope(name, "gpu_warp", constant_size=True, fragment=True) for name in _FRAGMENTS),
    )


_declared: set[str] = {TILE_SCOPE, *_FRAGMENTS}
_ROOTS = ("global", "shared", "local", "warp")
SCOPES_HELP = (
    '"global", "shared", "local" and "warp", these with a suffix of your own such as '
    '"global.mine", and scopes that the target or a registered tensor intrinsic names'
)


def declare_scopes(names: Iterable[str]) -> None:
    """Make storage scopes known: those of a target's memory spaces and of tensor intrinsics."""
    _declared.update(names)


def is_known_scope(name: str) -> bool:
    """Whether there is a storage scope of that name.

    A suffix behind a dot makes a scope of one's own: "shared.mine" is shared like "shared".
    """
    root, *suffix = name.split(".")
    own = root in _ROOTS and all(part.isidentifier() for part in suffix)
    return own or name in _declared


def gpu_execution(cluster: int) -> tuple[ExecutionScope, ...]:
    """Execution scopes of a GPU whose clusters have at most `cluster` blocks; 1 for none."""
    block_axes = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
    thread_axes = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
    virtual_axes = ("vthread", "vthread.x", "vthread.y", "vthread.z")
    clusters = (ExecutionScope("gpu_cluster", max_size=cluster),) if cluster > 1 else ()
    return (
        ExecutionScope("device"),
        *clusters,
        ExecutionScope("gpu_block", block_axes),
        ExecutionScope("gpu_warp", max_size=32),
        ExecutionScope("gpu_thread", (*thread_axes, *virtual_axes), 1024),
    )
