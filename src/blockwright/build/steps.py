"""Steps of a compilation that look at one program each: schedules, lowered forms.

Such a step is a function at the top of a module, of a program, a target and options. What an
earlier compilation remembers of it is not done again; the rest is shared out among the workers and
this process.
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
    """The results of a step for some programs, by their names; `progress` is called after each.

    Raises: what the step raises for the first program that it fails for.
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
    for name, program in new.items():  # few, or such as fail: here the error is the step's own
        result[name] = step(program, target, options)
        if not _has_faults(result[name]):
            compile_cache.keep(what, program, target, options, result[name])
        if not answers:
            progress()
    return result


def _has_faults(found: object) -> bool:
    """Whether a step came to its result past a fault of ours: the next time may be better."""
    return bool(getattr(found, "faults", ()))


def warm_up(step: Step) -> None:
    """Let a worker load what a step needs, while this process is busy with what comes before."""
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
    """The result of a step, written. Nothing where it fails: who asked does it again, and sees the
    error where it can be caught. Nothing either without arguments; the step is loaded then."""
    module, _, name = function.partition(":")
    try:
        step = getattr(importlib.import_module(module), name)
        if not arguments:
            return b""
        # They come from the process that started this one.
        program, target, options = pickle.loads(arguments)  # noqa: S301
        result = step(program, target, options)
        return b"" if _has_faults(result) else written(result, program)
    except Exception:  # noqa: BLE001  whatever it is, it comes again
        return b""
