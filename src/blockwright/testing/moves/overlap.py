"""Moves that let independent work run side by side: pipelines, double buffers, fused siblings."""

from __future__ import annotations

from blockwright import ir
from blockwright.schedule import LoopRV
from blockwright.testing.moves.player import Move, NothingToTry, Player


def _body(p: Player, loop: LoopRV) -> list[ir.Stmt]:
    node = p.sch.get(loop)
    assert isinstance(node, ir.For)
    return list(node.body.seq) if isinstance(node.body, ir.SeqStmt) else [node.body]


def _loop_with_statements(p: Player) -> LoopRV:
    """A loop with several statements, made by moving a producer to its consumer if need be."""
    loops = {loop: _body(p, loop) for block in p.blocks() for loop in p.sch.get_loops(block)}
    found = [loop for loop, parts in loops.items() if len(parts) > 1]
    if found and p.likely():
        return p.chance.choice(found)
    producer = p.block()
    consumers = p.sch.get_consumers(producer)
    if not consumers:
        raise NothingToTry
    loop = p.loops(p.chance.choice(consumers))[0]
    p.sch.compute_at(producer, loop)
    return loop


def _software_pipeline(p: Player) -> None:
    loop = _loop_with_statements(p)
    count = len(_body(p, loop))
    stages = [p.chance.randint(0, 2) for _ in range(count)]
    orders = list(range(count))
    if p.likely():
        stages.sort()
    else:
        p.chance.shuffle(orders)
    p.sch.software_pipeline(loop, stages, p.chance.choice([orders, orders[::-1], None]))


def _double_buffer(p: Player) -> None:
    _loop_with_statements(p)
    block, at, _ = p.region("write")
    p.sch.double_buffer(block, at)


def _horizontal_fuse(p: Player) -> None:
    blocks = p.blocks()
    outermost = [loops[0] for block in blocks if (loops := p.sch.get_loops(block))]
    distinct = list({p.sch.get(loop): loop for loop in outermost}.values())
    if len(distinct) < 2:
        raise NothingToTry
    first = p.chance.randrange(len(distinct) - 1)
    more = p.chance.randint(1, min(2, len(distinct) - first - 1))
    p.kept(p.sch.horizontal_fuse(*distinct[first : first + 1 + more]))


MOVES = {
    "double_buffer": Move(_double_buffer),
    "horizontal_fuse": Move(_horizontal_fuse),
    "software_pipeline": Move(_software_pipeline),
}
