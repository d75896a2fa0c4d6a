"""Several blocks that each write a part of one buffer: the concatenation of the design thread.

`B` is joined from three parts without a branch; each part is a block of its own, which can be
scheduled, and fused with what comes before and after it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis import BlockKind, BlockScope, Tree
from blockwright.schedule import BlockRV, LoopRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning, make_arrays

CONCAT = """
@T.prim_func
def main(
    A0: T.Buffer((10, 8), "float32"), A1: T.Buffer((10, 8), "float32"),
    A2: T.Buffer((10, 8), "float32"), D: T.Buffer((30, 8), "float32"),
):
    X = T.alloc_buffer((10, 8), "float32")
    B = T.alloc_buffer((30, 8), "float32")
    for i, j in T.grid(10, 8):
        with T.block("X"):
            vi, vj = T.axis.remap("SS", [i, j])
            X[vi, vj] = T.max(A0[vi, vj], 0.0)
    for i, j in T.grid(10, 8):
        with T.block("B0"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = X[vi, vj]
    for i, j in T.grid(10, 8):
        with T.block("B1"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi + 10, vj] = A1[vi, vj]
    for i, j in T.grid(10, 8):
        with T.block("B2"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi + 20, vj] = A2[vi, vj] * 2.0
    for i, j in T.grid(30, 8):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = B[vi, vj] + 1.0
"""
CUT = CONCAT[: CONCAT.index("    for i, j in T.grid(30, 8):")] + textwrap.indent("""
for i, j in T.grid(10, 8):
    with T.block("D0"):
        vi, vj = T.axis.remap("SS", [i, j])
        D[vi, vj] = B[vi, vj] + 1.0
for i, j in T.grid(20, 8):
    with T.block("D1"):
        vi, vj = T.axis.remap("SS", [i, j])
        D[vi + 10, vj] = B[vi + 10, vj] + 2.0
""", "    ")  # fmt: skip
"""The consumer cut in two where the first part ends."""


def opened(text: str) -> Schedule:
    return Schedule(from_source(text), verify="full")


def block(sch: Schedule, name: str) -> BlockRV:
    return sch.get_block(name)


def loop(sch: Schedule, name: str, at: int = 0) -> LoopRV:
    return sch.get_loops(sch.get_block(name))[at]


def test_parts_are_complete_and_together_cover_their_consumer() -> None:
    func = from_source(CONCAT)
    flow = BlockScope(Tree(func), func.root)
    parts = [b for b in flow.blocks if b.name.startswith("B")]
    assert [flow.kind(b) for b in parts] == [BlockKind.COMPLETE] * 3
    consumer = flow.blocks[-1]
    assert flow.producers(consumer) == parts
    assert flow.uncovered(consumer) == ""


def test_a_consumer_of_one_part_has_one_producer() -> None:
    sch = opened(CUT)
    names = [sch.get(b).name for b in sch.get_producers(block(sch, "D0"))]  # type: ignore[union-attr]
    assert names == ["B0"]
    names = [sch.get(b).name for b in sch.get_consumers(block(sch, "B2"))]  # type: ignore[union-attr]
    assert names == ["D1"]


def test_a_missing_part_is_noticed() -> None:
    """Without the second part, elements 10 to 19 are nobody's."""
    start = CONCAT.index('    for i, j in T.grid(10, 8):\n        with T.block("B1")')
    end = CONCAT.index('    for i, j in T.grid(10, 8):\n        with T.block("B2")')
    sch = opened(CONCAT[:start] + CONCAT[end:])
    with pytest.raises(ScheduleError, match="has not written all of B that block D reads"):
        sch.compute_at(block(sch, "B0"), loop(sch, "D"))


def test_the_worked_example() -> None:
    """What makes a part goes into the part, what uses the whole goes into every part: three nests
    without a branch or a temporary are left, and run side by side as one parallel loop."""
    sch = opened(CONCAT)
    sch.compute_inline(block(sch, "X"))
    sch.reverse_compute_inline(block(sch, "D"))
    ir.assert_structural_equal(
        sch.func,
        from_source("""
@T.prim_func
def main(
    A0: T.Buffer((10, 8), "float32"), A1: T.Buffer((10, 8), "float32"),
    A2: T.Buffer((10, 8), "float32"), D: T.Buffer((30, 8), "float32"),
):
    for i, j in T.grid(10, 8):
        with T.block("B0"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.max(A0[vi, vj], 0.0) + 1.0
    for i, j in T.grid(10, 8):
        with T.block("B1"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi + 10, vj] = A1[vi, vj] + 1.0
    for i, j in T.grid(10, 8):
        with T.block("B2"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi + 20, vj] = A2[vi, vj] * 2.0 + 1.0
"""),
    )
    for name in ("B0", "B1", "B2"):
        sch.vectorize(loop(sch, name, 1))
    sch.parallel(sch.horizontal_fuse(*(loop(sch, n) for n in ("B0", "B1", "B2"))))
    assert_same_meaning(from_source(CONCAT), sch.func, exact=True)
    same_natively(from_source(CONCAT), sch.func)


STEPS: dict[str, tuple[str, Callable[[Schedule], object]]] = {
    "a producer moves into a part": (
        CONCAT, lambda s: s.compute_at(block(s, "X"), loop(s, "B0"))),
    "a part moves to what it uses": (
        CONCAT, lambda s: s.reverse_compute_at(block(s, "B0"), loop(s, "X"))),
    "one part moves into the consumer of all": (
        CONCAT, lambda s: s.compute_at(block(s, "B1"), loop(s, "D"))),
    "all parts move into the consumer": (
        CONCAT, lambda s: [s.compute_at(block(s, n), loop(s, "D")) for n in ("B0", "B1", "B2")]),
    "a part moves to its own consumer": (
        CUT, lambda s: s.compute_at(block(s, "B0"), loop(s, "D0"))),
    "two parts move to the consumer of both": (
        CUT, lambda s: [s.compute_at(block(s, n), loop(s, "D1")) for n in ("B1", "B2")]),
    "a part is inlined into its own consumer": (
        CUT, lambda s: s.compute_inline(block(s, "B0"))),
    "a consumer of one part moves to it": (
        CUT, lambda s: s.reverse_compute_at(block(s, "D0"), loop(s, "B0", 1))),
    "parallel consumers": (
        CUT, lambda s: (s.compute_at(block(s, "B0"), loop(s, "D0")), s.parallel(loop(s, "D0")))),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_each_part_can_be_scheduled(name: str) -> None:
    text, step = STEPS[name]
    sch = opened(text)
    step(sch)
    assert_same_meaning(from_source(text), sch.func, exact=True)
    ir.assert_structural_equal(from_source(sch.func.script()), sch.func)
    same_natively(from_source(text), sch.func)


def test_a_part_cannot_replace_the_whole() -> None:
    sch = opened(CONCAT)
    with pytest.raises(ScheduleError, match="parts of B that other blocks write") as error:
        sch.compute_inline(block(sch, "B0"))
    assert error.value.code == "BW322"


def test_the_initial_value_of_a_sum_is_no_part_of_its_own() -> None:
    """Two blocks write `S`, but the same elements one after the other."""
    sch = opened("""
@T.prim_func
def main(A: T.Buffer((8, 4), "float32"), D: T.Buffer((8,), "float32")):
    S = T.alloc_buffer((8,), "float32")
    for i, k in T.grid(8, 4):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vk]
    for i in range(8):
        with T.block("D"):
            vi = T.axis.spatial(8, i)
            D[vi] = S[vi] + 1.0
""")
    init = sch.decompose_reduction(block(sch, "S"), loop(sch, "S"))
    with pytest.raises(ScheduleError, match="updates the values of S") as error:
        sch.compute_inline(init)
    assert error.value.code == "BW314"


def test_a_consumer_does_not_fit_into_one_part() -> None:
    sch = opened(CONCAT)
    with pytest.raises(ScheduleError, match="would belong to no iteration") as error:
        sch.reverse_compute_at(block(sch, "D"), loop(sch, "B2"))
    assert error.value.code == "BW358"


def test_parts_of_symbolic_extent() -> None:
    text = """
@T.prim_func
def main(a: T.handle, b: T.handle, d: T.handle):
    n = T.int64()
    m = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (m,), "float32")
    D = T.match_buffer(d, (n + m,), "float32")
    C = T.alloc_buffer((n + m,), "float32")
    for i in range(n):
        with T.block("C0"):
            vi = T.axis.spatial(n, i)
            C[vi] = A[vi]
    for i in range(m):
        with T.block("C1"):
            vi = T.axis.spatial(m, i)
            C[vi + n] = B[vi] * 2.0
    for i in range(n + m):
        with T.block("D"):
            vi = T.axis.spatial(n + m, i)
            D[vi] = C[vi] + 1.0
"""
    sch = opened(text)
    sch.reverse_compute_inline(block(sch, "D"))
    sch.parallel(sch.horizontal_fuse(loop(sch, "C0"), loop(sch, "C1")))
    module = bw.build(sch.func)
    for n, m in [(3, 5), (1, 0), (0, 4), (17, 9)]:
        assert_same_meaning(from_source(text), sch.func, sizes={"n": n, "m": m}, exact=True)
        a, b = np.arange(n, dtype="float32"), np.arange(m, dtype="float32")
        out = np.zeros(n + m, "float32")
        module["main"](a, b, out)
        np.testing.assert_array_equal(out, np.concatenate([a, b * 2]) + 1)


def same_natively(before: ir.PrimFunc, after: ir.PrimFunc) -> None:
    expected = make_arrays(before, 0)
    actual = [a.copy() for a in expected]
    bw.interpret(before, *expected)
    bw.build(after)["main"](*actual)
    for x, y in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", ["B0", "B1", "B2"])
def test_a_part_is_reindexed_beside_the_other_writers(name: str) -> None:
    """The copy out stands where the part was made, so later writers still come later."""
    func = from_source(CONCAT)
    sch = Schedule(func)
    copy = sch.reindex(name, ("write", 0))
    order = [b.name for b in ir.blocks(sch.func.body)]
    assert order.index(sch.get(copy).name) == order.index(name) + 1  # pyright: ignore[reportAttributeAccessIssue]
    assert_same_meaning(func, sch.func)


def test_what_overwrites_a_part_still_does_after_reindex() -> None:
    wide = CONCAT.replace("A1: T.Buffer((10, 8)", "A1: T.Buffer((20, 8)").replace(
        '10, 8):\n        with T.block("B1")', '20, 8):\n        with T.block("B1")'
    )
    func = from_source(wide.replace("B[vi + 20, vj] =", "B[vi + 15, vj] ="))
    sch = Schedule(func)
    sch.reindex("B1", ("write", 0))
    sch.reindex("B2", ("write", 0))
    assert_same_meaning(func, sch.func)


STRIDED = {"2 * vi + 1": True, "2 * vi + 2": False, "4 * vi + 3": True, "3 * vi + 1": False}


@pytest.mark.parametrize(("second", "complete"), STRIDED.items())
def test_strides_that_never_meet_are_parts_too(second: str, complete: bool) -> None:
    func = from_source(f"""
@T.prim_func
def main(A: T.Buffer((10,), "float32"), B: T.Buffer((44,), "float32")):
    for i in range(10):
        with T.block("even"):
            vi = T.axis.spatial(10, i)
            B[2 * vi] = A[vi]
    for i in range(10):
        with T.block("other"):
            vi = T.axis.spatial(10, i)
            B[{second}] = A[vi] * 2.0
""")
    flow = BlockScope(Tree(func), func.root)
    assert all((flow.kind(b) is BlockKind.COMPLETE) is complete for b in flow.blocks)


DOUBLE = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 4), "float32")
    B = T.match_buffer(b, (n, 4), "float32")
    X = T.alloc_buffer((n, 4), "float32")
    for i in range(n):
        for j in range(4):
            with T.block("X"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi, vj] = A[vi, vj] * 2.0
        for j in range(4):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = X[vi, vj] + 1.0
"""


def test_a_copy_in_a_loop_that_may_not_run_would_lose_what_is_written_before_it() -> None:
    """With one row the double-buffered loop runs no iteration between first write and last read."""
    sch = Schedule(from_source(DOUBLE))
    sch.double_buffer("X", 0)
    first = sch.get_child_blocks(sch.get_block("root"))[0]
    with pytest.raises(ScheduleError, match="which may run no iteration") as caught:
        sch.cache_write(first, 0, "global")
    assert caught.value.code == "BW323"
