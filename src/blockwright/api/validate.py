"""`bw.validate`: check graph functions and tensor programs; one error lists all problems."""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.analysis import find_violations
from blockwright.graph import check_graph
from blockwright.graph.program_calls import call_problems
from blockwright.ir.fields import field_problems
from blockwright.schedule.rewrite.pipeline_annotations import with_pipelines
from blockwright.support import Diagnostic, OptionError, ScheduleError, ValidationError
from blockwright.target import Target


def validate(
    func_or_module: ir.PrimFunc | ir.GraphFunction | ir.IRModule,
    target: str | Target | None = None,
) -> None:
    """Check that a program is valid. `build` runs the same checks.

    Checks well-formedness, bindings of block iterators, reads of uninitialized elements, races
    between concurrent iterations, consistency and data sharing of GPU kernels, constraints of
    views, calls between the tensor programs of a module, and the features and limits of the
    target. The modules of `analysis` document each rule.
    A rule that can be neither proved nor refuted is assumed to hold, except layout constraints.

    Arguments:
        func_or_module: a tensor program, a graph function, or a module of both.
        target: a `Target` or its name; None skips the checks that depend on the machine.

    Raises:
        ValidationError: lists all problems of all functions.
        OptionError: BW902 for any other object.
    """
    given: Any = func_or_module
    if isinstance(given, ir.Node) and (wrong := field_problems(given)):
        raise ValidationError.collect(wrong)
    module = None
    if isinstance(func_or_module, ir.IRModule):
        module, functions = func_or_module, tuple(func_or_module.functions.items())
    else:
        functions = ((getattr(given, "name", ""), func_or_module),)
    machine = None if target is None else Target(target)
    problems: list[Diagnostic] = []
    for name, function in functions:
        if isinstance(function, ir.PrimFunc):
            problems += (
                find_violations(function, machine)
                or unknown_bounds(function, name)
                or _pipelines(function)
            )
        elif isinstance(function, ir.GraphFunction):
            try:
                check_graph(function, module, None if machine is None else machine.kind)
                problems += unknown_bounds(function, name)
            except ValidationError as error:
                problems += error.diagnostics
        elif module is None:
            raise OptionError(
                f"cannot validate a {type(function).__name__}",
                code="BW902",
                help="pass a tensor program, a graph function or a module",
            )
    if module is not None and not problems:
        problems += call_problems(module)
    if problems:
        raise ValidationError.collect(problems)


def unknown_bounds(function: ir.PrimFunc | ir.GraphFunction, name: str) -> list[Diagnostic]:
    """Report declared bounds for names that are not symbols of the function.

    Checked for user input only: functions created by passes may keep the bounds of their callers.
    """
    names = {v.name for v in ir.collect(function, ir.Var)}
    return [
        Diagnostic(code, f"{name}: {text}", function.span, help)
        for code, text, help in ir.unknown_bounds(function.attrs, names)
    ]


def _pipelines(function: ir.PrimFunc) -> list[Diagnostic]:
    """Report errors in the software pipelines that annotations request."""
    try:
        with_pipelines(function)
    except ScheduleError as error:
        return list(error.diagnostics)
    return []
