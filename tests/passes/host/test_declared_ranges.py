"""Calls check the declared ranges of sizes and numbers, wherever these come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw

X = np.arange(4, dtype="float32")
MODULE = """
@I.ir_module
class Module:
    @R.function
    def shape(x: R.Tensor(("n",), "float32"), s: R.Shape(("k",))):
        n, k = T.int64(), T.int64()
        return R.strided_slice(x, axes=[0], begin=[k], end=[n])

    @R.function
    def number(x: R.Tensor(("n",), "float32"), s: R.Prim(value="k")):
        R.func_attr({"tir_var_lower_bound": {"k": 2}, "tir_var_upper_bound": {"k": 5}})
        k = T.int64()
        return R.zeros((k,), "float32")

    @R.function
    def cast(x: R.Tensor(("n",), "float32"), s: R.Shape(ndim=1)):
        R.func_attr({"tir_var_lower_bound": {"k": 2}, "tir_var_upper_bound": {"k": 5}})
        k = T.int64()
        t = R.match_cast(s, R.Shape((k,)))
        return R.zeros((k,), "float32")

    @R.function
    def field(x: R.Tensor(("n",), "float32"), t: R.Tuple(R.Prim(value="k"), R.Shape(("m",)))):
        k, m = T.int64(), T.int64()
        return R.zeros((k, m), "float32")

    @R.function
    def inner(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        return cls.shape(x, R.shape([n - 3]))

    @R.function
    def again(
        x: R.Tensor(("n",), "float32"), s: R.Shape(("k",)), steps: R.Tensor((), "int64")
    ) -> R.Tensor(("n",), "float32"):
        n, k = T.int64(), T.int64()
        done = R.equal(steps, R.const(0, "int64"))
        if done:
            y = x
        else:
            grown = R.add(x, R.full((n,), k, "float32"))
            y = cls.again(grown, R.shape([k - 2]), R.subtract(steps, R.const(1, "int64")))
        return y

    @R.function(private=True)
    def ranged(s: R.Shape(("k",))):
        R.func_attr({"tir_var_lower_bound": {"k": 2}, "tir_var_upper_bound": {"k": 5}})
        k = T.int64()
        return R.arange(0, k, 1, "int64")

    @R.function
    def inlined(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        return R.concat([cls.ranged(R.shape([n - 3])), cls.ranged(R.shape([n - 4]))])

    @R.function
    def unused(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        y = cls.ranged(R.shape([n - 3]))
        return x

    @R.function(private=True)
    def found(x: R.Tensor(("n",), "float32")):
        R.func_attr({"tir_var_lower_bound": {"k": 2}})
        n, k = T.int64(), T.int64()
        y = R.match_cast(R.unique(x), R.Tensor((k,), "float32"))
        return y

    @R.function
    def counted(x: R.Tensor(("n",), "float32")):
        return cls.found(x)

    @R.function(private=True)
    def longer(x: R.Tensor(("k + 3",), "float32"), y: R.Tensor(("2 * m",), "float32")):
        R.func_attr({"tir_var_upper_bound": {"m": 2}})
        k, m = T.int64(), T.int64()
        return R.zeros((m,), "float32")

    @R.function
    def solved(x: R.Tensor(("n",), "float32")):
        return cls.longer(x, x)

    @R.function
    def chosen(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
        n = T.int64()

        @R.function
        def one(s: R.Shape(("k",))) -> R.Tensor(("k",), "int64"):
            R.func_attr({"tir_var_lower_bound": {"k": 2}})
            k = T.int64()
            return R.arange(0, k, 1, "int64")

        @R.function
        def other(s: R.Shape(("k",))) -> R.Tensor(("k",), "int64"):
            k = T.int64()
            return R.zeros((k,), "int64")

        if c:
            f = one
        else:
            f = other
        return f(R.shape([n - 3]))
"""
CASES: list[tuple[str, list[tuple[Any, ...]], list[tuple[Any, ...]]]] = [
    ("shape", [(X, (0,)), (X, (2,))], [(X, (-2,))]),
    ("number", [(X, 2), (X, 5)], [(X, 1), (X, 6), (X, -3)]),
    ("cast", [(X, (2,)), (X, (5,))], [(X, (1,)), (X, (6,)), (X, (-3,))]),
    ("field", [(X, (2, (1,)))], [(X, (-2, (1,))), (X, (2, (-1,)))]),
    ("inner", [(X,), (X[:3],)], [(X[:2],)]),
    ("inlined", [(np.ones(6, "f4"),), (np.ones(8, "f4"),)],
     [(np.ones(5, "f4"),), (np.ones(9, "f4"),), (np.ones(2, "f4"),)]),
    ("unused", [(np.ones(6, "f4"),)], [(np.ones(4, "f4"),), (np.ones(9, "f4"),)]),
    ("counted", [(X,)], [(np.ones(3, "f4"),)]),
    ("solved", [(np.ones(4, "f4"),)], [(np.ones(2, "f4"),), (np.ones(6, "f4"),)]),
    ("chosen", [(np.ones(6, "f4"), np.array(True)), (np.ones(4, "f4"), np.array(False))],
     [(np.ones(4, "f4"), np.array(True)), (np.ones(2, "f4"), np.array(False))]),
    ("again", [(X, (4,), np.array(2))], [(X, (4,), np.array(3)), (X, (-1,), np.array(0))]),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiled() -> Any:
    return bw.compile(bw.from_source(MODULE))


@pytest.mark.parametrize(("entry", "good", "bad"), CASES)
def test_ranges_of_symbols(compiled: Any, entry: str, good: Any, bad: Any) -> None:
    module = bw.from_source(MODULE)
    for args in good:
        wanted = bw.interpret(module, *args, entry=entry)
        np.testing.assert_array_equal(compiled[entry](*args), wanted)
    for args in bad:
        for run in (compiled[entry], lambda *a: bw.interpret(module, *a, entry=entry)):
            with pytest.raises(bw.BlockwrightError) as caught:
                run(*args)
            assert caught.value.code == "BW708"


def test_ranges_of_parameters_of_programs() -> None:
    program = bw.from_source("""
@T.prim_func
def f(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32"), s: T.int64):
    T.func_attr({"tir_var_lower_bound": {"s": 1}, "tir_var_upper_bound": {"s": 4}})
    for i in range(s * 4):
        with T.block("b"):
            vi = T.axis.spatial(s * 4, i)
            B[vi] = A[vi]
""")
    a = np.arange(16, dtype="float32")
    built = bw.build(program)["f"]
    for run in (built, lambda *args: bw.interpret(program, *args)):
        for s in (1, 4):
            b = np.zeros(16, "float32")
            run(a, b, s)
            np.testing.assert_array_equal(b[: 4 * s], a[: 4 * s])
        for s in (0, 5, -1):
            with pytest.raises(bw.BlockwrightError) as caught:
                run(a, np.zeros(16, "float32"), s)
            assert caught.value.code == "BW708"
