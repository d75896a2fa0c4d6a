"""Calls between the tensor programs of a module: what they pass is checked against the callee."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.script import ir as I
from blockwright.script import tir as T
from blockwright.support import BlockwrightError, ScriptError

MODULE = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def scale(x: T.handle, k: T.float32):
        n = T.int32()
        X = T.match_buffer(x, (n,), "float32")
        for i in range(n):
            X[i] = X[i] * k

    @T.prim_func
    def main(a: T.handle, b: T.Buffer((8,), "int32")):
        n = T.int32()
        A = T.match_buffer(a, (n,), "float32")
        Module.{call}
"""


def module_with(call: str) -> Any:
    return bw.from_source(MODULE.format(call=call))


def results(module: Any, *args: np.ndarray[Any, Any]) -> tuple[list[Any], list[Any]]:
    """The first argument after a run of the interpreter, and after one of the compiled code."""
    first, second = [a.copy() for a in args], [a.copy() for a in args]
    bw.interpret(module, *first)
    bw.build(module)["main"](*second)
    return first[0].tolist(), second[0].tolist()


def refused(module: Any, args: tuple[np.ndarray[Any, Any], ...]) -> list[BlockwrightError]:
    """What validation, build and interpreter say."""
    errors: list[BlockwrightError] = []
    runs: list[Callable[[], Any]] = [
        partial(bw.validate, module),
        partial(bw.build, module),
        partial(bw.interpret, module, *args),
    ]
    for run in runs:
        with pytest.raises(BlockwrightError) as caught:
            run()
        errors.append(caught.value)
    return errors


@pytest.mark.parametrize(
    "call",
    [
        "scale(A.data, T.float32(2), n)",
        "scale(a, T.float32(2), n)",  # the handle of a parameter is its memory
        "scale(A.data, 2, n)",  # a Python number gets the type of the parameter
        "scale(A.data, 2.0, 3)",
    ],
)
def test_a_call_passes_addresses_then_scalars_then_sizes(call: str) -> None:
    args = np.ones(3, "float32"), np.zeros(8, "int32")
    assert results(module_with(call), *args) == ([2, 2, 2], [2, 2, 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("scale(A.data, T.float32(2))", "takes 3 arguments, got 2"),
        ("scale(A.data, T.float32(2), n, n)", "takes 3 arguments, got 4"),
        ("scale(T.float32(2), A.data, n)", "argument 0 is a float32, not the address of a buffer"),
        ("scale(A[0], T.float32(2), n)", "argument 0 is a float32, not the address of a buffer"),
        ("scale(A.data, A.data, n)", "argument 1 is an address, not a number"),
        ('scale("x", T.float32(2), n)', "argument 0 is a text, not the address of a buffer"),
        ("scale(A.data, T.float64(2), n)", "k is float32, and its value is float64"),
        ("scale(A.data, T.int32(2), n)", "k is float32, and its value is int32"),
        ("scale(A.data, n, T.float32(2))", "k is float32, and its value is int32"),
        ("scale(A.data, T.float32(2), T.int64(3))", "n is int32, and its value is int64"),
        ("scale(b.data, T.float32(2), n)", "X holds float32, and b holds int32"),
        ("scale(A.data, T.float32(2), n + 1)", "X is larger than A"),
        (
            "scale(T.address_of(A[1]), T.float32(2), n)",
            "X is larger than A from there on",
        ),
    ],
)
def test_arguments_that_do_not_fit_the_callee_are_refused(call: str, message: str) -> None:
    args = np.ones(3, "float32"), np.zeros(8, "int32")
    for error in refused(module_with(call), args):
        assert error.code == "BW260"
        assert message in error.message
        assert error.help


def test_the_address_of_an_element_is_memory_from_there_on() -> None:
    module = module_with("scale(T.address_of(A[1]), T.float32(2), n - 1)")
    args = np.ones(3, "float32"), np.zeros(8, "int32")
    assert results(module, *args) == ([1, 2, 2], [1, 2, 2])


@pytest.mark.parametrize(
    "around",
    ["if T.bool(False):", "for k in range(0):", "if True:\n            pass\n        else:"],
)
def test_memory_is_not_checked_for_calls_that_never_run(around: str) -> None:
    module = bw.from_source(
        MODULE.format(call="scale(A.data, T.float32(2), n)")
        + f"        {around}\n            Module.scale(A.data, T.float32(2), n + 1)\n"
    )
    args = np.ones(3, "float32"), np.zeros(8, "int32")
    assert results(module, *args) == ([2, 2, 2], [2, 2, 2])


def test_a_view_passes_memory_as_another_type() -> None:
    module = bw.from_source("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def one(X: T.Buffer((4,), "int32")):
        for i in range(4):
            X[i] = 0x3F800000

    @T.prim_func
    def main(A: T.Buffer((4,), "float32")):
        bits = T.decl_buffer((4,), "int32", data=A.data)
        Module.one(bits.data)
""")
    assert results(module, np.zeros(4, "float32")) == ([1, 1, 1, 1], [1, 1, 1, 1])


def test_a_number_gets_the_type_of_a_parameter_of_a_later_function() -> None:
    """In its whole precision: 0.1 is no float32."""
    module = bw.from_source("""
@I.ir_module
class Module:
    @T.prim_func
    def main(A: T.Buffer((1,), "float64")):
        Module.fill(A.data, 0.1, 3000000000)

    @T.prim_func(private=True)
    def fill(X: T.Buffer((1,), "float64"), k: T.float64, j: T.int64):
        X[0] = k * T.Cast("float64", j)
""")
    assert results(module, np.zeros(1)) == ([0.1 * 3e9], [0.1 * 3e9])


@pytest.mark.parametrize("number", ["300", "1.5"])
def test_a_number_that_the_parameter_does_not_hold_is_refused(number: str) -> None:
    with pytest.raises(ScriptError, match="argument k: ") as caught:
        bw.from_source(f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def fill(X: T.Buffer((1,), "int8"), k: T.int8):
        X[0] = k

    @T.prim_func
    def main(A: T.Buffer((1,), "int8")):
        Module.fill(A.data, {number})
""")
    assert caught.value.code == "BW107"


def test_a_decorated_module_is_checked_where_it_is_written() -> None:
    with pytest.raises(ScriptError, match="takes 1 argument, got 0"):

        @I.ir_module
        class Module:  # pyright: ignore[reportUnusedClass]
            @T.prim_func(private=True)
            def fill(X: T.Buffer((1,), "int8")):  # pyright: ignore
                X[0] = T.int8(1)

            @T.prim_func
            def main(A: T.Buffer((1,), "int8")):  # pyright: ignore
                A[0] = T.int8(1)
                Module.fill()


@pytest.mark.parametrize(
    ("callee", "code"), [("absent", "BW616"), ("graph", "BW616"), ("main", "BW621")]
)
def test_unknown_callees_and_recursion_are_refused(callee: str, code: str) -> None:
    module = bw.from_source(f"""
@I.ir_module
class Module:
    @R.function
    def graph(x: R.Tensor((4,), "int32")):
        return x

    @T.prim_func
    def main(a: T.Buffer((4,), "int32")):
        T.call_global("{callee}", a.data)
""")
    for error in refused(module, (np.zeros(4, "int32"),)):
        assert error.code == code


@pytest.mark.parametrize(
    "body",
    [
        "T.ret(x)",
        "if x > 9:\n            T.ret(x)",
    ],
)
def test_a_program_returns_no_value(body: str) -> None:
    module = bw.from_source(f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def clip(x: T.int32):
        {body}

    @T.prim_func
    def main(a: T.Buffer((4,), "int32")):
        for i in range(4):
            Module.clip(a[i])
""")
    for error in refused(module, (np.zeros(4, "int32"),)):
        assert error.code == "BW617"


def test_the_call_of_a_program_has_no_value() -> None:
    module = bw.from_source("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def nothing(x: T.int32):
        T.evaluate(0)

    @T.prim_func
    def main(a: T.Buffer((4,), "int32")):
        for i in range(4):
            a[i] = Module.nothing(a[i])
""")
    for error in refused(module, (np.zeros(4, "int32"),)):
        assert error.code == "BW617"


def test_a_graph_function_that_runs_a_wrong_call_is_refused() -> None:
    module = bw.from_source("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def fill(X: T.Buffer((4,), "float32"), k: T.float32):
        for i in range(4):
            X[i] = k

    @T.prim_func(private=True)
    def outer(Y: T.Buffer((4,), "float32")):
        Module.fill(Y.data, T.int32(2))

    @R.function
    def main():
        return R.call_tir(cls.outer, (), R.Tensor((4,), "float32"))
""")
    for run in (bw.validate, bw.interpret):
        with pytest.raises(BlockwrightError, match="k is float32, and its value is int32"):
            run(module)


@pytest.mark.parametrize("argument", ["x", 'R.const([1, 2, 3, 4], "float32")'])
def test_a_graph_function_compiles_with_programs_that_call_others(argument: str) -> None:
    """Also where the call is evaluated while compiling."""
    module = bw.from_source(f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def scale(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32"), k: T.float32):
        for i in range(4):
            Y[i] = X[i] * k

    @T.prim_func(private=True)
    def outer(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        with T.block("call"):
            T.reads(X[0:4])
            T.writes(Y[0:4])
            Module.scale(X.data, Y.data, 2)

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        y = R.call_tir(cls.outer, ({argument},), R.Tensor((4,), "float32"))
        return R.add(x, y)
""")
    x = np.array([1, 2, 3, 4], "float32")
    assert np.from_dlpack(bw.compile(module)(x)).tolist() == [3, 6, 9, 12]
    assert bw.interpret(module, x).tolist() == [3, 6, 9, 12]
