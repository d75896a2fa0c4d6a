"""`bw.validate`: every problem of a program, from both levels, in one error."""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.analysis import find_violations
from blockwright.graph import check_graph
from blockwright.ir.fields import field_problems
from blockwright.schedule.rewrite.pipeline_annotations import with_pipelines
from blockwright.support import Diagnostic, OptionError, ScheduleError, ValidationError
from blockwright.target import Target


def validate(
    func_or_module: ir.PrimFunc | ir.GraphFunction | ir.IRModule,
    target: str | Target | None = None,
) -> None:
    """Check everything that must hold of a program; `build` does so before it builds.

    It is well formed; loop nests bind block iterators soundly; what is read has been written;
    iterations that run at the same time do not meet; kernels are consistent, their threads see
    what they read; views keep what they demand; the machine offers what the program names and asks
    for. See the modules of `analysis` for each rule. A rule that can neither be proved nor refuted
    for a program is taken to hold, except demands on layout.

    Arguments:
        func_or_module: a tensor program, a graph function, or a module of both.
        target: a `Target` or its name; without it what depends on the machine is left out.

    Raises:
        ValidationError: lists all problems of all functions.
        OptionError: BW902 for anything that is no program.
    """
    given: Any = func_or_module
    if isinstance(given, ir.Node) and (wrong := field_problems(given)):
        raise ValidationError.collect(wrong)
    module = None
    if isinstance(func_or_module, ir.IRModule):
        module, functions = func_or_module, tuple(func_or_module.functions.values())
    else:
        functions = (func_or_module,)
    machine = None if target is None else Target(target)
    problems: list[Diagnostic] = []
    for function in functions:
        if isinstance(function, ir.PrimFunc):
            problems += (
                find_violations(function, machine)
                or unknown_bounds(function)
                or _pipelines(function)
            )
        elif isinstance(function, ir.GraphFunction):
            try:
                check_graph(function, module, None if machine is None else machine.kind)
                problems += unknown_bounds(function)
            except ValidationError as error:
                problems += error.diagnostics
        elif module is None:
            raise OptionError(
                f"cannot validate a {type(function).__name__}",
                code="BW902",
                help="pass a tensor program, a graph function or a module",
            )
    if problems:
        raise ValidationError.collect(problems)


def unknown_bounds(function: ir.PrimFunc | ir.GraphFunction) -> list[Diagnostic]:
    """Declared bounds of names that are no symbol of a function.

    Asked of what users hand in alone: functions that passes make may keep those of their callers.
    """
    names = {v.name for v in ir.collect(function, ir.Var)}
    return [
        Diagnostic(code, f"{function.name}: {text}", function.span, help)
        for code, text, help in ir.unknown_bounds(function.attrs, names)
    ]


def _pipelines(function: ir.PrimFunc) -> list[Diagnostic]:
    """What is illegal about the pipelines that annotations ask for."""
    try:
        with_pipelines(function)
    except ScheduleError as error:
        return list(error.diagnostics)
    return []
