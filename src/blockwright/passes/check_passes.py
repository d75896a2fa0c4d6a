"""An instrument that checks the module after every pass."""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis import find_violations
from blockwright.graph import check_graph
from blockwright.passes.instrument import Instrument
from blockwright.support import BuildError, Diagnostic, ValidationError


class CheckPasses(Instrument):
    """Checks after every pass that the functions it changed are valid.

    Graph functions and, with `programs`, tensor programs are checked as by `bw.validate`: scopes,
    single binding, every annotation against what deduction gives, races, coverage of buffers.
    """

    def __init__(self, programs: bool = True) -> None:
        self.programs = programs

    def after(self, name: str, before: ir.IRModule, after: ir.IRModule) -> None:
        """Check the result of a pass. Raises: BuildError BW647 listing all problems."""
        problems: list[Diagnostic] = []
        for label, function in after.functions.items():
            if before.functions.get(label) is function:
                continue
            if isinstance(function, ir.GraphFunction):
                problems += _graph_problems(function, after)
            elif self.programs and isinstance(function, ir.PrimFunc):
                problems += find_violations(function)
        if problems:
            first = problems[0]
            raise BuildError(
                f"the pass {name} left an invalid module: {first.message}",
                code="BW647",
                help=f"run the pipeline until({name!r}) to see the module",
                notes=[f"{problem.code}: {problem.message}" for problem in problems[1:]],
            )


def _graph_problems(function: ir.GraphFunction, module: ir.IRModule) -> list[Diagnostic]:
    try:
        check_graph(function, module)
    except ValidationError as error:
        return list(error.diagnostics)
    return []
