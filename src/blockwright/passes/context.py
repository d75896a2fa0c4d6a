"""State and options of one compilation, passed to every graph pass; the registry of passes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar

from blockwright import ir
from blockwright.arith.querylog import Query
from blockwright.build.compile_cache import CompileCache
from blockwright.graph import Deduced
from blockwright.support import BlockwrightWarning
from blockwright.support.registry import load
from blockwright.support.stack import deep
from blockwright.target import Target

Pass = Callable[[ir.IRModule, "PassContext"], ir.IRModule]
Instrument = Callable[[str, ir.IRModule, ir.IRModule], None]

_P = TypeVar("_P", bound=Pass)
_REGISTERED: set[Pass] = set()


def graph_pass(run: _P) -> _P:
    """Decorator: register a function as a graph pass, which the pipeline may then name."""
    _REGISTERED.add(run)
    return run


def passes(*entries: str) -> tuple[tuple[str, Pass], ...]:
    """Names and passes for entries `file.function`, or `file.function as name`."""
    result: list[tuple[str, Pass]] = []
    for entry in entries:
        name, run = load("blockwright.passes", entry)
        if run not in _REGISTERED:
            raise ImportError(f"{entry} is not a graph pass: decorate it with @graph_pass")
        result.append((name, run))
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
        instruments: called after every pass with (name, module before, module after).
        traces: kernel name → schedule trace, filled by the scheduling stage.
        plans: kernel name → the plan of its strategy, for strategies that decide something.
        variants: kernel name → (condition on its sizes, trace) pairs. A call runs the schedule of
            the first condition that holds, or the one of `traces` if none does.
        refusals: kernel name → (strategy, reason) for each strategy that rejected the kernel before
            one accepted it.
        notes: messages for the user, such as a kernel scheduled by the fallback strategy.
        decisions: pass name → its decisions, one line each; `show` prints them.
        size_checks: graph function → assertions on its sizes, checked when a call starts.
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
        instruments: Sequence[Instrument] = (),
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.target = target
        self.options: dict[str, Any] = dict(options or {})
        self.instruments = list(instruments)
        self.traces: dict[str, Any] = {}
        self.plans: dict[str, Any] = {}
        self.variants: dict[str, tuple[tuple[ir.Expr, Any], ...]] = {}
        self.refusals: dict[str, tuple[tuple[str, str], ...]] = {}
        self.notes: list[str] = []
        self.decisions: dict[str, list[str]] = {}
        self.size_checks: dict[str, tuple[ir.AssertStmt, ...]] = {}
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

    def run(self, passes: Sequence[tuple[str, Pass]], module: ir.IRModule) -> ir.IRModule:
        """Apply named passes in order."""
        for name, apply in passes:
            started = time.perf_counter()
            result = deep(self._applied)(apply, module)
            self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - started
            for instrument in self.instruments:
                instrument(name, module, result)
            module = result
        return module
