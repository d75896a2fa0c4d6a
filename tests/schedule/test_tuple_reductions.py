"""Reductions of tuples and by declared reducers, split up in every way, interpreted and native."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockwright import ir
from blockwright.build import build
from blockwright.interp import interpret
from blockwright.lower import lower
from blockwright.ops.common import as_dim
from blockwright.ops.row import OpContext
from blockwright.ops.table import row
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.compute import AnyReducer, Program, comm_reducer
from blockwright.script.ir import from_source
from blockwright.strategies import apply_strategies
from blockwright.target import Target
from blockwright.testing import assert_same_meaning

Array = np.ndarray[Any, Any]
N, M = ir.var("n", "int64"), ir.var("m", "int64")


MOMENTS = comm_reducer(
    lambda x, y: (x[0] + y[0], x[1] + y[1]), lambda s, t: (ir.const(0, s), ir.const(0, t))
)
GROWTH = comm_reducer(lambda x, y: x * y + x + y, lambda t: ir.const(0, t))  # of 1 + x, a product
KINDS: dict[str, tuple[AnyReducer, str, int]] = {
    "argmax": ("argmax", "float32", 2),
    "argmin of integers": ("argmin", "int32", 2),
    "moments": (MOMENTS, "float32", 2),
    "growth": (GROWTH, "int32", 1),
}


def program(kind: str, rows: Any = N, columns: Any = M) -> ir.PrimFunc:
    """Rows of a matrix reduced."""
    reducer, dtype, count = KINDS[kind]
    p = Program("reduce")
    x = p.param("X", (rows, columns), dtype)
    if count == 1:
        return p.finish(
            [p.reduce("V", (rows,), (columns,), lambda i, k: x[i, k], reducer)], {"num_outputs": 1}
        )
    second: Callable[..., Any] = (
        (lambda i, k: k) if isinstance(reducer, str) else (lambda i, k: x[i, k] * x[i, k])
    )
    types = (dtype, "int64" if isinstance(reducer, str) else dtype)
    made = p.reduce_tuple(
        ("V", "P"), (rows,), (columns,), lambda i, k: (x[i, k], second(i, k)), reducer, types
    )
    return p.finish(list(made), {"num_outputs": 2})


def split_up(func: ir.PrimFunc, factor: int, axis: int, decompose: bool) -> Schedule:
    """Partial results per lane, perhaps with initial values apart and lanes vectorized."""
    sch = Schedule(func, verify="full")
    whole = sch.get_block("V")
    i, k = sch.get_loops(whole)
    _, lane = sch.split(k, [None, factor])
    parts = sch.rfactor(lane, axis)
    if decompose:
        _, chunk, lane = sch.get_loops(parts)
        init = sch.decompose_reduction(parts, chunk)
        sch.vectorize(lane)
        sch.vectorize(sch.get_loops(init)[-1])
        combine = sch.get_loops(whole)[-1]
        sch.decompose_reduction(whole, combine)
        sch.vectorize(combine)
    sch.parallel(i)
    return sch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decompose", [False, True])
@settings(max_examples=max(15, settings().max_examples // 3))
@given(
    rows=st.integers(0, 4),
    columns=st.integers(0, 13),
    factor=st.sampled_from([2, 3, 4]),
    axis=st.sampled_from([0, 1, -1]),
    seed=st.integers(0, 99),
)
def test_partial_results_of_tuples_mean_the_same(
    kind: str, decompose: bool, rows: int, columns: int, factor: int, axis: int, seed: int
) -> None:
    """Of every size, also where there is nothing to reduce, and where lanes stay empty."""
    func = program(kind)
    sch = split_up(func, factor, axis, decompose)
    assert_same_meaning(
        func, sch.func, seed=seed, sizes={"n": rows, "m": columns}, exact=kind != "moments"
    )


def special(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Few different values, so that there are ties, NaN and infinities in every row."""
    values = np.array([0.0, -0.0, 1.0, 1.0, -2.0, np.nan, np.inf, -np.inf], np.float32)
    return rng.choice(values[: rng.integers(2, 9)], shape)


@pytest.mark.parametrize(("kind", "oracle"), [("argmax", np.argmax), ("argmin", np.argmin)])
@pytest.mark.parametrize("how", ["as written", "split up", "by rules"])
def test_ties_and_nan_keep_their_first_position_natively(kind: str, oracle: Any, how: str) -> None:
    p = Program("extreme")
    x = p.param("X", (N, M), "float32")
    made = p.reduce_tuple(
        ("V", "P"), (N,), (M,), lambda i, k: (x[i, k], k), kind, ("float32", "int64")
    )
    func = p.finish(made, {"num_outputs": 2})
    if how == "split up":
        func = split_up(func, 4, -1, True).func
    elif how == "by rules":
        func = apply_strategies(func, Target("native")).func
    run = build(func)[func.name]
    rng = np.random.default_rng(3)
    for shape in ((1, 1), (3, 4), (5, 9), (2, 130), (7, 700), (4, 0)):
        a = special(rng, shape)
        value, place = (np.array(r) for r in run(a))
        if shape[1]:
            first = oracle(a, 1)
            np.testing.assert_array_equal(place, first)
            np.testing.assert_array_equal(value, a[np.arange(len(a)), first])
        else:
            assert (place == 2**63 - 1).all()
            assert np.isinf(value).all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_runs_natively_as_interpreted(kind: str) -> None:
    rng = np.random.default_rng(5)
    for func in (
        program(kind),
        split_up(program(kind), 4, 0, True).func,
        apply_strategies(program(kind), Target("native")).func,
    ):
        run = build(func)["reduce"]
        for shape in ((3, 17), (1, 300), (2, 0)):
            a = rng.integers(-9, 9, shape).astype(KINDS[kind][1])
            wanted = [np.empty(shape[0], b.dtype.numpy()) for b in func.buffers[1:]]
            interpret(program(kind), a, *wanted)
            got = run(a)
            for x, y in zip(wanted, got if isinstance(got, (tuple, list)) else [got], strict=True):
                np.testing.assert_array_equal(x, np.array(y))  # small integers: sums are exact


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64", "float16"])
def test_positions_are_those_of_numpy_at_every_length(name: str, dtype: str) -> None:
    """Short rows, rows that fill vectors or miss them by one, long ones: ties and NaN in all."""
    rng = np.random.default_rng(17)
    lower_row = row(name).lower
    assert lower_row is not None
    plain: dict[int, ir.PrimFunc] = {}
    scheduled: dict[str, ir.Node] = {}
    for size in (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 255, 515, 1300):
        info = ir.TensorInfo((as_dim(5), as_dim(size)), ir.dtype_of(dtype), 2)
        func = lower_row(OpContext(name), [info], {"axis": 1, "keepdims": False})
        plain[size] = func.replace(attrs={**func.attrs, "global_symbol": f"of_{size}"})
        ruled = apply_strategies(plain[size], Target("native"))
        assert ruled.strategy == "inner_reduction"
        scheduled[f"of_{size}"] = ruled.func
    module = build(ir.IRModule(scheduled))
    for size, func in plain.items():
        a = special(rng, (5, size))
        if np.dtype(dtype).kind != "f":
            a = np.nan_to_num(a, posinf=100, neginf=-100)
        a = a.astype(dtype)
        a[0] = a[0, 0]
        a[1] = -np.inf if np.dtype(dtype).kind == "f" else np.iinfo(dtype).min
        (wanted,) = [np.empty(5, np.int64)]
        got = wanted.copy()
        interpret(func, a, wanted)
        module[f"of_{size}"](a, got)
        np.testing.assert_array_equal(got, getattr(np, name)(a, 1))
        np.testing.assert_array_equal(got, wanted)


def lanes_of_a_reduction(
    update: str, lanes: int = 11, annotation: str = "", loop: str = "range"
) -> ir.PrimFunc:
    """One row of `lanes` numbers, all combined by one loop; its initial value stands elsewhere."""
    return from_source(f"""
@T.prim_func
def main(A: T.Buffer((3, 16), "float32"), B: T.Buffer((3,), "float32"),
         C: T.Buffer((3,), "float32")):
    for i in range(3):
        for k in {loop}({lanes}):
            with T.block("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                {annotation}
                {update}
""")


PAIR = """m: T.float32 = T.max(B[vi], A[vi, vk])
                s: T.float32 = C[vi] + A[vi, vk]
                B[vi] = m
                C[vi] = s"""
TOGETHER = """T.block_attr({"reducer": T.comm_reducer(lambda x, s, y, t: (T.max(x, y), s + t),
                                                [T.float32("-inf"), T.float32(0)])})"""


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 8, 11, 16])
def test_lanes_of_a_declared_pair_are_combined_by_halves(lanes: int) -> None:
    """No branch and no loop are left, whether or not the number of lanes is a power of two."""
    func = lanes_of_a_reduction(PAIR, lanes, TOGETHER)
    sch = Schedule(func, verify="full")
    sch.vectorize(sch.get_loops(sch.get_block("B"))[-1])
    assert_same_meaning(func, sch.func)
    lowered = lower(sch.func, "x86-64-v3")
    assert len(ir.loops(lowered.body)) == 1
    assert not [n for n in ir.walk(lowered.body) if isinstance(n, ir.AttrStmt)]
    assert bool(ir.collect(lowered.body, ir.Shuffle)) == (lanes > 1)
    rng = np.random.default_rng(lanes)
    a, b, c = (rng.integers(-9, 9, s).astype("float32") for s in ((3, 16), 3, 3))
    wanted = np.maximum(b, a[:, :lanes].max(1)), c + a[:, :lanes].sum(1)
    build(sch.func)["main"](a, b, c)
    np.testing.assert_array_equal(b, wanted[0])
    np.testing.assert_array_equal(c, wanted[1])


def test_lanes_under_a_mask_count_as_the_identity() -> None:
    func = program("argmax")
    sch = Schedule(func)
    _, k = sch.get_loops(sch.get_block("V"))
    _, lane = sch.split(k, [None, 8])
    sch.decompose_reduction(sch.get_block("V"), sch.get_loops(sch.get_block("V"))[1])
    sch.vectorize(lane)
    assert_same_meaning(func, sch.func, sizes={"n": 3, "m": 13}, exact=True)
    run = build(sch.func)["reduce"]
    for columns in (1, 7, 8, 13):
        a = special(np.random.default_rng(columns), (6, columns))
        np.testing.assert_array_equal(np.array(run(a)[1]), np.argmax(a, 1))


def test_lanes_whose_order_matters_are_no_reduction() -> None:
    update = PAIR.replace("T.max(B[vi], A[vi, vk])", "B[vi] * 0.5 + A[vi, vk]")
    func = lanes_of_a_reduction(update)
    sch = Schedule(func)
    loop = sch.get_loops(sch.get_block("B"))[-1]
    with pytest.raises(ScheduleError) as info:
        sch.vectorize(loop)
    assert info.value.code == "BW317"
    forced = lanes_of_a_reduction(update, loop="T.vectorized")
    with pytest.raises(AssertionError, match="reverse order"):
        assert_same_meaning(func, forced)


def test_columns_are_vectorized_as_they_stand() -> None:
    """The spatial loop of a tuple reduction is a vector loop without partial results."""
    p = Program("columns")
    x = p.param("X", (40, 64), "float32")
    made = p.reduce_tuple(
        ("V", "P"), (64,), (40,), lambda j, k: (x[k, j], k), "argmax", ("float32", "int64")
    )
    func = p.finish(made, {"num_outputs": 2})
    ruled = apply_strategies(func, Target("native"))
    assert ruled.strategy == "inner_reduction"
    a = special(np.random.default_rng(9), (40, 64))
    _, place = build(ruled.func)["columns"](a)
    np.testing.assert_array_equal(np.array(place), np.argmax(a, 0))


BEFORE = """
@T.prim_func
def main(A: T.Buffer((4, 8), "int32"), V: T.Buffer((4,), "int32"), P: T.Buffer((4,), "int64")):
    best = T.comm_reducer("argmax", ["int32", "int64"])
    for i, k0, k1 in T.grid(4, 3, 3):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            vk = T.axis.reduce(8, k0 * 3 + k1)
            T.where(k0 * 3 + k1 < 8)
            best.step((V[vi], P[vi]), (A[vi, vk], vk))
"""
AFTER = """
@T.prim_func
def main(A: T.Buffer((4, 8), "int32"), V: T.Buffer((4,), "int32"), P: T.Buffer((4,), "int64")):
    best = T.comm_reducer("argmax", ["int32", "int64"])
    V_rf = T.alloc_buffer((4, 3), "int32")
    P_rf = T.alloc_buffer((4, 3), "int64")
    for i in range(4):
        for k0, k1 in T.grid(3, 3):
            with T.block("B_rf"):
                vk1, vi, vk0 = T.axis.remap("SSR", [k1, i, k0])
                best.step((V_rf[vi, vk1], P_rf[vi, vk1]), (
                    T.if_then_else(vk0 * 3 + vk1 < 8, A[vi, vk0 * 3 + vk1],
                                   T.int32(-2147483648)),
                    T.if_then_else(vk0 * 3 + vk1 < 8, T.int64(vk0 * 3 + vk1),
                                   T.int64(9223372036854775807))))
        for k1 in range(3):
            with T.block("B"):
                vk1, vi = T.axis.remap("RS", [k1, i])
                best.step((V[vi], P[vi]), (V_rf[vi, vk1], P_rf[vi, vk1]))
"""


def function(text: str) -> ir.PrimFunc:
    parsed = from_source(text)
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


def test_each_component_gets_a_buffer_of_partial_results() -> None:
    sch = Schedule(function(BEFORE), verify="full")
    sch.rfactor(sch.get_loops(sch.get_block("B"))[2], 1)
    ir.assert_structural_equal(sch.func, function(AFTER))
    assert_same_meaning(function(BEFORE), sch.func, exact=True)


def test_partial_results_of_a_maximum_may_start_anywhere() -> None:
    """A bound that lies in an array: every lane starts from it, and the result is the same."""
    text = """
@T.prim_func
def main(A: T.Buffer((4, 8), "float32"), L: T.Buffer((4,), "float32"), V: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                V[vi] = T.max(L[vi], T.float32(-1e30))
            V[vi] = T.max(V[vi], A[vi, vk])
"""  # noqa: E501
    sch = Schedule(function(text), verify="full")
    sch.rfactor(sch.get_loops(sch.get_block("B"))[1], 0)
    assert_same_meaning(function(text), sch.func, exact=True)


def refused(text: str, step: Callable[[Schedule], object]) -> ScheduleError:
    sch = Schedule(function(text), verify="full")
    with pytest.raises(ScheduleError) as caught:
        step(sch)
    return caught.value


def test_components_of_different_rank_have_no_common_axis() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((4, 8), "int32"), V: T.Buffer((4, 1), "int32"), P: T.Buffer((4,), "int64")):
    best = T.comm_reducer("argmax", ["int32", "int64"])
    for i, k in T.grid(4, 8):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            best.step((V[vi, 0], P[vi]), (A[vi, vk], vk))
"""
    error = refused(text, lambda s: s.rfactor(s.get_loops(s.get_block("B"))[1], 0))
    assert (error.code, "different rank" in error.message) == ("BW332", True)


DECAY = """
@T.prim_func
def main(A: T.Buffer((4, 8, 2), "float32"), B: T.Buffer((4,), "float32")):
    for i, k, l in T.grid(4, 8, 2):
        with T.block("B"):
            vi, vk, vl = T.axis.remap("SRR", [i, k, l])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] * T.float32(0.5) + A[vi, vk, vl]
"""


def test_steps_that_depend_on_their_order_keep_it() -> None:
    """A decaying sum is no strict reduction: its reduction loops cannot trade places."""
    error = refused(DECAY, lambda s: s.reorder(*s.get_loops(s.get_block("B"))[:0:-1]))
    assert error.code == "BW330"
    assert "cannot be reordered" in error.message
    sch = Schedule(function(DECAY), verify="full")
    i, k, l = sch.get_loops(sch.get_block("B"))  # noqa: E741
    sch.reorder(k, l, i)  # the order of steps per element stays
    assert_same_meaning(function(DECAY), sch.func, exact=True)
    plain = function(DECAY.replace("B[vi] * T.float32(0.5)", "B[vi]"))
    sch = Schedule(plain, verify="full")
    i, k, l = sch.get_loops(sch.get_block("B"))  # noqa: E741
    sch.reorder(l, k)
    assert_same_meaning(plain, sch.func)
