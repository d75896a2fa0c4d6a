"""AnnotatePatterns: store the compute pattern of every tensor program as an attribute.

Before::

    @T.prim_func(private=True)
    def exp(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.block("y"):
                v = T.axis.spatial(4, i)
                y[v] = T.exp(x[v])

After::

    @T.prim_func(private=True)
    def exp(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        T.func_attr({"compute_pattern": "ElementWise"})
        for i in range(4):
            with T.block("y"):
                v = T.axis.spatial(4, i)
                y[v] = T.exp(x[v])

The pattern follows from analysis of the program, so hand-written programs fuse like generated ones.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis import compute_pattern, may_return
from blockwright.passes.context import PassContext, program_pass


@program_pass
def annotate_patterns(program: ir.PrimFunc, ctx: PassContext) -> ir.PrimFunc:
    """Analyze programs that do not declare a pattern, or may return early: these do not fuse."""
    if "compute_pattern" in program.attrs and not may_return(program.body):
        return program
    return program.replace(
        attrs={**program.attrs, "compute_pattern": str(compute_pattern(program))}
    )
