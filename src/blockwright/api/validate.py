"""`bw.validate`: every problem of a program, from both levels, in one error."""

from __future__ import annotations

from collections.abc import Iterator

from blockwright import ir
from blockwright.analysis import find_problems
from blockwright.graph import check_graph
from blockwright.schedule.prefetch import with_pipelines
from blockwright.support import Diagnostic, OptionError, ScheduleError, ValidationError
from blockwright.target import Target


def validate(
    func_or_module: ir.PrimFunc | ir.GraphFunction | ir.IRModule,
    target: str | Target | None = None,
) -> None:
    """Check that a program is well formed, and with `target` that the machine offers what it names.

    Arguments:
        func_or_module: a tensor program, a graph function, or a module of both.
        target: a `Target` or its name; its storage scopes and thread axes are then checked too.

    Raises:
        ValidationError: lists all problems of all functions.
        OptionError: BW902 for anything that is no program.
    """
    module = None
    if isinstance(func_or_module, ir.IRModule):
        module, functions = func_or_module, tuple(func_or_module.functions.values())
    else:
        functions = (func_or_module,)
    machine = None if target is None else Target(target)
    problems: list[Diagnostic] = []
    for function in functions:
        if isinstance(function, ir.PrimFunc):
            problems += find_problems(function) or _pipelines(function)
            if machine is not None:
                problems += _missing(function, machine)
        elif isinstance(function, ir.GraphFunction):
            try:
                check_graph(function, module)
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


def _pipelines(function: ir.PrimFunc) -> list[Diagnostic]:
    """What is illegal about the pipelines that annotations ask for."""
    try:
        with_pipelines(function)
    except ScheduleError as error:
        return list(error.diagnostics)
    return []


def _missing(function: ir.PrimFunc, target: Target) -> Iterator[Diagnostic]:
    """Storage scopes and thread axes that a program names and a machine does not have."""
    scopes = [scope.name for scope in target.memory_scopes]
    seen: set[ir.Buffer] = set()
    for block in ir.collect(function.body, ir.Block):
        seen.update(block.alloc_buffers)
    for allocation in ir.collect(function.body, ir.Allocate):
        seen.add(allocation.buffer)
    for buffer in sorted(seen, key=lambda b: b.name):
        if buffer.scope not in scopes:
            yield Diagnostic("BW230", f"buffer {buffer.name} lives in {buffer.scope!r}, which "
                             f"{target} does not have", buffer.span,
                             f"its scopes: {', '.join(scopes)}")  # fmt: skip
    tags = [tag for scope in target.execution_scopes for tag in scope.thread_tags]
    for loop in ir.collect(function.body, ir.For):
        if loop.thread is not None and loop.thread.thread_tag not in tags:
            yield Diagnostic("BW231", f"loop {loop.loop_var.name} is bound to "
                             f"{loop.thread.thread_tag}, which {target} does not have", loop.span,
                             f"its axes: {', '.join(tags)}" if tags else
                             "use parallel and vectorize")  # fmt: skip
