"""`CompiledModel`: an executable with the intermediate programs and traces of its compilation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Literal

import msgspec
import numpy as np

from blockwright import ir
from blockwright.analysis.calling_convention import calling_convention
from blockwright.api.description import describe, describe_several
from blockwright.api.proofs import Proofs
from blockwright.api.state import initial_state, stored_state
from blockwright.arith import simplify
from blockwright.build import Module, build
from blockwright.build.module import joined
from blockwright.cost import estimate
from blockwright.frontend.fallback import fallbacks
from blockwright.ir.attributes import IS_LIBRARY, IS_SCHEDULED
from blockwright.measure import known_roofline
from blockwright.passes import PassContext
from blockwright.passes.host.instrument_host import instrument_host, timed_calls
from blockwright.passes.host.size_text import size_text
from blockwright.passes.library.python_functions import PYTHON_FUNCTIONS
from blockwright.passes.report import PassReport
from blockwright.passes.work import work_of
from blockwright.runtime.arguments import NativeFunction
from blockwright.runtime.artefact import ExportedFunction, Metadata, require_path
from blockwright.runtime.entry_point import EntryPoint
from blockwright.runtime.executable import Executable
from blockwright.runtime.profile import (
    KernelCall,
    Profile,
    TimedRun,
    middle_half,
    timed_parts,
)
from blockwright.runtime.roofline import Roofline
from blockwright.runtime.sizes import bind_symbols, evaluate_size
from blockwright.runtime.state import State, StatefulFunction
from blockwright.runtime.threads import num_threads
from blockwright.support import ArgumentError, ArtefactError, OptionError
from blockwright.support.kinds import require_kind
from blockwright.support.suggest import choices
from blockwright.target import target_of

# Stage name of `show` → pass whose output it shows.
SHOWN = {
    "graph": "graph",
    "libraries": "lower_to_libraries",
    "layout": "channels_last",
    "programs": "fuse_tir",
    "schedule": "schedule_programs",
    "packed": "fold_packing",
    "host": "lower_host",
}


class Compilation(msgspec.Struct, frozen=True, eq=False):
    """What a compilation keeps to explain and profile its result; see `CompiledModel`.

    The functions of a model share it and do not refer to the model, whose memory is released when
    the last of them is dropped.
    """

    library: Module
    lowered: ir.IRModule
    context: PassContext
    stages: dict[str, ir.IRModule]


class CompiledEntry(EntryPoint):
    """A function of a model that was compiled in this process; it can be profiled."""

    def __init__(
        self,
        metadata: Metadata,
        signature: ExportedFunction,
        compilation: Compilation,
        state: State,
    ) -> None:
        super().__init__(compilation.library.loaded(), metadata, signature, state)
        self._compiled = compilation
        self._timed: NativeFunction | StatefulFunction | None = None

    @property
    def _host(self) -> ir.PrimFunc:
        return self._compiled.lowered[self.signature.name]

    def profile(self, *inputs: Any, repeat: int = 5, roofline: Roofline | None = None) -> Profile:
        """Time every part of a call, `repeat` times after one warm-up call.

        `print(profile)` shows a table; `profile.save_trace(path)` writes a trace for viewers. The
        first profile builds a second host program that reads the clock between kernels; the
        kernels come from the object cache. Timed calls alternate with calls of the uninstrumented
        model, whose mean time is the reported latency.

        The profile also has the time that the cost model predicts for each kernel, with all data
        in the caches where an earlier call leaves it (`blockwright.cost.estimate`), and compares
        each kernel with `roofline`. By default, this process measures the machine once per number
        of threads; if the machine's speed drifts, pass a fresh `bw.measure_roofline()`.
        The state is afterwards as it was before.

        Raises: ArgumentError as for a call; OptionError (BW906) if `repeat` is less than 1.
        """
        if repeat < 1:
            raise OptionError(f"repeat must be at least 1, got {repeat}", code="BW906")
        with self._state.unchanged():
            return self._profile(inputs, repeat, roofline)

    def _profile(self, inputs: tuple[Any, ...], repeat: int, roofline: Roofline | None) -> Profile:
        self(*inputs)
        inputs = self._tensors(inputs, {})
        timed = self._timed_function()
        before = timed.copies
        self._timed_call(timed, inputs)
        copies = timed.copies - before
        runs: list[TimedRun] = []
        whole: list[float] = []
        for _ in range(repeat):
            start = perf_counter_ns()
            self(*inputs)
            whole.append(perf_counter_ns() - start)
            runs.append(self._timed_call(timed, inputs))
        latencies = middle_half(whole, float)
        shapes = [tuple(int(d) for d in x.shape) for x in self._forms.stored(inputs)]
        calls, overhead = timed_parts(self._calls(shapes), runs)
        return Profile(
            calls,
            tuple("×".join(map(str, s)) for s in shapes),
            repeat,
            copies,
            overhead,
            latency=sum(latencies) / len(latencies) * 1e-9,
            roofline=roofline or known_roofline(num_threads()),
        )

    def estimate(self, *inputs: Any) -> float:
        """Predict the time in seconds that the kernels of a call take, with the cost model.

        Runs nothing and uses only the shapes of the inputs. `profile` shows the prediction for
        each kernel beside its measured time.

        Raises: ArgumentError (BW701, BW704) if the number of inputs or a shape does not fit.
        """
        parameters = self.signature.parameters
        if len(inputs) != len(parameters):
            raise ArgumentError(
                f"{len(inputs)} arguments for {len(parameters)} parameters",
                code="BW701",
                help=repr(self),
            )
        counted = [
            (*map(int, x.shape), *((2,) if p.paired and len(x.shape) < len(p.shape) else ()))
            for p, x in zip(parameters, inputs, strict=True)
        ]
        values = bind_symbols([(p.shape, s) for p, s in zip(parameters, counted, strict=True)])
        for parameter, shape in zip(parameters, counted, strict=True):
            if shape != tuple(evaluate_size(d, values) for d in parameter.shape):
                wanted = ", ".join(map(str, parameter.shape))
                raise ArgumentError(
                    f"argument `{parameter.name}` has the shape {shape}",
                    code="BW704",
                    help=f"pass one of shape ({wanted})",
                )
        stored = [tuple(int(d) for d in x.shape) for x in self._forms.stored(inputs)]
        return sum(call.predicted for call in self._calls(stored)) * 1e-9

    def _timed_function(self) -> NativeFunction | StatefulFunction:
        """Return the model instrumented with clock readings; built on first use."""
        if self._timed is None:
            name, model = self.signature.name, self._compiled
            context = model.context
            functions = dict(model.lowered.functions)
            functions[name] = instrument_host(self._host)
            library = build(
                model.lowered.replace(functions=functions),
                context.target,
                sanitize=context.options.get("sanitize", ()),
                compile_cache=context.compile_cache,
            )
            self._timed = self._with_state(library.entry(name), library.loaded(), results=False)
        return self._timed

    def _timed_call(
        self, timed: NativeFunction | StatefulFunction, inputs: tuple[Any, ...]
    ) -> TimedRun:
        """Call the instrumented model like a user would, and return its clock readings."""
        start = perf_counter_ns()
        *results, ticks = timed(*(inputs if self._usual else self._forms.stored(inputs)))
        if not self._usual:
            self._forms.counted(results[0] if len(results) == 1 else results)
        end = perf_counter_ns()
        return TimedRun(start, np.asarray(ticks).tolist(), end)

    def _calls(self, shapes: Sequence[tuple[int, ...]]) -> list[KernelCall]:
        """Return the kernel calls for arguments of these shapes, with work but without times.

        Sizes known only at run time count at their largest, or 0 if they have no limit.
        """
        host = self._host
        declared = [tuple(size_text(d) for d in buffer.shape) for buffer in host.buffers]
        values = bind_symbols(list(zip(declared, shapes, strict=False)))
        symbols = {v for buffer in host.buffers for d in buffer.shape for v in ir.free_vars(d)}
        sizes = {v: ir.const(values[v.name], v.dtype) for v in symbols if v.name in values}
        later = self._compiled.context.options["memory_plans"][self.signature.name].sizes
        for symbol in later.levels:  # counted at their largest
            most = later.largest(symbol)
            number = 0 if most is None else evaluate_size(size_text(most), values)
            sizes[symbol] = ir.const(number, symbol.dtype)
        known: dict[tuple[Any, ...], KernelCall] = {}
        out: list[KernelCall] = []
        for call in timed_calls(host):
            named = call.args[1] if call.op == "call_object" else call.args[0]
            name = str(named.value) if isinstance(named, ir.StringImm) else "function value"
            if call.op != "call_global":
                kind = "call_packed" if call.op == "call_object" else "call_dps_library"
                out.append(KernelCall(name, (kind,), 0, 0))
                continue
            func: ir.PrimFunc = self._compiled.lowered[name]
            convention = calling_convention(func)
            given = call.args[1 + len(convention.buffers) :]
            numbers = [ir.const_int(simplify(ir.substitute(g, sizes))) for g in given]
            key = (name, *numbers)
            if key not in known:
                formal = (*convention.scalars, *convention.symbols)
                bound = {v: ir.const(n or 0, v.dtype) for v, n in zip(formal, numbers, strict=True)}
                known[key] = self._kernel_call(name, bound)
            out.append(known[key])
        return out

    def _kernel_call(self, name: str, sizes: dict[ir.Var, ir.Expr]) -> KernelCall:
        """Count the work on the unscheduled program, which still has its symbols; predict the
        time from the scheduled one."""
        func: ir.PrimFunc = self._compiled.lowered[name]
        earlier = [m.functions[name] for m in self._compiled.stages.values() if name in m.functions]
        plain = [f for f in earlier if isinstance(f, ir.PrimFunc) and not f.attrs.get(IS_SCHEDULED)]
        work = work_of(plain[-1] if plain else func, sizes)
        operators = tuple(str(func.attrs.get("op", "copy")).split("+"))
        if func.attrs.get(IS_LIBRARY):
            return KernelCall(name, operators, 0, 0)  # nothing is known of what it does
        numbers = {var.name: ir.const_int(value) or 0 for var, value in sizes.items()}
        machine = target_of(func, self._compiled.context.target)
        expected = estimate(func, machine, numbers)
        return KernelCall(
            name, operators, 0, 0, work.flops, work.bytes, work.written, expected.seconds * 1e9
        )


class CompiledFor(msgspec.Struct, frozen=True, eq=False):
    """What a compilation for one target makes of a model; see `CompiledModel`."""

    lowered: ir.IRModule
    library: Module
    context: PassContext
    proofs: Proofs | None


def compiled_model(imported: ir.IRModule, parts: Sequence[CompiledFor]) -> CompiledModel:
    """The model that runs the first of its parts whose code runs here.

    Arguments: `parts` are one for each target, the best first.
    """
    library = joined([part.library for part in parts])
    chosen = next(part for part in parts if part.library.compiled is library.compiled)
    saved = None
    if library.several:
        known = [describe(imported, p.lowered, p.library.lowered, p.context) for p in parts]
        saved = describe_several(known)
    return CompiledModel(imported, chosen.lowered, library, chosen.context, chosen.proofs, saved)


class CompiledModel(Executable):
    """A compiled model.

    Of several targets, all that it shows is of the one whose code runs here (`target`).

    Attributes:
        context: notes, schedule traces and timings of the compilation.
        stages: pass name → module after that pass ("graph" is the imported model).
        passes: what each pass did; `print(exe.passes)` shows a table.
        library: the built module (`source`, object names); lowered: the module it was built from.
        fallbacks: operators that the framework computes, with their uses in the model.
        proofs: the verdict on each schedule if compiled with `verify`, otherwise None.
    """

    def __init__(
        self,
        imported: ir.IRModule,
        lowered: ir.IRModule,
        library: Module,
        context: PassContext,
        proofs: Proofs | None = None,
        saved: Metadata | None = None,
    ) -> None:
        self.library = library
        self.lowered = lowered
        self.context = context
        self.passes = PassReport(context.runs)
        self.stages = {"graph": imported, **{run.name: run.after for run in context.runs}}
        self.fallbacks = fallbacks(imported)
        self.proofs = proofs
        self._initial = initial_state(imported)
        metadata = describe(imported, lowered, library.lowered, context)
        super().__init__(library.loaded(), metadata, self._initial)
        self._saved = saved or self.metadata

    def _entry_point(self, signature: ExportedFunction) -> CompiledEntry:
        compilation = Compilation(self.library, self.lowered, self.context, self.stages)
        return CompiledEntry(self.metadata, signature, compilation, self.state)

    def show(self, stage: str = "schedule", kernel: str | None = None) -> str:
        """Return a stage as text: graph, libraries, layout, programs, schedule, packed, host,
        lowered, llvm or asm; passes for what each pass did, or the name of a pass for the program
        after it.

        "libraries" shows which values the libraries of the option `libraries` compute, why others
        are compiled, and the graph with the calls.
        "layout" shows the decision for each region and the graph with its layout changes.
        "programs" shows the implementations chosen for operators and the fused programs. "schedule"
        shows for each kernel its strategy, why earlier strategies did not apply, the trace as
        Python and the scheduled program. "asm" shows the code of the kernels;
        `library.source("asm", kernel, complete=True)` adds the entries that check arguments.
        """
        require_kind(stage, str, "stage must be a name", OptionError, "BW904", 'write show("asm")')
        require_kind(
            kernel,
            (str, type(None)),
            "kernel must be a name",
            OptionError,
            "BW905",
            'write show("asm", "name")',
        )
        if stage in ("llvm", "asm", "lowered"):
            return self.library.source(stage, kernel)
        if stage == "passes":
            return str(self.passes)
        shown = SHOWN.get(stage, stage)
        if shown not in self.stages:
            known = dict.fromkeys((*SHOWN, "lowered", "llvm", "asm", "passes", *self.stages))
            why = f": the pipeline has no pass {shown}" if known.pop(stage, stage) is None else ""
            raise OptionError(f"no stage {stage!r}{why}", code="BW904", help=choices(stage, known))
        module = self.stages[shown]
        if stage == "schedule":
            return self._show_schedules(module, kernel)
        if kernel is not None:
            return repr(module[kernel])
        passes = self._since_shown_before(shown) if stage in SHOWN else [shown]
        decided = [line for name in passes for line in self.context.decisions.get(name, ())]
        return "".join(f"# {line}\n" for line in decided) + module.script()

    def _since_shown_before(self, shown: str) -> list[str]:
        """The passes up to `shown`, from after the one that the stage before it shows."""
        names = list(self.stages)[: list(self.stages).index(shown) + 1]
        starts = [names.index(name) + 1 for name in SHOWN.values() if name in names[:-1]]
        return names[max(starts, default=0) :]

    def _show_schedules(self, module: ir.IRModule, kernel: str | None) -> str:
        parts: list[str] = []
        for name, trace in self.context.traces.items():
            if kernel is None or kernel == name:
                func = module[name]
                parts.append(f"# {name}: strategy {func.attrs.get('schedule_strategy')}")
                refusals = self.context.refusals.get(name, ())
                parts += [f"#   not {name}: {reason}" for name, reason in refusals]
                if name in self.context.plans:
                    parts.append(f"#   plan: {self.context.plans[name].to_json()}")
                notes = (n for n in self.context.notes if n.startswith(f"{name}: "))
                parts += [f"#   {note}" for note in notes]
                parts.append(trace.as_python())
                for when, other in self.context.variants.get(name, ()):
                    parts.append(f"# where {when!r}:")
                    parts.append(other.as_python())
                parts.append(func.script())
        if not parts:
            known = ", ".join(self.context.traces)
            raise OptionError(f"no kernel {kernel!r}", code="BW905", help=f"kernels: {known}")
        return "\n".join(parts)

    def estimate(self, *inputs: Any) -> float:
        """Predict the time in seconds of a call of the main function; see
        `CompiledEntry.estimate`."""
        entry = self.main
        assert isinstance(entry, CompiledEntry)
        return entry.estimate(*inputs)

    def save(
        self, path: str | os.PathLike[str], *, state: Literal["initial", "current"] = "initial"
    ) -> int:
        """Write the artefact, one shared library with code, weights and metadata, and return its
        size in bytes. It holds the code of all targets that the model was compiled for.

        `bw.load` loads it in a base install. If the name ends in `.so`, `tvm_ffi.load_module` loads
        it without Blockwright.

        Arguments: `state` are the values of the state that a loaded model begins with, and that
            its `reset_state` restores: the initial ones of this model, or the current ones.
        Raises: ArtefactError: BW805 if the file cannot be written (no partial file remains), BW810
            if the model calls Python functions; StateError (BW850) if a call uses the state that is
            to be saved; OptionError (BW928) for another value of `state`.
        """
        require_path(path, 'write model.save("model.bwx")')
        if state not in ("initial", "current"):
            raise OptionError(
                f"state must be one of initial, current, got {state!r}",
                code="BW928",
                help='write model.save("model.bwx", state="current")',
            )
        called = self.lowered.attrs.get(PYTHON_FUNCTIONS, ())
        if called:
            raise ArtefactError(
                f"the model calls Python functions: {', '.join(called)}",
                code="BW810",
                help="an artefact holds native code only; use operators, or a library function",
            )
        values = self._initial if state == "initial" else self.state.values_now()
        variables, stored = stored_state(self.metadata.state, values)
        metadata = msgspec.structs.replace(self._saved, state=variables)
        return self.library.save(path, metadata, stored)
