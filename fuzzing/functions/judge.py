"""Run a module on the interpreter, after every pass, and as compiled code."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
import numpy as np

import blockwright as bw
from blockwright import ir
from blockwright.passes import PassContext, default_pipeline
from blockwright.target import Target
from fuzzing.eager.outcome import Outcome, problem_of
from fuzzing.functions.draw import Module
from fuzzing.graphs.judge import call_judged
from fuzzing.graphs.program import Graph, Inexact, Rejected
from fuzzing.graphs.stages import Stages, check_stage, recorder


def judge(graph: Module) -> Outcome:
    """Judge a module for all its calls; "refused" if the compiler rejects it."""
    module: ir.IRModule = bw.from_source(graph.text())
    calls = [(arguments, _expected(graph, sizes, arguments)) for sizes, arguments in graph.calls]
    calls = [(arguments, wanted) for arguments, wanted in calls if wanted is not Inexact]
    for arguments, wanted in calls:
        verdict = check_stage("parsing", module, arguments, wanted)
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
    for arguments, wanted in calls:
        verdict = call_judged(executable, arguments, None if wanted is None else list(wanted))
        if verdict.what != "passed":
            return verdict
    return Outcome("passed")


def _other_readings(module: ir.IRModule, calls: list[Any]) -> Outcome:
    """Run what the printer prints, and operators by their tensor programs."""
    for arguments, wanted in calls[:1]:
        try:
            again: ir.IRModule = bw.from_source(module.script())
        except Exception as error:  # noqa: BLE001  an internal error is a finding
            return msgspec.structs.replace(problem_of(error), what="wrong")
        verdict = check_stage("printing", again, arguments, wanted)
        if verdict.what == "passed":
            verdict = check_stage("lowering operators", module, arguments, wanted, exact=True)
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


def _changes(stages: Stages, calls: list[Any]) -> Outcome:
    """Judge the module after every pass that changed it."""
    for name, module in stages:
        for arguments, wanted in calls:
            if wanted is None and not isinstance(module["main"], ir.GraphFunction):
                continue  # the sizes of its results are unknown
            verdict = check_stage(name, module, arguments, wanted)
            if verdict.what != "passed":
                return verdict
    return Outcome("passed")


def _expected(graph: Graph, sizes: dict[str, int], arguments: Any) -> Any:
    try:
        with np.errstate(all="ignore"):
            return tuple(map(np.asarray, graph.expected(sizes, arguments)))
    except Rejected:
        return None
    except Inexact:
        return Inexact
