"""Macros: pieces of script that expand where they are called, with their own names or not."""

from __future__ import annotations

import textwrap

import pytest

from blockwright import ir
from blockwright.script import ir as I
from blockwright.script import relax as R
from blockwright.script import tir as T
from blockwright.script.ir import from_source
from blockwright.support import ScriptError

WIDTH = 4


@T.macro
def clear(buffer, extent=WIDTH):
    """Sets the first elements to zero."""
    for i in range(extent):
        buffer[i] = T.float32(0)


@T.macro(hygienic=False)
def step(amount):
    A[i] = A[i] + amount  # noqa: F821  names of the place where it is called


@T.macro
def square(x):
    return x * x


@T.inline
def unrolled(count, buffer):
    if count > 0:
        buffer[count - 1] = T.float32(count)
        unrolled(count - 1, buffer)


def same(a: ir.Node, text: str) -> None:
    ir.assert_structural_equal(a, from_source(textwrap.dedent(text)))


def test_a_macro_expands_where_it_is_called() -> None:
    @T.prim_func
    def main(A: T.Buffer((16,), "float32"), B: T.Buffer((4,), "float32")):
        clear(A, 16)
        clear(buffer=B)

    same(
        main,
        """
        @T.prim_func
        def main(A: T.Buffer((16,), "float32"), B: T.Buffer((4,), "float32")):
            for i in range(16):
                A[i] = T.float32(0)
            for i in range(4):
                B[i] = T.float32(0)
        """,
    )


def test_a_hygienic_macro_does_not_see_the_names_of_its_caller() -> None:
    @T.macro
    def wants_i(buffer):
        buffer[i] = T.float32(0)  # noqa: F821

    with pytest.raises(ScriptError, match="'i' is not defined") as caught:

        @T.prim_func
        def main(A: T.Buffer((16,), "float32")):
            for i in range(16):  # noqa: B007
                wants_i(A)

    (problem,) = caught.value.diagnostics
    assert "in macro 'wants_i', called at" in str(problem.notes[0])


def test_a_hygienic_macro_keeps_the_names_of_its_definition() -> None:
    WIDTH = 8  # noqa: F841  not the one the macro means

    @T.prim_func
    def main(A: T.Buffer((16,), "float32")):
        clear(A)

    assert "for i in range(4)" in repr(main)


def test_an_unhygienic_macro_takes_its_names_from_the_call() -> None:
    @T.prim_func
    def main(A: T.Buffer((16,), "float32")):
        for i in range(16):  # noqa: B007
            step(T.float32(1))

    same(
        main,
        """
        @T.prim_func
        def main(A: T.Buffer((16,), "float32")):
            for i in range(16):
                A[i] = A[i] + T.float32(1)
        """,
    )


def test_a_macro_may_return_a_value_and_call_others() -> None:
    @T.macro
    def fourth(x):
        return square(square(x))

    @T.prim_func
    def main(A: T.Buffer((16,), "int32"), n: T.int32):
        A[0] = square(n + 1)
        A[1] = fourth(n)

    assert "A[0] = (n + 1) * (n + 1)" in repr(main)
    assert "A[1] = n * n * (n * n)" in repr(main)


def test_recursion_ends_on_python_values() -> None:
    @T.prim_func
    def main(A: T.Buffer((4,), "float32")):
        unrolled(3, A)

    stores = ir.collect(main, ir.BufferStore)
    assert [ir.const_int(s.indices[0]) for s in stores] == [2, 1, 0]

    @T.macro
    def forever(x):
        forever(x)

    with pytest.raises(ScriptError, match="64 levels deep") as caught:

        @T.prim_func
        def other(n: T.int32):
            forever(n)

    assert "BW116" in {d.code for d in caught.value.diagnostics}


def test_names_assigned_in_a_macro_stay_in_it() -> None:
    @T.macro(hygienic=False)
    def define(x):
        local = x + 1
        A[0] = local  # noqa: F821

    with pytest.raises(ScriptError, match="'local' is not defined"):

        @T.prim_func
        def main(A: T.Buffer((4,), "int32"), n: T.int32):
            define(n)
            A[1] = local  # noqa: F821


def test_wrong_arguments_are_told_at_the_call() -> None:
    with pytest.raises(ScriptError, match="wrong call of macro clear: missing a required") as error:

        @T.prim_func
        def main(A: T.Buffer((4,), "float32")):
            clear()

    assert error.value.code == "BW106"


def test_macros_in_modules_and_in_text() -> None:
    @I.ir_module
    class Module:
        @T.macro
        def twice(x):
            return x + x

        @T.prim_func
        def main(A: T.Buffer((4,), "int32"), n: T.int32):
            A[0] = twice(n)  # noqa: F821

    assert list(Module.functions) == ["main"]
    assert "A[0] = n + n" in repr(Module)
    text = """
        @T.macro(hygienic=False)
        def put(x):
            A[x] = x

        @T.prim_func
        def main(A: T.Buffer((4,), "int32")):
            put(3)
        """
    assert "A[3] = 3" in repr(from_source(textwrap.dedent(text)))


def test_macros_define_buffers_and_blocks() -> None:
    @T.macro
    def scaled(source, target, factor):
        tmp = T.alloc_buffer(source.shape, source.dtype)
        for i in range(16):
            with T.block("scale"):
                vi = T.axis.spatial(16, i)
                tmp[vi] = source[vi] * factor
        for i in range(16):
            with T.block("copy"):
                vi = T.axis.spatial(16, i)
                target[vi] = tmp[vi]

    @T.prim_func
    def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
        scaled(A, B, T.float32(2))
        scaled(B, A, T.float32(3))

    assert [b.name for b in ir.blocks(main)] == ["root", "scale", "copy", "scale", "copy"]
    assert len({id(b) for b in main.root.alloc_buffers}) == 2
    ir.assert_structural_equal(from_source(repr(main)), main)


def test_macros_of_the_graph_level() -> None:
    @R.macro
    def gated(x, y):
        gate = R.sigmoid(x)
        return R.multiply(gate, y)

    @R.function
    def main(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")):
        with R.dataflow():
            a = gated(x, y)
            b = gated(a, y)
            R.output(b)
        return b

    same(
        main,
        """
        @R.function
        def main(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")):
            with R.dataflow():
                gate = R.sigmoid(x)
                a = R.multiply(gate, y)
                gate_1 = R.sigmoid(a)
                b = R.multiply(gate_1, y)
                R.output(b)
            return b
        """,
    )
