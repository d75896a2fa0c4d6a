"""Buffers whose shapes are loaded: a step that puts something else in the place of what a block
reads leaves the buffer as it is defined. Statements beside blocks that are put into a new block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError
from blockwright.testing import assert_same_meaning

Step = Callable[[Schedule], object]

SHAPE = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    t = T.alloc_buffer((A[0] + 8,), "int32")
    for i in range(8):
        with T.block("N"):
            vi = T.axis.spatial(8, i)
            t[vi] = A[vi] + 1
    for i in range(8):
        with T.block("U"):
            vi = T.axis.spatial(8, i)
            C[vi] = t[vi] + 1
"""
INNER = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), C: T.Buffer((8, 8), "int32")):
    for o in range(8):
        with T.block("O"):
            vo = T.axis.spatial(8, o)
            t = T.alloc_buffer((A[vo] + 8,), "int32")
            for i in range(8):
                with T.block("N"):
                    vi = T.axis.spatial(8, i)
                    t[vi] = A[vi] + 1
            for i in range(8):
                with T.block("U"):
                    vi = T.axis.spatial(8, i)
                    C[vo, vi] = t[vi] + 1
"""


def first(s: Schedule, name: str) -> bw.LoopRV:
    return s.get_loops(name)[0]


def tiles(i: ir.Expr) -> tuple[ir.Expr, ...]:
    return (i // 4, i % 4)


def merged(s: Schedule) -> None:
    s.merge(first(s, "N"), first(s, "U"))
    s.blockize(["N", "U"])


def stored(s: Schedule) -> None:
    s.compute_at("N", first(s, "U"))
    s.store_at("N", first(s, "U"))


STEPS: dict[str, tuple[str, Step]] = {
    "blockize": (SHAPE, lambda s: s.blockize(first(s, "N"))),
    "blockize both": (SHAPE, merged),
    "cache_read": (SHAPE, lambda s: s.cache_read("N", "A", "local")),
    "read_at": (SHAPE, lambda s: s.read_at(first(s, "N"), "N", "A", "local")),
    "reindex": (SHAPE, lambda s: s.reindex("U", ("read", 0))),
    "transform_block_layout": (SHAPE, lambda s: s.transform_block_layout("N", tiles)),
    "store_at": (SHAPE, stored),
    "cache_read inside": (INNER, lambda s: s.cache_read("N", "A", "local")),
    "blockize around": (INNER, lambda s: s.blockize(first(s, "O"))),
    "transform_block_layout around": (INNER, lambda s: s.transform_block_layout("O", tiles)),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_buffer_of_a_loaded_shape_stays_one_buffer(name: str) -> None:
    source, step = STEPS[name]
    func = bw.from_source(source)
    sch = Schedule(func, verify="full")
    step(sch)
    numbers = np.array([1, 4, 0, 3, 2, 5, 3, 6], "int32")
    out = np.zeros([int(ir.const_int(n) or 0) for n in func.buffers[1].shape], "int32")
    assert_same_meaning(func, sch.func, arrays=[numbers, out])


BESIDE = """
@T.prim_func
def main(N: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32"), D: T.Buffer((8,), "int32")):
    for i in range(8):
        with T.block("N"):
            vi = T.axis.spatial(8, i)
            D[vi] = N[vi] + 1
        STATEMENT
        with T.block("U"):
            vi = T.axis.spatial(8, i)
            C[vi] = D[vi] + 1
"""


@pytest.mark.parametrize(
    "statement", ['assert N[7 - i] > -5, "a"', "T.evaluate(N[7 - i])", "N[i] = 3"]
)
def test_a_statement_beside_blocks_keeps_the_loops_that_it_uses(statement: str) -> None:
    sch = Schedule(bw.from_source(BESIDE.replace("STATEMENT", statement)))
    with pytest.raises(ScheduleError, match=r"BW313.*uses loop i"):
        sch.blockize(["N", "U"])


def test_a_statement_beside_blocks_that_uses_no_loop_goes_along() -> None:
    func = bw.from_source(BESIDE.replace("STATEMENT", 'assert N[0] > -500, "a"'))
    sch = Schedule(func, verify="full")
    sch.blockize(["N", "U"])
    assert_same_meaning(func, sch.func)
