"""Which operands a result may overwrite: only those read where the same element is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.in_place import overwritable_operands

HEAD = """
from blockwright.script import tir as T

@T.prim_func
def f(X: T.Buffer((8, "n"), "float32"), Z: T.Buffer(("n", 8), "float32"),
      Y: T.Buffer((8, "n"), "float32")):
    n = T.int64()
"""
NEST = """
    for i, j in T.grid(8, n):
        with T.block("out"):
            vi, vj = T.axis.remap("SS", [i, j])
            {}
"""
SUM = """
    S = T.alloc_buffer((8,), "float32")
    for i, k in T.grid(8, n):
        with T.block("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + X[vi, vk]
"""


def overwritten(body: str, schedule: Any = None) -> set[str]:
    """Names of the operands that Y may overwrite."""
    func = bw.from_source(HEAD + body)
    assert isinstance(func, ir.PrimFunc)
    if schedule is not None:
        sch = bw.Schedule(func)
        schedule(sch)
        func = sch.func
    return {b.name for b in overwritable_operands(func, func.buffers[-1])}


def test_an_element_may_be_replaced_by_a_function_of_it() -> None:
    assert overwritten(NEST.format("Y[vi, vj] = X[vi, vj] * Z[vj, vi] + X[vi, vj]")) == {"X"}


def test_tiles_of_any_size_and_tasks_do_not_matter() -> None:
    def tiled(sch: Any) -> None:
        i, j = sch.get_loops("out")
        outer, inner = sch.split(j, [None, 5])
        sch.reorder(outer, i, inner)
        sch.parallel(outer)
        sch.vectorize(inner)

    assert overwritten(NEST.format("Y[vi, vj] = X[vi, vj] * Z[vj, vi]"), tiled) == {"X"}


def test_branches_on_sizes_are_alternatives() -> None:
    nest = NEST.format("Y[vi, vj] = X[vi, vj]").replace("\n", "\n    ")
    other = nest.replace('"out"', '"other"')
    assert overwritten(f"\n    if n < 9:{nest}\n    else:{other}\n") == {"X"}


@pytest.mark.parametrize(
    "body",
    [
        NEST.format("Y[vi, vj] = X[7 - vi, vj]"),
        NEST.format("Y[vi, vj] = X[vi, vj] + X[0, vj]"),
        SUM + NEST.format("Y[vi, vj] = X[vi, vj] / S[vi]"),
        NEST.format("Y[vi, vj] = Z[vj, vi]"),
        NEST.format("Y[vi, vj] = X[vi, vj] + Y[vi, vj]"),
        NEST.format("Y[vi, vj] = X[vi, vj]")
        + NEST.format("Y[vi, vj] = X[vi, vj] + T.float32(1)").replace('"out"', '"again"'),
        NEST.format("Y[vi, 0] = X[vi, 0]"),
    ],
    ids=["mirrored", "twice", "row", "transposed", "accumulated", "two nests", "one element"],
)
def test_an_element_that_is_needed_later_is_not_overwritten(body: str) -> None:
    assert overwritten(body) == set()


GRAPH = """
from blockwright.script import ir as I, relax as R, tir as T
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 64), "float32")):
        n = T.int64()
        a = R.matmul(x, w)
        b = R.add(R.matmul(a, w), a)
        c = R.add(R.matmul(b, w), b)
        return R.sum(c, axes=(1,))
"""


@pytest.mark.parametrize("n", [1, 6, 37])
def test_residual_sums_overwrite_their_operand(n: int) -> None:
    """a, b and c are one place: half of the memory of two values alive together."""
    bw.set_num_threads(1)
    exe = bw.compile(bw.from_source(GRAPH))
    rng = np.random.default_rng(n)
    x, w = rng.random((n, 64), dtype="f4"), rng.random((64, 64), dtype="f4") / 32
    a = x @ w
    b = a @ w + a
    expected = (b @ w + b).sum(1)
    np.testing.assert_allclose(exe(x, w), expected, rtol=1e-4)
    plan = exe.memory_plan
    assert exe.measure_memory(x, w) == plan.activation_bytes(x, w)
    large = [v for v in plan.values if plan_bytes(v.size, n) == n * 256]
    assert len({v.offset for v in large}) < len(large)
    out = np.zeros(n, "f4")
    bw.interpret(exe.stages["lower_host"], x, w, out)
    np.testing.assert_allclose(out, expected, rtol=1e-4)


def plan_bytes(size: int | str, n: int) -> int:
    from blockwright.runtime.sizes import evaluate_size

    return evaluate_size(size, {"n": n})
