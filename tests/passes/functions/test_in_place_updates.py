"""Calls that overwrite arguments are functions of values: in the interpreter and in compiled code.

Only a parameter of a public function, under its own name, is overwritten for the caller to see.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw

PROGRAMS = """
@T.prim_func(private=True)
def increment(x: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n,), "float32")
    for i in range(n):
        with T.block("X"):
            vi = T.axis.spatial(n, i)
            X[vi] = X[vi] + T.float32(1)

@T.prim_func(private=True)
def add_reversed(x: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n,), "float32")
    Y = T.match_buffer(y, (n,), "float32")
    for i in range(n):
        with T.block("X"):
            vi = T.axis.spatial(n, i)
            X[vi] = X[vi] + Y[n - 1 - vi]

@T.prim_func(private=True)
def increment_and_double(x: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n,), "float32")
    Y = T.match_buffer(y, (n,), "float32")
    for i in range(n):
        with T.block("X"):
            vi = T.axis.spatial(n, i)
            X[vi] = X[vi] + T.float32(1)
            Y[vi] = Y[vi] * T.float32(2)
"""
X = np.random.default_rng(0).random(300, "f4")
INCREMENT = 'R.call_tir_inplace(cls.increment, ({},), [0], R.Tensor((n,), "float32"))'
ADD = 'R.call_tir_inplace(cls.add_reversed, ({}, {}), [0], R.Tensor((n,), "float32"))'
BOTH = (
    "R.call_tir_inplace(cls.increment_and_double, ({}, {}), [0, 1], "
    '[R.Tensor((n,), "float32"), R.Tensor((n,), "float32")])'
)


def module(lines: list[str], programs: str = PROGRAMS) -> Any:
    body = ["n = T.int64()", *lines]
    main = '@R.function(pure=False)\ndef main(x: R.Tensor(("n",), "float32")):\n' + textwrap.indent(
        "\n".join(body), "    "
    )
    return bw.from_source(
        "@I.ir_module\nclass Module:\n" + textwrap.indent(programs + main, "    ")
    )


def check(lines: list[str], wanted: Any, argument: Any) -> None:
    """Both give these results, and this is what they leave in the argument."""
    program = module(lines)
    for run in (lambda x: bw.interpret(program, x), bw.compile(program)):
        x = X.copy()
        results = run(x)
        pairs = zip(
            results if isinstance(results, tuple) else [results],
            wanted if isinstance(wanted, tuple) else [wanted],
            strict=True,
        )
        for found, want in pairs:
            np.testing.assert_array_equal(found, want)
        np.testing.assert_array_equal(x, argument)


@pytest.mark.parametrize(
    "view",
    [
        "R.reshape(x, (n,))",
        "R.flatten(x)",
        "R.squeeze(R.expand_dims(x, axis=0), axis=[0])",
        "R.slice(x, axis=0, begin=0, end=n)",
        'R.astype(x, dtype="float32")',
    ],
)
def test_the_result_of_an_operator_is_not_the_parameter(view: str) -> None:
    check([f"y = {view}", f"z = {INCREMENT.format('y')}", "return z"], X + 1, X)


def test_a_name_of_the_parameter_is() -> None:
    check(["y = x", f"z = {INCREMENT.format('y')}", "return z"], X + 1, X + 1)


def test_the_new_value_of_a_parameter_has_views_of_its_own() -> None:
    lines = [
        f"a = {INCREMENT.format('x')}",
        "v = R.reshape(R.reshape(a, (1, n)), (n,))",
        f"b = {INCREMENT.format('v')}",
        "return a, b",
    ]
    check(lines, (X + 1, X + 2), X + 1)


@pytest.mark.parametrize("other", ["y", "alias", "view"])
def test_a_value_is_overwritten_and_passed_a_second_time(other: str) -> None:
    lines = ["y = R.add(x, x)", "alias = y", "view = R.reshape(R.reshape(y, (1, n)), (n,))"]
    check([*lines, f"z = {ADD.format('y', other)}", "return z"], 2 * X + 2 * X[::-1], X)


def test_a_parameter_is_overwritten_and_passed_a_second_time() -> None:
    wanted = X + X[::-1]
    check([f"z = {ADD.format('x', 'x')}", "return z"], wanted, wanted)


def test_both_of_two_equal_arguments_are_overwritten() -> None:
    check(["y = R.add(x, x)", f"z = {BOTH.format('y', 'y')}", "return z"], (2 * X + 1, 4 * X), X)


def test_constants_stay_constant() -> None:
    lines = [
        'k = R.const([1, 2, 3], "float32")',
        f"z = {INCREMENT.format('k')}".replace("(n,)", "(3,)"),
        "return z, k",
    ]
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(module(lines))
    assert caught.value.code == "BW263"
    lines[-1] = "return z"
    for _ in range(2):
        check(lines, np.array([2, 3, 4], "f4"), X)


PAIRS: dict[str, Callable[[str], list[str]]] = {
    "made": lambda use: ["t = (R.add(x, x), x)", f"z = {INCREMENT.format('t[0]')}", use],
    "computed": lambda use: [
        f"t = {BOTH.format('R.add(x, x)', 'R.add(x, x)')}",
        f"z = {INCREMENT.format('t[0]')}",
        use,
    ],
    "nested": lambda use: [
        "inner = (R.add(x, x), x)",
        "outer = (inner, x)",
        "t = outer[0]",
        f"z = {INCREMENT.format('inner[0]')}",
        use,
    ],
}


@pytest.mark.parametrize("pair", PAIRS)
def test_the_other_fields_of_a_tuple_may_be_used(pair: str) -> None:
    program = module([*PAIRS[pair]("y = R.negative(t[1])"), "return z, y"])
    expected = bw.interpret(program, X.copy())
    for found, wanted in zip(bw.compile(program)(X.copy()), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("use", ["y = R.negative(t[0])", "y = (t, x)"])
def test_the_overwritten_field_may_not(pair: str, use: str) -> None:
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(module([*PAIRS[pair](use), "return z, y"]))
    assert caught.value.code == "BW263"


def test_the_caller_passes_one_array_for_two_parameters() -> None:
    program = bw.from_source(
        "@I.ir_module\nclass Module:\n"
        + textwrap.indent(
            PROGRAMS
            + '@R.function(pure=False)\ndef main(x: R.Tensor(("n",), "float32"), '
            + 'y: R.Tensor(("n",), "float32")):\n    n = T.int64()\n'
            + f"    z = {ADD.format('x', 'y')}\n    return z\n",
            "    ",
        )
    )
    for run in (lambda *a: bw.interpret(program, *a), bw.compile(program)):
        x = X.copy()
        with pytest.raises(bw.BlockwrightError) as caught:
            run(x, x)
        assert caught.value.code == "BW706"


ROWS = """
@T.prim_func(private=True)
def increment(x: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n, 4), "float32")
    for i, j in T.grid(n, 4):
        with T.block("X"):
            vi, vj = T.axis.remap("SS", [i, j])
            X[vi, vj] = X[vi, vj] + T.float32(1)

@R.function(pure=False)
def main(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = R.exp(x)", "z = R.add(y, new)"),
        ("y = R.permute_dims(x, axes=[1, 0])", "z = (R.matmul(new, y), R.exp(y))"),
        ("y = R.slice(x, axis=0, begin=1, end=n)", "z = (R.add(y, y), R.multiply(y, y))"),
        ("y = R.exp(R.sum(x, axes=[1]))", "z = R.add(y, y)"),
        ("y = R.add(x, x)", "z = R.slice(y, axis=0, begin=1, end=n)"),
        ("y = R.matmul(x, R.permute_dims(x, axes=[1, 0]))", "z = R.relu(y)"),
    ],
)
def test_fusion_keeps_reads_before_the_update(before: str, after: str) -> None:
    """Otherwise the whole parameter would be copied, to be read later."""
    call = 'R.call_tir_inplace(cls.increment, (x,), [0], R.Tensor((n, 4), "float32"))'
    body = textwrap.indent("\n".join([before, f"new = {call}", after, "return z, new"]), "    ")
    program = bw.from_source("@I.ir_module\nclass Module:\n" + textwrap.indent(ROWS + body, "    "))
    exe = bw.compile(program)
    assert "cls.copy" not in exe.show("protect_updates")
    x, y = (np.random.default_rng(0).random((5, 4), "f4") for _ in range(2))
    (found, _), (wanted, _) = exe(x), bw.interpret(program, y)
    np.testing.assert_array_equal(x, y)
    for f, w in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-5)
