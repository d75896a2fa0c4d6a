"""Compile lowered programs into one linked library, using the object cache and compile workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from blockwright.build.cache import ObjectCache, cache_directory
from blockwright.build.worker import CompileJob
from blockwright.build.workers import POOL, WorkerPool
from blockwright.codegen.function import (
    FunctionCode,
    check_name,
    emit_function,
    symbol_of,
    written_parameters,
)
from blockwright.codegen.link.elf_arch import ARCHITECTURES
from blockwright.codegen.link.elf_object import machine_of
from blockwright.codegen.link.link import DataSegment, Image, LinkOptions, link
from blockwright.codegen.llvm import binding as llvm
from blockwright.codegen.llvm.calls import constant_symbol
from blockwright.codegen.rt.objects import LIBRARY_MODULE, objects_ir
from blockwright.codegen.rt.runtime import runtime_ir
from blockwright.codegen.rt.scratch_memory import scratch_ir
from blockwright.codegen.rt.threadpool import threadpool_ir
from blockwright.ir import IRModule, PrimFunc, Programs
from blockwright.ir.attributes import IS_PRIVATE
from blockwright.runtime.constants import owned
from blockwright.runtime.memory_use import WATCH
from blockwright.runtime.reclaim import IDLE_HOOKS
from blockwright.support import BuildError
from blockwright.target import Target, target_of

_Text = tuple[str, str, llvm.Pipeline, Target]
"""A module to compile: what it is, its text, its optimization pipeline, its target."""


class Compiled(msgspec.Struct, frozen=True, eq=False):
    """A compiled library and the parts it is linked from.

    Attributes:
        target: the target it was compiled for.
        units: one per distinct function; duplicates share code.
        objects: (name, object file) in link order; options: the options of the linker.
        constants: arrays of the program, by symbol; nobody can change them.
        image: the linked library with its constants; None for a processor that the linker does not
            support.
    """

    target: Target
    units: tuple[FunctionCode, ...]
    objects: tuple[tuple[str, bytes], ...]
    options: LinkOptions
    constants: dict[str, NDArray[Any]]
    image: Image | None

    @property
    def library(self) -> Image:
        """The linked library. Raises: BuildError BW666 when the target cannot be linked."""
        if self.image is None:
            raise BuildError(
                f"cannot link a library for {self.target.name}",
                code="BW666",
                help="read its code with source(), or link compiled.objects elsewhere",
            )
        return self.image

    @property
    def targets(self) -> tuple[Target, ...]:
        """The target, and others that programs name; all of them have to run."""
        return tuple(dict.fromkeys((self.target, *(unit.target for unit in self.units))))

    @property
    def runs_here(self) -> bool:
        """Whether this machine can run the code."""
        return all(target.is_host for target in self.targets)

    @property
    def unit_objects(self) -> tuple[tuple[str, bytes], ...]:
        """The objects of the functions, without those that all libraries have in common."""
        return self.objects[: len(self.units)]

    @property
    def segments(self) -> tuple[DataSegment, ...]:
        """Constants as data segments of a library, written without an intermediate copy."""
        return segments_of(self.constants)


def compile_lowered(
    module: IRModule,
    target: Target,
    *,
    cache: ObjectCache | None = None,
    pool: WorkerPool | None = None,
    soname: str | None = None,
) -> Compiled:
    """Compile and link all tensor programs of a lowered module.

    Raises: BuildError (BW6xx); TargetError for a target other than a CPU.
    """
    if target.kind != "cpu":
        raise BuildError(
            f"cannot link a library for {target.name}", code="BW602", help="choose a CPU target"
        )
    units = emit_units(module, target)
    texts: list[_Text] = [(u.name, u.text, u.pipeline, u.target) for u in units]
    support = _support(units, target)
    texts += support
    objects = _compile(texts, cache or ObjectCache(cache_directory()), pool or POOL)
    exports = [*(u.entry for u in units if u.entry), *_hooks(support)]
    options = LinkOptions(exports=exports, soname=soname)
    arrays: Mapping[str, NDArray[Any]] = module.attrs.get("constants", {})
    constants = owned({constant_symbol(name): array for name, array in arrays.items()})
    known = all(machine_of(data) in ARCHITECTURES for _, data in objects)
    image = link(objects, options, segments_of(constants)) if known else None
    return Compiled(target, tuple(units), tuple(objects), options, constants, image)


def emit_units(module: IRModule, target: Target) -> list[FunctionCode]:
    """Emit LLVM text for every distinct function; merge structurally equal private functions."""
    functions = {n: f for n, f in module.functions.items() if isinstance(f, PrimFunc)}
    written = written_parameters(module)
    callees: dict[str, str] = {}
    kept: dict[str, PrimFunc] = {}
    private = Programs()
    for name, func in functions.items():
        check_name(name)
        twin = None
        if func.attrs.get(IS_PRIVATE, False):
            twin = private.equal_to(func)
            if twin is None:
                private.add(name, func)
        callees[name] = callees[twin] if twin is not None else symbol_of(name)
        if twin is None:
            kept[name] = func
    return [
        emit_function(
            func, name, target_of(func, target), callees=callees, written=sorted(written[name])
        )
        for name, func in kept.items()
    ]


def compile_support(
    units: Sequence[FunctionCode],
    target: Target,
    more: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[tuple[str, bytes]], list[str]]:
    """Compile the support code that these functions need, and `more` modules of it by name.

    Returns the objects, and the names that the library exports for `blockwright.runtime`.
    """
    texts = _support(units, target)
    for name, text in more.items():
        texts.append((name, text, "host", target))
    return _compile(texts, ObjectCache(cache_directory()), POOL), _hooks(texts)


def _hooks(support: Sequence[_Text]) -> list[str]:
    """Symbols of the support code that `blockwright.runtime` and `tvm_ffi` use."""
    texts = "".join(text for _, text, _, _ in support)
    names = {name: f'@"{name}"(' for name in (*IDLE_HOOKS, WATCH)}
    names[LIBRARY_MODULE] = f'@"{LIBRARY_MODULE}"'
    return [name for name, mention in names.items() if mention in texts]


def _support(units: Sequence[FunctionCode], target: Target) -> list[_Text]:
    """Shared support code of a library: results and errors, scratch memory, the thread pool."""
    parts: list[_Text] = [("blockwright.runtime", runtime_ir(target), "host", target)]
    if any("@bw_scratch_acquire(" in u.text for u in units):
        parts.append(("blockwright.scratch", scratch_ir(target), "host", target))
    if any("@bw_object_" in u.text or "@bw_closure_make" in u.text for u in units):
        parts.append(("blockwright.objects", objects_ir(target), "host", target))
    if any("@bw_parallel_for(" in u.text for u in units):
        parts.append(("blockwright.threads", threadpool_ir(target), "host", target))
    return parts


def _compile(
    texts: Sequence[_Text], cache: ObjectCache, pool: WorkerPool
) -> list[tuple[str, bytes]]:
    version = (llvm.llvm_version(), str(llvm.EMITTER_VERSION))
    jobs = [
        CompileJob(name, text, target.triple, llvm.cpu_name(target), target.features, pipeline)
        for name, text, pipeline, target in texts
    ]
    keys = [
        ObjectCache.key(j.text, j.pipeline, j.triple, j.cpu, j.features, *version) for j in jobs
    ]
    result = [cache.get(key) for key in keys]
    missing = [i for i, data in enumerate(result) if data is None]
    for index, data in zip(missing, pool.run([jobs[i] for i in missing]), strict=True):
        result[index] = data
        cache.put(keys[index], data)
    return [(job.what, data) for job, data in zip(jobs, result, strict=True) if data]


def segments_of(constants: Mapping[str, NDArray[Any]]) -> tuple[DataSegment, ...]:
    """Data segments that hold these arrays, by symbol."""
    return tuple(
        DataSegment(symbol, array.reshape(-1).view(np.uint8).data)
        for symbol, array in constants.items()
    )
