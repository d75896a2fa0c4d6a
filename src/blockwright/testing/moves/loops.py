"""Moves of loop primitives: shape, order and kind."""

from __future__ import annotations

from blockwright import ir
from blockwright.testing.moves.player import Move, NothingToTry, Player


def _split(p: Player) -> None:
    inner = p.chance.choice([[2], [3], [4], [2, 2], [3, 2]])
    keep = p.chance.random() < 0.7
    factors: list[int | None] = [None, *inner]
    if p.chance.random() < 0.25:  # a fixed number of tiles: the last ones may start beyond the end
        factors = [p.chance.choice([2, 3, 4, 32]), None, *inner[1:]]
    p.kept(*p.sch.split(p.loop(), factors, preserve_unit_iters=keep))


def _fuse(p: Player) -> None:
    loops = p.loops(p.block(), at_least=2)
    at = p.chance.randrange(len(loops) - 1)
    p.kept(p.sch.fuse(*loops[at : at + 2]))


def _reorder(p: Player) -> None:
    loops = p.loops(p.block(), at_least=2)
    p.sch.reorder(*p.chance.sample(loops, p.chance.randint(2, len(loops))))


def _merge(p: Player) -> None:
    """Merge loops of two nests, mostly of equal extents."""
    first, second = p.loops(p.block()), p.loops(p.block())
    nodes = [[p.sch.get(f) for f in nest] for nest in (first, second)]
    if nodes[0][0] is nodes[1][0]:
        raise NothingToTry
    extents = [[n.extent for n in nest] for nest in nodes]
    same = 0
    while same < min(map(len, extents)) and ir.structural_equal(*(e[same] for e in extents)):
        same += 1
    if not same and p.likely():
        raise NothingToTry
    depth = p.chance.randint(1, same) - 1 if same else 0
    loops = [first[depth], second[depth]]
    order = list(ir.loops(p.sch.func.body))
    starts = [next(k for k, f in enumerate(order) if f is nest[0]) for nest in nodes]
    p.kept(p.sch.merge(*(loops if starts[0] < starts[1] else loops[::-1])))


def _loop_partition(p: Player) -> None:
    factors = p.chance.choice([[1], [2, None], [None, 1], [1, None, 1], [3]])
    keep = p.chance.random() < 0.7
    p.kept(*p.sch.loop_partition(p.loop(), factors, preserve_unit_iters=keep))


def _reorder_block_iter_var(p: Player) -> None:
    block = p.block()
    order = list(range(len(p.node(block).iter_vars)))
    p.chance.shuffle(order)
    p.sch.reorder_block_iter_var(block, order)


def _vectorize(p: Player) -> None:
    """Vectorize a loop, except if its lanes combine into one element: lowering tests cover that."""
    block = p.block()
    iters = p.node(block).iter_vars
    if any(it.iter_type is ir.IterType.REDUCE for it in iters):
        raise NothingToTry
    p.sch.vectorize(p.chance.choice(p.loops(block)))


MOVES = {
    "add_unit_loop": Move(lambda p: p.kept(p.sch.add_unit_loop(p.block()))),
    "fuse": Move(_fuse),
    "loop_partition": Move(_loop_partition),
    "merge": Move(_merge),
    "parallel": Move(lambda p: p.sch.parallel(p.loop())),
    "reorder": Move(_reorder, reassociates=True),
    # Loops that later steps create for the block follow the order of its iterators.
    "reorder_block_iter_var": Move(_reorder_block_iter_var, reassociates=True),
    "split": Move(_split),
    "unroll": Move(lambda p: p.sch.unroll(p.loop())),
    "vectorize": Move(_vectorize),
}
