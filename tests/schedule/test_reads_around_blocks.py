"""What is read to decide whether, where and how often a block runs is part of what it reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import LoopRV, Schedule
from blockwright.testing import assert_same_meaning

AROUND = {
    "predicate": """
        with T.block("V"):
            vi = T.axis.spatial(8, i)
            T.where({0}[7 - i] > 1)
            E[vi] = {1}""",
    "iterator value": """
        with T.block("V"):
            vi = T.axis.spatial(8, i)
            vk = T.axis.opaque(8, {0}[7 - i] % 8)
            E[vi] = {1} + vk""",
    "bound": """
        for q in range({0}[7 - i] % 3):
            with T.block("V"):
                vi = T.axis.spatial(8, i)
                vq = T.axis.opaque(8, q)
                E[vi] = {1} + vq""",
    "condition": """
        if {0}[7 - i] > 1:
            with T.block("V"):
                vi = T.axis.spatial(8, i)
                E[vi] = {1}""",
    "shape": """
        with T.block("V"):
            vi = T.axis.spatial(8, i)
            t = T.alloc_buffer(({0}[7 - vi] % 3 + 1,), "int32")
            t[{0}[7 - vi] % 3] = {1}
            E[vi] = t[{0}[7 - vi] % 3]""",
}

PARAMS = ", ".join(f'{name}: T.Buffer((8,), "int32")' for name in "ACEN")
HEAD = f"""
@T.prim_func
def f({PARAMS}):
    B = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] + 1
    for i in range(8):"""
TAIL = """
    for i in range(8):
        with T.block("Q"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi] * 2
"""

Act = Callable[[Schedule], object]


def loop(sch: Schedule, block: str) -> LoopRV:
    return sch.get_loops(block)[0]


def refused(text: str, act: Act) -> bool:
    sch = Schedule(bw.from_source(text))
    try:
        act(sch)
    except bw.ScheduleError:
        return True
    return False


@pytest.mark.parametrize("form", AROUND)
def test_writers_are_not_moved_over_readers(form: str) -> None:
    """V reads C before Q writes it, and B after P has."""
    before, behind = (HEAD + AROUND[form].format(name, "3") + TAIL for name in "CB")
    acts: list[Act] = [
        lambda s: s.reverse_compute_at("Q", loop(s, "P")),
        lambda s: s.reverse_compute_inline("Q"),
        lambda s: s.merge(loop(s, "V"), loop(s, "Q")),
    ]
    assert all(refused(before, act) for act in acts)
    acts = [
        lambda s: s.compute_at("P", loop(s, "Q")),
        lambda s: s.merge(loop(s, "P"), loop(s, "V")),
        lambda s: s.compute_inline("P"),
        lambda s: s.cache_write("P", 0, "global"),
    ]
    assert all(refused(behind, act) for act in acts)


@pytest.mark.parametrize("form", AROUND)
@pytest.mark.parametrize("buffer", ["N", "E"])
def test_iterations_that_others_steer_run_in_order(form: str, buffer: str) -> None:
    maker = """
        with T.block("N"):
            vi = T.axis.spatial(8, i)
            N[vi] = T.min(A[vi] + 1, 4)"""
    text = HEAD + (maker if buffer == "N" else "") + AROUND[form].format(buffer, "A[vi]") + TAIL
    acts: list[Act] = [
        lambda s: s.parallel(loop(s, "V")),
        lambda s: s.vectorize(loop(s, "V")),
        lambda s: s.bind(loop(s, "V"), "threadIdx.x"),
        lambda s: s.bind(loop(s, "V"), "blockIdx.x"),
    ]
    assert all(refused(text, act) for act in acts)


@pytest.mark.parametrize("form", ["predicate", "condition"])
def test_what_no_block_writes_may_steer(form: str) -> None:
    text = HEAD + AROUND[form].format("N", "B[vi]") + TAIL
    sch = Schedule(bw.from_source(text))
    sch.parallel(loop(sch, "V"))
    sch.reverse_compute_at("Q", loop(sch, "P"))
    rng = np.random.default_rng(0)
    given = [rng.integers(0, 6, 8).astype("int32") for _ in range(4)]
    wanted, found = ([array.copy() for array in given] for _ in range(2))
    bw.interpret(bw.from_source(text), *wanted)
    bw.interpret(sch.func, *found)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("read", ["C[i]", "D[i // 2]"], ids=["buffer", "view"])
def test_sums_that_stop_by_their_own_value(read: str) -> None:
    text = """
@T.prim_func
def f(A: T.Buffer((8, 8), "int32"), C: T.Buffer((8,), "int32")):
    D = T.decl_buffer((4,), "int64", data=C.data)
    for i, k in T.grid(8, 8):
        with T.block("U"):
            vi, vk = T.axis.remap("SR", [i, k])
            T.where(READ < 5)
            C[vi] = C[vi] + A[vi, vk]
""".replace("READ", read)
    acts: list[Act] = [
        lambda s: s.vectorize(s.get_loops("U")[1]),
        lambda s: s.rfactor(s.get_loops("U")[1], 0),
        lambda s: s.atomic_update("U"),
        lambda s: s.reorder(*s.get_loops("U")[::-1]),
        lambda s: s.cache_inplace("U", "C", "local"),
        lambda s: s.bind(s.get_loops("U")[1], "threadIdx.x"),
    ]
    assert all(refused(text, act) for act in acts)


def backwards(i: ir.Expr) -> tuple[ir.Expr]:
    return (7 - i,)


def test_the_offset_of_a_view_is_read_where_it_is_declared() -> None:
    sch = Schedule(
        bw.from_source("""
@T.prim_func
def f(A: T.Buffer((8,), "int32"), C: T.Buffer((4,), "int32")):
    N = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("N"):
            vi = T.axis.spatial(8, i)
            N[vi] = vi % 4
    D = T.decl_buffer((4,), "int32", data=A.data, elem_offset=N[3])
    for i in range(4):
        with T.block("U"):
            vi = T.axis.spatial(4, i)
            C[vi] = D[vi]
""")
    )
    with pytest.raises(bw.ScheduleError, match="BW359"):
        sch.transform_layout("N", ("write", 0), backwards)
    sch.parallel(loop(sch, "N"))
    given = np.arange(8, dtype="int32")
    found = np.zeros((2, 4), "int32")
    bw.interpret(sch.func, given, found[0])
    bw.build(sch.func)(given, found[1])
    np.testing.assert_array_equal(found, [given[3:7]] * 2)


SPARSE = """
@T.prim_func
def main(P: T.Buffer((6,), "int32"), V: T.Buffer((12,), "int32"), Y: T.Buffer((5,), "int32")):
    for i in range(5):
        with T.block("row"):
            vi = T.axis.spatial(5, i)
            Y[vi] = 0
            for j in range(1):
                for k in range({0}):
                    with T.block("nz"):
                        vk = T.axis.opaque(12, P[vi] + k)
                        Y[vi] = Y[vi] + V[vk]
"""
GATED = """
@T.prim_func
def main(P: T.Buffer((6,), "int32"), V: T.Buffer((12,), "int32"), Y: T.Buffer((5,), "int32")):
    B = T.alloc_buffer((12,), "int32")
    for i in range(12):
        with T.block("B"):
            vi = T.axis.spatial(12, i)
            B[vi] = V[vi] * 3
    for i in range(5):
        with T.block("row"):
            vi = T.axis.spatial(5, i)
            T.where(P[5] > 3)
            Y[vi] = B[vi * 2]
"""
SPARSE_ROWS = np.array([0, 3, 3, 7, 11, 12], "int32")


@pytest.mark.parametrize("step", [
    lambda s: s.split(s.get_loops("row")[0], [None, 2]),
    lambda s: s.parallel(s.get_loops("row")[0]),
    lambda s: s.cache_read("row", "V", "global"),
])  # fmt: skip
@pytest.mark.parametrize("count", ["P[vi + 1] - P[vi]", "P[vi + 1 - j] - P[vi]"])
def test_outer_blocks_state_what_is_read_around_inner_ones(
    step: Callable[[Schedule], object], count: str
) -> None:
    func = bw.from_source(SPARSE.format(count))
    sch = Schedule(func, verify="full")
    step(sch)
    arrays = [SPARSE_ROWS, np.arange(12, dtype="int32"), np.zeros(5, "int32")]
    assert_same_meaning(func, sch.func, arrays=arrays)


def test_a_block_around_a_gated_one_states_the_gate() -> None:
    func = bw.from_source(GATED)
    sch = Schedule(func, verify="full")
    loop = sch.get_loops("row")[0]
    sch.compute_at("B", loop)
    sch.store_at("B", loop)
    arrays = [SPARSE_ROWS, np.arange(12, dtype="int32"), np.zeros(5, "int32")]
    assert_same_meaning(func, sch.func, arrays=arrays)


COUNTED = """
@T.prim_func
def main(A: T.Buffer((6,), "int32"), L: T.Buffer((6,), "int32"), C: T.Buffer((6,), "int32")):
    M = T.alloc_buffer((6,), "int32")
    for i in range(6):
        with T.block("P"):
            vi = T.axis.spatial(6, i)
            M[vi] = L[vi] % 4
    for i in range(6):
        {0}
            with T.block("U"):
                vi = T.axis.spatial(6, i)
                C[vi] = C[vi] + A[vi]
"""


@pytest.mark.parametrize("around", ["for k in range(M[i]):", "if M[i] > 1:"])
def test_what_is_read_around_a_block_alone_gets_another_layout(around: str) -> None:
    func = bw.from_source(COUNTED.format(around))
    sch = Schedule(func, verify="full")
    sch.transform_layout("P", ("write", 0), lambda i: (i % 2, i // 2))
    arrays = [np.arange(k, k + 6, dtype="int32") for k in range(3)]
    assert_same_meaning(func, sch.func, arrays=arrays)
    assert "M[i % 2, i // 2]" in sch.text()
