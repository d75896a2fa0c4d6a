"""Recompute inferred block signatures whose indices depend on values that a function defines.

    def main(A: T.Buffer((64,), "float32"), B: T.Buffer((8,), "float32"), p: T.int32):
        ...
            for k in range(4):
                B[vi] = B[vi] + A[(p + k) // 8]

The parser infers a signature at the end of its block. Which scalar parameters are values, whose
sums wrap around, is known only at the end of the function, because a later loop or shape may still
use one. Signatures inferred with `p` as an index are therefore inferred again.
"""

from __future__ import annotations

from collections.abc import Set

from blockwright import ir
from blockwright.analysis.access.regions import block_access_regions
from blockwright.arith import Analyzer


def with_value_regions(func: ir.PrimFunc) -> ir.PrimFunc:
    """Recompute inferred signatures with values treated as values; stated ones are kept."""
    values = ir.value_variables(func)
    if not values:
        return func
    body = _Deduced(values)(func.body)
    return func if body is func.body else func.replace(body=body)


class _Deduced(ir.Mutator):
    def __init__(self, values: Set[ir.Var]) -> None:
        super().__init__()
        self.values = values

    def rewrite_Block(self, node: ir.Block) -> ir.Block:
        block: ir.Block = self.descend(node)
        if not (node.reads or node.writes) or not ir.uses_var(node, self.values):
            return block
        plain = block_access_regions(node)
        wide = block_access_regions(block, Analyzer(values=self.values))
        reads, writes = (
            new if ir.structural_equal(stated, old) else stated
            for stated, old, new in zip((block.reads, block.writes), plain, wide, strict=True)
        )
        return block.replace(reads=reads, writes=writes)
