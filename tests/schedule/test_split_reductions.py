"""Split-up reductions of every length and type."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.script.compute import Program
from blockwright.testing import assert_same_meaning


@pytest.mark.parametrize("combiner", ["sum", "max", "prod"])
@pytest.mark.parametrize("length", [0, 1, 4, 9])
def test_split_up_reductions_over_few_terms_or_none(combiner: str, length: int) -> None:
    """A reduction over nothing has its initial value as result, in parts or whole."""
    n, s = ir.var("n", "int64"), ir.var("s", "int64")
    p = Program("total")
    x = p.param("X", (n, s), "float32")
    func = p.finish([p.reduce("Y", (n,), (s,), lambda i, k: x[i, k], combiner)])
    sch = Schedule(func, verify="full")
    whole = sch.get_block("Y")
    _, k = sch.get_loops(whole)
    _, lane = sch.split(k, [None, 4])
    parts = sch.rfactor(lane, -1)
    assert_same_meaning(func, sch.func, sizes={"n": 3, "s": length})
    _, chunk, lane = sch.get_loops(parts)
    sch.decompose_reduction(parts, chunk)
    sch.decompose_reduction(whole, sch.get_loops(whole)[0])
    assert_same_meaning(func, sch.func, sizes={"n": 3, "s": length})


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_partial_results_of_every_type(dtype: str, axis: int) -> None:
    n = ir.var("n", "int64")
    for combiner in ("any", "all") if dtype == "bool" else ("sum", "prod", "min", "max"):
        p = Program("total")
        x = p.param("X", (n, 3, 6), dtype)
        func = p.finish([p.reduce("Y", (n,), (3, 6), lambda i, j, k, x=x: x[i, j, k], combiner)])
        for position in (1, 2):
            sch = Schedule(func, verify="full")
            sch.rfactor(sch.get_loops(sch.get_block("Y"))[position], axis)
            assert_same_meaning(func, sch.func, sizes={"n": 4})


def test_an_initial_value_stays_behind_what_it_is_made_of() -> None:
    """A bias as the initial value, copied in the loop of the reduction: before the loop there is no
    copy yet."""
    sch = bw.Schedule(bw.from_source("""
@T.prim_func
def main(A: T.Buffer((8, 4), "float32"), B: T.Buffer((8,), "float32"),
         C: T.Buffer((8,), "float32")):
    for i, k in T.grid(8, 4):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = B[vi]
            C[vi] = C[vi] + A[vi, vk]
"""), verify="full")  # fmt: skip
    i, k = sch.get_loops("C")
    sch.read_at(k, "C", "B", "local")
    with pytest.raises(bw.ScheduleError, match="BW323"):
        sch.decompose_reduction("C", k)
    sch.undo()
    sch.read_at(i, "C", "B", "local")
    sch.decompose_reduction("C", sch.get_loops("C")[1])


VECTORS = """
@T.prim_func
def main(A: T.Buffer((3, 6), "{type}x4"), C: T.Buffer((3,), "{type}x4")):
    for i, k in T.grid(3, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = {initial}
            C[vi] = {update}
"""


@pytest.mark.parametrize(
    ("type_", "initial", "update"),
    [
        ("int32", "T.broadcast(0, 4)", "C[vi] + A[vi, vk]"),
        ("float32", "T.broadcast(T.float32(1), 4)", "C[vi] * A[vi, vk]"),
        ("int8", "T.broadcast(T.int8(-128), 4)", "T.max(C[vi], A[vi, vk])"),
        ("int8", "T.broadcast(T.int8(3), 4)", "T.min(C[vi], A[vi, vk])"),
    ],
)
def test_elements_may_be_vectors(type_: str, initial: str, update: str) -> None:
    """The laws of a reducer are those of its lanes."""
    func = bw.from_source(VECTORS.format(type=type_, initial=initial, update=update))
    sch = Schedule(func)
    outer, _ = sch.split(sch.get_loops("C")[1], [3, None])
    sch.rfactor(outer, 0)
    x = np.random.default_rng(1).integers(-5, 6, (3, 6, 4)).astype(type_)
    one, two = np.zeros((2, 3, 4), type_)
    bw.interpret(func, x, one)
    bw.interpret(sch.func, x, two)
    assert np.array_equal(one, two)


@pytest.mark.parametrize("initial", ["T.broadcast(1, 4)", "T.ramp(0, 1, 4)"])
def test_initial_vectors_that_count_are_named(initial: str) -> None:
    func = bw.from_source(VECTORS.format(type="int32", initial=initial, update="C[vi] + A[vi, vk]"))
    sch = Schedule(func)
    outer, _ = sch.split(sch.get_loops("C")[1], [3, None])
    with pytest.raises(bw.ScheduleError, match="not known to be neutral") as caught:
        sch.rfactor(outer, 0)
    assert caught.value.code == "BW330"
