"""Calls that overwrite arguments are functions of values: in the interpreter and in compiled code.

Only a parameter of a public function, under its own name, is overwritten for the caller to see.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi

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


def check(lines: list[str], wanted: Any, argument: Any, programs: str = PROGRAMS) -> None:
    """Both give these results, and this is what they leave in the argument."""
    program = module(lines, programs)
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


VIEW = "R.reshape(R.reshape({}, (1, n)), (n,))"


def test_an_old_value_outlives_a_chain_of_updates() -> None:
    """The pattern of a cache: the parameter is updated twice, a view of its first content read."""
    lines = [f"old = {VIEW.format('x')}", f"a = {INCREMENT.format('x')}"]
    check([*lines, f"b = {INCREMENT.format('a')}", "return b, old"], (X + 2, X), X + 2)


def test_updates_of_a_value_and_of_a_view_of_it() -> None:
    lines = [
        "p = R.add(x, x)",
        f"q = {VIEW.format('p')}",
        f"a = {INCREMENT.format('p')}",
        f"r = {VIEW.format('q')}",
        f"b = {INCREMENT.format('q')}",
        f"c = {INCREMENT.format('b')}",
        "return a, c, r",
    ]
    check(lines, (2 * X + 1, 2 * X + 2, 2 * X), X)


def test_only_overwritten_fields_of_a_tuple_that_is_read_later_are_copied() -> None:
    lines = [
        f"t = {BOTH.format('R.add(x, x)', 'R.add(x, x)')}",
        f"u = {INCREMENT.format('t[0]')}",
        f"v = {INCREMENT.format('u')}",
        "w = R.negative(t[1])",
        "return v, w, t[1]",
    ]
    check(lines, (2 * X + 3, -4 * X, 4 * X), X)


@pytest.mark.parametrize(
    ("arguments", "results", "left"),
    [
        ("v, x", (X + 1, 2 * X), 2 * X),
        ("x, v", (X + 1, 2 * X), X + 1),
        ("x, x", (X + 1, 2 * X), X + 1),
        ("v, v", (X + 1, 2 * X), X),
    ],
)
def test_a_parameter_is_updated_beside_a_view_of_it(
    arguments: str, results: Any, left: Any
) -> None:
    """The view is copied, in whatever order they are passed; of one value twice, the second is."""
    call = BOTH.format(*arguments.split(", "))
    check([f"v = {VIEW.format('x')}", f"t = {call}", "return t[0], t[1]"], results, left)


HANDED_ON = {
    "branch": ["if R.max(x) < R.const(2, 'float32'):", "    h = x", "else:", "    h = R.add(x, x)"],
    "tuple of a branch": [
        "if R.max(x) < R.const(2, 'float32'):",
        "    t = (x, x)",
        "else:",
        "    t = (R.add(x, x), x)",
        "h = t[0]",
    ],
    "recursive function": ["h = cls.same(x, R.const(2, 'int64'))"],
    "carried value of a loop": [
        "s = R.scan(cls.step, x, R.reshape(x, (1, n)), carried=1, over=1)",
        "h = s[0]",
    ],
    "closure": [
        "@R.function",
        "def one(v: R.Tensor(('n',), 'float32')):",
        "    return x",
        "@R.function",
        "def other(v: R.Tensor(('n',), 'float32')):",
        "    return v",
        "if R.max(x) < R.const(2, 'float32'):",
        "    f = one",
        "else:",
        "    f = other",
        "h = f(x)",
    ],
    "foreign function": [
        "h = R.call_packed('tests.same_tensor', x, sinfo_args=R.Tensor((n,), 'float32'))"
    ],
}
FUNCTIONS = """
@R.function(private=True)
def same(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")) -> R.Tensor(("n",), "float32"):
    n = T.int64()
    if R.less(k, R.const(1, "int64")):
        r = x
    else:
        r = cls.same(x, R.subtract(k, R.const(1, "int64")))
    return r

@R.function(private=True)
def step(h: R.Tensor(("n",), "float32"), x: R.Tensor(("n",), "float32")):
    n = T.int64()
    return h, h
"""


@pytest.mark.parametrize("how", HANDED_ON)
def test_what_is_handed_on_is_a_value_of_its_own(how: str) -> None:
    """Neither the parameter nor what else is read of it changes with it."""
    tvm_ffi.register_global_func("tests.same_tensor", lambda x: x, override=True)
    text = [line.replace("R.max(x) < R.const(2, 'float32')", "small") for line in HANDED_ON[how]]
    small = "small = R.less(R.max(x), R.const(2, 'float32'))"
    lines = [small, *text, f"z = {INCREMENT.format('h')}", "return z, R.add(x, x)"]
    check(lines, (X + 1, 2 * X), X, PROGRAMS + FUNCTIONS)


def test_a_private_function_updates_the_parameter_that_it_is_passed() -> None:
    function = f"""
@R.function(private=True)
def update(v: R.Tensor(("n",), "float32")):
    n = T.int64()
    return {INCREMENT.format("v")}
"""
    lines = ["a = cls.update(x)", "b = cls.update(a)", "return b"]
    check(lines, X + 2, X + 2, PROGRAMS + function)
    check(["return R.add(x, x)"], 2 * X, X, PROGRAMS + function)  # it is not called


UPDATING = f"""
@R.function(private=True)
def update(v: R.Tensor(("n",), "float32")):
    n = T.int64()
    return {INCREMENT.format("v")}

@R.function(private=True)
def update_and_add(v: R.Tensor(("n",), "float32"), w: R.Tensor(("n",), "float32")):
    a = cls.update(v)
    return R.add(a, w)
"""


@pytest.mark.parametrize(
    ("lines", "results", "left"),
    [
        (["t = R.add(x, x)", "return cls.update_and_add(t, t)"], 2 * X + (2 * X + 1), X),
        (["t = R.add(x, x)", "return R.add(cls.update(t), t)"], 2 * X + (2 * X + 1), X),
        (["u = cls.update(x)", "return R.add(u, x), x"], (X + (X + 1), X), X + 1),
        (["u = cls.update(x)", "v = cls.update(x)", "return u, v"], (X + 1, X + 1), X + 1),
        (["u = cls.update(x)", "v = cls.update(u)", "return u, v"], (X + 1, X + 2), X + 2),
        (["u = cls.update_and_add(x, x)", "return u"], X + (X + 1), X + 1),
        (
            [
                "@R.function",
                "def h(v: R.Tensor(('n',), 'float32')):",
                "    return cls.update_and_add(v, x)",
                "return h(x), x",
            ],
            (X + (X + 1), X),
            X + 1,
        ),
        (["p = (x, x)", "u = cls.update(p[0])", "return u, p[1]"], (X + 1, X), X + 1),
        (
            [
                f"t = {BOTH.format('x', 'R.add(x, x)')}",
                "u = cls.update(t[0])",
                "w = t",
                "return u, w[0], w[1]",
            ],
            (X + 1 + 1, X + 1, 4 * X),
            X + 1 + 1,
        ),
        (
            [
                "s = R.less(R.max(x), R.const(2, 'float32'))",
                "if s:",
                "    t = R.add(x, x)",
                "    r = R.add(cls.update(t), t)",
                "else:",
                "    r = x",
                "return r",
            ],
            2 * X + (2 * X + 1),
            X,
        ),
        (
            ["t = R.zeros_like(x)", "u = cls.update(t)", "return u, cls.update_and_add(t, t)"],
            (np.ones_like(X), np.ones_like(X)),
            X,
        ),
    ],
)
def test_a_value_outlives_the_call_of_a_function_that_updates_its_parameter(
    lines: list[str], results: Any, left: Any
) -> None:
    check(lines, results, left, PROGRAMS + UPDATING)


@pytest.mark.parametrize("argument", ["x", "R.add(x, x)"])
def test_what_a_called_function_updates_is_not_copied_without_need(argument: str) -> None:
    program = module([f"t = {argument}", "return cls.update_and_add(t, x)"], PROGRAMS + UPDATING)
    assert ("cls.copy" in bw.compile(program).show("protect_updates")) == (argument == "x")


@pytest.mark.parametrize("copy", ["R.tile(p, [1])", "R.strided_slice(p, [], [], [])"])
def test_a_composition_of_no_operators_is_a_new_value(copy: str) -> None:
    lines = ["p = R.add(x, x)", f"q = {copy}", f"a = {INCREMENT.format('p')}", "return a, q"]
    check(lines, (2 * X + 1, 2 * X), X)


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


@pytest.mark.parametrize("nested", [False, True])
def test_fields_of_a_tuple_parameter_are_not_updated(nested: bool) -> None:
    pair = 'R.Tuple(R.Tensor(("n",), "float32"), R.Tensor(("n",), "float32"))'
    parameter = f"R.Tuple({pair})" if nested else pair
    field = "p[0][1]" if nested else "p[1]"
    program = bw.from_source(
        "@I.ir_module\nclass Module:\n"
        + textwrap.indent(
            f"{PROGRAMS}@R.function(pure=False)\ndef main(p: {parameter}):\n    n = T.int64()\n"
            f"    z = {INCREMENT.format(field)}\n    return z, R.add(z, z)\n",
            "    ",
        )
    )
    for run in (lambda p: bw.interpret(program, p), bw.compile(program)):
        first, second = X.copy(), X.copy()
        results = run(((first, second),) if nested else (first, second))
        np.testing.assert_array_equal(results[0], X + 1)
        np.testing.assert_array_equal(results[1], (X + 1) * 2)
        np.testing.assert_array_equal(first, X)
        np.testing.assert_array_equal(second, X)


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
