"""An instrument that checks the module after every pass."""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis import find_violations
from blockwright.graph import check_graph
from blockwright.passes.instrument import Instrument
from blockwright.support import BuildError, Diagnostic, ValidationError


class CheckPasses(Instrument):
    """Checks after every pass that the functions it changed are valid.

    Graph functions are checked as `bw.validate` does: scopes, single binding, and every annotation
    against what deduction gives. So are tensor programs, except those of the last passes, which
    call others by address.
    """

    def after(self, name: str, before: ir.IRModule, after: ir.IRModule) -> None:
        """Check the result of a pass. Raises: BuildError BW647 listing all problems."""
        problems: list[Diagnostic] = []
        for label, function in after.functions.items():
            if before.functions.get(label) is not function:
                problems += _problems(function, after)
        if problems:
            first = problems[0]
            raise BuildError(
                f"the pass {name} left an invalid module: {first.message}",
                code="BW647",
                help=f"run the pipeline until({name!r}) to see the module",
                notes=[f"{problem.code}: {problem.message}" for problem in problems[1:]],
            )


def _problems(function: ir.Node, module: ir.IRModule) -> list[Diagnostic]:
    if isinstance(function, ir.PrimFunc):
        return list(find_violations(function))
    if isinstance(function, ir.GraphFunction):
        try:
            check_graph(function, module)
        except ValidationError as error:
            return list(error.diagnostics)
    return []
