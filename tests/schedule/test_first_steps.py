"""Reductions that may take no step although their domains have elements keep what they held."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.access.tree import Tree
from blockwright.analysis.dataflow.block_kinds import BlockKind, BlockKinds
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError
from blockwright.testing import assert_same_meaning

Step = Callable[[Schedule], object]

FRAME = """
@T.prim_func
def main(A: T.Buffer((4,), "int32"), W: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    for i in range(4):
        for k in range({extent}):
            with T.block("C"):
                vi = T.axis.spatial(4, i)
                vk = T.axis.reduce(4, k)
                T.where({where})
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + A[vk]
"""
FORMS = {
    "triangle": FRAME.format(extent="i", where="True"),
    "counted": FRAME.format(extent="W[i]", where="True"),
    "all counted": FRAME.format(extent="W[0]", where="True"),
    "none": FRAME.format(extent="4", where="k < 0"),
    "loaded": FRAME.format(extent="4", where="k < W[0]"),
}
SYMBOLIC = """
@T.prim_func
def main(a: T.handle, c: T.handle, n: T.int64, m: T.int64):
    A = T.match_buffer(a, (n, m), "int32")
    C = T.match_buffer(c, (n,), "int32")
    for i, k in T.grid(n, {extent}):
        with T.block("C"):
            vi = T.axis.spatial(n, i)
            vk = T.axis.reduce(m, k)
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]
"""


def loops(s: Schedule) -> list[bw.LoopRV]:
    return s.get_loops("C")


STEPS: dict[str, Step] = {
    "decompose_reduction": lambda s: s.decompose_reduction("C", loops(s)[1]),
    "decompose_reduction around": lambda s: s.decompose_reduction("C", loops(s)[0]),
    "rfactor": lambda s: s.rfactor(loops(s)[1], 0),
    "blockize": lambda s: s.blockize(loops(s)[1]),
    "cache_write": lambda s: s.cache_write("C", 0, "global"),
    "write_at": lambda s: s.write_at(loops(s)[0], "C", 0, "local"),
}


def arrays() -> list[np.ndarray]:
    return [np.array(x, "int32") for x in ([5, 6, 7, 8], [0, 2, 0, 1], [90, 91, 92, 93])]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", STEPS)
def test_a_sum_without_steps_keeps_what_its_element_held(form: str, step: str) -> None:
    func = bw.from_source(FORMS[form])
    sch = Schedule(func, verify="full")
    with pytest.raises(ScheduleError) as raised:
        STEPS[step](sch)
    assert raised.value.code in ("BW314", "BW323", "BW331")
    assert_same_meaning(func, sch.func, arrays=arrays())


@pytest.mark.parametrize("step", STEPS)
def test_a_symbolic_sum_that_leaves_out_its_only_term_keeps_what_its_element_held(
    step: str,
) -> None:
    sch = Schedule(bw.from_source(SYMBOLIC.format(extent="m // 2")), verify="full")
    with pytest.raises(ScheduleError):
        STEPS[step](sch)


def _tiles(s: Schedule) -> None:
    i, k = loops(s)
    s.split(k, [8, None])
    s.split(i, [None, 3])


@pytest.mark.parametrize("shape", [lambda s: None, _tiles])
def test_a_sum_over_all_of_its_domain_takes_the_first_step(shape: Step) -> None:
    func = bw.from_source(SYMBOLIC.format(extent="m"))
    sch = Schedule(func, verify="full")
    shape(sch)
    sch.cache_write("C", 0, "global")
    for sizes in ({"n": 1, "m": 1}, {"n": 3, "m": 0}, {"n": 4, "m": 9}):
        assert_same_meaning(func, sch.func, sizes=sizes)
    assert len(ir.blocks(sch.func.body)) == 3


def test_a_fused_sum_takes_the_first_step() -> None:
    """Its spatial domain has elements too where any step is taken."""
    sch = Schedule(bw.from_source(SYMBOLIC.format(extent="m")), verify="full")
    sch.split(sch.fuse(*loops(sch)), [None, 5])
    block = next(b for b in ir.blocks(sch.func.body) if b.name == "C")
    tree = Tree(sch.func)
    assert BlockKinds(tree, tree.blocks[0]).kind(block) is BlockKind.REDUCTION


def test_a_reduction_over_no_elements_is_one() -> None:
    func = bw.from_source("""
@T.prim_func
def main(A: T.Buffer((2, 1), "float32"), C: T.Buffer((2,), "float32")):
    for i, k in T.grid(2, 0):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
""")
    schedule = bw.Schedule(func)
    schedule.decompose_reduction("C", schedule.get_loops("C")[1])
    result = np.ones(2, "float32")
    bw.interpret(schedule.func, np.ones((2, 1), "float32"), result)
    assert not result.any()


def test_a_positive_product_has_positive_factors() -> None:
    """Tiles of a domain that is padded to whole tiles begin where the domain does."""
    func = bw.from_source("""
@T.prim_func(index_dtype="int64")
def main(a: T.handle, C: T.Buffer((4,), "float32")):
    n = T.int64()
    A = T.match_buffer(a, (4, (n + 31) // 32 * 32), "float32")
    for i, k0, k1 in T.grid(4, (n + 31) // 32, 32):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            vk = T.axis.reduce((n + 31) // 32 * 32, k0 * 32 + k1)
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
""")
    schedule = bw.Schedule(func)
    schedule.rfactor(schedule.get_loops("C")[1], 0)
