"""Threads of a block that combine their terms of a reduction: bind, validator, verifier and
interpreter agree on which loops may be bound so, and what such a program computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.interp import interpret
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.support import InterpretError
from blockwright.testing.check import assert_same_meaning

ROWS = """
@T.prim_func
def main(A: T.Buffer((6, 60), "float32"), B: T.Buffer((6,), "float32")):
    for i, k in T.grid(6, 60):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0.5)
            B[vi] = B[vi] + A[vi, vk]
"""
SOFTMAX = """
@T.prim_func
def main(A: T.Buffer((3, 48), "float32"), D: T.Buffer((3, 48), "float32")):
    M = T.alloc_buffer((3,), "float32")
    S = T.alloc_buffer((3,), "float32")
    for i, k in T.grid(3, 48):
        with T.block("M"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                M[vi] = T.min_value("float32")
            M[vi] = T.max(M[vi], A[vi, vk])
    for i, k in T.grid(3, 48):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + T.exp(A[vi, vk] - M[vi])
    for i, j in T.grid(3, 48):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.exp(A[vi, vj] - M[vi]) / S[vi]
"""
MOMENTS = """
@T.prim_func
def main(A: T.Buffer((4, 20), "float32"), S: T.Buffer((4,), "float32"),
         Q: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 20):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
                Q[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vk]
            Q[vi] = Q[vi] + A[vi, vk] * A[vi, vk]
"""
GROWTH = ROWS.replace("B[vi] + A[vi, vk]", "B[vi] * A[vi, vk] + A[vi, vk]")


def schedule(text: str) -> Schedule:
    func = from_source(text)
    assert isinstance(func, ir.PrimFunc)
    return Schedule(func, verify="full")


def whole(s: Schedule) -> None:
    s.bind(s.get_loops("B")[1], "threadIdx.x")


def inner(s: Schedule) -> None:
    s.bind(s.split(s.get_loops("B")[1], [None, 32])[1], "threadIdx.x")  # 64 of 60: a predicate


def outer(s: Schedule) -> None:
    s.bind(s.split(s.get_loops("B")[1], [7, None])[0], "threadIdx.y")


def two_axes(s: Schedule) -> None:
    ko, ki = s.split(s.get_loops("B")[1], [4, None])
    s.bind(ko, "threadIdx.x")
    s.bind(ki, "threadIdx.y")


def rows_on_blocks(s: Schedule) -> None:
    s.bind(s.get_loops("B")[0], "blockIdx.x")
    inner(s)


def rows_on_threads(s: Schedule) -> None:
    s.bind(s.get_loops("B")[0], "threadIdx.y")
    inner(s)


def update_alone(s: Schedule) -> None:
    inner(s)
    s.decompose_reduction("B", s.get_loops("B")[1])


def terms_in_a_block_of_their_own(s: Schedule) -> None:
    """The initial value is set inside the kernel, and threads wait for it."""
    ko, ki = s.split(s.get_loops("B")[1], [1, None])
    s.bind(ko, "threadIdx.y")
    s.bind(ki, "threadIdx.x")
    s.blockize(ki)


FORMS: list[Callable[[Schedule], None]] = [
    whole,
    inner,
    outer,
    two_axes,
    rows_on_blocks,
    rows_on_threads,
    update_alone,
    terms_in_a_block_of_their_own,
]


@pytest.mark.parametrize("steps", FORMS)
def test_the_rows_of_a_matrix_are_summed_by_threads(steps: Callable[[Schedule], None]) -> None:
    sch = schedule(ROWS)
    steps(sch)
    bw.validate(sch.func, "cuda-sm_80")
    assert bw.verify(from_source(ROWS), sch.func).verdict == "proved"
    a = np.arange(360, dtype=np.float32).reshape(6, 60) % 11
    for order in (None, "reverse", 3):
        b = np.full(6, np.nan, np.float32)
        interpret(sch.func, a, b, order=order)
        np.testing.assert_array_equal(b, a.sum(axis=1) + np.float32(0.5))
    ir.assert_structural_equal(from_source(sch.func.script()), sch.func)


def test_threads_add_up_partial_sums_of_their_own() -> None:
    text = ROWS.replace("0.5", "0")
    sch = schedule(text)
    i, k = sch.get_loops("B")
    sch.bind(i, "blockIdx.x")
    part = sch.rfactor(sch.split(k, [4, None])[0], 0)
    for name in (part, "B"):
        sch.bind(sch.get_loops(name)[1], "threadIdx.x")
    bw.validate(sch.func, "cuda-sm_80")
    assert_same_meaning(from_source(text), sch.func)


def test_rows_of_a_softmax_share_their_maximum_and_sum_in_shared_memory() -> None:
    sch = schedule(SOFTMAX)
    i, j = sch.get_loops("D")
    sch.bind(i, "blockIdx.x")
    sch.bind(sch.split(j, [None, 32])[1], "threadIdx.x")
    for name in ("S", "M"):
        sch.compute_at(name, i)
        sch.set_scope(name, 0, "shared")
        sch.bind(sch.split(sch.get_loops(name)[-1], [None, 32])[1], "threadIdx.x")
    bw.validate(sch.func, "cuda-sm_80")
    assert_same_meaning(from_source(SOFTMAX), sch.func)


def test_tuples_are_combined_too() -> None:
    sch = schedule(MOMENTS)
    sch.bind(sch.get_loops("B")[1], "threadIdx.x")
    bw.validate(sch.func, "cuda-sm_80")
    assert_same_meaning(from_source(MOMENTS), sch.func)


@pytest.mark.parametrize(
    ("text", "axis", "why"),
    [
        (ROWS, "blockIdx.x", "only threads along threadIdx"),
        (ROWS, "vthread.x", "only threads along threadIdx"),
        (GROWTH, "threadIdx.x", "is not a reduction that threads can share"),
    ],
)
def test_what_threads_cannot_combine(text: str, axis: str, why: str) -> None:
    sch = schedule(text)
    with pytest.raises(ScheduleError, match=why) as caught:
        sch.bind(sch.get_loops("B")[1], axis)
    assert caught.value.code == "BW317"


def test_a_loop_over_terms_and_results_is_refused() -> None:
    sch = schedule(ROWS)
    with pytest.raises(ScheduleError, match="also drives vi"):
        sch.bind(sch.fuse(*sch.get_loops("B")), "threadIdx.x")


LATER: dict[str, Callable[[Schedule], object]] = {
    "cache_write": lambda s: s.cache_write("B", 0, "local"),
    "blockize": lambda s: s.blockize(s.get_loops("B")[2]),
}


@pytest.mark.parametrize("name", LATER)
def test_no_later_step_takes_the_results_from_the_threads(name: str) -> None:
    sch = schedule(ROWS)
    ko, _ = sch.split(sch.get_loops("B")[1], [None, 6])
    sch.bind(ko, "threadIdx.x")
    before = sch.func
    with pytest.raises(ScheduleError, match="could not combine") as caught:
        LATER[name](sch)
    assert caught.value.code == "BW317"
    assert sch.func is before


def test_no_reader_is_brought_into_the_loop_over_the_terms() -> None:
    sch = schedule(SOFTMAX)
    sch.bind(sch.get_loops("M")[1], "threadIdx.x")
    with pytest.raises(ScheduleError) as caught:
        sch.reverse_compute_at("S", sch.get_loops("M")[1])
    assert caught.value.code == "BW316"


RACES = {
    "no reduction": "B[vi] * A[vi, vk] + A[vi, vk]",
    "another element": "B[(vi + 1) % 6] + A[vi, vk]",
    "the element in its term": "B[vi] + A[vi, vk] * B[vi]",
}


@pytest.mark.parametrize("name", RACES)
def test_the_interpreter_still_sees_other_updates_race(name: str) -> None:
    """It decides anew what threads may combine."""
    text = ROWS.replace("B[vi] + A[vi, vk]", RACES[name])
    text = text.replace(
        "for i, k in T.grid(6, 60):\n        with",
        "for i in range(6):\n        "
        'for k in T.thread_binding(60, thread="threadIdx.x"):\n         with',
    )
    func = from_source(text)
    with pytest.raises(InterpretError) as caught:
        interpret(func, np.ones((6, 60), np.float32), np.zeros(6, np.float32))
    assert caught.value.code == "BW761"
    with pytest.raises(bw.BlockwrightError) as invalid:
        bw.validate(func)
    assert "BW240" in [d.code for d in invalid.value.diagnostics]


def test_threads_with_the_same_term_race() -> None:
    """All members of threadIdx.y would add each term again."""
    sch = schedule(ROWS)
    whole(sch)
    text = sch.func.script().replace(
        "    for i in range(6):",
        '    for y in T.thread_binding(2, thread="threadIdx.y"):\n      for i in range(6):',
    )
    func = from_source(text)
    with pytest.raises(InterpretError, match="the same term") as caught:
        interpret(func, np.ones((6, 60), np.float32), np.zeros(6, np.float32))
    assert caught.value.code == "BW761"
