"""Execution order of accesses: shared loops, earlier stores, and barriers between threads.

Blocks run in program order within one iteration of the loops around both; the iterations of a
serial loop run one after another; the threads of a kernel run concurrently up to a barrier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockwright import ir
from blockwright.analysis.access.tree import common_prefix
from blockwright.analysis.dataflow.accesses import ConditionalAccess
from blockwright.analysis.dataflow.contexts import BlockContext, LoopLevel
from blockwright.analysis.kernels import BLOCK_AXES


def runs_before(a: BlockContext, b: BlockContext) -> bool:
    """Whether a block comes first in program order, within an iteration of all shared loops."""
    return a.order < b.order


def shared_loops(a: BlockContext, b: BlockContext) -> list[LoopLevel]:
    """Loops around both blocks, outermost first, except loops bound to thread axes."""
    around = {level.stmt for level in b.path}
    return [level for level in a.path if not level.tag and level.stmt in around]


def after_own_stores(
    accesses: Sequence[ConditionalAccess], roots: Mapping[ir.Buffer, ir.Buffer]
) -> set[int]:
    """Indices of accesses that may see values stored by the same block instance.

    A store to the same memory precedes them, or shares a loop inside the block with them.

    Args:
        accesses: accesses of one block in order.
        roots: views, with the buffers whose memory they alias.
    """
    result: set[int] = set()
    stores = [(k, t) for k, t in enumerate(accesses) if t.how != "read"]
    for number, access in enumerate(accesses):
        loops = {span.var for span in access.spans}
        memory = roots.get(access.buffer, access.buffer)
        if any(
            roots.get(store.buffer, store.buffer) is memory
            and (k < number or loops & {span.var for span in store.spans})
            for k, store in stores
        ):
            result.add(number)
    return result


def divergent_condition(a: BlockContext, b: BlockContext) -> ir.Node | None:
    """A condition around two blocks that may differ between threads of a block, or None.

    No barrier can be placed between the blocks: not all threads would reach it.
    """
    lanes = {level.var for level in b.path if level.tag and level.tag not in BLOCK_AXES}
    for stmt in common_prefix(a.around, b.around):
        condition: ir.Expr | None = None
        if isinstance(stmt, ir.IfThenElse):
            condition = stmt.condition
        elif isinstance(stmt, ir.BlockRealize):
            condition = stmt.predicate
        elif isinstance(stmt, ir.For):
            condition = stmt.extent
        if condition is not None and ir.uses_var(b.resolved(condition), lanes):
            return condition
    return None
