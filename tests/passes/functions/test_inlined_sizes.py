"""Symbols of functions that are inlined: each call has sizes of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw


def check(text: str, arguments: tuple[Any, ...], wanted: Any) -> None:
    """The interpreter and compiled code give this result."""
    module = bw.from_source(f"@I.ir_module\nclass Module:\n{text}")
    for run in (lambda *a: bw.interpret(module, *a), bw.compile(module)):
        np.testing.assert_array_equal(run(*arguments), np.array(wanted, "f4"))


def floats(*values: float) -> Any:
    return np.array(values, "f4")


TWO_CALLS = """
    @R.function(private=True)
    def f(v: R.Tensor(("m",), "float32")):
        m = T.int64()
        k = T.int64()
        r = R.match_cast(R.unique(v), R.Tensor((k,), "float32"))
        return r

    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32")):
        R.func_attr({{"tir_var_upper_bound": {{"k": 2}}}})
        n = T.int64()
        m = T.int64()
        k = T.int64()
        a = cls.f(x)
        b = cls.f(y)
        u = R.match_cast(R.unique(x), R.Tensor((k,), "float32"))
        return {}
"""


@pytest.mark.parametrize(
    ("use", "wanted"),
    [
        ("R.concat([a, b], axis=0)", [1, 2, 3]),
        ("cls.f(R.concat([a, b], axis=0))", [1, 2, 3]),
        ("R.concat([a, u, b], axis=0)", [1, 2, 1, 2, 3]),
    ],
)
def test_casts_of_a_function_that_is_called_twice(use: str, wanted: list[int]) -> None:
    check(TWO_CALLS.format(use), (floats(1, 2, 2), floats(3)), wanted)


def test_the_size_of_the_caller_keeps_its_name_and_limit() -> None:
    exe = bw.compile(bw.from_source("@I.ir_module\nclass Module:" + TWO_CALLS.format("u")))
    with pytest.raises(bw.BlockwrightError, match="k") as caught:
        exe(floats(1, 2, 3), floats(3))
    assert caught.value.code == "BW708"


def test_a_size_inside_a_dimension_of_a_value_of_unknown_size() -> None:
    text = """
    @R.function(private=True)
    def half(v: R.Tensor(("2 * m",), "float32")) -> R.Tensor(("m",), "float32"):
        m = T.int64()
        return R.slice(v, axis=0, begin=0, end=m)

    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32")):
        n = T.int64()
        m = T.int64()
        a = cls.half(R.unique(x))
        b = cls.half(R.unique(y))
        return R.concat([a, b], axis=0)
"""
    check(text, (floats(1, 2, 2), floats(3, 4, 5, 6)), [1, 3, 4])


COMPUTED = """
    @R.function(private=True)
    def numbers(s: R.Shape(["k"])):
        k = T.int64()
        R.func_attr({{"tir_var_lower_bound": {{"k": {low}}}}})
        return R.arange(0, k, 1, "float32")

    @R.function(private=True)
    def recursive(
        s: R.Shape(["n"]), c: R.Tensor((), "int64"), v: R.Tensor(("n - 2",), "float32")
    ) -> R.Tensor(("n - 2",), "float32"):
        n = T.int64()
        if R.greater_equal(c, R.const(2, "int64")):
            r = v
        else:
            r = cls.recursive(s, R.add(c, R.const(1, "int64")), R.add(v, v))
        return r

    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n - 2",), "float32"):
        n = T.int64()
        a{stated} = cls.numbers(R.shape([n - 2]))
        return {result}
"""


@pytest.mark.parametrize("low", [0, 1])
@pytest.mark.parametrize("stated", ["", ': R.Tensor((n - 2,), "float32")'])
@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        ("a", [0, 1, 2]),
        ('cls.recursive(R.shape([n]), R.const(0, "int64"), a)', [0, 4, 8]),
    ],
)
def test_a_computed_size_is_that_which_the_callee_proves_not_negative(
    low: int, stated: str, result: str, wanted: list[int]
) -> None:
    text = COMPUTED.format(low=low, stated=stated, result=result)
    check(text, (floats(1, 2, 3, 4, 5),), wanted)
    exe = bw.compile(bw.from_source(f"@I.ir_module\nclass Module:\n{text}"))
    with pytest.raises(bw.BlockwrightError):
        exe(floats(1))  # n - 2 is negative


CHOSEN = """
    @R.function(private=True)
    def numbers(s: R.Shape(["k"])):
        k = T.int64()
        R.func_attr({"tir_var_lower_bound": {"k": 2}})
        return R.arange(0, k, 1, "int64")

    @R.function
    def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
        n = T.int64()
        if c:
            def f(v: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
                unused = cls.numbers(R.shape([n]))
                return v
            g = f
        else:
            def h(v: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
                return R.negative(v)
            g = h
        return R.invoke_closure(g, (x,), sinfo_args=R.Tensor((n,), "float32"))
"""


def test_functions_chosen_at_run_time_check_the_ranges_of_what_they_inline() -> None:
    module = bw.from_source(f"@I.ir_module\nclass Module:\n{CHOSEN}")
    for run in (lambda *a: bw.interpret(module, *a), bw.compile(module)):
        np.testing.assert_array_equal(run(floats(1, 2), np.array(True)), [1, 2])
        np.testing.assert_array_equal(run(floats(1), np.array(False)), [-1])
        with pytest.raises(bw.BlockwrightError) as caught:
            run(floats(1), np.array(True))
        assert caught.value.code == "BW708"
