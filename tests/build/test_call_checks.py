"""Checks of what tensor programs pass to each other: in all builds, and in sanitizer builds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.support import BlockwrightError

MODULE = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def f(x: T.handle, k: T.int64):
        T.func_attr({attrs})
        n = T.int64()
        X = T.match_buffer(x, (n,), "float32"{layout})
        for i in range(n):
            X[i] = X[i] + T.Cast("float32", k)

    @T.prim_func
    def main(A: T.Buffer((8,), "float32"), m: T.int64):
        {call}
"""
LOWER, UPPER = '{"tir_var_lower_bound": {"n": 4}}', '{"tir_var_upper_bound": {"n": 4}}'
UPPER_K = '{"tir_var_upper_bound": {"k": 3}}'


def module(call: str, attrs: str = "{}", layout: str = "") -> Any:
    return bw.from_source(MODULE.format(call=call, attrs=attrs, layout=layout))


def code_of(program: Any, m: int, *sanitize: str) -> str | None:
    """The error code of a call of the build; the array is unchanged then."""
    built, a = bw.build(program, sanitize=sanitize)["main"], np.zeros(8, "float32")
    try:
        built(a, m)
    except BlockwrightError as error:
        assert not a.any()
        return error.code
    return None


def interpreted(program: Any, m: int) -> str | None:
    try:
        bw.interpret(program, np.zeros(8, "float32"), m)
    except BlockwrightError as error:
        return error.code
    return None


@pytest.mark.parametrize(
    ("call", "attrs", "wrong", "right"),
    [
        ("Module.f(A.data, 1, m - 3)", "{}", 1, 3),
        ("Module.f(A.data, 1, m)", LOWER, 3, 4),
        ("Module.f(A.data, 1, m)", UPPER, 5, 4),
        ("Module.f(A.data, m, 8)", UPPER_K, 4, 3),
        ("for i in T.parallel(1):\n            Module.f(A.data, 1, m + i)", UPPER, 5, 4),
        ("for i in range(2):\n            if m > i:\n                Module.f(A.data, 1, m)", UPPER,
         5, 4),
    ],
)  # fmt: skip
def test_numbers_outside_their_ranges_stop_a_call(
    call: str, attrs: str, wrong: int, right: int
) -> None:
    program = module(call, attrs)
    assert interpreted(program, wrong) == "BW708"
    assert interpreted(program, right) is None
    for sanitize in ((), ("bounds",)):
        assert code_of(program, wrong, *sanitize) == "BW708"
        assert code_of(program, right, *sanitize) is None


@pytest.mark.parametrize(
    ("call", "layout", "wrong", "right"),
    [
        ("Module.f(T.address_of(A[m]), 1, 4)", "", [-1, 5, 8], [0, 4]),
        ("Module.f(A.data, 1, m)", "", [9, 1 << 40], [0, 8]),
        ("Module.f(A.data, 1, m)", ", strides=(4,)", [3], [0, 1, 2]),
        ("Module.f(T.address_of(A[8]), 1, m)", "", [1], [0]),
    ],
)
def test_memory_outside_the_buffer_stops_a_sanitizer_build(
    call: str, layout: str, wrong: list[int], right: list[int]
) -> None:
    program = module(call, layout=layout)
    for m in wrong:
        assert interpreted(program, m) == "BW751"
        assert code_of(program, m, "bounds") == "BW713"
    for m in right:
        assert interpreted(program, m) is None
        assert code_of(program, m, "bounds") is None


@pytest.mark.parametrize(
    ("call", "attrs", "layout", "message"),
    [
        ("Module.f(T.address_of(A[-4]), 1, 4)", "{}", "", "X begins before A"),
        ("Module.f(A.data, 1, 4)", "{}", ", strides=(100,)", "X is larger than A"),
        ("Module.f(A.data, 1, -3)", "{}", "", "n is at least 0, and its value is not"),
        ("Module.f(A.data, 1, 3)", LOWER, "", "n is at least 4, and its value is not"),
        ("Module.f(A.data, 1, 5)", UPPER, "", "n is at most 4, and its value is not"),
        ("Module.f(A.data, 4, 5)", UPPER_K, "", "k is at most 3, and its value is not"),
    ],
)
def test_calls_that_are_provably_wrong_are_refused(
    call: str, attrs: str, layout: str, message: str
) -> None:
    program = module(call, attrs, layout)
    for run in (bw.validate, bw.build):
        with pytest.raises(BlockwrightError, match=message) as caught:
            run(program)
        assert caught.value.code == "BW260"


def test_calls_that_are_provably_right_are_not_checked() -> None:
    program = module("Module.f(A.data, 1, 4)", UPPER)
    assert "BW708" not in bw.build(program).source("lowered", "main")


@pytest.mark.parametrize("sanitize", [(), ("bounds",)])
@pytest.mark.parametrize(
    ("call", "n", "k"),
    [
        ("Module.f(A.data, T.Cast('int64', T.atomic_add(N[0], 1)), 4)", 4, 1),
        ("Module.f(A.data, 1, T.Cast('int64', T.atomic_add(N[0], 1)))", 1, 1),
        ("Module.f(A.data, T.Cast('int64', N[0]), T.Cast('int64', T.atomic_add(N[0], 1)))", 1, 1),
        ("Module.f(A.data, T.Cast('int64', T.atomic_add(N[0], 1)), T.Cast('int64', N[0]))", 2, 1),
        ("Module.f(T.address_of(A[N[0] - 1]), T.Cast('int64', T.atomic_add(N[0], 1)), 4)", 4, 1),
        ("Module.f(T.address_of(A[T.atomic_add(N[0], 1) - 1]), 1, 4)", 4, 1),
    ],
)
def test_checks_do_not_repeat_effects(call: str, n: int, k: int, sanitize: tuple[str, ...]) -> None:
    attrs = '{"tir_var_upper_bound": {"n": 4, "k": 3}}'
    text = MODULE.format(call=call, attrs=attrs, layout="")
    text = text.replace("m: T.int64", 'N: T.Buffer((1,), "int32")')
    program: Any = bw.from_source(text)
    wanted = np.r_[np.full(n, k, "float32"), np.zeros(8 - n, "float32")]
    for native in (False, True):
        a, counter = np.zeros(8, "float32"), np.ones(1, "int32")
        if native:
            bw.build(program, sanitize=sanitize)["main"](a, counter)
        else:
            bw.interpret(program, a, counter)
        np.testing.assert_array_equal(a, wanted)
        assert counter[0] == 2
