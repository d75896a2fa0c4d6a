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
    bw.interpret(
        func, rng.uniform(1, 2, 8).astype("float32"), rng.permutation(8).astype("int32"), into
    )
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


def test_a_named_index_is_an_index() -> None:
    func = program(NAMED)
    schedule = bw.Schedule(func)
    schedule.cache_write("P", 0, "global")
    schedule.parallel(schedule.get_loops("P")[0])
    bw.validate(schedule.func)
    np.testing.assert_array_equal(results(func), results(schedule.func))


def test_a_name_that_a_block_uses_inside_is_kept() -> None:
    text = NAMED.replace("A[vi] + T.float32(1)", "A[vi] + T.Cast('float32', x)")
    func = program(text)
    schedule = bw.Schedule(func)
    schedule.split(schedule.get_loops("P")[0], [None, 4])
    np.testing.assert_array_equal(results(func), results(schedule.func))


def test_a_named_value_that_wraps_is_no_index() -> None:
    text = NAMED.replace("x: T.int32 = 7 - i", "x: T.int32 = i * 1073741824 // 536870912 % 8")
    assert "x" in bw.Schedule(program(text)).func.script()


HALF = """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), I: T.Buffer((8,), "int32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = T.float32(0)
    for i in range(4):
        x: T.int32 = {value}
        with T.block("P"):
            vi = T.axis.spatial(8, x)
            B[vi] = A[vi] + T.float32(1)
    for i in range(8):
        with T.block("Q"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi]
"""
MOVES: dict[str, Callable[[bw.Schedule], Any]] = {
    "inline": lambda s: s.compute_inline("P"),
    "inline before": lambda s: s.compute_inline("B"),
    "compute_at": lambda s: s.compute_at("P", s.get_loops("Q")[0]),
    "compute_at before": lambda s: s.compute_at("B", s.get_loops("Q")[0]),
    "reverse_compute_at": lambda s: s.reverse_compute_at("Q", s.get_loops("P")[0]),
    "merge": lambda s: s.merge(s.get_loops("B")[0], s.get_loops("Q")[0]),
    "cache_read": lambda s: s.cache_read("Q", 0, "global"),
    "cache_write": lambda s: s.cache_write("P", 0, "global"),
    "parallel": lambda s: s.parallel(s.get_loops("P")[0]),
    "decompose": lambda s: s.loop_partition(s.get_loops("P")[0], [1, 3]),
}


@pytest.mark.parametrize("step", MOVES)
@pytest.mark.parametrize("value", ["i * 2", "I[i]", "I[i] // 2 * 2"])
def test_what_named_places_leave_out_stays_as_it_was(value: str, step: str) -> None:
    func = program(HALF.format(value=value))
    schedule = bw.Schedule(func)
    try:
        MOVES[step](schedule)
    except bw.ScheduleError:
        return
    np.testing.assert_array_equal(results(func), results(schedule.func))
