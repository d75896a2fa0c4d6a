"""State and options of one compilation, passed to every graph pass; how a pass is declared."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple, TypeVar

import msgspec

from blockwright import ir
from blockwright.arith.querylog import Query
from blockwright.build.compile_cache import CompileCache
from blockwright.graph import Deduced
from blockwright.passes.instrument import AnyInstrument, as_instrument
from blockwright.passes.rewrite import map_graph_functions, map_programs
from blockwright.support import BlockwrightWarning, BuildError
from blockwright.support.registry import load
from blockwright.support.stack import deep
from blockwright.target import Target

Pass = Callable[[ir.IRModule, "PassContext"], ir.IRModule]

_P = TypeVar("_P", bound=Pass)
_REGISTERED: set[Pass] = set()


class NamedPass(NamedTuple):
    """A pass and its name in a pipeline."""

    name: str
    run: Pass


class PassRun(msgspec.Struct, frozen=True, eq=False):
    """One run of a pass: where, for how many seconds, and the module before and after it.

    `skipped`: an instrument refused the run; the module is unchanged.
    """

    stage: str
    name: str
    seconds: float
    before: ir.IRModule
    after: ir.IRModule
    skipped: bool = False


def graph_pass(run: _P) -> _P:
    """Decorator: register `f(module, ctx) -> module` as a graph pass."""
    _REGISTERED.add(run)
    return run


def function_pass(rewrite: Callable[[ir.GraphFunction, PassContext], ir.GraphFunction]) -> Pass:
    """Decorator: make `f(function, ctx) -> function` a pass that rewrites every graph function.

    To leave a function alone, return it.
    """

    @functools.wraps(rewrite)
    def run(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
        def one(name: str, function: ir.GraphFunction) -> ir.GraphFunction:
            return _returned(rewrite(function, ctx), ir.GraphFunction, rewrite, f" for {name}")

        return map_graph_functions(module, one)

    return graph_pass(run)


def program_pass(rewrite: Callable[[ir.PrimFunc, PassContext], ir.PrimFunc]) -> Pass:
    """Decorator: make `f(program, ctx) -> program` a pass that rewrites every tensor program."""

    @functools.wraps(rewrite)
    def run(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
        def one(name: str, program: ir.PrimFunc) -> ir.PrimFunc:
            return _returned(rewrite(program, ctx), ir.PrimFunc, rewrite, f" for {name}")

        return map_programs(module, one)

    return graph_pass(run)


_N = TypeVar("_N")


def _returned(result: Any, kind: type[_N], by: Callable[..., Any], place: str = "") -> _N:
    """The result of a pass. Raises: BuildError BW646 if it is of another kind."""
    if not isinstance(result, kind):
        name = getattr(by, "__name__", repr(by))
        raise BuildError(
            f"the pass {name} returned {type(result).__name__}{place}, not {kind.__name__}",
            code="BW646",
            help="return the argument if nothing changes",
        )
    return result


def passes(*entries: str) -> tuple[NamedPass, ...]:
    """Names and passes for entries `file.function`, or `file.function as name`."""
    result: list[NamedPass] = []
    for entry in entries:
        name, run = load("blockwright.passes", entry)
        if run not in _REGISTERED:
            raise ImportError(f"{entry} is not a graph pass: decorate it with @graph_pass")
        result.append(NamedPass(name, run))
    return tuple(result)


_REPORT = (
    'this is a defect; please report the program, which exe.show("programs") prints; '
    'options={"disabled_strategies": [...]} disables rules'
)
_TOLD = ("traces", "plans", "variants", "refusals", "notes", "decisions")
"""Attributes of a context to which passes append; restored if a pass overflows the stack."""


class PassContext:
    """Target, options and observers of one compilation.

    Attributes:
        target: what the module is compiled for.
        options: option name → value (`effort`, `sanitize`, …).
        instruments: observers of the passes; see `Instrument`.
        runs: the passes that ran so far, with the module before and after each.
        traces: kernel name → schedule trace, filled by the scheduling stage.
        plans: kernel name → the plan of its strategy, for strategies that decide something.
        variants: kernel name → (condition on its sizes, trace) pairs. A call runs the schedule of
            the first condition that holds, or the one of `traces` if none does.
        refusals: kernel name → (strategy, reason) for each strategy that rejected the kernel before
            one accepted it.
        notes: messages for the user, such as a kernel scheduled by the fallback strategy.
        decisions: pass name → its decisions, one line each; `show` prints them.
        size_checks: graph function → assertions on its sizes, checked when a call starts.
        memory_plans: graph function → its `StoragePlan`.
        timings: pass name → seconds.
        queries: unproved arithmetic conditions, recorded if the option `log_queries` is set.
        checked: the last module that `check_graphs` checked, and what it deduced by function name.
        compile_cache: results of earlier compilations; None disables reuse.
        progress: called with (stage name, finished, total) by long stages.
    """

    def __init__(
        self,
        target: Target,
        options: dict[str, Any] | None = None,
        instruments: Sequence[AnyInstrument] = (),
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.target = target
        self.options: dict[str, Any] = dict(options or {})
        self.instruments = list(instruments)
        self.runs: list[PassRun] = []
        self.traces: dict[str, Any] = {}
        self.plans: dict[str, Any] = {}
        self.variants: dict[str, tuple[tuple[ir.Expr, Any], ...]] = {}
        self.refusals: dict[str, tuple[tuple[str, str], ...]] = {}
        self.notes: list[str] = []
        self.decisions: dict[str, list[str]] = {}
        self.size_checks: dict[str, tuple[ir.AssertStmt, ...]] = {}
        self.memory_plans: dict[str, Any] = {}
        self.timings: dict[str, float] = {}
        self.queries: list[Query] = []
        self.compile_cache: CompileCache | None = None
        self.checked: tuple[ir.IRModule | None, dict[str, Deduced]] = (None, {})
        self._progress = progress

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report the progress of a stage to the observer."""
        if self._progress is not None:
            self._progress(stage, done, total)

    def report_fault(self, failed: str, fault: str, instead: str) -> None:
        """Note that a strategy or offer raised an unexpected exception, and warn (BW645).

        Arguments: `failed` names it, `fault` describes the exception, `instead` says what was done.
        """
        self.notes.append(f"{failed} failed: {fault}")
        message = f"{failed} failed ({fault}); {instead}. The result is correct, but may be slow"
        warnings.warn(BlockwrightWarning(message, code="BW645", help=_REPORT), stacklevel=3)

    def _applied(self, apply: Pass, module: ir.IRModule) -> ir.IRModule:
        """Run a pass. On stack overflow, undo its reports: `deep` runs it again."""
        told = {name: copy(getattr(self, name)) for name in _TOLD}
        told["decisions"] = {name: list(lines) for name, lines in self.decisions.items()}
        try:
            return apply(module, self)
        except RecursionError:
            for name, value in told.items():
                setattr(self, name, value)
            raise

    def run(self, one: NamedPass, module: ir.IRModule, stage: str = "") -> ir.IRModule:
        """Apply a pass of a stage, unless an instrument skips it, and record the run.

        Raises: BuildError BW646 if the pass returns no module; the errors of the pass.
        """
        instruments = [as_instrument(each) for each in self.instruments]
        if not all(each.should_run(one.name, module) for each in instruments):
            self.runs.append(PassRun(stage, one.name, 0.0, module, module, skipped=True))
            return module
        for each in instruments:
            each.before(one.name, module)
        started = time.perf_counter()
        result = _returned(deep(self._applied)(one.run, module), ir.IRModule, one.run)
        seconds = time.perf_counter() - started
        self.timings[one.name] = self.timings.get(one.name, 0.0) + seconds
        self.runs.append(PassRun(stage, one.name, seconds, module, result))
        for each in instruments:
            each.after(one.name, module, result)
        return result
