"""AddRoots: wrap the body of every imported tensor program in a root block.

Before:  @T.prim_func def f(...): for i in range(4): Y[i] = X[i]     # no block
After:   the same statements in the root block

Later passes can then query the blocks of any program; a program without further blocks is lowered
as it is.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.canonical.statement_blocks import with_root
from blockwright.passes.context import PassContext, graph_pass


@graph_pass
def add_roots(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Wrap the bodies of tensor programs that have no root block."""
    functions = {
        name: with_root(f) if isinstance(f, ir.PrimFunc) else f
        for name, f in module.functions.items()
    }
    same = all(functions[name] is module.functions[name] for name in functions)
    return module if same else module.replace(functions=functions)
