"""AnnotatePatterns: store the compute pattern of every tensor program as an attribute.

Before:  @T.prim_func mm(...): ...
After:   the same with T.func_attr({"compute_pattern": "OutputEwiseFusible"})

The pattern follows from analysis of the program, so hand-written programs fuse like generated ones.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis import compute_pattern
from blockwright.passes.context import PassContext, graph_pass


@graph_pass
def annotate_patterns(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Analyze programs that do not declare a pattern."""
    functions = dict(module.functions)
    for name, func in module.functions.items():
        if isinstance(func, ir.PrimFunc) and "compute_pattern" not in func.attrs:
            result = compute_pattern(func)
            functions[name] = func.replace(attrs={**func.attrs, "compute_pattern": str(result)})
    return module.replace(functions=functions)
