"""AddRoots: wrap the body of every imported tensor program in a root block.

Before::

    @T.prim_func
    def copy(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            y[i] = x[i]

After::

    @T.prim_func
    def copy(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        with T.block("root"):
            T.reads()
            T.writes()
            for i in range(8):
                y[i] = x[i]

Later passes can then query the blocks of any program; a program without further blocks is lowered
as it is.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.canonical.statement_blocks import with_root
from blockwright.passes.context import PassContext, program_pass


@program_pass
def add_roots(program: ir.PrimFunc, ctx: PassContext) -> ir.PrimFunc:
    """Wrap the bodies of tensor programs that have no root block."""
    return with_root(program)
