"""Copies, layouts, padding and split-up reductions on random programs keep the meaning.

Steps are drawn at random; those that are illegal must be refused without a trace. After the rest
the program computes the same (to the bit unless a step may reassociate a sum), every handle stands
for something or names the step that consumed it, and trace and script bring the program back.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from blockwright import ir
from blockwright.analysis import check_well_formed
from blockwright.ir.printer import script
from blockwright.schedule import RECORDS, BlockRV, Handle, LoopRV, Schedule, ScheduleError, Trace
from blockwright.script.compute import Program
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning, random_program

REASSOCIATING = {"rfactor", "reorder", "transform_block_layout"}


class Player:
    """Takes random steps and remembers every handle ever given."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sch = Schedule(random_program(seed), verify="full")
        self.handles: list[Handle] = []
        self.taken: list[str] = []

    def play(self, steps: int) -> None:
        for _ in range(steps):
            move = self.chance.choice(MOVES)
            before, steps_before = self.sch.func, len(self.sch.trace)
            try:
                move(self)
            except ScheduleError as error:
                if not error.code.startswith("BW3"):
                    raise
                assert self.sch.func is before
                continue
            if len(self.sch.trace) > steps_before and self.sch.func is not before:
                self.taken.append(move.__name__)

    # ------------------------------------------------------------------ choices
    def any_block(self) -> BlockRV:
        below = self.sch.get_child_blocks(self.sch.get_block("root"))
        self.handles += below
        return self.chance.choice(below)

    def any_loop(self) -> LoopRV:
        for _ in range(8):
            loops = self.sch.get_loops(self.any_block())
            self.handles += loops
            if loops:
                return self.chance.choice(loops)
        raise ScheduleError("no block stands under loops", code="BW300")

    def node(self, block: BlockRV) -> ir.Block:
        found = self.sch.get(block)
        assert isinstance(found, ir.Block)
        return found

    def region(self, kind: str) -> tuple[BlockRV, int, ir.Buffer]:
        """A block, the position of one of its regions, and the region's buffer."""
        for _ in range(8):
            block = self.any_block()
            node = self.node(block)
            regions = node.reads if kind == "read" else node.writes
            if regions:
                at = self.chance.randrange(len(regions))
                return block, at, regions[at].buffer
        raise ScheduleError("no block has such a region", code="BW300")

    def kept(self, *handles: Handle) -> None:
        self.handles += handles


def map_of(rank: int, chance: random.Random) -> Callable[..., tuple[ir.Expr, ...]] | None:
    """A one-to-one function of some indices: a permutation, with a split or a shift."""
    order = list(range(rank))
    chance.shuffle(order)
    kind = chance.choice(["plain", "split", "shift"])

    def final(*i: ir.Expr) -> tuple[ir.Expr, ...]:
        moved = [i[k] for k in order]
        if kind == "split":
            return (*moved[:-1], moved[-1] // 4, moved[-1] % 4)
        if kind == "shift":
            return (moved[0] + 2, *moved[1:])
        return tuple(moved)

    forms: dict[int, Callable[..., tuple[ir.Expr, ...]]] = {
        1: lambda a: final(a),
        2: lambda a, b: final(a, b),
        3: lambda a, b, c: final(a, b, c),
    }
    return forms.get(rank)


# --------------------------------------------------------------------------------- steps
def set_scope(p: Player) -> None:
    block, at, _ = p.region("write")
    p.sch.set_scope(block, at, p.chance.choice(["local", "global"]))


def cache_read(p: Player) -> None:
    block, at, buffer = p.region("read")
    consumers = None
    if p.chance.random() < 0.4:
        others = [p.any_block(), block]
        consumers = [b for b in others if any(r.buffer is buffer for r in p.node(b).reads)]
    p.kept(p.sch.cache_read(block, at, "global", consumers))


def cache_write(p: Player) -> None:
    block, at, _ = p.region("write")
    consumers = p.sch.get_consumers(block) if p.chance.random() < 0.5 else None
    p.kept(p.sch.cache_write(block, at, "global", consumers))


def reindex(p: Player) -> None:
    kind = p.chance.choice(["read", "write"])
    block, at, _ = p.region(kind)
    p.kept(p.sch.reindex(block, (kind, at)))


def transform_layout(p: Player) -> None:
    kind = p.chance.choice(["read", "write"])
    block, at, buffer = p.region(kind)
    mapping = map_of(buffer.ndim, p.chance)
    if mapping is not None:
        p.sch.transform_layout(block, (kind, at), mapping)


def fused_layout(p: Player) -> None:
    """All dimensions in one, with sizes that may be symbols."""
    block, at, buffer = p.region("write")
    if buffer.ndim == 2:
        _, columns = buffer.shape
        p.sch.transform_layout(block, ("write", at), lambda i, j: (i * columns + j,))


def transform_block_layout(p: Player) -> None:
    block = p.any_block()
    mapping = map_of(len(p.node(block).iter_vars), p.chance)
    if mapping is not None:
        p.sch.transform_block_layout(block, mapping)


def pad_einsum(p: Player) -> None:
    block = p.any_block()
    units = [p.chance.choice([1, 2, 4]) for _ in p.node(block).iter_vars]
    p.kept(*(p.sch.pad_einsum(block, units, p.chance.choice(["zero", "clamp"])) or ()))


def rfactor(p: Player) -> None:
    p.kept(p.sch.rfactor(p.any_loop(), p.chance.choice([0, 1, -1])))


def decompose_reduction(p: Player) -> None:
    block = p.any_block()
    loops = p.sch.get_loops(block)
    if loops:
        p.kept(p.sch.decompose_reduction(block, p.chance.choice(loops)))


def split(p: Player) -> None:
    p.kept(*p.sch.split(p.any_loop(), [None, p.chance.choice([2, 3, 4])]))


def fuse(p: Player) -> None:
    loops = p.sch.get_loops(p.any_block())
    if len(loops) > 1:
        at = p.chance.randrange(len(loops) - 1)
        p.kept(p.sch.fuse(*loops[at : at + 2]))


def reorder(p: Player) -> None:
    loops = p.sch.get_loops(p.any_block())
    if len(loops) > 1:
        p.sch.reorder(*p.chance.sample(loops, 2))


def compute_at(p: Player) -> None:
    p.sch.compute_at(p.any_block(), p.any_loop())


def reverse_compute_at(p: Player) -> None:
    p.sch.reverse_compute_at(p.any_block(), p.any_loop())


def compute_inline(p: Player) -> None:
    p.sch.compute_inline(p.any_block())


def parallel(p: Player) -> None:
    p.sch.parallel(p.any_loop())


MOVES = [set_scope, cache_read, cache_read, cache_write, cache_write, reindex, reindex,
         transform_layout, transform_layout, fused_layout, transform_block_layout, pad_einsum,
         pad_einsum, rfactor, rfactor, decompose_reduction, split, split, fuse, reorder,
         compute_at, compute_at, reverse_compute_at, compute_inline, parallel]  # fmt: skip


# ----------------------------------------------------------------------------- properties
def check_meaning(p: Player, seed: int) -> None:
    exact = not REASSOCIATING & set(p.taken)
    for case in (seed, seed + 1):
        assert_same_meaning(random_program(seed), p.sch.func, seed=case, exact=exact)


def check_handles(p: Player) -> None:
    present = {id(n) for n in ir.walk(p.sch.func)}
    for handle in p.handles:
        if p.sch.alive(handle):
            assert id(p.sch.get(handle)) in present
        else:
            with pytest.raises(ScheduleError, match=r"is gone: step \d+, \w+, consumed it"):
                p.sch.get(handle)


def check_replay(p: Player, seed: int) -> None:
    """The trace as records, as JSON and as Python, on programs with symbols of their own."""
    fresh = random_program(seed)
    as_records = Schedule(fresh)
    as_records.replay(p.sch.trace)
    ir.assert_structural_equal(as_records.func, p.sch.func)
    data = json.loads(json.dumps(p.sch.trace.as_json()))
    as_json = Schedule(fresh)
    as_json.replay(Trace.from_json(data, RECORDS, fresh))
    ir.assert_structural_equal(as_json.func, p.sch.func)
    as_python = Schedule(fresh)
    symbols = {v.name: v for b in fresh.buffers for d in b.shape for v in ir.free_vars(d)}
    exec(p.sch.trace.as_python(), {"sch": as_python, **symbols})
    ir.assert_structural_equal(as_python.func, p.sch.func)


def check_script(p: Player) -> None:
    ir.assert_structural_equal(from_source(script(p.sch.func)), p.sch.func)


@pytest.mark.fuzz
def test_random_movement_keeps_the_meaning(fuzz_factor: int) -> None:
    taken: dict[str, int] = {}
    for seed in range(50 * fuzz_factor):
        player = Player(seed)
        player.play(14)
        try:
            check_well_formed(player.sch.func)
            check_meaning(player, seed)
            check_handles(player)
            check_replay(player, seed)
            check_script(player)
        except Exception as error:
            error.add_note(f"seed {seed}\n{player.sch.trace}\n{script(player.sch.func)}")
            raise
        for name in player.taken:
            taken[name] = taken.get(name, 0) + 1
    assert taken.keys() >= {move.__name__ for move in MOVES}, taken


@pytest.mark.parametrize("combiner", ["sum", "max", "prod"])
@pytest.mark.parametrize("length", [0, 1, 4, 9])
def test_split_up_reductions_over_few_terms_or_none(combiner: str, length: int) -> None:
    """A reduction over nothing has its initial value as result, in parts or whole."""
    n, s = ir.var("n", "int64"), ir.var("s", "int64")
    p = Program("total")
    x = p.param("X", (n, s), "float32")
    func = p.finish([p.reduce("Y", (n,), (s,), lambda i, k: x[i, k], combiner)])
    sch = Schedule(func, verify="full")
    whole = sch.get_block("Y")
    _, k = sch.get_loops(whole)
    _, lane = sch.split(k, [None, 4])
    parts = sch.rfactor(lane, -1)
    assert_same_meaning(func, sch.func, sizes={"n": 3, "s": length})
    _, chunk, lane = sch.get_loops(parts)
    sch.decompose_reduction(parts, chunk)
    sch.decompose_reduction(whole, sch.get_loops(whole)[0])
    assert_same_meaning(func, sch.func, sizes={"n": 3, "s": length})


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_partial_results_of_every_type(dtype: str, axis: int) -> None:
    n = ir.var("n", "int64")
    for combiner in ("any", "all") if dtype == "bool" else ("sum", "prod", "min", "max"):
        p = Program("total")
        x = p.param("X", (n, 3, 6), dtype)
        func = p.finish([p.reduce("Y", (n,), (3, 6), lambda i, j, k, x=x: x[i, j, k], combiner)])
        for position in (1, 2):
            sch = Schedule(func, verify="full")
            sch.rfactor(sch.get_loops(sch.get_block("Y"))[position], axis)
            assert_same_meaning(func, sch.func, sizes={"n": 4})
