"""Inline cheap blocks, and query loops and blocks of a schedule; shared by the strategies."""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis import joined_buffers
from blockwright.analysis.facts import symbol_facts
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.match.blocks import is_spatial
from blockwright.support import ScheduleError


def block_of(sch: Schedule, handle: BlockRV) -> ir.Block:
    """The block of a handle."""
    result = sch.get(handle)
    assert isinstance(result, ir.Block)
    return result


def extent(sch: Schedule, loop: LoopRV) -> int | None:
    """The constant extent of a loop; None if it is not constant."""
    result = sch.get(loop)
    assert isinstance(result, ir.For)
    return ir.const_int(result.extent)


def bound_iterators(sch: Schedule, handle: BlockRV) -> list[int] | None:
    """The iterator that each loop of a block binds; None unless the mapping is one to one."""
    block, loops = block_of(sch, handle), sch.get_loops(handle)
    if len(loops) != len(block.iter_vars) or not loops:
        return None
    around = sch.get(loops[0])
    (realize,) = (r for r in ir.collect(around, ir.BlockRealize) if r.block is block)
    result: list[int] = []
    for loop in loops:
        var = getattr(sch.get(loop), "loop_var", None)
        result += [k for k, value in enumerate(realize.iter_values) if value is var]
    return result if sorted(result) == list(range(len(loops))) else None


def longest(sch: Schedule, loop: LoopRV) -> int | None:
    """Upper bound on a loop's trip count, by its extent or the declared bounds of sizes."""
    result = sch.get(loop)
    assert isinstance(result, ir.For)
    return symbol_facts(sch.func).const_bounds(result.extent)[1]


def reduces(sch: Schedule, block: ir.Block, loop: LoopRV) -> bool:
    """Whether a loop drives reduction iterators of the block."""
    result = sch.get(loop)
    assert isinstance(result, ir.For)
    for realize in ir.collect(result, ir.BlockRealize):
        if realize.block is block:
            for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
                if ir.uses_var(value, result.loop_var):
                    return it.iter_type is ir.IterType.REDUCE
    return False


def is_copy(block: ir.Block) -> bool:
    """Whether a spatial block only moves elements, so that inlining it costs nothing."""
    store = block.body
    return (
        is_spatial(block)
        and isinstance(store, ir.BufferStore)
        and isinstance(store.value, ir.BufferLoad)
        and not any(isinstance(n, ir.BufferLoad) for i in store.value.indices for n in ir.walk(i))
    )


def inline_where(sch: Schedule, handles: list[BlockRV], copies_only: bool = False) -> list[BlockRV]:
    """Inline spatial blocks into their consumers; return the blocks that remain.

    With `copies_only`, blocks that compute something remain, because several readers would each
    recompute it.
    """
    remaining: list[BlockRV] = []
    for handle in handles:
        block = block_of(sch, handle)
        wanted = is_copy(block) if copies_only else is_spatial(block) and not _grows(sch, handle)
        try:
            if wanted:
                sch.compute_inline(handle)
                continue
        except ScheduleError:
            pass  # an output, or indices that are not iterators: the block remains
        remaining.append(handle)
    return remaining


_LARGEST = 1024  # nodes of an expression up to which a value is recomputed at each use


def _grows(sch: Schedule, handle: BlockRV) -> bool:
    """Whether inlining a value with several uses would make an expression too large.

    Each value of a chain of such values would double the expression.
    """
    result = block_of(sch, handle).body
    if not isinstance(result, ir.BufferStore):
        return False
    own, _ = _counted(result.value, result.buffer)
    for consumer in sch.get_consumers(handle):
        size, uses = _counted(block_of(sch, consumer).body, result.buffer)
        if uses > 1 and size + uses * own > _LARGEST:
            return True
    return False


def _counted(root: ir.Node, buffer: ir.Buffer) -> tuple[int, int]:
    """Nodes of a tree and loads of a buffer in it, counted once per occurrence."""
    known: dict[ir.Node, tuple[int, int]] = {}

    def count(node: ir.Node) -> tuple[int, int]:
        if node not in known:
            size, uses = 1, int(isinstance(node, ir.BufferLoad) and node.buffer is buffer)
            for child in node.children():
                more = count(child)
                size, uses = size + more[0], uses + more[1]
            known[node] = (size, uses)
        return known[node]

    return count(root)


def push_into_parts(sch: Schedule, handles: list[BlockRV]) -> list[BlockRV]:
    """Inline consumers of a buffer written in parts (a concatenation) into its producers.

    Then no branch selects between the parts, and the whole is never stored. Consumers that cannot
    be inlined remain separate blocks.
    """
    remaining: list[BlockRV] = []
    for handle in handles:
        block = block_of(sch, handle)
        joined = joined_buffers([block_of(sch, other) for other in remaining])
        if any(region.buffer in joined for region in block.reads):
            try:
                sch.reverse_compute_inline(handle)
                continue
            except ScheduleError:
                pass  # it reads several elements, or others read the buffer too
        remaining.append(handle)
    return remaining
