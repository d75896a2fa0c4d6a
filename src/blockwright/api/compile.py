"""`bw.compile`: compile a model to an executable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, cast

import msgspec

from blockwright import ir
from blockwright.api.importing import import_model
from blockwright.api.model import CompiledFor, CompiledModel, compiled_model
from blockwright.api.proofs import ScheduleProofs
from blockwright.arith import query_log
from blockwright.build import build
from blockwright.build.compile_cache import CompileCache
from blockwright.build.dump import PassDump, dump_directory
from blockwright.build.several_targets import targets_of
from blockwright.frontend.fallback import CHOICES, Fallback, warn_of_fallbacks
from blockwright.ops.table import OPERATORS
from blockwright.passes import Instrument, PassContext, Pipeline, default_pipeline
from blockwright.passes.library.library_programs import SHARED_LIBRARIES
from blockwright.passes.library.registry import known_names
from blockwright.runtime import constants
from blockwright.runtime.shared_libraries import SharedLibrary, open_libraries
from blockwright.strategies import STRATEGIES
from blockwright.support import OptionError
from blockwright.support.former_names import FORMER_OPTIONS, FORMER_STRATEGIES, FORMER_SWITCHES
from blockwright.support.garbage import few_collections
from blockwright.support.kinds import require_kind
from blockwright.support.suggest import choices
from blockwright.target import Target
from blockwright.verify import require_solvers

Progress = Callable[[str, int, int], None]
EFFORTS = ("none",)
OPTIONS = (
    "disabled_implementations",
    "disabled_strategies",
    "fallback",
    "instruments",
    "libraries",
    "log_queries",
    "pipeline",
    "sanitize",
)


@few_collections
def compile(
    model: Any,
    example_inputs: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    target: str | Target | Sequence[str | Target] = "native",
    dynamic_shapes: Any = None,
    effort: str = "none",
    verify: bool | Literal["prove"] = False,
    progress: Progress | None = None,
    options: dict[str, Any] | None = None,
) -> CompiledModel:
    """Compile a model to native code, once for all shapes that it declares.

    Arguments:
        model: `torch.export.ExportedProgram`, `torch.nn.Module` (exported here with
            `example_inputs` and `dynamic_shapes`), an ONNX model (a path that ends in .onnx, bytes
            or a `ModelProto`), `ir.IRModule` with graph functions, or a graph function. A dict of
            models makes each a function of the result, called by its name; they share weights.
            The arguments about examples and shapes are then dicts too.
        example_inputs: arguments with which a torch module is exported. For an ONNX model, a dict
            fixes the values of the inputs that it names: they become part of the program.
        example_kwargs: arguments that the torch module is called with by name, in the export and
            in calls of the result.
        target: `bw.Target` or its name, or several. The model is then compiled for each of them,
            and a saved artefact holds the code of all: `bw.load` chooses the best that the
            processor supports. The result itself runs the best that this one supports
            (`exe.target`).
        dynamic_shapes: as for `torch.export.export`. For an exported program, pass the value that
            it was exported with; dimensions then get the names of their `Dim`.
        effort: "none": strategies construct the schedules without search.
        verify: True: prove that each schedule of a strategy preserves the meaning of its program
            (see `bw.verify`); the result's `proofs` holds the verdicts, and a refuted schedule is
            an error. "prove": an undecided schedule is an error too.
        progress: called with (stage, finished, total).
        options: `disabled_strategies` (names of strategies to skip), `disabled_implementations`
            (names of implementations of operators that are not chosen, such as "winograd"),
            `fallback` ("framework", the default: operators that the importer does not cover run in
            the framework, and a warning BW513 lists them; "error": they are an error; see
            docs/fallback.md), `pipeline` (a `bw.Pipeline` in place of
            `bw.default_pipeline(target)`), `instruments` (observers of the passes, see
            `bw.Instrument`; a function is called after every pass with name, before, after),
            `libraries` (names of libraries that compute parts of the graph, such as "openblas", or
            of single patterns, such as "openblas.linear"; see docs/libraries.md), `log_queries`
            (True: record every arithmetic query of the compilation that was not proved in
            `context.queries`), `sanitize` (checks in the compiled code, as for `bw.build`). If
            BLOCKWRIGHT_DUMP_DIR is set, the module after every pass is written to that directory.

    Raises:
        ImporterError: unsupported operators, all listed in one error; BW520-BW526 about ONNX.
        ArtefactError: BW808, BW809 a library is not installed, or has another version.
        OptionError: BW901 unknown effort, BW902 unsupported kind of model, BW908 a torch module
            without a sequence of example inputs, BW926 solvers not installed, BW927 invalid
            `verify`, BW928 unknown option, strategy or implementation, BW931 malformed pipeline.
        BuildError: BW643 a schedule was refuted, BW644 a schedule was not proved; also the errors
            of `bw.build`.
    """
    if effort not in EFFORTS:
        raise OptionError(
            f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}",
            code="BW901",
            help="schedules are constructed, not searched",
        )
    asked: Any = verify  # check the type first: an array would compare element by element
    if not isinstance(asked, (int, str)) or asked not in (False, True, "prove"):
        raise OptionError(
            f"invalid value of verify: {verify!r}", code="BW927", help='use True, False or "prove"'
        )
    if verify:
        require_solvers()
    if options is not None:
        require_kind(
            options,
            dict,
            "options must be a dict",
            OptionError,
            "BW928",
            'write options={"name": value}',
        )
    if progress is not None and not callable(progress):
        raise OptionError(
            f"progress must be a function, not {type(progress).__name__}",
            code="BW928",
            help="it is called with (stage, finished, total)",
        )
    if isinstance(model, type):
        raise OptionError(
            f"cannot compile the class {model.__name__}",
            code="BW902",
            help=f"pass an instance: {model.__name__}(…)",
        )
    settings = with_current_names(options or {})
    _check_options(settings)
    machines = targets_of(target)
    pipelines = [_pipeline(settings, machine) for machine in machines]
    with constants.reserved(_weight_bytes(model) * len(machines)):
        started = time.perf_counter()
        fallback: Fallback = settings.get("fallback", "framework")
        imported = import_model(
            model,
            example_inputs,
            dynamic_shapes,
            example_kwargs=example_kwargs,
            fallback=fallback,
        )
        warn_of_fallbacks(imported, stacklevel=3)
        spent = time.perf_counter() - started
        parts: list[CompiledFor] = []
        for machine, pipeline in zip(machines, pipelines, strict=True):
            observers = settings.get("instruments", ())
            context = PassContext(machine, dict(settings), observers, progress)
            context.timings["import"] = spent
            if not settings.get("log_queries"):  # cached schedules would issue no queries
                context.compile_cache = CompileCache()
            parts.append(_compile(imported, pipeline, context, verify))
    return compiled_model(imported, parts)


def with_current_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with former names of options and strategies replaced by current ones."""
    settings = {FORMER_OPTIONS.get(name, name): value for name, value in options.items()}
    lists = (list, tuple, set, frozenset)
    for switch, implementation in FORMER_SWITCHES.items():
        if isinstance(settings.get(switch), bool) and not settings.pop(switch):
            others: Any = settings.get("disabled_implementations", ())
            if isinstance(others, lists):
                names = cast("Iterable[Any]", others)
                settings["disabled_implementations"] = [*names, implementation]
    disabled: Any = settings.get("disabled_strategies")
    if isinstance(disabled, lists):
        names = cast("Iterable[Any]", disabled)
        settings["disabled_strategies"] = [
            FORMER_STRATEGIES.get(name, name) if isinstance(name, str) else name for name in names
        ]
    return settings


def _check_options(settings: dict[str, Any]) -> None:
    """Raise OptionError BW928 for unknown options or strategies, and for invalid values."""
    _check_names("option", settings, OPTIONS)
    _check_disabled(settings, "library or pattern", "libraries", known_names())
    fallback: Any = settings.get("fallback", "framework")
    if fallback not in CHOICES:
        raise OptionError(
            f"fallback must be one of {', '.join(CHOICES)}, got {fallback!r}",
            code="BW928",
            help='write options={"fallback": "error"}',
        )
    implementations = {each.name for row in OPERATORS.values() for each in row.implementations}
    _check_disabled(settings, "strategy", "disabled_strategies", [s.name for s in STRATEGIES])
    _check_disabled(settings, "implementation", "disabled_implementations", sorted(implementations))
    require_kind(
        settings.get("log_queries", False),
        bool,
        "log_queries must be True or False",
        OptionError,
        "BW928",
        'write options={"log_queries": True}',
    )
    instruments: Any = settings.get("instruments", ())
    if not isinstance(instruments, (list, tuple)) or not all(
        isinstance(each, Instrument) or callable(each)
        for each in cast("Sequence[Any]", instruments)
    ):
        raise OptionError(
            "instruments must be a list of functions or instruments",
            code="BW928",
            help='write options={"instruments": [function]}',
        )


def _check_disabled(settings: dict[str, Any], what: str, option: str, known: Sequence[str]) -> None:
    """Check an option that lists names of things to skip."""
    disabled = settings.get(option, ())
    if isinstance(disabled, str):
        raise OptionError(
            f"{option} must be a list of names", code="BW928", help=f'write ["{disabled}"]'
        )
    require_kind(
        disabled,
        (list, tuple, set, frozenset, dict),
        f"{option} must be a list of names",
        OptionError,
        "BW928",
        'write ["name"]',
    )
    _check_names(what, disabled, known)


def _check_names(what: str, given: Iterable[Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise OptionError(f"unknown {what} {name!r}", code="BW928", help=choices(name, known))


def _compile(
    imported: ir.IRModule,
    pipeline: Pipeline,
    context: PassContext,
    verify: bool | Literal["prove"],
) -> CompiledFor:
    """Compile an imported model for the target of the context."""
    settings, machine = context.options, context.target
    schedules = ScheduleProofs()
    if verify:
        context.instruments.append(schedules)
    directory = dump_directory()
    if directory is not None:
        context.instruments.append(PassDump(directory))
    with query_log() if settings.get("log_queries") else nullcontext(context.queries) as log:
        context.queries = log
        lowered = pipeline(imported, context)
        remaining = [n for n, f in lowered.functions.items() if isinstance(f, ir.GraphFunction)]
        if remaining:
            raise OptionError(
                f"{remaining[0]} is still a graph function after the last pass",
                code="BW928",
                help="keep the pass lower_host; to stop before it, call the pipeline: "
                "pipeline.until(name)(bw.import_model(model))",
            )
        if machine.is_host:
            needed = lowered.attrs.get(SHARED_LIBRARIES, ())
            open_libraries(msgspec.convert(needed, list[SharedLibrary]))
        started = time.perf_counter()
        proofs = schedules.prove(context, verify == "prove") if verify else None
        context.timings["verify"] = time.perf_counter() - started
        started = time.perf_counter()
        library = build(
            lowered,
            machine,
            sanitize=settings.get("sanitize", ()),
            compile_cache=context.compile_cache,
        )
        context.timings["build"] = time.perf_counter() - started
    return CompiledFor(lowered, library, context, proofs)


def _pipeline(settings: Mapping[str, Any], target: Target) -> Pipeline:
    """The pipeline of the options, which may list its stages, or else the target's."""
    if "pipeline" not in settings:
        return default_pipeline(target)
    chosen: Any = settings["pipeline"]
    return chosen if isinstance(chosen, Pipeline) else Pipeline(chosen)


def _weight_bytes(model: Any) -> int:
    """Bytes of a model's weights, which approximate the size of the packed weights."""
    if isinstance(model, Mapping):  # several models that share weights
        return max(map(_weight_bytes, cast("Mapping[str, Any]", model).values()), default=0)
    result: Any = getattr(model, "state_dict", dict)
    held: Any = result() if callable(result) else result
    return sum(int(getattr(value, "nbytes", 0)) for value in held.values())
