"""Refusals that nothing else asked for, of steps that pad, roll, merge or run at the same time."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing.check import assert_same_meaning
from tests.schedule.refusals import (
    Case,
    block,
    function,
    loop,
    require_refusal,
    require_taught,
)

# ---------------------------------------------------------------------- padding and reductions
DIAGONAL = """
C = T.alloc_buffer((32,), "float32")
for i, k in T.grid(32, 32):
    with T.block("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            C[vi] = 0.0
        C[vi] = C[vi] + A[vi, vk] * A[vk, vi]
"""
CHECKSUM = """
N = T.alloc_buffer((32,), "int32")
for i, k in T.grid(32, 32):
    with T.block("N"):
        vi, vk = T.axis.remap("SR", [i, k])
        T.block_attr({"reducer": T.comm_reducer(lambda x, y: x ^ y, [T.int32(0)])})
        N[vi] = N[vi] ^ T.cast(A[vi, vk], "int32")
"""
NIBBLES = """
N = T.alloc_buffer((32,), "int4")
for i, k in T.grid(32, 32):
    with T.block("N"):
        vi, vk = T.axis.remap("SR", [i, k])
        N[vi] = N[vi] + T.cast(A[vi, vk], "int4")
"""
EACH_THREAD = """
C = T.alloc_buffer((32,), "float32", scope="shared")
for t in {outer}:
    for k in {inner}:
        for j in range(32):
            with T.block("C"):
                vj, vk = T.axis.remap("SR", [j, k])
                with T.init():
                    C[vj] = 0.0
                C[vj] = C[vj] + A[vj, vk]
    for j in range(32):
        with T.block("B"):
            vj, vt = T.axis.remap("SS", [j, t])
            B[vj, vt] = C[vj]
"""
THREADS = 'T.thread_binding(32, thread="threadIdx.x")'
BACKWARDS = """
for i, k in T.grid(32, 32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        vk = T.axis.reduce(32, 31 - k)
        with T.init():
            B[vi, 0] = 0.0
        B[vi, 0] = B[vi, 0] + A[vi, vk]
"""
TILED_SUM = """
for i0, i1, k in T.grid(8, 4, 32):
    with T.block("B"):
        vi = T.axis.spatial(32, i0 * 4 + i1)
        vk = T.axis.reduce(32, k)
        T.where(i0 * 4 + i1 + k < 70)
        with T.init():
            B[vi, 0] = 0.0
        B[vi, 0] = B[vi, 0] + A[vi, vk]
"""

# ------------------------------------------------------------- initial values and epilogues
EPILOGUE = """
C = T.alloc_buffer(({rows},), "float32")
E = T.alloc_buffer((32,), "float16")
for i, k in T.grid({rows}, 32):
    with T.block("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        T.where({where})
        with T.init():
            C[vi] = 0.0
        C[vi] = C[vi] + {term}
for i in range({wanted}):
    with T.block("B"):
        vi = T.axis.spatial({wanted}, i)
        {store}
"""
PART = "B[vi, 0] = T.if_then_else(vi < 16, C[vi], 0.0)"
VIEWED = "V = T.match_buffer(C[vi], (1,), offset_factor=1)\n        B[vi, 0] = V[0]"


def epilogue(
    rows: int = 32,
    wanted: int = 32,
    term: str = "A[vi, vk]",
    where: str = "True",
    store: str = "B[vi, 0] = C[vi] + A[vi, 1]",
) -> str:
    """A sum of each row, and what is made of it."""
    return EPILOGUE.format(rows=rows, wanted=wanted, term=term, where=where, store=store)


BEGUN = """
C = T.alloc_buffer((32,), "float32")
for i in range(32):
    with T.block("start"):
        vi = T.axis.spatial(32, i)
        C[vi] = {start}
{between}
for i, k in T.grid(32, {steps}):
    with T.block("C"):
        vi = T.axis.spatial(32, i)
        vk = T.axis.reduce(32, k)
        C[vi] = C[vi] + {term}
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = C[vi]
"""


def begun(start: str = "0.0", between: str = "", steps: str = "32", term: str = "A[vi, vk]") -> str:
    """A sum of each row that a block before it begins, and a copy of it behind."""
    return BEGUN.format(start=start, between=between, steps=steps, term=term)


def merged(sch: Schedule) -> None:
    sch.merge_reduction(block(sch, "start"), block(sch, "C"))


def fused(sch: Schedule) -> None:
    sch.fuse_reduction_epilogue(block(sch, "C"), block(sch, "B"))


# ------------------------------------------------------------------------- nests side by side
BESIDE = """
for i in range(4):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = A[vi, 0]
{between}
for i in range(4, 8):
    with T.block("D"):
        vi = T.axis.spatial(32, i - 4)
        vj = T.axis.spatial(32, {column})
        B[vi, vj] = A[vi, vj]
"""
LOOSE = """
for q in range(4):
    A[q, q] = 0.0
"""

# ------------------------------------------------------------------------- windows that roll
WINDOWS = """
C = T.alloc_buffer((32, 32), "float32")
for i in range(30):
    for r in range({low}, {high}):
        for j in range(32):
            with T.block("C"):
                vi = T.axis.{kind}(32, {row})
                vj = T.axis.spatial(32, j)
                {first}
                C[vi, vj] = A[vi, vj] * 2.0
    {beside}
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] + C[vi + 2, vj]
"""


def windows(
    low: str = "0",
    high: str = "3",
    row: str = "i + r",
    kind: str = "spatial",
    first: str = "",
    beside: str = "",
) -> str:
    """Three rows of one buffer for each row of another."""
    text = WINDOWS.format(low=low, high=high, row=row, kind=kind, first=first, beside=beside)
    return "\n".join(line for line in text.splitlines() if line.strip())


def rolled(sch: Schedule) -> None:
    sch.rolling_buffer(block(sch, "C"), 0)


STEPS = """
C = T.alloc_buffer((32,), "float32")
for i in range(30):
    for j in range(i):
        for r in range(3):
            with T.block("C"):
                vi = T.axis.spatial(32, i + r)
                C[vi] = A[vi, 0] * 2.0
        with T.block("B"):
            vi = T.axis.spatial(30, i)
            vj = T.axis.spatial(30, j)
            B[vi, vj] = C[vi] + C[vi + 2]
"""
AT_ONCE = """
C = T.alloc_buffer((32,), "float32", scope="{scope}")
for z in range(2):
    for t in {kind}:
        for i in range(30):
            for r in range(3):
                with T.block("C"):
                    vi = T.axis.spatial(32, i + r)
                    C[vi] = A[vi, 0] * 2.0
            with T.block("B"):
                vt = T.axis.spatial(32, z * 4 + t)
                vi = T.axis.spatial(32, i)
                B[vt, vi] = C[vi] + C[vi + 2]
"""

CASES: dict[str, Case] = {
    "pad_einsum: rows times columns": (
        DIAGONAL, lambda s: s.pad_einsum(block(s, "C"), [1, 5]), "BW326",
        "by a padded reduction iterator and by another expression in one dimension"),
    "atomic_update: a reducer of one's own": (
        CHECKSUM, lambda s: s.atomic_update(block(s, "N")), "BW338",
        "does not combine the element with another value by"),
    "atomic_update: half bytes": (
        NIBBLES, lambda s: s.atomic_update(block(s, "N")), "BW338",
        "atomic_add of int4: only single elements of whole bytes"),
    "bind: terms shared among threads inside": (
        EACH_THREAD.format(outer=THREADS, inner="range(32)"),
        lambda s: s.bind(loop(s, "C", 1), "threadIdx.x"), "BW317",
        "block B accesses results of block C while the threads along threadIdx.x still"),
    "bind: around threads that share terms": (
        EACH_THREAD.format(outer="range(32)", inner=THREADS),
        lambda s: s.bind(loop(s, "C", 0), "threadIdx.x"), "BW317",
        "block B accesses results of block C while the threads along threadIdx.x still"),
    "cache_write: terms from the last to the first": (
        BACKWARDS, lambda s: s.cache_write(block(s, "B"), 0, "local"), "BW314",
        "do not start at the minimum of iterator vk"),
    "rfactor: a condition on tiles": (
        TILED_SUM, lambda s: s.rfactor(loop(s, "B", 2), 0), "BW332",
        "uses a spatial loop that no iterator is bound to"),
    "fuse_reduction_epilogue: rounded": (
        epilogue(store='E[vi] = T.cast(C[vi], "float16")'), fused, "BW337",
        "partial results would be rounded differently"),
    "fuse_reduction_epilogue: twice the rows": (
        epilogue(rows=16, store=PART), fused, "BW337", "does not cover every element"),
    "fuse_reduction_epilogue: one row more": (
        epilogue(rows=16, wanted=17, store=PART), fused, "BW337", "does not cover every element"),
    "fuse_reduction_epilogue: a view": (
        epilogue(store=VIEWED), fused, "BW359", "as a whole, not element by element"),
    "fuse_reduction_epilogue: terms made of what it writes": (
        epilogue(term="A[vi, vk] * B[vi, vk]"), fused, "BW337",
        "block C reads B, which it would write"),
    "merge: a nest that says nothing of what it does": (
        BESIDE.format(between=LOOSE, column="1"),
        lambda s: s.merge(loop(s, "B", 0), loop(s, "D", 0)), "BW313",
        "loop q holds statements outside blocks"),
    "merge: one loop": (
        BESIDE.format(between="", column="1"), lambda s: s.merge(loop(s, "B", 0)), "BW304",
        "at least two loops"),
    "merge: nothing": (
        BESIDE.format(between="", column="1"), lambda s: s.merge(), "BW304",
        "at least two loops"),
    "merge_reduction: the later first": (
        begun(), lambda s: s.merge_reduction(block(s, "B"), block(s, "C")), "BW336",
        "block B comes after block C"),
    "merge_reduction: what was there before": (
        begun(start="C[vi] * 0.5"), merged, "BW314", "it reads and writes C"),
    "merge_reduction: a neighbour": (
        begun(term="A[vi, vk] * C[31 - vi]"), merged, "BW336", "reads elements of C other than"),
    "merge_reduction: no step at all": (
        begun(steps="0"), merged, "BW336", "may not run although no reduction iterator"),
    "merge_reduction: used between blocks": (
        begun(between="C[3] = 1.0"), merged, "BW313", "C is used outside blocks"),
    "rolling_buffer: rows in pairs": (
        windows(), lambda s: (s.split(loop(s, "C", 1), [None, 2]), rolled(s)), "BW356",
        "predicate beyond the domains"),
    "rolling_buffer: instances of any order": (
        windows(kind="opaque"), rolled, "BW314", "neither spatial nor reductions"),
    "rolling_buffer: checks on the way": (
        windows(first='assert A[vi, vj] < 1e30, "too large"'), rolled, "BW353",
        "does more than write buffers"),
    "rolling_buffer: a loop that moves along": (
        windows(low="i", high="i + 3", row="r"), rolled, "BW350",
        "the range of loop r changes with i"),
    "rolling_buffer: a first iteration that computes nothing": (
        STEPS, rolled, "BW350", "the range of loop j changes with i"),
    "rolling_buffer: used between blocks": (
        windows(beside="C[i, 0] = 1.0"), rolled, "BW313", "C is used outside blocks"),
    "store_at: used between blocks": (
        windows() + "\nB[31, 31] = C[3, 3]\n", lambda s: s.store_at(block(s, "C"), loop(s, "C", 0)),
        "BW313", "C is used outside blocks"),
    "rolling_buffer: threads of shared memory": (
        AT_ONCE.format(scope="shared", kind='T.thread_binding(4, thread="threadIdx.x")'), rolled,
        "BW312", "which is thread_binding, may overwrite one another's values"),
    "rolling_buffer: lanes of a vector": (
        AT_ONCE.format(scope="global", kind="T.vectorized(4)"), rolled,
        "BW312", "which is vectorized, may overwrite one another's values"),
    "rolling_buffer: an inner parallel loop": (
        AT_ONCE.format(scope="global", kind="T.parallel(4)"), rolled,
        "BW312", "which is parallel, may overwrite one another's values"),
}  # fmt: skip
NO_NODES = {"merge: one loop", "merge: nothing"}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_refused(name: str) -> None:
    require_refusal(name, CASES[name], unmarked=NO_NODES)


DYNAMIC_STEPS = """
@T.prim_func
def main(A: T.Buffer((32, 32), "float32"), C: T.Buffer((32,), "float32"), n: T.int64):
    for i in range(32):
        with T.block("start"):
            vi = T.axis.spatial(32, i)
            C[vi] = 1.0
    for i in range(32):
        for k in range(n):
            with T.block("C"):
                vi = T.axis.spatial(32, i)
                vk = T.axis.reduce(32, k)
                C[vi] = C[vi] + A[vi, vk]
"""


def test_an_initial_value_stays_where_there_may_be_no_step() -> None:
    """Where `n` is 0 the update never runs; its elements keep what was set before."""
    func = from_source(DYNAMIC_STEPS)
    assert isinstance(func, ir.PrimFunc)
    require_taught(func, merged, "BW336", "may not run although no reduction iterator")


STAGES = """
@T.prim_func
def main(A: T.Buffer((16, 32), "float32"), B: T.Buffer((16, 32), "float32")):
    C = T.alloc_buffer((16, 32), "float32")
    for i in T.serial(16, annotations={{"{key}": [0, 1]}}):
        for j in range(32):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] * 2.0
        for j in range(32):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = C[vi, vj] + 1.0
"""


@pytest.mark.parametrize(
    ("key", "other"),
    [("software_pipeline_stage", "software_pipeline_order"),
     ("software_pipeline_order", "software_pipeline_stage")],
)  # fmt: skip
def test_a_pipeline_is_built_from_both_annotations(key: str, other: str) -> None:
    func = from_source(STAGES.format(key=key))
    assert isinstance(func, ir.PrimFunc)
    words = f"loop i is annotated as a pipeline without '{other}'"
    with pytest.raises(ScheduleError, match=words) as caught:
        bw.build(func)
    assert caught.value.code == "BW304"
    with pytest.raises(bw.ValidationError, match=words):
        bw.validate(func)


BORDER = """
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = T.if_then_else(vj < 3 or vj >= 30, 0.0, A[vi, vj - 3])
"""
BORDER_APART = """
for i_pad, j_pad in T.grid(32, 32):
    with T.block("B_pad_const"):
        vi, vj = T.axis.remap("SS", [i_pad, j_pad])
        B[vi, vj] = 0.0
for i, j in T.grid(32, 27):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        vj = T.axis.spatial(32, j + 3)
        B[vi, vj] = A[vi, vj - 3]
"""


def test_a_border_may_be_said_in_place_of_the_inside() -> None:
    """Inside is where neither of the two conditions holds."""
    sch = Schedule(function(BORDER), verify="full")
    sch.decompose_padding(block(sch, "B"), loop(sch, "B", 0))
    ir.assert_structural_equal(sch.func, function(BORDER_APART))
    assert_same_meaning(function(BORDER), sch.func, exact=True)


PADDED_IN_PART = """
for i in range(32):
    for j in range(12):
        with T.block("D"):
            vi = T.axis.spatial(32, i)
            vj = T.axis.spatial(32, j + 20)
            B[vi, vj] = A[vi, vj]
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(j < 20)
            B[vi, vj] = T.if_then_else(vj >= 3, A[vi, vj - 3], 0.0)
"""


def test_padding_beside_another_block_keeps_to_its_own_part() -> None:
    """What the block leaves out, neither part of it writes: it is the other block's."""
    sch = Schedule(function(PADDED_IN_PART), verify="full")
    sch.decompose_padding(block(sch, "B"), loop(sch, "B", 0))
    assert "T.where(j < 20 and j >= 3)" in sch.func.script()
    assert "T.where(j_pad < 20)" in sch.func.script()
    assert_same_meaning(function(PADDED_IN_PART), sch.func, exact=True)


def test_an_epilogue_of_fewer_rows_keeps_what_terms_are_left_out() -> None:
    text = epilogue(wanted=20, where="k < 24")
    sch = Schedule(function(text), verify="full")
    fused(sch)
    assert "T.where(k < 24 and i < 20)" in sch.func.script()
    assert_same_meaning(function(text), sch.func)


@pytest.mark.parametrize(
    ("column", "after"),
    [("i // 4", "1"), ("(i - 4) // 3 + 1", "i_m // 3 + 1"), ("T.max(i - 4, 1)", "T.max(i_m, 1)")],
)
def test_bindings_of_a_merged_loop_are_told_from_its_own_iterations(
    column: str, after: str
) -> None:
    """What ran from 4 to 7 runs from 0 to 3: bindings become as short as that allows, not more."""
    text = BESIDE.format(between="", column=column)
    sch = Schedule(function(text), verify="full")
    sch.merge(loop(sch, "B", 0), loop(sch, "D", 0))
    assert f"vj = T.axis.spatial(32, {after})\n" in sch.func.script()
    assert_same_meaning(function(text), sch.func, exact=True)
