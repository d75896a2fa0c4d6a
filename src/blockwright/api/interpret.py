"""`bw.interpret`: run tensor programs and graph functions on the reference interpreters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from typing import Any

from blockwright import ir
from blockwright.analysis.validate.well_formed import check_meaning
from blockwright.graph.interpreter import interpret_graph
from blockwright.graph.program_calls import call_problems, reachable_programs
from blockwright.interp import Limit, Report
from blockwright.interp import interpret as interpret_program
from blockwright.ir.fields import field_problems
from blockwright.support import BlockwrightError, InterpretError, ValidationError


def interpret(
    program: ir.PrimFunc | ir.GraphFunction | ir.IRModule,
    *args: Any,
    entry: str = "main",
    outputs: int | Collection[str] | None = None,
    vectorize: bool = True,
    races: bool = True,
    order: str | int | None = None,
    packed: dict[str, Callable[..., Any]] | None = None,
    report: Report | None = None,
    limit: Limit | None = None,
    exact: bool = False,
    depth: int = 1000,
    **named: Any,
) -> Any:
    """Run a program on NumPy arrays, checking every step.

    A tensor program runs in place and returns None. A graph function returns its value: an array,
    a `Shape`, a NumPy scalar, a tuple of these, or a function.

    Args:
        program: a tensor program, a graph function, or a module whose function `entry` is run.
        args: of a tensor program, one array per buffer parameter and one number per scalar
            parameter; of a graph function, one value per parameter: arrays, tuples of ints for
            shapes, numbers for scalars, tuples, functions.
        named: arguments by name: scalars and symbols of a tensor program, or the last parameters of
            a graph function.
        outputs, vectorize, races, order, report: of tensor programs, see `interp.interpret`.
        packed: Python functions for calls of foreign functions.
        limit: limit on loop iterations, not counting those that run as lanes; BW757 beyond it.
        exact, depth: of graph functions, see `graph.interpreter.interpret_graph`.

    Raises InterpretError: BW701-BW709 for arguments, BW711 unknown foreign function, BW751-BW767
    errors of tensor programs, BW768 calls nested too deeply, BW769 a value that does not have its
    annotation. Raises ValidationError: the graph function is not valid, or a tensor program
    uses what is not in scope (BW212), returns inside a concurrent loop (BW618), returns a value,
    or calls another one with arguments that do not fit it; or nodes are malformed (BW259).
    """
    with _explained(program):
        found = program.functions.get(entry) if isinstance(program, ir.IRModule) else program
        if isinstance(program, ir.IRModule):
            is_program = isinstance(found, ir.PrimFunc)
            checked = reachable_programs(program, entry) if is_program else None
            problems = call_problems(program, checked)
            if problems:
                raise ValidationError.collect(problems)
            for name in checked or ():
                if isinstance(callee := program.functions[name], ir.PrimFunc):
                    check_meaning(callee)
        if isinstance(found, ir.PrimFunc):
            check_meaning(found)
        if isinstance(found, ir.GraphFunction):
            whole = program if isinstance(program, (ir.IRModule, ir.GraphFunction)) else found
            arguments = (*args, *_by_name(found, len(args), named))
            return interpret_graph(
                whole,
                *arguments,
                entry=entry,
                exact=exact,
                packed=packed,
                depth=depth,
                limit=limit,
            )
        interpret_program(
            program,  # pyright: ignore[reportArgumentType]  it reports objects of other kinds
            *args,
            entry=entry,
            outputs=outputs,
            vectorize=vectorize,
            races=races,
            order=order,
            packed=packed,
            report=report,
            limit=limit,
            **named,
        )
        return None


@contextmanager
def _explained(program: Any) -> Generator[None]:
    """Report the malformed nodes of a program (BW259) if they have caused an internal error.

    Programs are not checked before: that takes as long as running a small one.
    """
    try:
        yield
    except BlockwrightError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        wrong = field_problems(program) if isinstance(program, ir.Node) else []
        if wrong:
            raise ValidationError.collect(wrong) from error
        raise


def _by_name(function: ir.GraphFunction, given: int, named: dict[str, Any]) -> list[Any]:
    """The arguments after the first `given`, in order. Raises: InterpretError BW701."""
    rest = [p.name for p in function.params[given:]]
    for name in named:
        if name not in rest:
            raise InterpretError(
                f"{function.name} has no further parameter {name!r}",
                code="BW701",
                help=f"parameters: {', '.join(p.name for p in function.params) or 'none'}",
            )
    return [named[name] for name in rest if name in named]
