"""What is not dialect is Python: captured values, helper functions, emission, loops over lists."""

from __future__ import annotations

import textwrap

import pytest

from blockwright import ir
from blockwright.script import ir as I
from blockwright.script import relax as R
from blockwright.script import tir as T
from blockwright.script.ir import from_source
from blockwright.support import BlockwrightError, ScriptError

SIZE = 16


def gelu(x: ir.Expr) -> ir.Expr:
    """A helper that returns an expression."""
    return x * T.float32(0.5) * (T.erf(x * T.float32(0.7071067811865476)) + T.float32(1))


def fill(buffer: ir.Buffer, value: float) -> None:
    """A helper that emits statements."""
    with T.serial(0, SIZE) as i:
        T.buffer_store(buffer, value, [i])


def same(a: ir.Node, text: str) -> None:
    ir.assert_structural_equal(a, from_source(textwrap.dedent(text)))


def test_python_values_and_functions_are_spliced() -> None:
    shape = (SIZE,)

    @T.prim_func
    def main(A: T.Buffer(shape, "float32"), B: T.Buffer(shape, "float32")):
        for i in range(SIZE):
            with T.block("B"):
                vi = T.axis.spatial(SIZE, i)
                B[vi] = gelu(A[vi])

    same(
        main,
        """
        @T.prim_func
        def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
            for i in range(16):
                with T.block("B"):
                    vi = T.axis.spatial(16, i)
                    B[vi] = A[vi] * T.float32(0.5) * (
                        T.erf(A[vi] * T.float32(0.7071067811865476)) + T.float32(1))
        """,
    )


def test_helpers_emit_statements_where_they_are_called() -> None:
    @T.prim_func
    def main(A: T.Buffer((SIZE,), "float32"), B: T.Buffer((SIZE,), "float32")):
        fill(A, 1.0)
        for offset in [2, 3]:
            B[offset] = A[offset]
        if SIZE > 8:
            fill(B, 0.0)
        else:
            B[0] = undefined_but_never_looked_at  # noqa: F821

    same(
        main,
        """
        @T.prim_func
        def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
            for i in T.serial(0, 16):
                A[i] = T.float32(1)
            B[2] = A[2]
            B[3] = A[3]
            for i in T.serial(0, 16):
                B[i] = T.float32(0)
        """,
    )


def test_comprehensions_and_lambdas_are_python() -> None:
    weights = [0.25, 0.5, 0.25]

    @T.prim_func
    def blur(A: T.Buffer((18,), "float32"), B: T.Buffer((16,), "float32")):
        for i in range(16):
            with T.block("B"):
                vi = T.axis.spatial(16, i)
                B[vi] = sum(A[vi + k] * w for k, w in enumerate(weights) if w > 0)

    @T.prim_func
    def square(A: T.Buffer((18,), "float32")):
        A[0] = (lambda x: x * x)(A[1])
        T.print(f"{len(weights)} weights")

    assert "A[vi + 2] * T.float32(0.25)" in repr(blur)
    assert "A[0] = A[1] * A[1]" in repr(square)
    assert 'T.print("3 weights")' in repr(square)


def test_helpers_index_buffers() -> None:
    def at(buffer: ir.Buffer, i: ir.Expr) -> ir.Expr:
        return buffer[i, 0] + 1.0

    @T.prim_func
    def main(A: T.Buffer((4, 4), "float32")):
        for i in range(4):
            A[i, 1] = at(A, i)

    assert "A[i, 1] = A[i, 0] + T.float32(1.0)" in repr(main)


def test_meta_variables_do_not_become_variables_of_the_program() -> None:
    @T.prim_func
    def main(A: T.Buffer((4,), "int32"), n: T.int32):
        twice = T.meta_var(n * 2)
        A[twice] = twice
        once = n + 1
        A[once] = once

    assert "A[n * 2] = n * 2" in repr(main)
    assert "once: T.int32 = n + 1" in repr(main)


def test_captured_symbols_are_shared() -> None:
    n = T.int64()

    @T.prim_func
    def main(a: T.handle):
        A = T.match_buffer(a, (n,), "float32")
        for i in range(n):
            A[i] = T.float32(0)

    assert main.buffers[0].shape[0] is n
    ir.assert_structural_equal(from_source(repr(main)), main)


def test_modules_are_parsed_as_a_whole() -> None:
    @I.ir_module
    class Module:
        I.module_attrs({"version": 1})

        @T.prim_func(private=True)
        def copy(A: T.Buffer((SIZE,), "float32"), B: T.Buffer((SIZE,), "float32")):
            for i in range(SIZE):
                B[i] = A[i]

        @R.function
        def main(x: R.Tensor((SIZE,), "float32")):
            y = R.call_tir(cls.copy, (x,), out_sinfo=R.Tensor((SIZE,), "float32"))  # noqa: F821
            return y  # noqa: RET504

    assert list(Module.functions) == ["copy", "main"]
    assert Module["copy"].attrs["tir.is_private"] is True
    assert Module.attrs == {"version": 1}


def test_functions_in_ordinary_classes_are_functions() -> None:
    class Namespace:
        @T.prim_func
        def zero(A: T.Buffer((1,), "float32")):
            A[0] = T.float32(0)

    assert isinstance(Namespace.zero, ir.PrimFunc)
    assert Namespace.zero.name == "zero"


def test_spans_point_into_this_file() -> None:
    @T.prim_func
    def main(A: T.Buffer((4,), "int32")):
        A[0] = A[1] + 2

    store = ir.collect(main, ir.BufferStore)[0]
    assert store.span is not None
    assert store.span.source.name == __file__
    assert store.span.source.line(store.span.line).strip() == "A[0] = A[1] + 2"
    assert store.value.span is not None
    assert store.value.span.column == store.span.column + len("A[0] = ")


def test_errors_in_decorated_functions_point_into_this_file() -> None:
    with pytest.raises(ScriptError, match=r"test_script_splice\.py:\d+:20: error\[BW102\]: 'nope'"):

        @T.prim_func
        def main(A: T.Buffer((4,), "int32")):
            A[0] = nope  # noqa: F821


def test_exceptions_of_spliced_python_are_reported_at_the_call() -> None:
    def bad() -> int:
        raise RuntimeError("on purpose")

    with pytest.raises(ScriptError, match="RuntimeError: on purpose") as caught:

        @T.prim_func
        def main(A: T.Buffer((4,), "int32")):
            A[0] = bad()

    assert caught.value.code == "BW109"


def test_a_function_without_a_file_says_what_to_do() -> None:
    names: dict[str, object] = {"T": T}
    with pytest.raises(ScriptError, match="from_source"):
        exec("@T.prim_func\ndef f(): pass", names)


@pytest.mark.parametrize(
    "attack",
    ["__import__('os')", "().__class__", "eval('1')", "open('f')", "T.caller_environment(0)",
     "T.exp.__globals__", "R.ir", "I.named_array", "T.expressions.ir"],
)  # fmt: skip
def test_text_cannot_reach_python(attack: str) -> None:
    with pytest.raises(ScriptError):
        from_source(f"@T.prim_func\ndef f():\n    T.evaluate({attack})\n")


def test_text_uses_the_names_it_is_given() -> None:
    text = "@T.prim_func\ndef f(A: T.Buffer((n,), 'int8')):\n    A[n - 1] = T.int8(k)\n"
    function = from_source(text, env={"n": 8, "k": 3})
    assert "A[7] = 3" in repr(function)


def test_dialect_statements_outside_a_program_explain_themselves() -> None:
    with pytest.raises(BlockwrightError, match="inside a function that is being parsed"):
        T.evaluate(T.int32(0))


@pytest.mark.parametrize("name", sorted(ir.OPS.keys() - {"tensor"}))  # which takes a buffer
def test_every_builtin_operation_has_a_spelling(name: str) -> None:
    row = ir.op_row(name)
    kind = (
        "bool" if name == "likely" else "int32" if "bit" in name or "shift" in name else "float32"
    )
    count = max(row.arity, 0) if row.arity >= 0 else 2
    args: list[ir.Expr] = [ir.var(f"x{k}", kind) for k in range(count)]
    if name == "if_then_else":
        args[0] = ir.var("c", "bool")
    if name.startswith("call_"):
        args[0] = ir.StringImm("name")
    if name.startswith("vector_reduce"):
        args[0] = ir.var("x0", "float32x8")
    call = ir.Call(name, tuple(args), ir.dtype_of("float64x2"))
    params = tuple(a for a in args if isinstance(a, ir.Var))
    function = ir.PrimFunc(params, (), ir.Evaluate(call), {"global_symbol": "f"})
    ir.assert_structural_equal(from_source(repr(function)), function)
