"""blockize around loops whose beginning another loop, or data, decides: no domain depends on it."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright.schedule import Schedule
from blockwright.testing import assert_same_meaning

SOURCE = """
@T.prim_func
def main(A: T.Buffer((48,), "int32"), W: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32"),
         D: T.Buffer((4, 48), "int32")):
    for i in range(4):
        for k0 in range({0}):
            for k1 in range(4):
                with T.block("C"):
                    vi = T.axis.spatial(4, i)
                    vk = T.axis.{1}(48, k0 * 4 + k1)
                    {2}
"""
BODIES = {"reduce": "C[vi] = C[vi] + A[vk]", "spatial": "D[vi, vk] = A[vk] * 2"}


@pytest.mark.parametrize(
    ("bounds", "kind", "depth"),
    [
        ("i, 8", "reduce", 2),
        ("i, 8", "spatial", 2),
        ("i, 8", "spatial", 0),
        ("W[i], W[i] + 3", "spatial", 0),
    ],
)
def test_loops_that_begin_late(bounds: str, kind: str, depth: int) -> None:
    func = bw.from_source(SOURCE.format(bounds, kind, BODIES[kind]))
    sch = Schedule(func, verify="full")
    sch.blockize(sch.get_loops("C")[depth])
    rows = np.array([1, 0, 5, 2], "int32")
    arrays = [np.arange(48, dtype="int32"), rows, rows.copy(), np.zeros((4, 48), "int32")]
    bw.validate(sch.func)
    assert_same_meaning(func, sch.func, arrays=arrays)


def test_a_part_whose_length_is_loaded_lies_inside_as_a_whole() -> None:
    func = bw.from_source("""
@T.prim_func
def main(N: T.Buffer((4,), "int32"), C: T.Buffer((4, 6), "int32")):
    for i in range(4):
        with T.block("O"):
            vo = T.axis.spatial(4, i)
            for j in range(N[vo] % 7):
                with T.block("C"):
                    vj = T.axis.spatial(6, j)
                    C[vo, vj] = N[vo] + vj
""")
    sch = Schedule(func, verify="full")
    outer = sch.blockize(["C"])
    sch.blockize(sch.get_loops(outer)[0])
    arrays = [np.array([1, 0, 5, 6], "int32"), np.zeros((4, 6), "int32")]
    assert_same_meaning(func, sch.func, arrays=arrays)
