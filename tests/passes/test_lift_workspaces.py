"""Temporary buffers of kernels become results of their calls, which the memory plan places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.passes.host.plan_memory import plan_memory
from blockwright.passes.lift_workspaces import workspaces_of
from blockwright.passes.rewrite import tir_callee

KERNEL = """
@T.prim_func(private=True)
def split(X: T.Buffer(("n", 64), "float32"), Y: T.Buffer(("n",), "float32")):
    T.func_attr({"tir.is_scheduled": True})
    n = T.int64()
    partial = T.alloc_buffer((4, n), "float32")
    for part, i, k in T.grid(4, n, 16):
        with T.block("partial"):
            vp, vi, vk = T.axis.remap("SSR", [part, i, k])
            with T.init():
                partial[vp, vi] = T.float32(0)
            partial[vp, vi] = partial[vp, vi] + X[vi, vp * 16 + vk]
    for i, part in T.grid(n, 4):
        with T.block("total"):
            vi, vp = T.axis.remap("SR", [i, part])
            with T.init():
                Y[vi] = T.float32(0)
            Y[vi] = Y[vi] + partial[vp, vi]
"""
GRAPH = (
    KERNEL
    + """
@R.function
def main(x: R.Tensor(("n", 64), "float32")):
    n = T.int64()
    a = R.exp(x)
    b = R.call_tir(cls.split, (a,), out_sinfo=R.Tensor((n,), "float32"))
    c = R.exp(x)
    d = R.call_tir(cls.split, (c,), out_sinfo=R.Tensor((n,), "float32"))
    return R.add(b, d)
"""
)
STEPS = ("normalize", "legalize", "lift_workspaces")


def test_a_partial_sum_of_split_k_becomes_a_result(parse: Any, run: Any) -> None:
    module = run(parse(GRAPH), *STEPS)
    kernel = module["split"]
    assert [b.name for b in kernel.buffers] == ["X", "Y", "partial"]
    assert kernel.attrs["tir.workspaces"] == 1
    assert not kernel.root.alloc_buffers
    calls = [b for b in module["main"].bindings if tir_callee(b.value) == "split"]
    for call in calls:
        sizes = [[repr(d) for d in info.shape] for info in call.value.out_info]
        assert sizes == [["n"], ["T.int64(4)", "n"]]


def test_the_workspace_shares_memory_with_other_values(parse: Any, run: Any) -> None:
    """Both calls use one place, which is free for other values between them."""
    module = run(parse(GRAPH), *STEPS)
    plan = plan_memory(module["main"], module)
    places = {v.name: v for v in plan.values}
    spaces = [v for name, v in places.items() if name.endswith("_all_1")]
    assert len(spaces) == 2
    assert all(v.first == v.last and v.place.result is None for v in spaces)


@pytest.mark.parametrize("n", [1, 7, 40])
def test_compiled_and_interpreted_programs_agree(parse: Any, n: int) -> None:
    exe = bw.compile(parse(GRAPH))
    assert "partial" in exe.show("host", "split").split("alloc")[0]
    x = np.random.default_rng(n).random((n, 64), dtype="f4")
    expected = 2 * np.exp(x).sum(1)
    np.testing.assert_allclose(exe(x), expected, rtol=1e-5)
    assert exe.measure_memory(x) == exe.memory_plan.activation_bytes(x)
    out = np.zeros(n, "f4")
    bw.interpret(exe.stages["lower_host"], x, out)
    np.testing.assert_allclose(out, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(4, n)", "(4, 4)"),  # small enough for the stack frame
        ('(4, n), "float32"', '(4, n), "float32", scope="local"'),
        ('T.func_attr({"tir.is_scheduled": True})', ""),
    ],
    ids=["small", "local", "unscheduled"],
)
def test_other_buffers_stay_in_the_kernel(parse: Any, old: str, new: str) -> None:
    text = KERNEL.replace(old, new)
    func: ir.PrimFunc = parse(text)["split"]
    assert workspaces_of(func) == ()


def test_a_buffer_of_one_nest_stays_in_the_kernel(parse: Any) -> None:
    """Lowering places it inside of the loop, and makes it smaller."""
    text = """
@T.prim_func(private=True)
def rows(X: T.Buffer(("n", 64), "float32"), Y: T.Buffer(("n", 64), "float32")):
    T.func_attr({"tir.is_scheduled": True})
    n = T.int64()
    row = T.alloc_buffer((n, 64), "float32")
    for i in range(n):
        for j in range(64):
            with T.block("row"):
                vi, vj = T.axis.remap("SS", [i, j])
                row[vi, vj] = X[vi, vj] * T.float32(2)
        for j in range(64):
            with T.block("out"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = row[vi, 63 - vj]
"""
    assert workspaces_of(parse(text)["rows"]) == ()
