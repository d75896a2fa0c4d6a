"""Stores under conditions on data: what was there stays where the condition does not hold."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir

HEAD = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), M: T.Buffer((8, 8), "int32"),
         B: T.Buffer((8, 8), "float32"), S: T.Buffer((8,), "float32")):
    for i, j in T.grid(8, 8):
        with T.block("frame"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.float32(0.5)
"""
MASKED = (
    HEAD
    + """
    for i, j in T.grid(8, 8):
        with T.block("masked"):
            vi, vj = T.axis.remap("SS", [i, j])
            if M[vi, vj] > 0:
                B[vi, vj] = A[vi, vj] * 2.0
    for i, k in T.grid(8, 8):
        with T.block("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            if M[vi, vk] > 0:
                S[vi] = S[vi] + B[vi, vk]
"""
)


def function(text: str) -> ir.PrimFunc:
    func = bw.from_source(text)
    assert isinstance(func, ir.PrimFunc)
    return func


def scheduled() -> bw.Schedule:
    """Tiles of both blocks, sums apart from their initial values, a copy of the mask."""
    sch = bw.Schedule(function(MASKED), verify="prove")
    masked, total = sch.get_block("masked"), sch.get_block("sum")
    sch.split(sch.get_loops(masked)[1], [None, 3])
    sch.cache_read(masked, "M", "local")
    i, k = sch.get_loops(total)
    sch.split(k, [None, 4])
    sch.decompose_reduction(total, sch.get_loops(total)[1])
    sch.parallel(i)
    return sch


def test_steps_on_stores_under_conditions_are_proved() -> None:
    verdict = bw.verify(function(MASKED), scheduled().func)
    assert verdict.verdict == "proved", verdict.why


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if M[vi, vj] > 0", "if M[vi, vj] >= 0"),
        ("if M[vi, vk] > 0", "if M[vk, vi] > 0"),
        ("T.float32(0.5)", "T.float32(0.25)"),
        ("                S[vi] = S[vi] + B[vi, vk]", "                S[vi] = B[vi, vk]"),
    ],
)
def test_another_condition_value_or_frame_is_refuted(right: str, wrong: str) -> None:
    assert MASKED.count(right) == 1
    verdict = bw.verify(function(MASKED), function(MASKED.replace(right, wrong)))
    assert verdict.verdict == "refuted"
    assert verdict.counterexample is not None


def test_a_store_that_loses_its_condition_is_refuted() -> None:
    always = MASKED.replace("            if M[vi, vj] > 0:\n    ", "")
    assert always != MASKED
    assert bw.verify(function(MASKED), function(always)).verdict == "refuted"


def test_both_sides_in_one_choice() -> None:
    """One store of a chosen value needs no value that was there before."""
    frame = HEAD.partition("    for i, j")[0]
    two = (
        frame
        + """
    for i, j in T.grid(8, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            if M[vi, vj] > 0:
                B[vi, vj] = A[vi, vj]
            else:
                B[vi, vj] = A[vi, vj] * 0.5
"""
    )
    one = (
        frame
        + """
    for i, j in T.grid(8, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.if_then_else(M[vi, vj] > 0, A[vi, vj], A[vi, vj] * 0.5)
"""
    )
    assert bw.verify(function(two), function(one)).verdict == "proved"


def test_a_condition_that_reads_what_it_guards_is_left_open() -> None:
    frame = HEAD.partition("    for i, j")[0]
    text = (
        frame
        + """
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi, 0] = A[vi, 0]
            if B[vi, 0] > T.float32(0):
                B[vi, 0] = A[vi, 1]
                S[vi] = A[vi, 2]
"""
    )
    verdict = bw.verify(function(text), function(text.replace("range(8)", "T.parallel(8)")))
    assert verdict.verdict == "unknown"
    assert "reads a buffer that is written under it" in verdict.why
