"""Several reductions side by side in one block, and tuples whose order is part of their meaning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright.analysis import NoReduction, Reduction, find_reduction
from blockwright.ir import PrimFunc
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source

MOMENTS = """
@T.prim_func
def main(A: T.Buffer((8, 32), "float32"), S: T.Buffer((8,), "float32"),
         Q: T.Buffer((8,), "float32"), M: T.Buffer((8,), "float32")):
    for i, k0, k1 in T.grid(8, 4, 8):
        with T.block("moments"):
            vi = T.axis.spatial(8, i)
            vk = T.axis.reduce(32, k0 * 8 + k1)
            with T.init():
                S[vi] = T.float32(0)
                Q[vi] = T.float32(0)
                M[vi] = T.float32("-inf")
            S[vi] = S[vi] + A[vi, vk]
            Q[vi] = A[vi, vk] * A[vi, vk] + Q[vi]
            M[vi] = T.max(M[vi], A[vi, vk])
"""
ARGMAX = """
@T.prim_func
def main(I: T.Buffer((8, 32), "int32"), A: T.Buffer((8, 32), "float32"),
         P: T.Buffer((8,), "int32"), V: T.Buffer((8,), "float32")):
    for i, k0, k1 in T.grid(8, 4, 8):
        with T.block("argmax"):
            vi = T.axis.spatial(8, i)
            vk = T.axis.reduce(32, k0 * 8 + k1)
            with T.init():
                P[vi] = -1
                V[vi] = T.min_value("float32")
            p: T.int32 = T.Select(V[vi] >= A[vi, vk], P[vi], I[vi, vk])
            v: T.float32 = T.Select(V[vi] >= A[vi, vk], V[vi], A[vi, vk])
            P[vi] = p
            V[vi] = v
"""


def program(text: str) -> PrimFunc:
    func = from_source(text)
    assert isinstance(func, PrimFunc)
    return func


def block(text: str, name: str):
    sch = Schedule(program(text))
    return sch.get(sch.get_block(name))


def check_moments(func: PrimFunc) -> None:
    a = np.random.default_rng(3).standard_normal((8, 32)).astype("float32")
    for run in (lambda *x: bw.interpret(func, *x), bw.build(func)["main"]):
        s, q, m = (np.full(8, np.nan, "float32") for _ in range(3))
        run(a, s, q, m)
        np.testing.assert_allclose(s, a.sum(1), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(q, (a * a).sum(1), rtol=1e-5)
        np.testing.assert_array_equal(m, a.max(1))


def rfactor(sch: Schedule) -> None:
    sch.rfactor(sch.get_loops("moments")[2], 0)


def rfactor_and_vectorize(sch: Schedule) -> None:
    partial = sch.rfactor(sch.get_loops("moments")[2], 1)
    i, k0, k1 = sch.get_loops(partial)
    sch.reorder(i, k0, k1)
    sch.decompose_reduction(partial, k0)
    sch.vectorize(sch.get_loops(partial)[-1])


def lanes(sch: Schedule) -> None:
    loop = sch.get_loops("moments")[1]
    sch.decompose_reduction("moments", loop)
    sch.vectorize(sch.get_loops("moments")[-1])


def order(sch: Schedule) -> None:
    i, k0, k1 = sch.get_loops("moments")
    sch.reorder(k1, k0, i)


@pytest.mark.parametrize("steps", [rfactor, rfactor_and_vectorize, lanes, order])
def test_moments_are_split_up_like_one_sum(steps: Callable[[Schedule], None]) -> None:
    sch = Schedule(program(MOMENTS), verify="full")
    steps(sch)
    assert bw.verify(program(MOMENTS), sch.func).verdict != "refuted"
    check_moments(sch.func)


def test_what_is_found() -> None:
    found = find_reduction(block(MOMENTS, "moments"))
    assert isinstance(found, Reduction)
    assert [e.buffer.name for e in found.elements] == ["S", "Q", "M"]
    assert found.starts_neutral
    assert found.may_restart


def test_a_sum_and_an_argmin_side_by_side() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((8, 32), "float32"), S: T.Buffer((8,), "float32"),
         V: T.Buffer((8,), "float32"), P: T.Buffer((8,), "int64")):
    for i, k in T.grid(8, 32):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                V[vi] = T.float32("inf")
                S[vi] = T.float32(0)
                P[vi] = T.int64(9223372036854775807)
            S[vi] = S[vi] + A[vi, vk]
            t: T.bool = (A[vi, vk] < V[vi] or (A[vi, vk] == V[vi] and T.int64(vk) < P[vi])
                         or (A[vi, vk] != A[vi, vk] and (V[vi] == V[vi] or T.int64(vk) < P[vi])))
            v: T.float32 = T.Select(t, A[vi, vk], V[vi])
            p: T.int64 = T.Select(t, T.int64(vk), P[vi])
            V[vi] = v
            P[vi] = p
"""
    sch = Schedule(program(text), verify="full")
    _, inner = sch.split(sch.get_loops("B")[1], [None, 8])
    sch.rfactor(inner, 0)
    a = np.random.default_rng(5).integers(-4, 4, (8, 32)).astype("float32")
    a[0, 9] = a[0, 20] = np.nan
    s, v, p = np.zeros(8, "float32"), np.zeros(8, "float32"), np.zeros(8, "int64")
    bw.build(sch.func)["main"](a, s, v, p)
    np.testing.assert_array_equal(p, a.argmin(1))
    np.testing.assert_allclose(s[1:], a[1:].sum(1))


@pytest.mark.parametrize(
    "update",
    [
        "Q[vi] = Q[vi] + A[vi, vk] * S[vi]",  # depends on the running sum
        "Q[vi] = Q[vi] - A[vi, vk] * Q[vi]",  # no builtin reduction
        "Q[vi] = A[vi, vk] - Q[vi]",
    ],
)
def test_parts_that_are_no_reductions_of_their_own(update: str) -> None:
    text = MOMENTS.replace("Q[vi] = A[vi, vk] * A[vi, vk] + Q[vi]", update)
    assert isinstance(find_reduction(block(text, "moments")), NoReduction)
    sch = Schedule(program(text))
    with pytest.raises(ScheduleError) as caught:
        sch.rfactor(sch.get_loops("moments")[2], 0)
    assert caught.value.code == "BW330"


class TestClassicArgmax:
    """`Select(best >= value, best, value)`: its order decides ties and NaN."""

    def test_the_refusal_names_ties_and_nan(self) -> None:
        sch = Schedule(program(ARGMAX))
        with pytest.raises(ScheduleError) as caught:
            sch.rfactor(sch.get_loops("argmax")[2], 0)
        assert caught.value.code == "BW330"
        text = caught.value.message
        assert "taken where V[vi] < A[vi, vk], which does not say which of two equal" in text
        assert "what becomes of NaN" in text
        assert "which number is taken" not in text

    def test_steps_that_keep_the_order_are_taken(self) -> None:
        sch = Schedule(program(ARGMAX), verify="full")
        i, k0, k1 = sch.get_loops("argmax")
        sch.reorder(k0, k1, i)
        sch.vectorize(i)
        sch.decompose_reduction("argmax", k0)
        a = np.random.default_rng(7).integers(-3, 3, (8, 32)).astype("float32")
        places = np.tile(np.arange(32, dtype="int32"), (8, 1))
        p, v = np.zeros(8, "int32"), np.zeros(8, "float32")
        bw.build(sch.func)["main"](places, a, p, v)
        np.testing.assert_array_equal(p, a.argmax(1))
