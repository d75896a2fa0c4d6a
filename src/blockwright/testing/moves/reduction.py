"""Moves of reductions."""

from __future__ import annotations

from blockwright import ir
from blockwright.schedule import BlockRV
from blockwright.testing.generators.integers import INTEGERS
from blockwright.testing.moves.player import Move, NothingToTry, Player


def _reduction(p: Player) -> BlockRV:
    """Draw a block, mostly one with reduction iterators."""
    if not p.likely():
        return p.block()
    return p.block_where(lambda b: any(it.iter_type is ir.IterType.REDUCE for it in b.iter_vars))


def _decompose_reduction(p: Player) -> None:
    block = _reduction(p)
    p.kept(p.sch.decompose_reduction(block, p.chance.choice(p.loops(block))))


def _rfactor(p: Player) -> None:
    """Factor a reduction, mostly by a loop of a reduction iterator of a block with `init`."""
    if not p.likely():
        p.kept(p.sch.rfactor(p.chance.choice(p.loops(p.block())), p.chance.choice([0, 1, -1])))
        return
    block = p.block_where(lambda b: b.init is not None)
    realize = next(
        n
        for n in ir.walk(p.sch.func)
        if isinstance(n, ir.BlockRealize) and n.block is p.node(block)
    )
    terms = [
        v
        for it, v in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if it.iter_type is ir.IterType.REDUCE
    ]
    driving = [
        f for f in p.loops(block) if any(ir.uses_var(v, p.for_of(f).loop_var) for v in terms)
    ]
    if not driving:
        raise NothingToTry
    p.kept(p.sch.rfactor(p.chance.choice(driving), p.chance.choice([0, -1])))


def _merge_reduction(p: Player) -> None:
    """Merge an initialization block and an update of the same buffer, mostly just decomposed."""
    blocks = p.blocks()
    pairs = [(a, b) for a in blocks for b in blocks if a != b and _same_target(p, a, b)]
    if pairs and p.likely():
        p.sch.merge_reduction(*p.chance.choice(pairs))
    elif p.likely():
        block = _reduction(p)
        init = p.sch.decompose_reduction(block, p.chance.choice(p.loops(block)))
        p.sch.merge_reduction(init, block)
    else:
        p.sch.merge_reduction(p.block(), p.block())


def _same_target(p: Player, a: BlockRV, b: BlockRV) -> bool:
    written = [{r.buffer for r in p.node(x).writes} for x in (a, b)]
    return bool(written[0] & written[1])


def _fuse_reduction_epilogue(p: Player) -> None:
    """Fuse mostly a reduction with `init` and a consumer without, or a copy of its result."""
    pairs = [
        (a, b)
        for a in p.blocks()
        if p.node(a).init is not None
        and len(p.node(a).writes) == 1
        and len(p.sch.get_consumers(a)) == 1
        for b in p.sch.get_consumers(a)
        if p.node(b).init is None
    ]
    if p.likely(0.3):
        block = p.block_where(lambda b: b.init is not None)
        p.sch.fuse_reduction_epilogue(block, p.sch.cache_write(block, 0, "local"))
    elif pairs and p.likely():
        p.sch.fuse_reduction_epilogue(*p.chance.choice(pairs))
    else:
        p.sch.fuse_reduction_epilogue(p.block(), p.block())


def _offset_operand(p: Player) -> None:
    """Offset an operand, mostly one of a product of integers, into a type that holds the sums."""
    block = p.block_where(_multiplies_integers) if p.likely() else p.block()
    _, at, buffer = p.region("read", block)
    offset, old = p.chance.choice([1, 3, 128, -7]), buffer.dtype
    fitting = [
        t.name
        for t in map(ir.dtype_of, INTEGERS)
        if old.is_int
        and t.min_value <= old.min_value + offset
        and old.max_value + offset <= t.max_value
    ]
    wanted = fitting if fitting and p.likely() else INTEGERS
    p.kept(*p.sch.offset_operand(block, at, offset, p.chance.choice(wanted)))


def _multiplies_integers(block: ir.Block) -> bool:
    body = block.body
    return (
        block.init is not None
        and isinstance(body, ir.BufferStore)
        and body.buffer.dtype.is_int
        and any(isinstance(n, ir.Mul) for n in ir.walk(body.value))
    )


MOVES = {
    "decompose_reduction": Move(_decompose_reduction),
    "fuse_reduction_epilogue": Move(_fuse_reduction_epilogue, reassociates=True),
    "merge_reduction": Move(_merge_reduction),
    "offset_operand": Move(_offset_operand),
    "rfactor": Move(_rfactor, reassociates=True),
}
