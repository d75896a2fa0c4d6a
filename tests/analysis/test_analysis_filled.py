"""Blocks with loops of their own: do they write all of the box that they state?"""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.filled import stores_fill
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
