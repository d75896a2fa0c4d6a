"""The validator: all properties that a tensor program must have before it is built.

Well-formedness is checked first. Well-formed programs are then checked for loop nests (`bindings`),
dataflow (`read_before_write`), concurrency (`races`), kernels (`launch`), views
(`declared_views`, `view_constraints`) and features of the target.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockwright import ir
from blockwright.analysis.access.tree import Tree
from blockwright.analysis.canonical.memory import plain_memory
from blockwright.analysis.canonical.statement_blocks import with_statement_blocks
from blockwright.analysis.dataflow.contexts import block_contexts
from blockwright.analysis.kernels import axis_of, kernels
from blockwright.analysis.validate.bindings import binding_problems
from blockwright.analysis.validate.declared_views import view_problems
from blockwright.analysis.validate.launch import launch_problems, unit_memory_problems
from blockwright.analysis.validate.races import concurrency_problems, lane_races, runs_at_once
from blockwright.analysis.validate.read_before_write import coverage_problems
from blockwright.analysis.validate.view_constraints import boundary_problems
from blockwright.analysis.validate.violation import Violation
from blockwright.analysis.validate.well_formed import find_problems
from blockwright.ir.printer import script
from blockwright.support import Diagnostic
from blockwright.support.stack import deep
from blockwright.target import Target


@deep
def find_violations(func: ir.PrimFunc, target: Target | None = None) -> list[Diagnostic]:
    """All violations in a function; the last diagnostic shows the program with all guilty nodes.

    Args:
        func: a tensor program; without blocks, few checks apply: well-formedness, races, features.
        target: the target machine; without it, only target-independent rules are checked.
    """
    malformed = find_problems(func)
    if malformed:
        return malformed
    outside = list(view_problems(func))
    if outside:
        return _shown(func, outside)
    func = plain_memory(func)
    problems = list(_problems(func, target))
    return _shown(func, problems) if problems else []


def _problems(func: ir.PrimFunc, target: Target | None) -> Iterator[Violation]:
    if target is not None:
        yield from _missing(func, target)
    tree, launches = Tree(func), kernels(func)
    result = block_contexts(func, launches)
    yield from binding_problems(tree, result)
    yield from coverage_problems(func, result)
    yield from lane_races(func)
    races = list(concurrency_problems(func, result))
    yield from races
    if not races and not launches and runs_at_once(func):
        wrapped = with_statement_blocks(func)
        stores = block_contexts(wrapped, launches)
        if len(stores) > len(result):  # stores outside of blocks
            yield from concurrency_problems(wrapped, stores, statements=True)
    yield from launch_problems(func, launches, result, target)
    if target is not None and target.own_spaces:
        yield from unit_memory_problems(func, result, target)
    yield from boundary_problems(func, result)


def _shown(func: ir.PrimFunc, problems: list[Violation]) -> list[Diagnostic]:
    """Convert violations to diagnostics, with the program and all guilty nodes in the last one."""
    marks = [node for problem in problems for node in problem.guilty]
    note = "the program:\n" + script(func, marks=marks)
    out: list[Diagnostic] = []
    for k, problem in enumerate(problems):
        span = next((n.span for n in problem.guilty if n.span is not None), None)
        notes = (note,) if k == len(problems) - 1 else ()
        message = f"{func.name}: {problem.message}"
        out.append(Diagnostic(problem.code, message, span, problem.help, notes))
    return out


def _missing(func: ir.PrimFunc, target: Target) -> Iterator[Violation]:
    """Storage scopes, thread axes and execution scopes that the target does not have."""
    scopes = [scope.name for scope in target.memory_scopes]
    seen: dict[ir.Buffer, None] = {}
    for block in ir.blocks(func.body):
        seen.update(dict.fromkeys(block.alloc_buffers))
    seen.update(dict.fromkeys(a.buffer for a in ir.collect(func.body, ir.Allocate)))
    for buffer in sorted(seen, key=lambda b: b.name):
        if buffer.scope not in scopes:
            yield Violation(
                "BW230",
                f"buffer {buffer.name} lives in {buffer.scope!r}, which {target} does not have",
                (buffer,),
                f"its scopes: {', '.join(scopes)}",
            )
    tags = [tag for scope in target.execution_scopes for tag in scope.thread_tags]
    for loop in ir.loops(func.body):
        if loop.thread is not None and loop.thread.thread_tag not in tags:
            yield Violation(
                "BW231",
                f"loop {loop.loop_var.name} is bound to "
                f"{loop.thread.thread_tag}, which {target} does not have",
                (loop,),
                f"its axes: {', '.join(tags)}" if tags else "use parallel and vectorize",
            )
    for stmt in ir.collect(func.body, ir.AttrStmt):
        axis = axis_of(stmt)
        if axis is not None and axis.tag not in tags:
            yield Violation(
                "BW231",
                f"{axis.var.name} is launched on {axis.tag}, which {target} does not have",
                (stmt,),
                f"its axes: {', '.join(tags)}" if tags else "use parallel and vectorize",
            )
    names = [scope.name for scope in target.execution_scopes]
    for block in ir.blocks(func.body):
        if block.exec_scope and block.exec_scope not in names:
            yield Violation(
                "BW231",
                f"block {block.name} is for a {block.exec_scope}, which {target} does not have",
                (block,),
                f"its execution scopes: {', '.join(names)}",
            )
