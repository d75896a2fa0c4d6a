"""Run per-program compilation steps (scheduling, lowering) through the cache and the workers.

A step is a module-level function of a program, a target and options. Cached results are reused; the
remaining programs are distributed over the workers and this process.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from blockwright.build.compile_cache import UNWRITABLE, CompileCache, read, written
from blockwright.build.worker import StepJob
from blockwright.build.workers import POOL
from blockwright.ir import PrimFunc
from blockwright.target import Target

Step = Callable[[PrimFunc, Target, Any], Any]


def each(
    step: Step,
    programs: Mapping[str, PrimFunc],
    target: Target,
    options: object,
    compile_cache: CompileCache,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The results of a step by program name; `progress` is called after each program.

    Raises: the error of the step for the first program that fails.
    """
    what = step.__name__
    result = {n: compile_cache.find(what, p, target, options) for n, p in programs.items()}
    new = {n: p for n, p in programs.items() if result[n] is None}
    for _ in range(len(programs) - len(new)):
        progress()
    jobs = [_job(step, n, p, target, options) for n, p in new.items()]
    jobs = [job for job in jobs if job.arguments]
    answers = POOL.run(jobs, progress, here=True) if POOL.worth_it(len(jobs)) else []
    for job, data in zip(jobs, answers, strict=bool(answers)):
        if data:
            program = new.pop(job.what)
            result[job.what] = read(data, program)
            compile_cache.keep_written(what, program, target, options, data)
    for name, program in new.items():  # few, or failed in a worker: rerun to raise the error here
        result[name] = step(program, target, options)
        if not _has_faults(result[name]):
            compile_cache.keep(what, program, target, options, result[name])
        if not answers:
            progress()
    return result


def _has_faults(found: object) -> bool:
    """Whether the step recovered from an internal fault; such results are not cached."""
    return bool(getattr(found, "faults", ()))


def warm_up(step: Step) -> None:
    """Let a worker import what a step needs while this process is busy with earlier steps."""
    POOL.start(StepJob(step.__name__, _path(step), b""))


def _path(step: Step) -> str:
    return f"{step.__module__}:{step.__name__}"


def _job(step: Step, name: str, program: PrimFunc, target: Target, options: object) -> StepJob:
    try:
        arguments = pickle.dumps((program, target, options), pickle.HIGHEST_PROTOCOL)
    except UNWRITABLE:
        arguments = b""
    return StepJob(name, _path(step), arguments)


def run_step(function: str, arguments: bytes) -> bytes:
    """Run a step and serialize its result.

    Returns nothing if the step fails: the caller reruns the step and gets the error. Without
    arguments, only imports the step's module."""
    module, _, name = function.partition(":")
    try:
        step = getattr(importlib.import_module(module), name)
        if not arguments:
            return b""
        # The pickle comes from the parent process.
        program, target, options = pickle.loads(arguments)  # noqa: S301
        result = step(program, target, options)
        return b"" if _has_faults(result) else written(result, program)
    except Exception:  # noqa: BLE001  the caller reruns the step and gets the error
        return b""
