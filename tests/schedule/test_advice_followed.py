"""What refusals recommend is legal: calls in their advice are taken to the letter.

`require_taught` does so for every refusal that is tested with it; here are the schedules of
`refused_schedules`, how many refusals name a call at all, and advice whose effect matters.
"""

from __future__ import annotations

import numpy as np
import pytest

from blockwright import ir
from blockwright.interp import interpret
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source
from tests.schedule import (
    test_movement_illegal,
    test_movement_storage_illegal,
    test_schedule_illegal,
)
from tests.schedule.followed import Vague, chains, follow, followed
from tests.schedule.refusals import Step, function
from tests.schedule.refused_schedules import CASES

BLUR = """
@T.prim_func
def blur(X: T.Buffer((34, 32), "float32"), Y: T.Buffer((32, 32), "float32")):
    H = T.alloc_buffer((34, 32), "float32")
    for y, x in T.grid(34, 32):
        with T.block("scale"):
            vy, vx = T.axis.remap("SS", [y, x])
            H[vy, vx] = X[vy, vx] * 0.25
    for y, x in T.grid(32, 32):
        with T.block("sum3"):
            vy, vx = T.axis.remap("SS", [y, x])
            Y[vy, vx] = H[vy, vx] + H[vy + 1, vx] + H[vy + 2, vx]
"""
JACOBI = """
@T.prim_func
def jacobi(X: T.Buffer((36,), "float32"), Y: T.Buffer((32,), "float32"),
           Z: T.Buffer((32,), "float32")):
    H = T.alloc_buffer((34,), "float32")
    for i in range(34):
        with T.block("first"):
            vi = T.axis.spatial(34, i)
            H[vi] = X[vi] + X[vi + 1] + X[vi + 2]
    for i in range(32):
        with T.block("second"):
            vi = T.axis.spatial(32, i)
            Y[vi] = H[vi] + H[vi + 1] + H[vi + 2]
    for i in range(32):
        with T.block("residual"):
            vi = T.axis.spatial(32, i)
            Z[vi] = H[vi + 1] - X[vi + 2]
"""
DENSE = """
@T.prim_func
def dense(X: T.Buffer((8, 16), "float32"), W: T.Buffer((16, 12), "float32"),
          Y: T.Buffer((8, 12), "float32")):
    M = T.alloc_buffer((8, 12), "float32")
    for i, j, k in T.grid(8, 12, 16):
        with T.block("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                M[vi, vj] = T.float32(0)
            M[vi, vj] = M[vi, vj] + X[vi, vk] * W[vk, vj]
    for i, j in T.grid(8, 12):
        with T.block("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.max(M[vi, vj], T.float32(0))
"""
TRANSPOSE = """
@T.prim_func
def transpose(X: T.Buffer((48, 64), "float32"), Y: T.Buffer((64, 48), "float32")):
    for i, j in T.grid(64, 48):
        with T.block("transpose"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = X[vj, vi]
"""


def start(text: str) -> Schedule:
    found = from_source(text)
    assert isinstance(found, ir.PrimFunc)
    return Schedule(found, verify="full")


def refused(sch: Schedule, step: Step) -> str:
    with pytest.raises(ScheduleError) as caught:
        step(sch)
    return str(caught.value.help)


def blur_in_parallel(sch: Schedule) -> None:
    y, _ = sch.get_loops("sum3")
    sch.parallel(y)
    sch.compute_at("scale", y)
    sch.rolling_buffer("scale", 0)


def blur_merged(sch: Schedule) -> None:
    sch.merge(sch.get_loops("scale")[0], sch.get_loops("sum3")[0])


def jacobi_in_strips(sch: Schedule) -> None:
    (i,) = sch.get_loops("second")
    outer, _ = sch.split(i, [None, 8])
    sch.compute_at("first", outer)


def jacobi_residual(sch: Schedule) -> None:
    (i,) = sch.get_loops("second")
    outer, _ = sch.split(i, [None, 8])
    sch.reverse_compute_at("residual", outer)


def dense_fused(sch: Schedule) -> None:
    sch.fuse_reduction_epilogue("matmul", "relu")


def dense_inlined(sch: Schedule) -> None:
    sch.reverse_compute_inline("relu")


def sum_of_one_loop(sch: Schedule) -> None:
    _, j, k = sch.get_loops("matmul")
    sch.decompose_reduction("matmul", sch.fuse(j, k))


def factor_of_one_loop(sch: Schedule) -> None:
    _, j, k = sch.get_loops("matmul")
    sch.rfactor(sch.fuse(j, k), 0)


def parallel_sum(sch: Schedule) -> None:
    *_, k = sch.get_loops("matmul")
    outer, _ = sch.split(k, [4, None])
    sch.parallel(outer)


def bound_sum(sch: Schedule) -> None:
    *_, k = sch.get_loops("matmul")
    sch.bind(k, "blockIdx.x")


def aligned_output(sch: Schedule) -> None:
    sch.storage_align("relu", 0, 0, 32, 8)


def scope_of_an_input(sch: Schedule) -> None:
    sch.set_scope("matmul", "X", "shared")


def inner_part_outside(sch: Schedule) -> None:
    i, j = sch.get_loops("transpose")
    io, ii = sch.split(i, [None, 8])
    jo, ji = sch.split(j, [None, 16])
    sch.reorder(ii, ji, io, jo)
    sch.blockize(io)


def order_by_layout(sch: Schedule) -> None:
    _, j = sch.get_loops("transpose")
    sch.split(j, [None, 16])
    sch.transform_block_layout("transpose", lambda a, b: (b, a))


MORE: list[tuple[str, Step]] = [
    (BLUR, blur_merged), (JACOBI, jacobi_in_strips), (JACOBI, jacobi_residual),
    (DENSE, dense_fused), (DENSE, dense_inlined), (DENSE, sum_of_one_loop), (DENSE, parallel_sum),
    (DENSE, factor_of_one_loop), (DENSE, bound_sum), (DENSE, scope_of_an_input),
    (TRANSPOSE, inner_part_outside), (TRANSPOSE, order_by_layout),
]  # fmt: skip


def inputs_of(func: ir.PrimFunc) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [
        rng.standard_normal([ir.const_int(n) or 0 for n in b.shape]).astype("float32")
        for b in func.buffers
    ]


@pytest.mark.parametrize(("text", "step"), MORE, ids=[s.__name__ for _, s in MORE])
def test_each_way_out_is_legal_and_keeps_what_the_program_computes(text: str, step: Step) -> None:
    sch = start(text)
    advice = refused(sch, step)
    ways = [*chains(advice)]
    assert followed(sch, advice)
    before = inputs_of(sch.func)
    after = [[a.copy() for a in before] for _ in ways]
    interpret(sch.func, *before)
    for way, arrays in zip(ways, after, strict=True):
        other = sch.copy()
        try:
            follow(other, way)
        except Vague:
            continue
        interpret(other.func, *arrays)
        for expected, got in zip(before, arrays, strict=True):
            # rfactor and atomics add in another order: 16 terms of size about 1
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("text", "step", "code"), CASES, ids=[s.__name__ for _, s, _ in CASES])
def test_schedules_as_people_write_them(text: str, step: Step, code: str) -> None:
    sch = start(text)
    followed(sch, refused(sch, step))


def test_many_refusals_name_a_call_that_is_legal() -> None:
    found = 0
    for module in (test_movement_illegal, test_movement_storage_illegal, test_schedule_illegal):
        for text, step, *_ in module.CASES.values():
            sch = Schedule(function(text))
            found += bool(followed(sch, refused(sch, step)))
    for text, step in [*MORE, *((text, step) for text, step, _ in CASES)]:
        sch = start(text)
        found += bool(followed(sch, refused(sch, step)))
    assert found >= 40


def test_a_window_rolls_in_a_serial_loop_or_inside_parallel_strips() -> None:
    """The two ways that the refusal of `blur_in_parallel` names."""
    advice = refused(start(BLUR), blur_in_parallel)
    assert "leave y serial" in advice
    assert "make the outer part parallel" in advice
    serial, strips = start(BLUR), start(BLUR)
    serial.compute_at("scale", serial.get_loops("sum3")[0])
    serial.rolling_buffer("scale", 0)
    outer, inner = strips.split(strips.get_loops("sum3")[0], [None, 8])
    strips.parallel(outer)
    strips.compute_at("scale", inner)
    strips.rolling_buffer("scale", 0)
    expected = inputs_of(serial.func)
    interpret(start(BLUR).func, *expected)
    for sch in (serial, strips):
        arrays = inputs_of(sch.func)
        interpret(sch.func, *arrays)
        np.testing.assert_array_equal(arrays[1], expected[1])


def test_parallel_strips_come_before_rolling() -> None:
    """The same steps in the other order are refused, with this advice."""
    sch = start(BLUR)
    outer, inner = sch.split(sch.get_loops("sum3")[0], [None, 8])
    sch.compute_at("scale", inner)
    sch.rolling_buffer("scale", 0)
    assert "before rolling_buffer" in refused(sch, lambda s: s.parallel(outer))


def test_a_parameter_is_aligned_behind_a_copy() -> None:
    sch = start(DENSE)
    advice = refused(sch, aligned_output)
    assert 'cache_write("relu", "Y", "global") first, then storage_align on relu again' in advice
    sch.cache_write("relu", "Y", "global")
    sch.storage_align("relu", 0, 0, 32, 8)


def test_a_copy_that_is_read_is_aligned_at_the_block_that_writes_it() -> None:
    sch = start(DENSE)
    sch.cache_read("relu", "M", "shared")
    advice = refused(sch, aligned_output)
    assert "for M_shared, which relu reads, storage_align on block M_shared" in advice
    sch.storage_align("M_shared", 0, 0, 32, 8)


def test_lanes_read_one_copy_at_the_loop_around_them() -> None:
    sch = start(BLUR)
    y, x = sch.get_loops("sum3")
    sch.vectorize(x)
    advice = refused(sch, lambda s: s.read_at(x, "sum3", 0, "local"))
    assert advice.startswith("choose loop y: one copy of 3 x 32 elements per iteration of y")
    sch.read_at(y, "sum3", 0, "local")


@pytest.mark.parametrize(
    ("axis", "update", "advice"),
    [
        ("scan", "B[vi + 1] = B[vi] + A[vi]", "keep its loop serial"),
        ("reduce", "B[0] = B[0] * T.float32(0.5) + A[vi]", "keep the loop serial"),
        ("reduce", "B[0] = B[0] + A[vi]", "merge_reduction"),
    ],
)
def test_rfactor_advises_merging_an_update_only(axis: str, update: str, advice: str) -> None:
    """A recurrence has no initial value that could be put back."""
    sch = start(f"""
@T.prim_func
def sums(A: T.Buffer((8,), "float32"), B: T.Buffer((9,), "float32")):
    for i in range(8):
        with T.block("b"):
            vi = T.axis.{axis}(8, i)
            {update}
""")
    help = refused(sch, lambda sch: sch.rfactor(sch.get_loops("b")[0], 0))
    assert advice in help
    assert ("merge_reduction" in help) == (advice == "merge_reduction")
