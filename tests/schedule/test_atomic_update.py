"""atomic_update: a reduction whose loops may run in any order and at the same time."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import BlockRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing.check import assert_same_meaning

REDUCTION = """
@T.prim_func
def main(A: T.Buffer((16, 64), "{dtype}"), B: T.Buffer((16,), "{dtype}")):
    for i, k in T.grid(16, 64):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = {first}
            B[vi] = {update}
"""
SUM = {"dtype": "float32", "first": "T.float32(0)", "update": "B[vi] + A[vi, vk]"}


def schedule(**parts: str) -> tuple[Schedule, BlockRV]:
    func = from_source(REDUCTION.format(**{**SUM, **parts}))
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    return sch, sch.get_block("B")


@pytest.mark.parametrize(
    ("dtype", "first", "update", "call"),
    [
        ("float32", "T.float32(0)", "A[vi, vk] + B[vi]", "atomic_add"),
        ("float16", "T.float16(0)", "B[vi] + A[vi, vk]", "atomic_add"),
        ("int32", "1", "B[vi] * A[vi, vk]", "atomic_mul"),
        ("int8", 'T.int8(-128)', "T.max(B[vi], A[vi, vk])", "atomic_max"),
        ("float64", 'T.float64("inf")', "T.min(B[vi], A[vi, vk])", "atomic_min"),
        ("bool", "T.bool(True)", "B[vi] and A[vi, vk]", "atomic_and"),
        ("bool", "T.bool(False)", "B[vi] or A[vi, vk]", "atomic_or"),
    ],
)  # fmt: skip
def test_terms_in_parallel_give_the_same(dtype: str, first: str, update: str, call: str) -> None:
    sch, block = schedule(dtype=dtype, first=first, update=update)
    before = sch.func
    i, k = sch.get_loops(block)
    sch.reorder(k, i)
    sch.decompose_reduction(block, k)
    sch.atomic_update(block)
    sch.parallel(k)
    assert f"T.{call}(B[vi], A[vi, vk])" in sch.func.script()
    ir.assert_structural_equal(from_source(sch.func.script()), sch.func)
    assert_same_meaning(before, sch.func)
    bw.validate(sch.func, "native")


def refused(sch: Schedule, block: BlockRV, why: str) -> None:
    with pytest.raises(ScheduleError, match=why) as caught:
        sch.atomic_update(block)
    assert caught.value.code == "BW338"


def test_the_initial_value_must_stand_elsewhere() -> None:
    refused(*schedule(), "sets the initial value itself")


def test_the_update_must_combine() -> None:
    sch, block = schedule(update="B[vi] - A[vi, vk]")
    sch.decompose_reduction(block, sch.get_loops(block)[0])
    refused(sch, block, "is not one update of an element")


def test_other_threads_must_see_the_buffer() -> None:
    sch, block = schedule()
    sch.cache_write(block, 0, "local")
    sch.decompose_reduction(block, sch.get_loops(block)[0])
    refused(sch, block, "which is private to a thread")
    sch, block = schedule()
    sch.cache_write(block, 0, "global")
    sch.decompose_reduction(block, sch.get_loops(block)[0])
    sch.atomic_update(block)
    with pytest.raises(ScheduleError) as caught:
        sch.set_scope(block, 0, "local")
    assert caught.value.code == "BW338"


@pytest.mark.parametrize("step", ["cache_write", "write_at", "cache_inplace"])
def test_a_copy_lies_where_other_threads_see_it(step: str) -> None:
    sch, block = schedule()
    sch.decompose_reduction(block, sch.get_loops(block)[0])
    sch.atomic_update(block)
    args = (sch.get_loops(block)[0], block, 0) if step == "write_at" else (block, 0)
    with pytest.raises(ScheduleError, match="no other thread sees") as caught:
        getattr(sch, step)(*args, "local")
    assert caught.value.code == "BW338"
    assert f"apply {step} before atomic_update(B" in (caught.value.help or "")


def test_without_it_a_reduction_loop_stays_serial() -> None:
    sch, block = schedule()
    k = sch.get_loops(block)[1]
    sch.decompose_reduction(block, k)
    with pytest.raises(ScheduleError) as caught:
        sch.parallel(k)
    assert caught.value.code == "BW317"
    assert "atomic_update" in (caught.value.help or "")


def test_the_initial_value_cannot_be_inlined_into_the_update() -> None:
    sch, block = schedule()
    sch.cache_write(block, 0, "global")
    sch.decompose_reduction(block, sch.get_loops(block)[0])
    sch.atomic_update(block)
    with pytest.raises(ScheduleError) as caught:
        sch.compute_inline(sch.get_block("B_init"))
    assert caught.value.code == "BW314"


def test_counting_from_several_threads_loses_nothing() -> None:
    """All iterations of a native parallel loop hit one element, in every way there is code for."""
    func = from_source("""
@T.prim_func
def main(A: T.Buffer((100000,), "int32"), S: T.Buffer((4,), "int32"), F: T.Buffer((2,), "float32"),
         H: T.Buffer((1,), "float16")):
    for i in T.parallel(100000):
        with T.block("count"):
            vi = T.axis.spatial(100000, i)
            T.atomic_add(S[0], 1)
            T.atomic_max(S[1], A[vi])
            T.atomic_or(S[2], A[vi])
            T.atomic_mul(S[3], -1)
            T.atomic_add(F[0], T.float32(1))
            T.atomic_min(F[1], T.cast(A[vi], "float32"))
            T.atomic_max(H[0], T.cast(A[vi] % 2048, "float16"))
""")
    numbers = np.random.default_rng(0).permutation(100000).astype(np.int32)
    bw.set_num_threads(4)
    try:
        module = bw.build(func)
        for _ in range(5):
            s, f, h = np.array([0, 0, 0, 1], np.int32), np.zeros(2, np.float32), np.zeros(1, "f2")
            module["main"](numbers, s, f, h)
            assert s.tolist() == [100000, 99999, int(np.bitwise_or.reduce(numbers)), 1]
            assert f.tolist() == [100000.0, 0.0]
            assert h.tolist() == [2047.0]
    finally:
        bw.set_num_threads(0)
