"""Steps on programs where more than loops decide what runs, and when: statements that stand in no
block, `if` around blocks, loops that are left early. No signature tells of these."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.testing import assert_same_meaning
from tests.schedule.refusals import Step

HEAD = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32"),
         S: T.Buffer((8,), "float32")):
"""
CHAIN = """
C = T.alloc_buffer((8, 8), "float32")
for i, j in T.grid(8, 8):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] * 2.0
for i in range(8):
    BETWEEN
    for j in range(8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] + S[vi]
"""
SUM = """
C = T.alloc_buffer((8,), "float32")
for i in range(8):
    for k in range(8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
    BETWEEN
    with T.block("B"):
        vi = T.axis.spatial(8, i)
        B[vi, 0] = C[vi] + S[vi]
"""
GUARDED_SUM = SUM.replace(
    """    BETWEEN
    with T.block("B"):
        vi = T.axis.spatial(8, i)
        B[vi, 0] =""",
    """    if S[i] > 0.0:
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi, 0] =""",
)
BEGUN = """
for i in range(8):
    with T.block("start"):
        vi = T.axis.spatial(8, i)
        B[vi, 0] = S[vi]
    BETWEEN
    for k in range(8):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            B[vi, 0] = B[vi, 0] + A[vi, vk]
"""
WINDOW = """
C = T.alloc_buffer((8,), "float32")
for i in range(6):
    BETWEEN
    for r in range(3):
        with T.block("C"):
            vi = T.axis.spatial(8, i + r)
            C[vi] = A[vi, 0] * 2.0
    with T.block("B"):
        vi = T.axis.spatial(6, i)
        B[vi, 0] = C[vi] + C[vi + 2]
"""
COUNTED_WINDOW = """
N = T.alloc_buffer((1,), "int32")
C = T.alloc_buffer((8,), "float32")
with T.block("none"):
    N[0] = 0
for i in range(6):
    for j in range(N[0]):
        for r in range(3):
            with T.block("C"):
                vi = T.axis.spatial(8, i + r)
                C[vi] = A[vi, 0] * 2.0
        with T.block("B"):
            vi = T.axis.spatial(6, i)
            vj = T.axis.spatial(6, j)
            B[vi, vj] = C[vi] + C[vi + 2]
    with T.block("two"):
        vi = T.axis.spatial(6, i)
        N[0] = 2
"""
PADDED = """
for i in range(8):
    BETWEEN
    for j in range(8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.if_then_else(vj >= 3, A[vi, vj - 3], 0.0)
"""
ROWS = """
for i in range(8):
    BETWEEN
    for k in range(8):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi, 0] = S[vi]
            B[vi, 0] = B[vi, 0] + A[vi, vk]
"""
COPY = """
for i in range(8):
    for j in range(8):
        BETWEEN
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vj, vi]
"""
GUARDED_COPY = COPY.replace(
    """        BETWEEN
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B""",
    """        if A[i, j] > 0.0:
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B""",
)
FRAME = """
for i in range(8):
    with T.block("D"):
        vi = T.axis.spatial(8, i)
        B[vi, 0] = S[vi]
"""
GUARDED_FRAME = (
    FRAME
    + """
for i in range(8):
    if A[i, 0] > 0.0:
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi, 0] = A[vi, 0]
"""
)
READ_FRAME = (
    GUARDED_FRAME
    + """
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            S[vi] = B[vi, 0]
"""
)
LATE = """
C = T.alloc_buffer((8,), "float32")
for i in range(8):
    with T.block("C"):
        vi = T.axis.spatial(8, i)
        C[vi] = A[vi, 0]
    BETWEEN
    with T.block("D"):
        vi = T.axis.spatial(8, i)
        B[vi, 1] = 1.0
for i in range(8):
    with T.block("B"):
        vi = T.axis.spatial(8, i)
        B[vi, 0] = C[vi]
"""
KEPT = """
t = T.alloc_buffer((8,), "float32")
for i in range(8):
    if i % 3 == 0:
        for j in range(8):
            with T.block("W"):
                vj = T.axis.spatial(8, j)
                t[vj] = A[0, vj] * 2.0
    for j in range(8):
        with T.block("R"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = t[vj]
"""
LEAVE = "if S[i] > 0.0: continue"


def parsed(text: str, between: str = "") -> ir.PrimFunc:
    body = text.replace("BETWEEN", between or "T.evaluate(0)").strip("\n")
    func = bw.from_source(HEAD + "".join(f"    {line}\n" for line in body.splitlines()))
    assert isinstance(func, ir.PrimFunc)
    bw.validate(func)
    return func


def first(name: str) -> Step:
    return lambda s: getattr(s, name)("B", s.get_loops("B")[0])


CASES: dict[str, tuple[str, str, Step, str]] = {
    "compute_inline: its source": (
        CHAIN, "A[7 - i, 0] = 5.0", lambda s: s.compute_inline("C"), "BW313"),
    "reverse_compute_inline: its source": (
        CHAIN, "S[i] = 5.0", lambda s: s.reverse_compute_inline("B"), "BW313"),
    "reverse_compute_inline: its result": (
        CHAIN, "B[i, 0] = 5.0", lambda s: s.reverse_compute_inline("B"), "BW313"),
    "compute_at: its source": (
        CHAIN, "A[7 - i, 0] = 5.0", lambda s: s.compute_at("C", s.get_loops("B")[0]), "BW313"),
    "fuse_reduction_epilogue: its source": (
        SUM, "S[i] = 5.0", lambda s: s.fuse_reduction_epilogue("C", "B"), "BW313"),
    "merge_reduction: its source": (
        BEGUN, "S[i] = 5.0", lambda s: s.merge_reduction("start", "B"), "BW313"),
    "rolling_buffer: its source": (
        WINDOW, "A[i, 0] = 7.0", lambda s: s.rolling_buffer("C", 0), "BW313"),
    "decompose_padding: read before": (
        PADDED, "S[i] = B[i, 0]", first("decompose_padding"), "BW313"),
    "decompose_padding: written before": (
        PADDED, "B[7 - i, 0] = 9.0", first("decompose_padding"), "BW313"),
    "decompose_reduction: read before": (
        ROWS, "A[i, 0] = B[i, 0]", first("decompose_reduction"), "BW313"),
    "decompose_reduction: what it begins with": (
        ROWS, "S[i] = 5.0", first("decompose_reduction"), "BW313"),
    "decompose_reduction: written before": (
        ROWS, "B[7 - i, 0] = 9.0", first("decompose_reduction"), "BW313"),
    "decompose_padding: left": (PADDED, LEAVE, first("decompose_padding"), "BW351"),
    "decompose_reduction: left": (ROWS, LEAVE, first("decompose_reduction"), "BW351"),
    "rolling_buffer: left": (WINDOW, LEAVE, lambda s: s.rolling_buffer("C", 0), "BW351"),
    "cache_write: left": (COPY, LEAVE, lambda s: s.cache_write("B", 0, "local"), "BW323"),
    "reindex: left": (COPY, LEAVE, lambda s: s.reindex("B", ("write", 0)), "BW361"),
    "write_at: left": (
        COPY, "if A[i, j] > 0.0: break",
        lambda s: s.write_at(s.get_loops("B")[0], "B", 0, "local"), "BW323"),
    "fuse_reduction_epilogue: left": (
        SUM, LEAVE, lambda s: s.fuse_reduction_epilogue("C", "B"), "BW361"),
    "reverse_compute_inline: left": (
        CHAIN, LEAVE, lambda s: s.reverse_compute_inline("B"), "BW351"),
    "merge_reduction: left": (BEGUN, LEAVE, lambda s: s.merge_reduction("start", "B"), "BW336"),
    "reverse_compute_at: left": (
        LATE, LEAVE, lambda s: s.reverse_compute_at("B", s.get_loops("C")[0]), "BW351"),
    "cache_write: guarded": (
        GUARDED_COPY, "", lambda s: s.cache_write("B", 0, "local"), "BW323"),
    "cache_write: of two writers one guarded, with its reader": (
        READ_FRAME, "", lambda s: s.cache_write("D", 0, "local"), "BW323"),
    "reindex: guarded": (GUARDED_COPY, "", lambda s: s.reindex("B", ("write", 0)), "BW361"),
    "write_at: guarded": (
        GUARDED_COPY, "", lambda s: s.write_at(s.get_loops("B")[0], "B", 0, "local"), "BW323"),
    "fuse_reduction_epilogue: guarded": (
        GUARDED_SUM, "", lambda s: s.fuse_reduction_epilogue("C", "B"), "BW361"),
    "parallel: kept from iterations before": (
        KEPT, "", lambda s: s.parallel(s.get_loops("R")[0]), "BW316"),
    "software_pipeline: kept from iterations before": (
        KEPT, "", lambda s: s.software_pipeline(s.get_loops("R")[0], [0, 1]), "BW371"),
    "rolling_buffer: a loop as long as a block says": (
        COUNTED_WINDOW, "", lambda s: s.rolling_buffer("C", 0), "BW350"),
}  # fmt: skip
"""Program, what stands in it between blocks, step, code: each would compute something else."""


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_refused_where_other_statements_decide(name: str) -> None:
    text, between, step, code = CASES[name]
    sch = Schedule(parsed(text, between), verify="full")
    with pytest.raises(bw.ScheduleError) as caught:
        step(sch)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "between", "step"),
    [
        (CHAIN, "S[i] = 5.0", lambda s: s.compute_inline("C")),
        (CHAIN, LEAVE, lambda s: s.compute_inline("C")),
        (CHAIN, "S[i] = A[i, 0]", lambda s: s.compute_at("C", s.get_loops("B")[0])),
        (ROWS, "A[7 - i, 0] = 5.0", first("decompose_reduction")),
        (ROWS, LEAVE, lambda s: s.decompose_reduction("B", s.get_loops("B")[1])),
        (GUARDED_FRAME, "", lambda s: s.cache_write("D", 0, "local")),
    ],
)
def test_statements_that_do_not_meet_a_step_do_not_hold_it_up(
    text: str, between: str, step: Step
) -> None:
    """They touch nothing that the blocks use, or decide for both of them alike."""
    func = parsed(text, between)
    sch = Schedule(func, verify="full")
    step(sch)
    assert_same_meaning(func, sch.func)
