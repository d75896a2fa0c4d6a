"""The target record, its names, and the registry of targets from outside.

Target("native")            this machine: features, caches, threads as the kernel reports them, of a
                            last cache what this process can count on
Target("x86-64-v3")         a level of the x86-64 ABI; also x86-64, -v2, -v4
Target("x86-64-v3+avxvnni") a level and more features
Target("aarch64+dotprod")   64-bit ARM
Target("cuda-sm_90a")       an NVIDIA GPU, described for schedules and validation
Target.register(name, ...)  a machine of one's own: a CPU with more units and memories

`print(Target(...).describe())` lists all that is known of a machine, with units and sources.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from typing import Any

from blockwright.ir import DType, dtype_of
from blockwright.runtime.cpu_features import known_features
from blockwright.runtime.threads import allowed_processors
from blockwright.support import TargetError
from blockwright.support.kinds import require_kind
from blockwright.target import host
from blockwright.target.core import Core, core_of
from blockwright.target.description import describe
from blockwright.target.features import AARCH64_BASE, X86_LEVELS
from blockwright.target.gpu import MULTIPROCESSORS, Multiprocessors
from blockwright.target.isa import VectorISA, vector_isa
from blockwright.target.memory import Cache, MemorySpace, cpu_spaces, gpu_spaces, scope_of
from blockwright.target.scopes import (
    CPU_EXECUTION,
    CPU_MEMORY,
    TILE_MEMORY,
    TILE_SCOPE,
    ExecutionScope,
    LaunchLimits,
    MemoryScope,
    cuda_limits,
    declare_scopes,
    gpu_execution,
    gpu_memory,
)
from blockwright.target.units import ComputeUnit, cpu_units, fastest_first, gpu_units

_DEFAULT_CACHES = (Cache(32 * 1024), Cache(512 * 1024), Cache(8 << 20, 16, 64, 4))
_NAME = re.compile(r"[\w.-]+\Z")
_registered: dict[str, Target] = {}
_SM = re.compile(r"cuda-sm_(\d{2,3})a?\Z")


@dataclasses.dataclass(frozen=True, init=False, eq=False)
class Target:
    """A machine to compile for; equal when everything that shapes code is equal.

    Args of the constructor:
        name: one of `target_names()`, optionally followed by "+feature" parts; or a `Target`.
        num_threads: threads that schedules are planned for; default: what the machine offers. How
            many run is up to the process: `bw.set_num_threads`.
        core: figures of a CPU core; default: `core_of` the architecture and vector width.
        caches: data caches, first level first; default: this machine's, or common ones.
        device: index of the device among those of its kind.
        units: compute units beside those of the CPU, one set per core.
        spaces: memories of these units, one set per core, each with a storage scope of its own.

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
        compute_capability: of a GPU, without the dot; 0 for CPUs.
        device: index of the device among those of its kind, as in DLPack.
        memory_scopes, execution_scopes: see `target.scopes`.
        launch: what a kernel launch may ask for; None where there are no launches.
        own_units, own_spaces: what `units` and `spaces` added.

    Raises:
        TargetError BW650: unknown name; the message lists the known ones.
        TargetError BW651: a feature the architecture does not have.
        TargetError BW655: a unit or memory space that the target cannot have.
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
    compute_capability: int
    device: int
    memory_scopes: tuple[MemoryScope, ...]
    execution_scopes: tuple[ExecutionScope, ...]
    launch: LaunchLimits | None
    own_units: tuple[ComputeUnit, ...]
    own_spaces: tuple[MemorySpace, ...]

    def __init__(
        self,
        name: str | Target = "native",
        *,
        num_threads: int | None = None,
        core: Core | None = None,
        caches: tuple[Cache, ...] | None = None,
        device: int | None = None,
        units: tuple[ComputeUnit, ...] = (),
        spaces: tuple[MemorySpace, ...] = (),
    ) -> None:
        require_kind(
            name,
            (str, Target),
            "a target is a name or a Target",
            TargetError,
            "BW650",
            f"targets: {', '.join(target_names())}",
        )
        known = name if isinstance(name, Target) else _registered.get(name)
        fields = dict(_describe(name) if known is None else vars(known))
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
        if device is not None:
            remedy = "devices of a kind are counted from 0"
            what = "device is the index of a device"
            require_kind(device, int, what, TargetError, "BW653", remedy)
            if device < 0:
                raise TargetError(f"{what}, got {device}", code="BW653", help=remedy)
        given = {"_core": core, "caches": caches, "device": device}
        fields |= {key: value for key, value in given.items() if value is not None}
        if units or spaces:
            _require_fit(fields, spaces)
            fields["own_units"] += tuple(units)
            fields["own_spaces"] += tuple(spaces)
            fields["memory_scopes"] += tuple(scope_of(space) for space in spaces)
        declare_scopes(space.scope for space in fields["own_spaces"])
        for key, value in fields.items():
            object.__setattr__(self, key, value)

    @staticmethod
    def register(name: str, target: Target, *, override: bool = False) -> Target:
        """Give a target a name of its own, under which `Target(name)` finds it.

        Raises:
            TargetError BW656: the name is taken, or is not a word of letters, digits, "-", "_"
                and ".".
        """
        taken = name in target_names() and not (override and name in _registered)
        if taken or not _NAME.match(name):
            why = "it is taken" if taken else 'names are words of letters, digits, "-", "_", "."'
            raise TargetError(
                f"a target cannot be registered as {name!r}: {why}",
                code="BW656",
                help="choose another name; override=True replaces a registered target",
            )
        result = Target(target)
        object.__setattr__(result, "name", name)
        _registered[name] = result
        return result

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled target; its scopes become known in this process too."""
        vars(self).update(state)
        declare_scopes(space.scope for space in self.own_spaces)

    @property
    def key(self) -> tuple[str, str, str]:
        """What decides the code that comes out, apart from the program: triple, cpu, features."""
        return self.triple, self.cpu, self.features

    @property
    def is_host(self) -> bool:
        """Whether this machine can run the code."""
        return self.arch == host.host_arch() and self.feature_set <= host.host_features()

    @property
    def missing_here(self) -> list[str]:
        """Features that this machine's processor lacks; empty for another architecture too."""
        lacking = self.feature_set - host.host_features()
        return sorted(lacking) if self.arch == host.host_arch() else []

    def has(self, *features: str) -> bool:
        """Whether all the named features hold."""
        return self.feature_set.issuperset(features)

    @property
    def core(self) -> Core:
        """Figures of one CPU core. Raises: TargetError BW654 for a GPU; see `gpu`."""
        core: Core | None = vars(self)["_core"]
        if core is None:
            raise TargetError(
                f"{self.name} has no CPU cores",
                code="BW654",
                help="figures of a GPU: target.gpu, target.compute_units, target.memory_spaces",
            )
        return core

    @property
    def gpu(self) -> Multiprocessors | None:
        """Figures of a GPU; None for CPUs."""
        return MULTIPROCESSORS.get(self.compute_capability)

    @property
    def isa(self) -> VectorISA | None:
        """The vector instructions of a CPU; None for GPUs."""
        return vector_isa(self.arch, self.feature_set) if self.kind == "cpu" else None

    @property
    def compute_units(self) -> tuple[ComputeUnit, ...]:
        """Multiply-accumulate instructions of one core or multiprocessor, the fastest first."""
        if self.compute_capability:
            return gpu_units(self.compute_capability)
        units = cpu_units(self.arch, self.feature_set, self.vector_bits, self.core.arithmetic)
        return fastest_first((*self.own_units, *units))

    @property
    def memory_spaces(self) -> tuple[MemorySpace, ...]:
        """The memory hierarchy with size, bandwidth, latency and sharing, nearest first; the
        memories of the target's own units come before those of the core."""
        gpu, isa = self.gpu, self.isa
        if gpu is not None:
            return gpu_spaces(gpu)
        assert isa is not None
        tiles = self.memory_scope(TILE_SCOPE) is not None
        core = cpu_spaces(self.core, isa, self.caches, self.num_threads, tiles)
        return (*self.own_spaces, *core)

    @property
    def cheap_predication(self) -> bool:
        """Whether masks on loads and stores are free."""
        return self.isa is not None and self.isa.masked_store_cycles == 0

    @property
    def private_caches(self) -> int:
        """Number of cache levels that a core shares with no other core; never all of them."""
        first, *others = (cache.shared_by for cache in self.caches[:-1] or self.caches)
        return 1 + sum(number == first for number in others)

    def describe(self) -> str:
        """All figures as a table: units, memory, levels, costs, and where they come from."""
        return describe(self)

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
    """Names `Target` understands; CPU names that are not registered take "+feature" parts."""
    gpus = (f"cuda-sm_{sm}" for sm in MULTIPROCESSORS)
    newest = ("cuda-sm_90a", "cuda-sm_100a", "cuda-sm_120a")
    return ("native", *X86_LEVELS, "aarch64", *gpus, *newest, *_registered)


def _require_fit(fields: dict[str, Any], spaces: tuple[MemorySpace, ...]) -> None:
    """Require that a target can have these memory spaces beside its own, and units at all."""
    problem, remedy = "", "units and spaces extend a CPU, which runs the code around them"
    if fields["kind"] != "cpu":
        problem = f"{fields['name']} is not a CPU"
    taken = {scope.name for scope in fields["memory_scopes"]}
    for space in spaces:
        if not all(part.isidentifier() for part in space.scope.split(".")):
            problem = f"memory space {space.name!r} has the storage scope {space.scope!r}"
            remedy = 'a scope is a name, such as "unit.acc"'
        elif space.scope in taken:
            problem = f"memory space {space.name!r}: there is a storage scope {space.scope!r}"
            remedy = "give each memory space a scope of its own"
        taken.add(space.scope)
    if problem:
        raise TargetError(problem, code="BW655", help=remedy)


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
    if match is not None and int(match[1]) in MULTIPROCESSORS:
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
    isa = vector_isa(arch, features)
    bits = isa.bits
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
        "vector_registers": isa.registers, "fma": arch == "aarch64" or "fma" in features,
        "num_threads": processors, "caches": caches or _DEFAULT_CACHES,
        "_core": core_of(arch, bits, features), "compute_capability": 0, "device": 0,
        "memory_scopes": (*CPU_MEMORY, *[TILE_MEMORY] * ("amx-tile" in features)),
        "execution_scopes": CPU_EXECUTION,
        "launch": None, "own_units": (), "own_spaces": (),
    }  # fmt: skip


def _gpu(name: str, sm: int) -> dict[str, Any]:
    gpu = MULTIPROCESSORS[sm]
    return {
        "name": name, "kind": "cuda", "arch": "nvptx64", "triple": "nvptx64-nvidia-cuda",
        "cpu": name.removeprefix("cuda-"), "feature_set": frozenset[str](), "features": "",
        "vector_bits": 128, "vector_registers": 255, "fma": True, "num_threads": 1,
        "caches": (Cache(gpu.shared_bytes, 4, 128), Cache(gpu.l2_bytes, 16, 128, gpu.count)),
        "_core": None, "compute_capability": sm, "device": 0,
        "memory_scopes": gpu_memory(gpu.block_shared_bytes),
        "execution_scopes": gpu_execution(gpu.cluster),
        "launch": cuda_limits(gpu.block_shared_bytes), "own_units": (), "own_spaces": (),
    }  # fmt: skip
