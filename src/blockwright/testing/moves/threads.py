"""Moves of thread primitives: bindings to thread axes, atomic updates."""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.kernels import AXES
from blockwright.schedule import BlockRV, LoopRV
from blockwright.testing.moves.player import Move, NothingToTry, Player

_USUAL = ("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y")


def _bind(p: Player) -> None:
    """Bind a loop, preferably an outer one; reduction loops are preferably bound to thread axes."""
    block = p.block()
    loops = p.loops(block)
    loop = loops[0] if p.likely(0.6) else p.chance.choice(loops)
    terms = _reduces(p, block, loop)
    usual = ("threadIdx.x", "threadIdx.y") if terms else _USUAL
    p.sch.bind(loop, p.chance.choice(usual if p.likely() else AXES))


def share_terms(p: Player) -> None:
    """Bind one or two loops of a reduction, or parts of them, so that threads combine its terms."""

    def sums(block: ir.Block) -> bool:
        return any(it.iter_type is ir.IterType.REDUCE for it in block.iter_vars)

    block = p.block_where(sums)
    loops = [f for f in p.loops(block) if _reduces(p, block, f)]
    if not loops:
        raise NothingToTry
    loop = p.chance.choice(loops)
    parts = [loop]
    if p.likely(0.6):
        size = p.chance.choice([2, 3, 4])
        parts = p.sch.split(loop, [None, size] if p.likely(0.5) else [size, None])
    axes = p.chance.sample(["threadIdx.x", "threadIdx.y", "threadIdx.z"], 2)
    chosen = p.chance.sample(list(parts), min(len(parts), p.chance.choice([1, 1, 2])))
    for part, axis in zip(chosen, axes, strict=False):
        p.sch.bind(part, axis)
    p.kept(*parts)


def _atomic_update(p: Player) -> None:
    """Prefer an update block, as left by decompose_reduction."""

    def update(block: ir.Block) -> bool:
        reduces = any(it.iter_type is ir.IterType.REDUCE for it in block.iter_vars)
        return block.init is None and reduces

    block = p.block_where(update) if p.likely() else p.block()
    p.sch.atomic_update(block)


def cooperative_copy(p: Player) -> None:
    """Bind an outer loop to blocks, an inner one to threads, and cache an operand in shared memory.

    The threads of a block fill the cache together.
    """
    block, at, _ = p.region("read", p.untouched())
    loops = p.loops(block, at_least=2)
    spatial = [f for f in loops if not _reduces(p, block, f)]
    if len(spatial) < 2:
        raise NothingToTry
    outer, inner = spatial[0], spatial[-1]
    p.sch.reorder(outer, inner)
    threads = p.chance.choice([2, 3, 4])
    rest, own = p.sch.split(inner, [None, threads])
    p.sch.bind(outer, "blockIdx.x")
    p.sch.bind(own, "threadIdx.x")
    copy = p.sch.cache_read(block, at, "shared")
    p.sch.compute_at(copy, outer if p.likely() else rest)
    above = {p.for_of(f) for f in p.sch.get_loops(block)}
    shared_loops = [f for f in p.sch.get_loops(copy) if p.for_of(f) not in above]
    if not shared_loops:
        raise NothingToTry
    whole = p.sch.fuse(*shared_loops) if len(shared_loops) > 1 else shared_loops[0]
    _, member = p.sch.split(whole, [None, threads])
    p.sch.bind(member, "threadIdx.x")
    p.kept(copy, member)


def _reduces(p: Player, block: BlockRV, loop: LoopRV) -> bool:
    var = p.for_of(loop).loop_var
    node = p.node(block)
    realize = next(
        n for n in ir.walk(p.sch.func) if isinstance(n, ir.BlockRealize) and n.block is node
    )
    return any(
        ir.uses_var(value, var) and it.iter_type is ir.IterType.REDUCE
        for it, value in zip(node.iter_vars, realize.iter_values, strict=True)
    )


MOVES = {
    "atomic_update": Move(_atomic_update, reassociates=True),
    "bind": Move(_bind),
}
