"""Copies and moved blocks stand where everything that they name is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

LOADED = """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), I: T.Buffer((8,), "int32"), C: T.Buffer((8,), "float32")):
    for i in range(8):
        x: T.int32 = I[i]
        with T.block("P"):
            vi = T.axis.spatial(8, x)
            C[vi] = A[vi] + T.float32(1)
"""
NAMED = LOADED.replace("I[i]", "7 - i")
BITS = """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), I: T.Buffer((8,), "int32"), C: T.Buffer((8,), "float32")):
    for i in range(8):
        D = T.decl_buffer((8,), "int32", data=A.data)
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            C[vi] = T.Cast("float32", D[vi])
"""
STEPS: dict[str, Callable[[bw.Schedule], Any]] = {
    "cache_write": lambda s: s.cache_write("P", 0, "global"),
    "cache_read": lambda s: s.cache_read("P", 0, "global"),
    "write_at": lambda s: s.write_at(s.get_loops("P")[0], "P", 0, "local"),
    "read_at": lambda s: s.read_at(s.get_loops("P")[0], "P", 0, "local"),
    "reindex write": lambda s: s.reindex("P", ("write", 0)),
    "reindex read": lambda s: s.reindex("P", ("read", 0)),
    "reindex_cache_write": lambda s: s.reindex_cache_write("P", 0, "global", lambda i: (i,)),
    "reindex_cache_read": lambda s: s.reindex_cache_read("P", 0, "global", lambda i: (i,)),
    "transform_block_layout": lambda s: s.transform_block_layout("P", lambda i: (i // 2, i % 2)),
    "parallel": lambda s: s.parallel(s.get_loops("P")[0]),
    "blockize": lambda s: s.blockize(s.get_loops("P")[0]),
    "split": lambda s: s.split(s.get_loops("P")[0], [None, 4]),
}


def program(text: str) -> ir.PrimFunc:
    found = bw.from_source(text)
    assert isinstance(found, ir.PrimFunc)
    return found


def results(func: ir.PrimFunc) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(7)
    into = np.full(8, -1, "float32")
    bw.interpret(func, rng.uniform(1, 2, 8).astype("float32"),
                 rng.permutation(8).astype("int32"), into)  # fmt: skip
    return into


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("text", [LOADED, NAMED, BITS], ids=["loaded", "named", "bits"])
def test_a_step_is_refused_or_leaves_a_program_in_order(text: str, step: str) -> None:
    func = program(text)
    schedule = bw.Schedule(func)
    try:
        STEPS[step](schedule)
    except bw.ScheduleError:
        return
    bw.validate(schedule.func)
    np.testing.assert_array_equal(results(func), results(schedule.func))


@pytest.mark.parametrize("step", ["cache_write", "write_at"])
def test_a_copy_outside_of_the_value_that_feeds_it_is_refused(step: str) -> None:
    schedule = bw.Schedule(program(LOADED))
    before = schedule.func
    with pytest.raises(bw.ScheduleError) as caught:
        STEPS[step](schedule)
    assert caught.value.code in ("BW314", "BW323", "BW367")
    assert schedule.func is before
