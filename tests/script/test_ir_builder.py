"""The IR builder makes the program that the same text parses to."""

from __future__ import annotations

import textwrap

import pytest

from blockwright import ir
from blockwright.script import tir as T
from blockwright.script.ir import from_source
from blockwright.script.ir_builder import IRBuilder
from blockwright.support import ScriptError


def parsed(text: str) -> ir.PrimFunc:
    return from_source(textwrap.dedent(text))


def same(func: ir.PrimFunc, text: str) -> None:
    expected = parsed(text)
    ir.assert_structural_equal(func, expected)
    assert repr(func) == repr(expected)


def test_loops_blocks_and_buffers() -> None:
    with IRBuilder() as ib, T.prim_func():
        T.func_name("matmul")
        T.func_attr({"tir.noalias": True})
        A = T.arg("A", T.Buffer((8, 8), "float32"))
        c = T.arg("c", T.handle())
        C = ib.name("C", T.match_buffer(c, (8, 8), "float32"))
        B = ib.name("B", T.alloc_buffer((8, 8), "float32"))
        with T.grid(8, 8) as (i, j), T.block("B"):
            vi, vj = ib.name_many(["vi", "vj"], T.axis.remap("SS", [i, j]))
            T.buffer_store(B, A[vi, vj] * T.float32(2), [vi, vj])
        with T.grid(8, 8, 8) as (i, j, k), T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            ib.name_many(["vi", "vj", "vk"], [vi, vj, vk])
            with T.init():
                T.buffer_store(C, 0.0, [vi, vj])
            T.buffer_store(C, C[vi, vj] + A[vi, vk] * B[vk, vj], [vi, vj])
    same(
        ib.get(),
        """
        @T.prim_func
        def matmul(A: T.Buffer((8, 8), "float32"), c: T.handle):
            T.func_attr({"tir.noalias": True})
            C = T.match_buffer(c, (8, 8), "float32")
            B = T.alloc_buffer((8, 8), "float32")
            for i0, i1 in T.grid(8, 8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i0, i1])
                    B[vi, vj] = A[vi, vj] * T.float32(2)
            for i0, i1, i2 in T.grid(8, 8, 8):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i0, i1, i2])
                    with T.init():
                        C[vi, vj] = 0.0
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
        """,
    )


def test_control_flow_and_kinds_of_loops() -> None:
    with IRBuilder() as ib, T.prim_func(private=True):
        T.func_name("control")
        A = T.arg("A", T.Buffer((16,), "int32"))
        n = T.arg("n", T.int32())
        T.Assert(n > 0, "positive")
        with T.parallel(n) as i:
            ib.name("i", i)
            with T.If(A[i] > 3):
                with T.Then():
                    T.buffer_store(A, 0, [i])
                with T.Else():
                    T.buffer_store(A, 1, [i])
            with T.While(A[i] < n), T.LetStmt(A[i] + 1) as x:
                T.buffer_store(A, ib.name("x", x), [i])
        with T.launch_thread("threadIdx.x", 16) as tx:
            T.buffer_store(A, 0, [ib.name("tx", tx)])
    same(
        ib.get(),
        """
        @T.prim_func(private=True)
        def control(A: T.Buffer((16,), "int32"), n: T.int32):
            assert n > 0, "positive"
            for i in T.parallel(n):
                if A[i] > 3:
                    A[i] = 0
                else:
                    A[i] = 1
                while A[i] < n:
                    x: T.int32 = A[i] + 1
                    A[i] = x
            with T.launch_thread("threadIdx.x", 16) as tx:
                A[tx] = 0
        """,
    )


def test_frames_in_a_script_say_the_same_as_its_statements() -> None:
    framed = parsed("""
        @T.prim_func
        def f(A: T.Buffer((4,), "int32"), n: T.int32):
            with T.If(n > 0):
                with T.Then():
                    A[0] = 1
                with T.Else():
                    A[0] = 2
            with T.While(A[1] < n):
                A[1] += 1
            with T.Assert(n > 1, "more"):
                A[2] = n
        """)
    same(
        framed,
        """
        @T.prim_func
        def f(A: T.Buffer((4,), "int32"), n: T.int32):
            if n > 0:
                A[0] = 1
            else:
                A[0] = 2
            while A[1] < n:
                A[1] += 1
            assert n > 1, "more"
            A[2] = n
        """,
    )


def test_python_functions_emit_into_the_builder() -> None:
    def twice(emit) -> None:
        for k in range(2):
            emit(k)

    with IRBuilder() as ib, T.prim_func():
        A = T.arg("A", T.Buffer((4,), "int32"))
        twice(lambda k: T.buffer_store(A, k, [k]))
        T.If(A[0] > 1, lambda: T.buffer_store(A, 7, [3]))
    assert "A[0] = 0\n    A[1] = 1\n    if A[0] > 1:\n        A[3] = 7" in repr(ib.get())


@pytest.mark.parametrize(
    ("run", "code", "text"),
    [
        (lambda ib: ib.get(), "BW108", "no function was built"),
        (lambda ib: T.evaluate(0), "BW108", "misplaced"),
        (lambda ib: T.arg("A", T.int32()), "BW108", "it belongs in T.prim_func"),
        (lambda ib: ib.name("x", 3), "BW107", "only variables and buffers have names"),
        (lambda ib: T.Then(), "BW108", "directly in T.If"),
    ],
)  # fmt: skip
def test_mistakes_say_what_to_do(run, code: str, text: str) -> None:
    with IRBuilder() as ib, pytest.raises(ScriptError, match=text) as caught:
        run(ib)
    assert caught.value.code == code


def test_an_open_frame_and_an_empty_choice_are_refused() -> None:
    with IRBuilder() as ib, pytest.raises(ScriptError, match="still open"), T.prim_func():
        ib.get()
    empty = pytest.raises(ScriptError, match=r"T\.If must contain T\.Then")
    with empty, IRBuilder(), T.prim_func(), T.If(T.int32(1) > 0):
        pass
