"""The target record and its names.

Target("native")            this machine: features, caches, threads as the kernel reports them, of a
                            last cache what this process can count on
Target("x86-64-v3")         a level of the x86-64 ABI; also x86-64, -v2, -v4
Target("x86-64-v3+avxvnni") a level and more features
Target("aarch64+dotprod")   64-bit ARM
Target("cuda-sm_90a")       an NVIDIA GPU, described for schedules and validation
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from typing import Any

import msgspec

from blockwright.ir import DType, dtype_of
from blockwright.runtime.threads import allowed_processors
from blockwright.support import TargetError
from blockwright.support.kinds import require_kind
from blockwright.target import host
from blockwright.target.core import Core, core_of
from blockwright.target.features import (
    AARCH64_BASE,
    X86_LEVELS,
    known_features,
    vector_shape,
)
from blockwright.target.scopes import (
    CPU_EXECUTION,
    CPU_MEMORY,
    GPU_EXECUTION,
    ExecutionScope,
    LaunchLimits,
    MemoryScope,
    cuda_limits,
    gpu_memory,
)


class Cache(msgspec.Struct, frozen=True):
    """A cache level: capacity and line in bytes, ways, processors that share it."""

    size: int
    ways: int = 8
    line: int = 64
    shared_by: int = 1


_DEFAULT_CACHES = (Cache(32 * 1024), Cache(512 * 1024), Cache(8 << 20, 16, 64, 4))
_SM = re.compile(r"cuda-sm_(\d{2,3})a?\Z")
# Shared memory a block may ask for, by compute capability.
_SM_SHARED = {
    70: 98304,
    75: 65536,
    80: 166912,
    86: 101376,
    87: 166912,
    89: 101376,
    90: 232448,
    100: 232448,
    103: 232448,
    120: 101376,
}


@dataclasses.dataclass(frozen=True, init=False, eq=False)
class Target:
    """A machine to compile for; equal when everything that shapes code is equal.

    Args of the constructor:
        name: one of `target_names()`, optionally followed by "+feature" parts; or a `Target`.
        num_threads: threads a parallel loop may use; default: what the machine offers.
        core: what a core does per cycle; default: `core_of` the architecture and vector width.
        caches: data caches, first level first; default: this machine's, or common ones.

    Attributes:
        name: as given.
        kind: "cpu" or "cuda".
        arch: "x86_64", "aarch64" or "nvptx64".
        triple: target triple of the code generator.
        cpu: processor name for the code generator; "native" stands for `host_cpu_name()`.
        feature_set: feature names that hold.
        features: the same as the code generator's feature string ("+avx2,+fma").
        vector_bits, vector_registers: shape of the vector register file.
        fma: whether a fused multiply-add is one instruction.
        caches: data caches, first level first.
        core: what the cost model counts with; see `target.core`.
        memory_scopes, execution_scopes: see `target.scopes`.
        launch: what a kernel launch may ask for; None where there are no launches.

    Raises:
        TargetError BW650: unknown name; the message lists the known ones.
        TargetError BW651: a feature the architecture does not have.
    """

    name: str
    kind: str
    arch: str
    triple: str
    cpu: str
    feature_set: frozenset[str]
    features: str
    vector_bits: int
    vector_registers: int
    fma: bool
    num_threads: int
    caches: tuple[Cache, ...]
    core: Core
    memory_scopes: tuple[MemoryScope, ...]
    execution_scopes: tuple[ExecutionScope, ...]
    launch: LaunchLimits | None

    def __init__(
        self,
        name: str | Target = "native",
        *,
        num_threads: int | None = None,
        core: Core | None = None,
        caches: tuple[Cache, ...] | None = None,
    ) -> None:
        require_kind(
            name,
            (str, Target),
            "a target is a name or a Target",
            TargetError,
            "BW650",
            f"targets: {', '.join(target_names())}",
        )
        fields = dict(vars(name)) if isinstance(name, Target) else dict(_describe(name))
        if num_threads is not None:
            require_kind(
                num_threads,
                int,
                "num_threads is a number",
                TargetError,
                "BW652",
                "leave it out for the default",
            )
            if num_threads < 1:
                raise TargetError(
                    f"num_threads must be at least 1, got {num_threads}",
                    code="BW652",
                    help="leave it out for the default",
                )
            fields["num_threads"] = num_threads
        given = {"core": core, "caches": caches}
        fields |= {key: value for key, value in given.items() if value is not None}
        for key, value in fields.items():
            object.__setattr__(self, key, value)

    @property
    def key(self) -> tuple[str, str, str]:
        """What decides the code that comes out, apart from the program: triple, cpu, features."""
        return self.triple, self.cpu, self.features

    @property
    def is_host(self) -> bool:
        """Whether this machine can run the code."""
        return self.arch == host.host_arch() and self.feature_set <= host.host_features()

    def has(self, *features: str) -> bool:
        """Whether all the named features hold."""
        return self.feature_set.issuperset(features)

    @property
    def cheap_predication(self) -> bool:
        """Whether any instruction leaves lanes out at no cost. Without it, a store that does takes
        as long as a dozen whole ones on some processors."""
        return self.has("avx512f", "avx512vl")

    def lanes(self, dtype: DType | str) -> int:
        """Elements of a type per vector register."""
        return max(1, self.vector_bits // (dtype_of(dtype).nbytes * 8))

    def bytes_per_cycle(self, size: int) -> float:
        """What a core gets from the nearest cache behind the first that holds `size` bytes; else
        from memory, while all threads read."""
        for cache, rate in zip(self.caches[1:], self.core.cache_bandwidth, strict=False):
            if size <= cache.size:
                return rate
        return self.core.dram_bandwidth_per_core(self.num_threads)

    def cache(self, level: int) -> Cache:
        """The data cache of a level (1 is nearest); the last level where there are fewer."""
        return self.caches[min(level, len(self.caches)) - 1]

    def memory_scope(self, name: str) -> MemoryScope | None:
        """The row of a storage scope, or None where the machine has no such memory."""
        return next((scope for scope in self.memory_scopes if scope.name == name), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.name, self.key, self.num_threads))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Target({self.name!r})"


def last_cache_bytes() -> int:
    """Bytes of this machine's last cache, whoever else has a share of it: what is to lie in no
    cache has to be larger. A target's caches are those that its process can count on."""
    levels = host.host_caches() or _DEFAULT_CACHES
    return levels[-1].size


def target_names() -> tuple[str, ...]:
    """Names `Target` understands; CPU names take "+feature" parts."""
    gpus = (f"cuda-sm_{sm}" for sm in _SM_SHARED)
    return ("native", *X86_LEVELS, "aarch64", *gpus, "cuda-sm_90a", "cuda-sm_100a", "cuda-sm_120a")


@functools.cache
def _describe(name: str) -> dict[str, Any]:
    base, *extra = name.split("+")
    if base == "native":
        return _cpu(name, host.host_arch(), "native", host.host_features(), extra)
    if base in X86_LEVELS:
        return _cpu(name, "x86_64", base, frozenset(X86_LEVELS[base]), extra)
    if base == "aarch64":
        return _cpu(name, "aarch64", "generic", frozenset(AARCH64_BASE), extra)
    match = _SM.match(name)
    if match is not None and int(match[1]) in _SM_SHARED:
        return _gpu(name, int(match[1]))
    close = difflib.get_close_matches(base, target_names(), 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise TargetError(
        f"unknown target {name!r}", code="BW650", help=f"{hint}targets: {', '.join(target_names())}"
    )


def _cpu(
    name: str, arch: str, cpu: str, features: frozenset[str], extra: list[str]
) -> dict[str, Any]:
    unknown = [feature for feature in extra if feature not in known_features(arch)]
    if unknown:
        raise TargetError(
            f"{arch} has no feature {', '.join(map(repr, unknown))}",
            code="BW651",
            help=f"features: {', '.join(sorted(known_features(arch)))}",
        )
    features = features | frozenset(extra)
    bits, registers = vector_shape(arch, features)
    native = cpu == "native"
    processors = allowed_processors()
    levels = host.counted_on(host.host_caches(), processors) if native else ()
    caches = tuple(Cache(c.size, c.ways, c.line, c.shared_by) for c in levels)
    text = ",".join(f"+{feature}" for feature in sorted(features))
    if bits == 512:
        # Some processors' tuning splits 512-bit vectors in two; the programs chose them on purpose.
        text += ",-prefer-256-bit"
    return {
        "name": name, "kind": "cpu", "arch": arch, "triple": f"{arch}-unknown-linux-gnu",
        "cpu": cpu, "feature_set": features, "features": text, "vector_bits": bits,
        "vector_registers": registers, "fma": arch == "aarch64" or "fma" in features,
        "num_threads": processors, "caches": caches or _DEFAULT_CACHES,
        "core": core_of(arch, bits),
        "memory_scopes": CPU_MEMORY, "execution_scopes": CPU_EXECUTION,
        "launch": None,
    }  # fmt: skip


def _gpu(name: str, sm: int) -> dict[str, Any]:
    shared = _SM_SHARED[sm]
    return {
        "name": name, "kind": "cuda", "arch": "nvptx64", "triple": "nvptx64-nvidia-cuda",
        "cpu": name.removeprefix("cuda-"), "feature_set": frozenset[str](), "features": "",
        "vector_bits": 128, "vector_registers": 255, "fma": True, "num_threads": 1024,
        "caches": (Cache(shared, 4, 128), Cache(48 << 20, 16, 128, 1)),
        "core": core_of("nvptx64", 128),
        "memory_scopes": gpu_memory(shared), "execution_scopes": GPU_EXECUTION,
        "launch": cuda_limits(shared),
    }  # fmt: skip
