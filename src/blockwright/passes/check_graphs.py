"""CheckGraphs: verify every graph function before the first rewrite.

A valid module stays as it is.

Before::

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        y: R.Tensor((n,), "float32") = R.exp(x)
        return y

Refused BW408::

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        y: R.Tensor((3,), "float32") = R.exp(x)
        return y
"""

from __future__ import annotations

from blockwright import ir
from blockwright.graph import Deduced, check_structure
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import graph_functions
from blockwright.support import GraphError


@graph_pass
def check_graphs(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Check structure and annotations of every graph function.

    Raises: ValidationError listing all violations of well-formedness; GraphError listing invalid
        calls and annotations that deduction does not imply.
    """
    checked(module, ctx)
    return module


def checked(module: ir.IRModule, ctx: PassContext) -> dict[str, Deduced]:
    """Deduced annotations of every graph function; computed once per module. Raises as above."""
    known, result = ctx.checked
    if known is module:
        return result
    fresh: dict[str, Deduced] = {}
    for name, function in graph_functions(module):
        check_structure(function, module, ctx.target.kind)
        deduced = Deduced(function, module)
        if deduced.problems:
            raise GraphError.collect(deduced.problems)
        fresh[name] = deduced
    ctx.checked = (module, fresh)
    return fresh
