"""AnnotatePatterns: store the compute pattern of every tensor program as an attribute.

Before:  @T.prim_func mm(...): ...
After:   the same with T.func_attr({"compute_pattern": "OutputEwiseFusible"})

The pattern follows from analysis of the program, so hand-written programs fuse like generated ones.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis import compute_pattern
from blockwright.passes.context import PassContext, program_pass


@program_pass
def annotate_patterns(program: ir.PrimFunc, ctx: PassContext) -> ir.PrimFunc:
    """Analyze programs that do not declare a pattern."""
    if "compute_pattern" in program.attrs:
        return program
    return program.replace(
        attrs={**program.attrs, "compute_pattern": str(compute_pattern(program))}
    )
