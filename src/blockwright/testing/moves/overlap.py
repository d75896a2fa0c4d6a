"""Moves that overlap independent work: software pipelines, double buffers, horizontal fusion."""

from __future__ import annotations

from blockwright import ir
from blockwright.schedule import BlockRV, LoopRV
from blockwright.testing.moves.player import Move, NothingToTry, Player


def body_of(p: Player, loop: LoopRV) -> list[ir.Stmt]:
    """The statements of a loop's body."""
    node = p.sch.get(loop)
    assert isinstance(node, ir.For)
    return list(node.body.seq) if isinstance(node.body, ir.SeqStmt) else [node.body]


def loop_with_statements(p: Player) -> LoopRV:
    """A loop with several statements; a producer is moved to its consumer if there is none."""
    loops = {loop: body_of(p, loop) for block in p.blocks() for loop in p.sch.get_loops(block)}
    result = [loop for loop, parts in loops.items() if len(parts) > 1]
    if result and p.likely():
        return p.chance.choice(result)
    producer = p.block()
    consumers = p.sch.get_consumers(producer)
    if not consumers:
        raise NothingToTry
    loop = p.loops(p.chance.choice(consumers))[0]
    p.sch.compute_at(producer, loop)
    return loop


def _software_pipeline(p: Player) -> None:
    loop = loop_with_statements(p)
    count = len(body_of(p, loop))
    stages = [p.chance.randint(0, 2) for _ in range(count)]
    orders = list(range(count))
    if p.likely():
        stages.sort()
    else:
        p.chance.shuffle(orders)
    p.sch.software_pipeline(loop, stages, p.chance.choice([orders, orders[::-1], None]))


def passed_on(p: Player) -> list[tuple[BlockRV, int]]:
    """Blocks whose result another block reads in the same loop, with the number of that result."""
    below = p.sch.get_child_blocks(loop_with_statements(p))
    inside = {p.node(b) for b in below}
    return [
        (b, at)
        for b in below
        for at, region in enumerate(p.node(b).writes)
        if any(
            p.node(c) in inside and any(r.buffer is region.buffer for r in p.node(c).reads)
            for c in p.sch.get_consumers(b)
        )
    ]


def _double_buffer(p: Player) -> None:
    """Double-buffer mostly a block whose result another one reads in the same loop."""
    result = passed_on(p)
    if p.likely():
        if not result:
            raise NothingToTry
        p.sch.double_buffer(*p.chance.choice(result))
        return
    block, at, _ = p.region("write")
    p.sch.double_buffer(block, at)


def _touched(p: Player, loop: LoopRV) -> tuple[set[ir.Buffer], set[ir.Buffer]]:
    """The buffers that blocks below a loop read, and those that they write."""
    nodes = [p.node(b) for b in p.sch.get_child_blocks(loop)]
    return ({r.buffer for n in nodes for r in n.reads}, {w.buffer for n in nodes for w in n.writes})


def _strangers(p: Player, loops: list[LoopRV]) -> bool:
    """Whether no two of the loops share a buffer that one of them writes."""
    touched = [_touched(p, loop) for loop in loops]
    return not any(
        a[1] & (b[0] | b[1]) for k, a in enumerate(touched) for b in touched[:k] + touched[k + 1 :]
    )


def _horizontal_fuse(p: Player) -> None:
    """Fuse adjacent outermost loops, mostly of independent blocks."""
    blocks = p.blocks()
    outermost = [loops[0] for block in blocks if (loops := p.sch.get_loops(block))]
    distinct = list({p.sch.get(loop): loop for loop in outermost}.values())
    if len(distinct) < 2:
        raise NothingToTry
    runs = [distinct[k : k + n] for k in range(len(distinct) - 1) for n in (2, 3)]
    if p.likely():
        runs = [run for run in runs if _strangers(p, run)]
    if not runs:
        raise NothingToTry
    p.kept(p.sch.horizontal_fuse(*p.chance.choice(runs)))


MOVES = {
    "double_buffer": Move(_double_buffer),
    "horizontal_fuse": Move(_horizontal_fuse),
    "software_pipeline": Move(_software_pipeline),
}
