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
"""
CASES: list[tuple[str, list[tuple[Any, ...]], list[tuple[Any, ...]]]] = [
    ("shape", [(X, (0,)), (X, (2,))], [(X, (-2,))]),
    ("number", [(X, 2), (X, 5)], [(X, 1), (X, 6), (X, -3)]),
    ("cast", [(X, (2,)), (X, (5,))], [(X, (1,)), (X, (6,)), (X, (-3,))]),
    ("field", [(X, (2, (1,)))], [(X, (-2, (1,))), (X, (2, (-1,)))]),
    ("inner", [(X,), (X[:3],)], [(X[:2],)]),
    ("again", [(X, (4,), np.array(2))], [(X, (4,), np.array(3)), (X, (-1,), np.array(0))]),
]


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
