"""`build` and the callable module it returns."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from numpy.typing import NDArray

from blockwright.analysis import find_violations
from blockwright.build.call_checks import with_call_checks
from blockwright.build.compile import Compiled, compile_lowered, segments_of
from blockwright.build.compile_cache import CompileCache
from blockwright.build.dump import PassDump, dump_directory
from blockwright.build.several_targets import shared_library, targets_of
from blockwright.build.steps import each
from blockwright.codegen.abi.artefact import write_artefact
from blockwright.codegen.function import FunctionCode
from blockwright.codegen.link.link import link
from blockwright.codegen.listing import own_code
from blockwright.codegen.llvm import binding as llvm
from blockwright.graph import check_graph
from blockwright.graph.program_calls import call_problems
from blockwright.ir import GraphFunction, IRModule, Node, PrimFunc
from blockwright.ir.fields import field_problems
from blockwright.lower import LowerOptions, OnPass, lower
from blockwright.runtime.arguments import NativeFunction
from blockwright.runtime.artefact import Metadata
from blockwright.runtime.constants import Constants
from blockwright.runtime.cpu import request_tiles
from blockwright.runtime.library import Library, load_image
from blockwright.support import BuildError, OptionError, ValidationError
from blockwright.support.kinds import require_kind
from blockwright.support.uncopied import Uncopied
from blockwright.target import Target, target_of


class Timing(msgspec.Struct, frozen=True):
    """Seconds per call: the median and the minimum of the samples, and the samples."""

    median: float
    min: float
    samples: tuple[float, ...]


class Module(Uncopied):
    """Compiled functions, callable by name on NumPy, torch and other DLPack arrays.

    Attributes: `target`; `compiled` (units, objects, image); `program`, the source program, and
    `lowered`, its flat form; `several`: the code of each target where there are several, of which
    `target` is the one that runs here.
    """

    instead = "build its program where it is needed (programs can be pickled), or save a model"

    def __init__(
        self,
        program: IRModule,
        compiled: Compiled,
        lowered: IRModule | None = None,
        several: tuple[Compiled, ...] = (),
    ) -> None:
        self.several = several
        self.program, self.compiled, self.target = program, compiled, compiled.target
        self.lowered = lowered or program
        self._functions: dict[str, NativeFunction] = {}
        self._library: Library | None = None

    @property
    def library_bytes(self) -> bytes:
        """The shared library with the code of all targets, loadable by plain
        `tvm_ffi.load_module`."""
        image = shared_library(self.several).image() if self.several else self.compiled.library
        return image.tobytes()

    def names(self) -> tuple[str, ...]:
        """Names of the callable functions."""
        return tuple(u.name for u in self.compiled.units if u.entry is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def __getitem__(self, name: str) -> NativeFunction:
        """The function named `name`. Raises: BuildError BW603."""
        result = self._functions.get(name)
        if result is not None:
            return result
        unit = next((u for u in self.compiled.units if u.name == name and u.entry), None)
        if unit is None:
            raise BuildError(
                f"the module has no function {name!r}",
                code="BW603",
                help=f"functions: {', '.join(self.names()) or 'none'}",
            )
        library = self.loaded()
        function = NativeFunction(
            library.function(name),
            name,
            unit.parameters,
            unit.written,
            unit.results,
            library,
            scalars=unit.scalars,
            strided=unit.strided,
        )
        self._functions[name] = function
        return function

    def entry(self, name: str) -> Any:
        """The FFI function named `name`, as the library exports it."""
        return self.loaded().function(name)

    def save(
        self,
        path: str | os.PathLike[str],
        metadata: Metadata,
        data: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    ) -> int:
        """Write the library, its constants and the metadata as an artefact; return its size.

        Arguments: `data` are further arrays, by symbol.

        Raises: ArtefactError (BW805) when the file cannot be written; no partial file is left.
        """
        compiled = self.compiled
        first = segments_of(data)
        if self.several:
            joined = shared_library(self.several)
            segments = (*first, *joined.segments)
            return write_artefact(
                path, joined.objects, joined.options, metadata, segments, joined.parts
            )
        _ = compiled.library  # raises when the target cannot be linked
        segments = (*first, *compiled.segments)
        return write_artefact(path, compiled.objects, compiled.options, metadata, segments)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the only function of the module."""
        names = self.names()
        if len(names) != 1:
            raise BuildError(
                f"the module has {len(names)} functions",
                code="BW607",
                help='call one by name: module["name"](…)',
            )
        return self[names[0]](*args, **named)

    def loaded(self) -> Library:
        """The library, loaded in this process.

        Raises: BuildError BW604 for a foreign target, or if tiles of AMX are not permitted.
        """
        if self._library is None:
            foreign = [t for t in self.compiled.targets if not t.is_host]
            if foreign:
                built = [each.target for each in self.several] if self.several else foreign
                lacking = ", ".join(sorted({f for t in foreign for f in t.missing_here}))
                raise BuildError(
                    f"code for {', '.join(t.name for t in built)} does not run on this machine"
                    + f", which lacks {lacking}" * bool(lacking),
                    code="BW604",
                    help='build for target="native"; programs are built for any machine and shown '
                    "by source(), models are compiled on a machine that runs them",
                )
            tiles = any("@llvm.x86.ldtilecfg" in u.text for u in self.compiled.units)
            if tiles and not request_tiles():
                raise BuildError(
                    f"the system does not let this process use the AMX tiles of {self.target.name}",
                    code="BW604",
                    help="Linux 5.16 or later grants them; choose a target without amx-tile",
                )
            self._library = self._load()
        return self._library

    def _load(self) -> Library:
        """Load the library. Its constants stay in place; the loaded code holds their addresses."""
        compiled = self.compiled
        if not compiled.constants:
            return load_image(compiled.library.tobytes())
        constants = Constants(compiled.constants)
        image = link(compiled.objects, compiled.options, numbers=constants.addresses)
        return load_image(image.tobytes(), constants=constants)

    def source(self, kind: str = "llvm", name: str | None = None, *, complete: bool = False) -> str:
        """Source of one function or all: "llvm", "asm", "tir" as given, "lowered" to flat loops.

        "asm" shows the code of the functions themselves; with `complete`, also the exported entries
        that check call arguments, and their error messages.
        """
        units = [u for u in self.compiled.units if name is None or u.name == name]
        if not units:
            raise BuildError(f"the module has no function {name!r}", code="BW603")
        if kind == "tir":
            chosen = [self.program[u.name] for u in units]
            return "\n\n".join(f.script() for f in chosen)
        if kind == "lowered":
            return "\n\n".join(repr(self.lowered[u.name]) for u in units)
        if kind == "llvm":
            return "\n".join(u.text for u in units)
        if kind == "asm":
            texts = (self._assembly(u) for u in units)
            shown = (
                text if complete else own_code(text, u.symbol)
                for u, text in zip(units, texts, strict=True)
            )
            return "\n".join(shown)
        raise BuildError(
            f"no source of kind {kind!r}",
            code="BW605",
            help='choose "llvm", "asm", "lowered" or "tir"',
        )

    def _assembly(self, unit: FunctionCode) -> str:
        target = unit.target
        cpu = llvm.cpu_name(target)
        return llvm.compile_assembly(
            unit.text, target.triple, cpu, target.features, unit.pipeline, unit.name
        )

    def benchmark(self, name: str, *args: Any, repeat: int = 15, min_time: float = 0.005) -> Timing:
        """Time calls: `repeat` samples, each of enough calls to last `min_time` seconds."""
        function = self[name]
        function(*args)
        number = 1
        while True:
            start = time.perf_counter()
            for _ in range(number):
                function(*args)
            spent = time.perf_counter() - start
            if spent >= min_time:
                break
            number = max(number * 2, int(number * min_time / max(spent, 1e-9)))
        samples: list[float] = []
        for _ in range(repeat):
            start = time.perf_counter()
            for _ in range(number):
                function(*args)
            samples.append((time.perf_counter() - start) / number)
        return Timing(statistics.median(samples), min(samples), tuple(samples))


def as_module(program: PrimFunc | IRModule) -> IRModule:
    """Wrap a function in a module. Raises: BuildError BW606 for any other type."""
    if isinstance(program, PrimFunc):
        return IRModule({program.name: program})
    if not isinstance(program, IRModule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BuildError(
            f"cannot build a {type(program).__name__}",
            code="BW606",
            help="pass a tensor program or a module of them; for a schedule, its .func or .mod",
        )
    return program


def lowered_program(func: PrimFunc, target: Target, options: LowerOptions) -> PrimFunc:
    """Validate and lower a program. Raises: ValidationError: BW2xx, with all its problems."""
    problems = find_violations(func, target_of(func, target))
    if problems:
        raise ValidationError.collect(problems)
    return lower(func, target, options=options)


def joined(modules: Sequence[Module]) -> Module:
    """One program's modules for several targets, the best first, as one module, which runs the
    first code that this machine can run."""
    if len(modules) == 1:
        return modules[0]
    chosen = next((m for m in modules if m.compiled.runs_here), modules[-1])
    several = tuple(module.compiled for module in modules)
    return Module(chosen.program, chosen.compiled, chosen.lowered, several)


def build(
    program: PrimFunc | IRModule,
    target: str | Target | Sequence[str | Target] = "native",
    *,
    soname: str | None = None,
    sanitize: Sequence[str] = (),
    on_pass: OnPass | None = None,
    compile_cache: CompileCache | None = None,
) -> Module:
    """Compile a tensor program, or a module of them, to native code.

    Args:
        program: scheduled or not; with or without blocks.
        target: a `Target` or its name. Of several, this process runs the best that its processor
            supports, and the library (`library_bytes`) has the code of all of them and chooses
            where it is loaded.
        sanitize: run-time checks that abort a call with an error: "bounds" (BW713, an access
            outside its buffer; BW717, a buffer with a negative extent), "nan" (BW714, a NaN
            stored), "uninit" (BW715, a read of an uninitialized element).
        on_pass: called as `on_pass(name, before, after)` after every lowering pass. With
            BLOCKWRIGHT_DUMP_DIR set, the programs are written there too (see `dump`).
        compile_cache: cache of validated and lowered programs; it is bypassed when passes are
            observed or dumped.

    Raises:
        ValidationError: BW2xx, all problems of the program; see `bw.validate`.
        BuildError: BW6xx, naming the function and the rule.
        OptionError: BW917 for an unknown sanitizer.
        ArtefactError: BW845 for targets that cannot share a library.
    """
    given: Any = program
    if compile_cache is None and isinstance(given, Node) and (wrong := field_problems(given)):
        raise ValidationError.collect(wrong)
    module = as_module(program)
    targets = targets_of(target)
    require_kind(
        sanitize,
        (tuple, list, set, frozenset),
        "sanitize must be a list of names",
        OptionError,
        "BW917",
        'write sanitize=["bounds"]',
    )
    options = LowerOptions(tuple(sanitize))
    return joined([_build(module, t, options, soname, on_pass, compile_cache) for t in targets])


def _build(
    module: IRModule,
    target: Target,
    options: LowerOptions,
    soname: str | None,
    on_pass: OnPass | None,
    compile_cache: CompileCache | None,
) -> Module:
    """Compile a module for one target; see `build`."""
    directory = dump_directory()
    for function in module.functions.values():
        if isinstance(function, GraphFunction):
            check_graph(function, module, target.kind)
    programs = {n: f for n, f in module.functions.items() if isinstance(f, PrimFunc)}
    cache = None if on_pass is not None or directory is not None else compile_cache
    if cache is None:
        own = [(func, target_of(func, target)) for func in programs.values()]
        problems = [p for func, machine in own for p in find_violations(func, machine)]
        if problems:
            raise ValidationError.collect(problems)
    wrong_calls = call_problems(module)
    if wrong_calls:
        raise ValidationError.collect(wrong_calls)
    bounds = "bounds" in options.sanitize
    checked = {n: with_call_checks(f, programs, bounds) for n, f in programs.items()}
    result: dict[str, Any] = {}
    if cache is None:
        for name, func in checked.items():
            watch = on_pass if directory is None else PassDump(directory / name, on_pass)
            result[name] = lower(func, target, options=options, on_pass=watch)
    else:
        result = each(lowered_program, checked, target, options, cache)
    lowered = module.replace(functions={**module.functions, **result})
    return Module(module, compile_lowered(lowered, target, soname=soname), lowered)
