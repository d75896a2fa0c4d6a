"""Run a module on the interpreter, after every pass, and as compiled code."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
import numpy as np

import blockwright as bw
from blockwright import ir
from blockwright.analysis.calling_convention import tensor_results
from blockwright.passes import PassContext, default_pipeline
from blockwright.target import Target
from fuzzing.eager.outcome import Outcome, problem_of
from fuzzing.functions.draw import Module
from fuzzing.graphs.judge import call_judged
from fuzzing.graphs.program import Graph, Inexact, Rejected
from fuzzing.graphs.stages import Stages, check_stage, recorder

_Call = tuple[Any, tuple[Any, ...] | None, Any]


def judge(graph: Module) -> Outcome:
    """Judge a module for all its calls; "refused" if the compiler rejects it."""
    module: ir.IRModule = bw.from_source(graph.text())
    calls = [_called(graph, sizes, arguments) for sizes, arguments in graph.calls]
    calls = [call for call in calls if call is not None]
    for arguments, wanted, left in calls:
        verdict = check_stage("parsing", module, arguments, wanted, left=left)
        if verdict.what != "passed":
            return verdict
    verdict = _other_readings(module, calls)
    if verdict.what != "passed":
        return verdict
    stages: Stages = []
    executable: Any = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", bw.BlockwrightWarning)
            executable = _compiled(module, stages, graph.native)
        verdict = Outcome("passed")
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        verdict = problem_of(error)
    changed = _changes(stages, calls[:1])
    if changed.what != "passed":
        return changed
    if verdict.what != "passed" or executable is None:
        return verdict
    for arguments, wanted, left in calls:
        listed = None if wanted is None else list(wanted)
        verdict = call_judged(executable, arguments, listed, left)
        if verdict.what != "passed":
            return verdict
    return Outcome("passed")


def _other_readings(module: ir.IRModule, calls: list[_Call]) -> Outcome:
    """Run what the printer prints, and operators by their tensor programs."""
    for arguments, wanted, left in calls[:1]:
        try:
            again: ir.IRModule = bw.from_source(module.script())
        except Exception as error:  # noqa: BLE001  an internal error is a finding
            return msgspec.structs.replace(problem_of(error), what="wrong")
        verdict = check_stage("printing", again, arguments, wanted, left=left)
        if verdict.what == "passed":
            verdict = check_stage("lowering operators", module, arguments, wanted, True, left)
        if verdict.what != "passed":
            return verdict
    return Outcome("passed")


def _compiled(module: ir.IRModule, stages: Stages, native: bool) -> Any:
    """Compile and record the module after every pass; the executable, or None without `native`."""
    instruments = [recorder(stages)]
    if native:
        return bw.compile(module, options={"instruments": instruments})
    target = Target("native")
    default_pipeline(target)(module, PassContext(target, instruments=instruments))
    return None


def _changes(stages: Stages, calls: list[_Call]) -> Outcome:
    """Judge the module after every pass that changed it."""
    for name, module in stages:
        for arguments, wanted, left in calls:
            main = module["main"]
            if isinstance(main, ir.PrimFunc) and not _has_all(main, wanted):
                continue
            verdict = check_stage(name, module, arguments, wanted, left=left)
            if verdict.what != "passed":
                return verdict
    return Outcome("passed")


def _has_all(main: ir.PrimFunc, wanted: tuple[Any, ...] | None) -> bool:
    """Whether a host program writes all results: none is an argument, and their sizes are known."""
    return wanted is not None and len(tensor_results(main)) == len(wanted)


def _called(graph: Graph, sizes: dict[str, int], arguments: Any) -> _Call | None:
    """A call with its results, None if it must be rejected, and the arguments after it.

    None if its results are not exact.
    """
    try:
        with np.errstate(all="ignore"):
            wanted = tuple(map(np.asarray, graph.expected(sizes, arguments)))
            return arguments, wanted, graph.left(sizes, arguments)
    except Rejected:
        return arguments, None, arguments
    except Inexact:
        return None
