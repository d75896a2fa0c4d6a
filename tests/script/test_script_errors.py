"""Errors point at the place, say what is wrong and what to write, and come all at once."""

from __future__ import annotations

import textwrap

import pytest

from blockwright.script.ir import from_source
from blockwright.support import ScriptError


def errors(text: str) -> ScriptError:
    with pytest.raises(ScriptError) as caught:
        from_source(textwrap.dedent(text).strip("\n") + "\n")
    return caught.value


def codes(text: str) -> list[str]:
    return [d.code for d in errors(text).diagnostics]


def test_all_problems_of_a_program_at_once(golden) -> None:
    error = errors("""
        @T.prim_func
        def broken(A: T.Buffer((16, 16), "float32"), B: T.Buffer((16,), "float32"), n):
            for i, j in T.grid(16, 16):
                with T.block("C"):
                    vi, vj = T.axis.remap("SSS", [i, j])
                    A[vi] = B[vi]
                with T.block("D"):
                    vi = T.axis.spatial(16, i)
                    B[vi] = T.exq(A[vi, lenght])
                    B[vi] = lenght
            for k in 5:
                pass
            x = A[0, 0] + T.float32(1, 2, wrong=3)
            y = x + 1.0
            B[0.5] = y
            del x
            A[0, 0] == 3.0
            B[0] = T.float32
            T.where(n > 3)
            try:
                pass
            finally:
                pass
            B[i] = B[0] / 0 + T.exp()
        """)
    golden("errors_tensor", str(error))
    assert error.code == error.diagnostics[0].code
    assert len(error.diagnostics) == 11


def test_graph_problems_at_once(golden) -> None:
    error = errors("""
        @I.ir_module
        class Module:
            x = 3

            def undecorated(): ...

            @R.function
            def main(x: R.Tensor(("n", 4), "float32"), y: int, z: R.Tensor((2.5,))):
                n = T.int32()
                with R.dataflow():
                    a = R.call_tir(cls.missing, (x,), out_sinfo=R.Tensor((n, 4), "float32"))
                    b = R.add(x, weight=x)
                    c = R.exp(hidden)
                    R.output(c, d)
                e = R.add(b, c)
                if x:
                    p = R.exp(x)
                else:
                    q = R.exp(x)
                x[0]
                f = R.constant("w")
                g = R.call_tir(cls.main, x)
                for i in range(3):
                    pass
        """)
    golden("errors_graph", str(error))
    assert len(error.diagnostics) >= 10


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("A[i] = 0", "BW102"),
        ("A[0, 0] = 0", "BW105"),
        ("A[0] = A[0, 1]", "BW105"),
        ("A[0:4, 0:4] = 0", "BW105"),
        ("C = T.alloc_buffer((4, 4))\n    C[0:2, 0:2] = T.Broadcast(T.float32(0), 2)", "BW107"),
        ("C = T.alloc_buffer((4, 4))\n    C[0:2, 0] = T.Broadcast(T.float32(0), 2)", "BW107"),
        ("A[0] = T.axis", "BW107"),
        ("A[0] = A", "BW107"),
        ("A[0:n] = 0", "BW107"),
        ("C = T.alloc_buffer((4,), elem_offset='off')", "BW107"),
        ("C = T.alloc_buffer((4,), elem_offset=1.5)", "BW107"),
        ("A[0] = T.int8(300)", "BW107"),
        ("A[0] = n / 2", "BW107"),
        ("x: T.int64 = n", "BW107"),
        ("for i in A:\n        pass", "BW103"),
        ("for i, j in T.grid(4):\n        pass", "BW106"),
        ("for i in range(0, 4, n):\n        pass", "BW106"),
        ("for i in range(4):\n        pass\n    else:\n        pass", "BW103"),
        ("with A:\n        pass", "BW103"),
        ("T.block('x')", "BW103"),
        ("with T.init():\n        pass", "BW108"),
        ("vi = T.axis.spatial(4, 0)", "BW108"),
        ("with T.block('b'):\n        T.where(n > 0)\n        T.where(n > 1)", "BW111"),
        ("with T.block('b'):\n        T.reads(A)\n        T.reads(A)", "BW111"),
        ("with T.block('b'):\n        T.reads(n)", "BW107"),
        ("with T.block('b'):\n        vi = T.axis.S(4, 0)\n        vj = T.axis.S(4)", "BW108"),
        ("with T.block('b'):\n        vi = T.axis.remap('S', [n])", "BW107"),
        ("for i in range(2):\n        B = T.alloc_buffer((4,))", "BW108"),
        ("a, b = n + 1, n + 2, n + 3", "BW106"),
        ("a = b = n", "BW103"),
        ("n += 1", "BW103"),
        ("A[0] = A if n > 0 else 2", "BW107"),
        ("A[0] = {k: k for k in (1, 2)}[1]", "BW104"),
        ("A[0] = T.exp(1.0, 2.0)", "BW106"),
        ("A[0] = T.serial(4)", "BW107"),
        ("A[0] = [1][3]", "BW109"),
        ("A[0] = n.__class__", "BW104"),
        ("A[0] = open", "BW102"),
        ("import os.path\n    A[0] = 0", "BW103"),
        ("class C:\n        pass", "BW103"),
        ("def helper():\n        pass", "BW103"),
        ("T.exp(T.float32(1))", "BW103"),
        ("T.Buffer((4,))", "BW103"),
        ("B = T.Buffer((4,))", "BW106"),
        ("A[0] = T.tvm_struct_get(0, 0, 1)", "BW115"),
        ("T.launch_thread(n, 4)", "BW107"),
        ("with T.Then():\n        pass", "BW108"),
        ("B = T.allocate_const([1, 2], 'int32', [3])", "BW107"),
        ("T.match_buffer(n, (4,))", "BW107"),
        ("A.shape = 3", "BW103"),
        ("A[0] = A[n > 1]", "BW107"),
        ("T.evaluate(cls.f.g)", "BW102"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_code(body: str, code: str) -> None:
    text = f'@T.prim_func\ndef f(A: T.Buffer((4,), "float32"), n: T.int32):\n    {body}\n'
    assert codes(text)[0] == code


def test_a_mistake_is_told_once() -> None:
    text = """
        @T.prim_func
        def f(A: T.Buffer((4,), "float32")):
            x = undefined + 1
            y = x + 1
            A[0] = y
        """
    assert codes(text) == ["BW102"]


def test_python_syntax_errors_point_at_the_place() -> None:
    error = errors("@T.prim_func\ndef f(A: T.handle):\n    A[ = 3\n")
    assert error.code == "BW101"
    assert error.diagnostics[0].span is not None
    assert error.diagnostics[0].span.line == 3


def test_close_names_are_suggested() -> None:
    assert "did you mean 'length'?" in str(
        errors("""
        @T.prim_func
        def f(length: T.int32):
            T.evaluate(lenght)
        """)
    )
    assert "did you mean T.exp?" in str(
        errors("@T.prim_func\ndef f():\n    T.evaluate(T.exq(1.0))")
    )


def test_columns_count_characters_not_bytes() -> None:
    error = errors('@T.prim_func\ndef f():\n    T.evaluate("äöü" + missing)\n')
    line, carets = str(error).splitlines()[1:3]
    assert line[carets.index("^") :].startswith("missing")


@pytest.mark.parametrize("text", ["", "x = 3", "print('hello')", "@T.prim_func\nclass A: pass"])
def test_text_without_a_program(text: str) -> None:
    with pytest.raises(ScriptError):
        from_source(text)
