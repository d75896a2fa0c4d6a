"""Threads and vector lanes that combine the terms of a reduction."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from tests.analysis.validated import codes, problems, program

REDUCTION = """
for i in range(32):
    with T.block("first"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = T.float32(0)
for {loops}:
    with T.block("B"):
        vi, vk = T.axis.remap("SR", [i, k])
        {update}
"""


PLAIN, ATOMIC = "B[vi, 0] = B[vi, 0] + A[vi, vk]", "T.atomic_add(B[vi, 0], A[vi, vk])"


PARALLEL_TERMS = "k in T.parallel(32):\n    for i in range(32)"


BOUND_TERMS = 'k in T.thread_binding(32, thread="blockIdx.x"):\n    for i in range(32)'


SHARED_TERMS = 'k in T.thread_binding(32, thread="threadIdx.x"):\n    for i in range(32)'


def reduction(loops: str, update: str) -> ir.PrimFunc:
    text = REDUCTION.format(loops=loops, update=update)
    if "\n" in loops:  # the block stands one level deeper
        head, tail = text.split('    with T.block("B")')
        text = head + '        with T.block("B")' + tail.replace("\n    ", "\n        ")
    return program(text)


@pytest.mark.parametrize("loops", [PARALLEL_TERMS, BOUND_TERMS])
def test_a_reduction_under_a_parallel_loop_must_be_atomic(loops: str) -> None:
    ((code, text),) = problems(reduction(loops, PLAIN))
    assert code == "BW240"
    assert "reduction iterator vk" in text
    assert codes(reduction(loops, ATOMIC)) == []


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (PLAIN, ""),
        (PLAIN.replace("+", "-"), "not a reduction that threads can share"),
        ("B[vi, 0] = B[vi, 0] * A[vi, vk] + A[vi, vk]", "not a reduction that threads can share"),
    ],
)
def test_threads_combine_the_terms_of_a_commutative_reducer(update: str, why: str) -> None:
    found = problems(reduction(SHARED_TERMS, update))
    assert [code for code, _ in found] == (["BW240"] if why else [])
    assert all(why in text for _, text in found)


@pytest.mark.parametrize(("scope", "found"), [("global", []), ("shared", []), ("local", ["BW240"])])
def test_threads_combine_in_memory_that_all_of_them_see(scope: str, found: list[str]) -> None:
    text = """
for k in T.thread_binding(32, thread="threadIdx.x"):
    with T.block("C"):
        vk = T.axis.reduce(32, k)
        with T.init():
            C[0] = T.float32(0)
        C[0] = C[0] + A[0, vk]
for k in T.thread_binding(32, thread="threadIdx.x"):
    with T.block("B"):
        vk = T.axis.spatial(32, k)
        B[0, vk] = C[0]
"""
    assert (
        codes(program(text, allocate=f'C = T.alloc_buffer((1,), "float32", scope="{scope}")'))
        == found
    )


READ_EARLY = """
for i in range(32):
    for k in T.thread_binding(32, thread="threadIdx.x"):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi, 0] = T.float32(0)
            B[vi, 0] = B[vi, 0] + A[vi, vk]
        with T.block("C"):
            vi, vk = T.axis.remap("SS", [i, k])
            C[vi, vk] = B[vi, 0]
"""


def test_results_are_not_read_while_threads_combine() -> None:
    found = problems(program(READ_EARLY, allocate='C = T.alloc_buffer((32, 32), "float32")'))
    assert "BW240" in [code for code, _ in found]
    assert any("still combine their terms" in text for _, text in found)


LANES = """
@T.prim_func
def main(A: T.Buffer((8, 16), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("init"):
            vi = T.axis.spatial(8, i)
            B[vi] = T.float32(0)
        for k in T.vectorized(16):
            with T.block("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                B[vi] = {update}
"""


@pytest.mark.parametrize(
    ("update", "found"),
    [
        ("B[vi] + A[vi, vk]", []),
        ("T.max(B[vi], A[vi, vk])", []),
        ("B[vi] * A[vi, vk] + T.float32(1)", ["BW240"]),
    ],
)
def test_lanes_combine_the_terms_of_a_commutative_reducer(update: str, found: list[str]) -> None:
    func = bw.from_source(LANES.format(update=update))
    assert isinstance(func, ir.PrimFunc)
    assert codes(func) == found


def test_a_parallel_loop_over_the_elements_is_fine() -> None:
    assert codes(reduction("i in T.parallel(32):\n    for k in range(32)", PLAIN)) == []
