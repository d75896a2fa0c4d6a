"""Orders: nests with statements beside them, and reductions whose terms need their order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.testing.check import assert_same_meaning
from tests.schedule.test_schedule_loops import ROW_NORM, block_of, loop_of, program, refused

SKEWED = """
@T.prim_func
def main(A: T.Buffer((9, 12), "float32"), B: T.Buffer((9, 12), "float32"),
         D: T.Buffer((9,), "float32")):
    C = T.alloc_buffer((9, 13), "float32")
    for i in range(9):
        for j in range(13):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, T.min(vj, 11)] * 2.0
        for j in range(12):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = C[{row}, vj] + C[{row}, vj + 1]
        with T.block("D"):
            vi = T.axis.spatial(9, i)
            D[vi] = C[vi, 0]
"""


def test_statements_beside_a_reordered_nest_get_loops_of_their_own() -> None:
    before = program(SKEWED.format(row="vi"))
    sch = Schedule(before, verify="full")
    i, j = sch.get_loops(sch.get_block("B"))
    sch.reorder(j, i)
    above = {name: [loop_of(sch, f) for f in sch.get_loops(sch.get_block(name))] for name in "CBD"}
    assert above["B"] == [loop_of(sch, j), loop_of(sch, i)]
    assert [len(above[name]) for name in "CBD"] == [2, 2, 1]
    assert len({loop for loops in above.values() for loop in loops}) == 5
    order = [block_of(sch, b).name for b in sch.get_child_blocks(sch.get_block("root"))]
    assert order == ["C", "B", "D"]
    assert_same_meaning(before, sch.func, exact=True)


def test_loops_that_stay_in_place_are_not_distributed() -> None:
    """The outermost loop is given, and keeps its place: the statements in it stay together."""
    before = program(SKEWED.format(row="vi"))
    sch = Schedule(before, verify="full")
    i, j = sch.get_loops(sch.get_block("B"))
    outer, inner = sch.split(j, [None, 4])
    sch.reorder(i, inner, outer)
    assert len(sch.get_child_blocks(i)) == 3
    assert_same_meaning(before, sch.func, exact=True)


def test_statements_at_two_levels_are_distributed() -> None:
    sch = Schedule(ROW_NORM, verify="full")
    k = sch.split(sch.get_loops(sch.get_block("D"))[1], [None, 10])[1]
    i, j, _ = sch.get_loops(sch.get_block("D"))
    sch.compute_at(sch.get_block("C"), i)
    sch.compute_at(sch.cache_read(sch.get_block("D"), "A", "local", ["D"]), j)
    sch.reorder(k, j, i)
    names = [loop_of(sch, f).loop_var.name for f in sch.get_loops(sch.get_block("D"))]
    assert names == ["j_1", "j_0", "i"]
    assert [len(sch.get_loops(sch.get_block(name))) for name in ("C", "A_local")] == [2, 3]
    assert_same_meaning(ROW_NORM, sch.func, exact=True)


def test_a_nest_that_depends_on_its_neighbours_row_by_row_is_not_reordered() -> None:
    """B reads the row before, which C has written in an earlier iteration only: the rows of C may
    run before those of B all the same, but what the same iteration holds does not show it."""
    sch = Schedule(program(SKEWED.format(row="T.max(vi - 1, 0)")))
    i, j = sch.get_loops(sch.get_block("B"))
    refused("BW316", "in other iterations of loop i", lambda: sch.reorder(j, i))
    sch.parallel(j)
    sch = Schedule(program(SKEWED.format(row="vi")))
    i, j = sch.get_loops(sch.get_block("B"))
    sch.parallel(i)
    refused("BW312", "parallel already", lambda: sch.reorder(j, i))


HORNER = program("""
@T.prim_func
def main(M: T.Buffer((8, 10), "float32"), Y: T.Buffer((8,), "float32")):
    U = T.alloc_buffer((8, 10), "float32")
    S = T.alloc_buffer((8,), "float32")
    for i, k in T.grid(8, 10):
        with T.block("U"):
            vi, vk = T.axis.remap("SS", [i, k])
            U[vi, vk] = M[vi, vk] * 2.0
    for i, k in T.grid(8, 10):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = 0.0
            S[vi] = S[vi] * 0.5 + U[vi, vk]
    for i in range(8):
        with T.block("Y"):
            vi = T.axis.spatial(8, i)
            Y[vi] = S[vi]
""")
"""The order of the terms matters: the last one counts most."""


def _digits(i: ir.Var, k: ir.Var) -> list[ir.Expr]:
    return [k // 4, i, k % 4]


IN_ORDER: dict[str, Callable[[Schedule], object]] = {
    "split": lambda s: s.split(s.get_loops("S")[1], [None, 4]),
    "moved after a split": lambda s: (
        s.split(s.get_loops("S")[1], [None, 4]), s.compute_at("S", s.get_loops("Y")[0])),
    "moved after a fusion": lambda s: (
        s.fuse(*s.split(s.get_loops("S")[1], [None, 5])), s.compute_at("S", s.get_loops("Y")[0])),
    "spatial loops inside": lambda s: (
        s.reorder(*reversed(s.get_loops("S"))), s.compute_at("S", s.get_loops("Y")[0])),
    "with its producer": lambda s: s.reverse_compute_at("S", s.get_loops("U")[1]),
    "digits as iterators": lambda s: s.transform_block_layout("S", _digits),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_reduction_that_needs_its_order_keeps_it(name: str) -> None:
    sch = Schedule(HORNER, verify="full")
    IN_ORDER[name](sch)
    assert_same_meaning(HORNER, sch.func, exact=True)


def test_producers_in_another_order_take_no_ordered_reduction_along() -> None:
    sch = Schedule(HORNER)
    _, outer, inner = (sch.get_loops("U")[0], *sch.split(sch.get_loops("U")[1], [None, 5]))
    sch.reorder(inner, outer)
    refused("BW330", "cannot be reordered", lambda: sch.reverse_compute_at("S", outer))


FUSED = """
@T.prim_func
def main(A: T.Buffer((2, 3), "float32"), B: T.Buffer((2,), "float32")):
    for i, k in T.grid(2, 3):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = 0.0
            B[vi] = B[vi] + A[vi, vk]
"""


def test_loops_over_elements_and_terms_together_keep_their_order() -> None:
    """In the order 0, 2, 4, 1, 3, 5 of the fused loop the second row's last term comes before its
    first, and with that before its initial value."""
    sch = Schedule(program(FUSED), verify="full")
    outer, inner = sch.split(sch.fuse(*sch.get_loops("B")), [None, 2])
    refused("BW316", "terms would come before the initial value", lambda: sch.reorder(inner, outer))
