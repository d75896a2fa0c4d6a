"""Remove from signatures the reads of elements that the block initializes itself.

Before::

    with T.block("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        T.reads(C[vi], A[vi, vk])
        T.writes(C[vi])
        with T.init():
            C[vi] = T.float32(0)
        C[vi] = C[vi] + A[vi, vk]

After::

        T.reads(A[vi, vk])

Both signatures are valid, since a signature may state more than is accessed. Reductions are
recognized by what a block needs from outside, which follows from its body, not from its signature.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.access.regions import block_access_regions
from blockwright.analysis.access.tree import takes_addresses
from blockwright.analysis.facts import symbol_facts
from blockwright.arith import Analyzer


def without_own_reads(func: ir.PrimFunc) -> ir.PrimFunc:
    """Remove reads of elements that the block itself initializes; see the module docstring."""
    stated = any(b.init is not None and _both(b) for b in ir.blocks(func.body))
    return func.replace(body=_OwnReads(symbol_facts(func))(func.body)) if stated else func


def _both(block: ir.Block) -> set[ir.Buffer]:
    """Buffers that a block states as both read and written."""
    return {r.buffer for r in block.reads} & {r.buffer for r in block.writes}


class _OwnReads(ir.Mutator):
    def __init__(self, outside: Analyzer) -> None:
        super().__init__()
        self.outside = outside

    def rewrite_Block(self, node: ir.Block) -> ir.Block:
        before = self.outside
        self.outside = before.copy()
        for it in node.iter_vars:
            self.outside.bind(it.var, it.dom)
        block: ir.Block = self.descend(node)
        self.outside = before
        both = _both(block) & _initialized(block)
        if not both or takes_addresses(block):
            return block
        needed = {r.buffer for r in block_access_regions(block, self.outside)[0]}
        reads = tuple(r for r in block.reads if r.buffer not in both - needed)
        return block if len(reads) == len(block.reads) else block.replace(reads=reads)


def _initialized(block: ir.Block) -> set[ir.Buffer]:
    """Buffers with elements that the block, or a block inside it, initializes, also by a view."""
    result: set[ir.Buffer] = set()
    for each in ir.collect(block, ir.Block):
        if each.init is not None:
            result |= {s.buffer for s in ir.collect(each.init, ir.BufferStore)}
            result |= {r.buffer for b in ir.collect(each.init, ir.Block) for r in b.writes}
    for view in reversed(ir.collect(block, ir.MatchBufferRegion)):  # inner views come later
        if view.buffer in result:
            result.add(view.source.buffer)
    return result
