"""Blocks with loops of their own: do they write all of the box that they state?"""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.access.store_coverage import stores_fill
from blockwright.arith import Analyzer


def written(body: str) -> bool:
    func = bw.from_source(f"""
@T.prim_func
def main(B: T.Buffer((16, 16), "float32"), F: T.Buffer((256,), "float32")):
    for i in range(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            {body}
""")
    (block,) = [b for b in ir.blocks(func.body) if b.name == "B"]
    known = Analyzer({it.var: it.dom for it in block.iter_vars})
    (region,) = block.writes
    return stores_fill(block, region, known)


@pytest.mark.parametrize(
    ("loops", "store", "all_of_it"),
    [
        ("range(16)", "B[vi, j] = 0.0", True),
        ("range(16)", "F[vi * 16 + j] = 0.0", True),
        ("range(16)", "F[j * 16 + vi] = 0.0", False),  # a column: 241 elements are stated
        ("range(8)", "B[vi, 2 * j] = 0.0", False),
        ("range(16)", "B[j, j] = 0.0", False),
    ],
)
def test_loops_that_leave_gaps_do_not_fill_the_box(loops: str, store: str, all_of_it: bool) -> None:
    assert written(f"for j in {loops}:\n                {store}") is all_of_it


def test_several_stores_fill_it_together() -> None:
    stores = "for j in range(8):\n                B[vi, j] = 0.0\n                B[vi, {}] = 0.0"
    assert written(stores.format("j + 8"))
    assert not written(stores.format("15 - 2 * j"))


def test_one_element_is_what_it_is() -> None:
    assert written("B[vi, 15 - vi] = 0.0")


def test_a_copy_of_a_column_in_a_flat_buffer_is_not_copied_as_a_whole() -> None:
    """`read_at` copies a column into what the layout makes one long row: the box around it has
    elements that nobody wrote."""
    sch = bw.Schedule(bw.from_source("""
@T.prim_func
def main(A: T.Buffer((12, 16), "float32"), B: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 12):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = 0.0
            B[vi] = B[vi] + A[vk, vi]
"""))  # fmt: skip
    made = sch.read_at(sch.get_loops("B")[0], "B", 0, "global")
    sch.transform_layout(made, ("write", 0), lambda i, j: (i * 16 + j,))
    with pytest.raises(bw.ScheduleError, match="BW323"):
        sch.cache_read("B", 0, "global")


@pytest.mark.parametrize(
    ("body", "all_of_it"),
    [
        ("if F[vi] > 0.0:\n    B[vi, 0] = 1.0", False),
        ("if vi >= 0:\n    B[vi, 0] = 1.0", True),
        ("if vi >= 1:\n    B[vi, 0] = 1.0", False),
        ("if F[vi] > 0.0:\n    B[vi, 0] = 1.0\nelse:\n    B[vi, 0] = 2.0", True),
        ("if F[vi] > 0.0:\n    B[vi, 0] = 1.0\nelse:\n    B[vi, 1] = 2.0", False),
        ("for a, b in T.grid(5, 4):\n    if a * 4 + b < 16:\n        B[vi, a * 4 + b] = 1.0", True),
        ("for a in range(4):\n    if a == 3:\n        B[vi, 0] = 1.0", False),
        ("for a in range(vi):\n    B[vi, 0] = 1.0", False),  # runs no iteration in the first row
        ("for a in range(vi + 1):\n    B[vi, 0] = 1.0", True),
        # The signature states one element, also for the row in which no iteration runs.
        ("for a in range(T.min(vi, 1)):\n    B[vi, a] = 1.0", False),
        ("for a in range(T.min(vi, 1)):\n    F[vi + a] = 1.0", False),
        ("for a in range(T.min(vi, 1)):\n    B[vi + a, a] = 1.0", False),
        ("for a in range(16):\n    if F[a] > 0.0:\n        break\n    B[vi, a] = 1.0", False),
        ("for a in range(16):\n    for b in range(a + 1):\n        B[a, b] = 1.0", False),
    ],
)
def test_stores_that_may_not_happen_fill_nothing(body: str, all_of_it: bool) -> None:
    assert written(body.replace("\n", "\n            ")) is all_of_it


def test_the_initial_value_of_a_sum_is_stored_whatever_its_terms_are() -> None:
    """A condition on terms leaves the sum in place: cache_write may copy it."""
    sch = bw.Schedule(bw.from_source("""
@T.prim_func
def main(A: T.Buffer((16, 12), "float32"), B: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 12):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = 0.0
            if A[vi, vk] > 0.0:
                B[vi] = B[vi] + A[vi, vk]
"""))  # fmt: skip
    before = sch.func
    sch.cache_write("B", 0, "local")
    assert bw.verify(before, sch.func).verdict != "refuted"
