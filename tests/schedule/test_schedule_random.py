"""Random programs under random schedules: the same numbers, living or named handles, replay."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from blockwright import ir
from blockwright.analysis import check_well_formed
from blockwright.interp import interpret
from blockwright.schedule import RECORDS, BlockRV, Handle, LoopRV, Schedule, ScheduleError, Trace
from blockwright.script.compute import Program, Tensor

SIZES = (3, 4, 6)


def random_program(rng: random.Random) -> ir.PrimFunc:
    """A few blocks over a symbolic and a constant dimension, each reading some made before."""
    n, m = ir.var("n", "int64"), ir.const(rng.choice(SIZES), "int64")
    p = Program("random")
    x = p.param("X", (n, m), "float32")
    b = p.param("b", (m,), "float32")
    full: list[Tensor] = [x]
    rows: list[Tensor] = []
    for step in range(rng.randint(2, 4)):
        kind = rng.choice(["map", "map", "reduce", "transpose", "stencil"])
        source, name = rng.choice(full), f"t{step}"
        if kind == "reduce":
            combiner = rng.choice(["sum", "max"])
            rows.append(p.reduce(name, (n,), (m,), lambda i, k, s=source: s[i, k], combiner))
        elif kind == "transpose":
            flipped = p.compute(name, (m, n), lambda j, i, s=source: s[i, j] + b[j])
            full.append(p.compute(name + "t", (n, m), lambda i, j, t=flipped: t[j, i] * 0.5))
        elif kind == "stencil":
            full.append(p.compute(name, (n, m), lambda i, j, s=source:
                                  s[i, j] + s[ir.maximum(i - 1, 0), j]))  # fmt: skip
        elif rows and rng.random() < 0.6:
            row = rng.choice(rows)
            full.append(p.compute(name, (n, m), lambda i, j, s=source, r=row: s[i, j] - r[i]))
        else:
            full.append(p.compute(name, (n, m), lambda i, j, s=source: s[i, j] * 2.0 + b[j]))

    def total(i: ir.Expr, j: ir.Expr) -> ir.Expr:
        """Every row of statistics counts; what nobody reads may be kept private in parallel."""
        value = full[-1][i, j]
        for row in rows:
            value = value + row[i]
        return value + 1.0

    return p.finish([p.compute("out", (n, m), total)])


class Player:
    """Takes random steps; remembers every handle ever given."""

    def __init__(self, func: ir.PrimFunc, rng: random.Random) -> None:
        self.rng = rng
        self.sch = Schedule(func, verify="full")
        self.handles: list[Handle] = []
        self.taken = 0

    def block(self) -> BlockRV:
        below = self.sch.get_child_blocks(self.sch.get_block("root"))
        handle = self.rng.choice(below)
        self.handles += below
        return handle

    def loop(self, block: BlockRV) -> LoopRV:
        loops = self.sch.get_loops(block)
        self.handles += loops
        return self.rng.choice(loops)

    def step(self) -> None:
        move = self.rng.choice(MOVES)
        before = self.sch.func
        try:
            found = move(self)
        except ScheduleError:
            assert self.sch.func is before
            return
        except IndexError:  # no loop to choose from
            return
        self.taken += 1
        self.handles += found if isinstance(found, list) else [found] if found else []

    def check_handles(self) -> None:
        """Each handle stands for something in the program, or its error names a step."""
        present = {id(n) for n in ir.walk(self.sch.func)}
        for handle in self.handles:
            if self.sch.alive(handle):
                assert id(self.sch.get(handle)) in present
            else:
                with pytest.raises(ScheduleError, match=r"is gone: step \d+, \w+, consumed it"):
                    self.sch.get(handle)


def split(p: Player) -> list[LoopRV]:
    return p.sch.split(p.loop(p.block()), [None, p.rng.choice([2, 3, 4])])


def fuse(p: Player) -> LoopRV:
    loops = p.sch.get_loops(p.block())
    at = loops.index(p.rng.choice(loops))
    return p.sch.fuse(*loops[at : at + 2])


def reorder(p: Player) -> None:
    loops = p.sch.get_loops(p.block())
    p.sch.reorder(*p.rng.sample(loops, min(2, len(loops))))


def parallel(p: Player) -> None:
    p.sch.parallel(p.loop(p.block()))


def vectorize(p: Player) -> None:
    """Lanes that combine into one element are left to tests of the lowering."""
    block = p.block()
    lane = p.loop(block)
    loop, node = p.sch.get(lane), p.sch.get(block)
    assert isinstance(loop, ir.For)
    if not any(it.iter_type is ir.IterType.REDUCE for it in getattr(node, "iter_vars", ())):
        p.sch.vectorize(lane)


def unroll(p: Player) -> None:
    p.sch.unroll(p.loop(p.block()))


def compute_at(p: Player) -> None:
    p.sch.compute_at(p.block(), p.loop(p.block()), index=p.rng.choice([-1, -2]))


def reverse_compute_at(p: Player) -> None:
    p.sch.reverse_compute_at(p.block(), p.loop(p.block()), index=p.rng.choice([-1, -2]))


def compute_inline(p: Player) -> None:
    p.sch.compute_inline(p.block())


def reverse_compute_inline(p: Player) -> None:
    p.sch.reverse_compute_inline(p.block())


def decompose_reduction(p: Player) -> BlockRV:
    block = p.block()
    return p.sch.decompose_reduction(block, p.loop(block))


def rfactor(p: Player) -> BlockRV:
    return p.sch.rfactor(p.loop(p.block()), p.rng.choice([0, -1]))


def cache_read(p: Player) -> BlockRV:
    return p.sch.cache_read(p.block(), 0, "global")


def cache_write(p: Player) -> BlockRV:
    return p.sch.cache_write(p.block(), 0, "global")


def transform_layout(p: Player) -> None:
    p.sch.transform_layout(p.block(), ("write", 0), lambda i, j: (j, i // 2, i % 2))


def blockize(p: Player) -> BlockRV:
    return p.sch.blockize(p.loop(p.block()))


def transform_block_layout(p: Player) -> None:
    swap, fuse_both = (lambda i, j: (j, i)), (lambda i, j: (i * 2 + j // 2, j % 2))
    p.sch.transform_block_layout(p.block(), p.rng.choice([swap, fuse_both]))


def reindex(p: Player) -> BlockRV:
    return p.sch.reindex(p.block(), (p.rng.choice(["read", "write"]), 0))


def pad_einsum(p: Player) -> list[BlockRV]:
    padding = [p.rng.choice([1, 2, 4]), p.rng.choice([1, 4])]
    return p.sch.pad_einsum(p.block(), padding, p.rng.choice(["zero", "clamp"]))


def set_scope(p: Player) -> None:
    p.sch.set_scope(p.block(), 0, "local")


def add_unit_loop(p: Player) -> LoopRV:
    return p.sch.add_unit_loop(p.block())


MOVES = [split, split, fuse, reorder, reorder, parallel, vectorize, unroll, compute_at, compute_at,
         reverse_compute_at, compute_inline, reverse_compute_inline, decompose_reduction, rfactor,
         cache_read, cache_write, transform_layout, blockize, add_unit_loop,
         transform_block_layout, reindex, pad_einsum, set_scope]  # fmt: skip


def results(func: ir.PrimFunc, rows: int) -> np.ndarray:
    rng = np.random.default_rng(rows)
    columns = ir.const_int(func.buffers[0].shape[1])
    assert columns is not None
    x = rng.standard_normal((rows, columns)).astype("float32")
    b = rng.standard_normal(columns).astype("float32")
    out = np.zeros((rows, columns), "float32")
    interpret(func, x, b, out)
    return out


@pytest.mark.fuzz
def test_random_schedules_keep_the_meaning(fuzz_factor: int) -> None:
    taken = 0
    for seed in range(40 * fuzz_factor):
        rng = random.Random(seed)
        func = random_program(rng)
        player = Player(func, rng)
        for _ in range(12):
            player.step()
        sch, taken = player.sch, taken + player.taken
        check_well_formed(sch.func)
        player.check_handles()
        for rows in (1, 5):
            np.testing.assert_allclose(
                results(sch.func, rows), results(func, rows), rtol=1e-4, atol=1e-4,
                err_msg=f"seed {seed}\n{sch.trace}",
            )  # fmt: skip
        again = Schedule(func)
        again.replay(Trace.from_json(json.loads(json.dumps(sch.trace.as_json())), RECORDS, func))
        ir.assert_structural_equal(again.func, sch.func)
    assert taken > 100 * fuzz_factor
