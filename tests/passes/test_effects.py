"""Passes and what tensor programs do besides computing a result from blocks.

Early returns, atomic updates, views, calls of other programs and of foreign functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

tvm_ffi = pytest.importorskip("tvm_ffi")

X = np.array([1, -2, 3, -4], "f4")
MAIN = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    z = R.add(x, x)
    a = R.call_tir(cls.k, (z,), R.Tensor((4,), "float32"))
    return R.add(R.negative(a), R.const(1.0, "float32"))
"""
K = """
@T.prim_func(private=True)
def k(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    ATTRS
    for i in range(4):
        with T.block("y"):
            v = T.axis.spatial(4, i)
            y[v] = x[v]
"""
RETURNS = {
    "at the end": "    T.ret()\n",
    "in the middle": "    if x[1] < T.float32(0):\n        T.ret()\n    y[0] = T.float32(5)\n",
    "not taken": "    if x[1] > T.float32(0):\n        T.ret()\n    y[0] = T.float32(5)\n",
    "in a block": """
    for i in range(4):
        with T.block("z"):
            v = T.axis.spatial(4, i)
            T.reads(x[v])
            T.writes(y[v])
            if v == 2:
                T.ret()
            y[v] = x[v] + T.float32(1)
""",
}


@pytest.mark.parametrize("attrs", ["pass", 'T.func_attr({"compute_pattern": "ElementWise"})'])
@pytest.mark.parametrize("name", RETURNS)
def test_what_follows_a_program_that_returns_early_runs(parse: Any, name: str, attrs: str) -> None:
    module = parse(
        MAIN + K.replace("    ATTRS\n", f"    {attrs}\n" if attrs != "pass" else "") + RETURNS[name]
    )
    z = X + X
    y = {"not taken": [5, *z[1:]], "in a block": [*(z[:2] + 1), *z[2:]]}.get(name, z)
    wanted = 1 - np.asarray(y, "f4")
    np.testing.assert_array_equal(bw.interpret(module, X), wanted)
    np.testing.assert_array_equal(bw.compile(module)(X), wanted)


def test_returns_are_not_read_through(parse: Any) -> None:
    """A transpose that may return early is no data movement to be folded or repeated."""
    module = parse(
        """
@R.function
def main(x: R.Tensor((2, 3), "float32")):
    a = R.call_tir(cls.turn, (x,), R.Tensor((3, 2), "float32"))
    return R.exp(a), R.add(a, a)

@T.prim_func(private=True)
def turn(x: T.Buffer((2, 3), "float32"), y: T.Buffer((3, 2), "float32")):
    for i, j in T.grid(3, 2):
        with T.block("y"):
            u, v = T.axis.remap("SS", [i, j])
            y[u, v] = x[v, u]
    if x[0, 0] > T.float32(0):
        T.ret()
    y[0, 0] = T.float32(7)
"""
    )
    for first in (1, -1):
        x = np.arange(6, dtype="f4").reshape(2, 3)
        x[0, 0] = first
        y = x.T.copy()
        y[0, 0] = 1 if first > 0 else 7
        for ours, wanted in zip(bw.compile(module)(x), (np.exp(y), y + y), strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-6)


WEIGHTS = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    w = R.const([1.0, 2.0, 3.0, 4.0], "float32")
    return R.call_tir(cls.k, (x, w), R.Tensor((4,), "float32"))

@T.prim_func(private=True)
def add_to(p: T.Buffer((4,), "float32"), x: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.block("p"):
            v = T.axis.spatial(4, i)
            p[v] = p[v] + x[v]

@T.prim_func(private=True)
def k(
    x: T.Buffer((4,), "float32"), w: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")
):
    p = T.alloc_buffer((4,), "float32")
    for i in range(4):
        with T.block("p"):
            v = T.axis.spatial(4, i)
            p[v] = w[3 - v] * T.float32(2)
"""
RESULT = """
    for i in range(4):
        with T.block("y"):
            v = T.axis.spatial(4, i)
            y[v] = p[v] + x[v]
"""
CHANGES = {
    "an atomic update": """
    for i in range(4):
        with T.block("change"):
            v = T.axis.spatial(4, i)
            T.reads(x[v], p[v])
            T.writes(p[v])
            T.atomic_add(p[v], x[v])
""",
    "a call of a program": """
    with T.block("change"):
        T.reads(p[0:4], x[0:4])
        T.writes(p[0:4])
        cls.add_to(p.data, x.data)
""",
    "a foreign call": """
    with T.block("change"):
        T.reads(p[0:4], x[0:4])
        T.writes(p[0:4])
        T.evaluate(T.call_packed("test.effects.add_to", T.tensor(p[0]), T.tensor(x[0])))
""",
    "a view": """
    q = T.decl_buffer((2, 2), "float32", data=p.data)
    for i in range(4):
        with T.block("change"):
            v = T.axis.spatial(4, i)
            q[v // 2, v % 2] = q[v // 2, v % 2] + x[v]
""",
    "a view of another type": """
    q = T.decl_buffer((4,), "int32", data=p.data)
    for i in range(4):
        with T.block("change"):
            v = T.axis.spatial(4, i)
            q[v] = T.reinterpret("int32", T.reinterpret("float32", q[v]) + x[v])
""",
}


def add_to(p: Any, x: Any) -> None:
    torch = pytest.importorskip("torch")
    torch.from_dlpack(p).add_(torch.from_dlpack(x))


tvm_ffi.register_global_func("test.effects.add_to", add_to, override=True)


@pytest.mark.parametrize("change", CHANGES)
def test_packed_weights_that_a_kernel_changes_stay_in_it(parse: Any, change: str) -> None:
    module = parse(WEIGHTS + CHANGES[change] + RESULT)
    exe = bw.compile(module)
    wanted = [8, 6, 4, 2] + X * 2
    np.testing.assert_array_equal(bw.interpret(module, X), wanted)
    for _ in range(2):
        np.testing.assert_array_equal(exe(X), wanted)
    (run,) = [run for run in exe.passes.runs if run.name == "hoist_weight_prepack"]
    assert not any(name.endswith("_pack") for name in run.after.functions)


calls: list[None] = []
tvm_ffi.register_global_func("test.effects.count", lambda: calls.append(None), override=True)


@pytest.mark.parametrize("read", ["x", "w"])
def test_foreign_calls_happen_in_every_call(parse: Any, read: str) -> None:
    """Of a nest that packs weights, and of a program whose arguments are constants."""
    module = parse(
        f"""
@R.function
def main(x: R.Tensor((4,), "float32")):
    w = R.const([1.0, 2.0, 3.0, 4.0], "float32")
    a = R.call_tir(cls.k, ({read}, w), R.Tensor((4,), "float32"))
    return R.add(a, x)

@T.prim_func(private=True)
def k(
    x: T.Buffer((4,), "float32"), w: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")
):
    p = T.alloc_buffer((4,), "float32")
    for i in range(4):
        with T.block("p"):
            v = T.axis.spatial(4, i)
            T.reads(w[3 - v])
            T.writes(p[v])
            T.evaluate(T.call_packed("test.effects.count"))
            p[v] = w[3 - v] * T.float32(2)
{RESULT}"""
    )
    exe = bw.compile(module)
    calls.clear()
    wanted = X + [8, 6, 4, 2] + (X if read == "x" else [1, 2, 3, 4])
    for number in (1, 2):
        np.testing.assert_array_equal(exe(X), wanted)
        assert len(calls) == 4 * number


def test_constants_are_folded_through_assertions(parse: Any) -> None:
    module = parse(
        """
@R.function
def main(x: R.Tensor((4,), "float32")):
    w = R.const([1.0, 2.0, 3.0, 4.0], "float32")
    a = R.call_tir(cls.k, (w,), R.Tensor((4,), "float32"))
    return R.add(a, x)

@T.prim_func(private=True)
def k(w: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    assert w[0] > T.float32(0), "positive"
    for i in range(4):
        with T.block("y"):
            v = T.axis.spatial(4, i)
            y[v] = w[3 - v]
"""
    )
    exe = bw.compile(module)
    np.testing.assert_array_equal(exe(X), np.add([4, 3, 2, 1], X))
    (run,) = [run for run in exe.passes.runs if run.name == "fold_constants"]
    assert not any(
        isinstance(f, ir.PrimFunc) and ir.collect(f.body, ir.AssertStmt)
        for f in run.after.functions.values()
    )
