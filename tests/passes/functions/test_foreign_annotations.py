"""What is stated of a value that a foreign function or a closure returns is checked, in both
interpreter and compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.runtime.ffi import tvm_ffi

X = np.arange(3, dtype="float32")
V = 'R.Tensor((n,), "float32")'
CALLS: list[str] = []


def array(x: Any) -> Any:
    return np.from_dlpack(x)


def returned(found: Any) -> Any:
    return tvm_ffi().from_dlpack(np.ascontiguousarray(found))


def tensor(x: Any) -> Any:
    return returned(array(x) + np.float32(1))


def matrix(x: Any) -> Any:
    return returned(array(x)[None])


def wide(x: Any) -> Any:
    return returned(array(x).astype("float64"))


def pair(x: Any) -> Any:
    return [tensor(x)] * 2


def triple(x: Any) -> Any:
    return [tensor(x)] * 3


def nested(x: Any) -> Any:
    return [tensor(x), pair(x)]


def number(x: Any) -> int:
    CALLS.append("number")
    return 3


def fraction(x: Any) -> float:
    return 0.5


def function(x: Any) -> Any:
    return tvm_ffi().convert(tensor)


FUNCTIONS = (tensor, matrix, wide, pair, triple, nested, number, fraction, function)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    for each in FUNCTIONS:
        tvm_ffi().register_global_func(f"test.stated.{each.__name__}", each, override=True)


def module(*lines: str) -> Any:
    body = "\n".join(f"        {line}" for line in lines)
    return bw.from_source(f"""
@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
{body}
""")


STATED = [
    ('R.Tensor(ndim=1, dtype="float32")', "y", "tensor", ["number", "wide", "pair", "matrix"]),
    ('R.Tensor(dtype="float32")', "y", "matrix", ["wide", "number"]),
    ("R.Tensor(ndim=2)", "y", "matrix", ["tensor", "triple"]),
    (f"R.Tuple({V}, {V})", "y[1]", "pair", ["triple", "tensor", "number", "nested"]),
    (f"R.Tuple({V}, R.Object)", "y[1]", "pair", ["triple", "tensor"]),
    (f"R.Tuple({V}, R.Tuple({V}, {V}))", "y[1][1]", "nested", ["pair", "triple"]),
    ("R.Tuple(R.Tensor(ndim=1), R.Object)", "y[0]", "pair", ["number"]),
    (f"R.Callable(({V},), {V})", "y", "function", ["tensor", "number"]),
    ('R.Prim("int64")', "x", "number", ["tensor", "fraction"]),
]


@pytest.mark.parametrize(
    ("stated", "result", "right", "wrong", "cast"),
    [(*row, cast) for row in STATED for cast in (False, True) if not cast or "Tuple" not in row[0]],
)
def test_what_is_stated_of_a_foreign_value_is_checked(
    stated: str, result: str, right: str, wrong: list[str], cast: bool
) -> None:
    for name in (right, *wrong):
        call = f'R.call_packed("test.stated.{name}", x, sinfo_args={stated})'
        if cast:
            call = f'R.match_cast(R.call_packed("test.stated.{name}", x), {stated})'
        built = module(f"y = {call}", f"return {result}")
        exe = bw.compile(built)
        if name == right:
            for found in (exe(X), bw.interpret(built, X)):
                assert callable(found) or found.size == 3
            continue
        with pytest.raises(bw.BlockwrightError) as caught:
            exe(X)
        assert caught.value.code in ("BW702", "BW703", "BW704")
        with pytest.raises(bw.BlockwrightError) as caught:
            bw.interpret(built, X)
        assert caught.value.code in ("BW702", "BW703", "BW704", "BW769")


def test_a_call_for_a_number_is_made() -> None:
    call = 'R.call_packed("test.stated.number", x, sinfo_args=R.Prim("int64"))'
    exe = bw.compile(module(f"y = {call}", "return x"))
    CALLS.clear()
    exe(X)
    assert CALLS == ["number"]


@pytest.mark.parametrize(
    "line",
    [
        'y = R.call_packed("test.stated.number", x, sinfo_args=R.Shape((n,)))',
        'y = R.match_cast(R.call_packed("test.stated.number", x), R.Shape((n, 3)))',
        f'y = R.match_cast(R.call_packed("test.stated.pair", x), R.Tuple({V}, {V}))',
    ],
)
def test_what_compiled_code_does_not_read_is_refused(line: str) -> None:
    with pytest.raises(bw.GraphError) as caught:
        bw.compile(module(line, "return x" if "Shape" in line else "return y[0]"))
    assert caught.value.code == "BW407"


def test_a_cast_takes_a_foreign_number_in_the_interpreter() -> None:
    built = module(
        'y = R.match_cast(R.call_packed("test.stated.number", x), R.Prim("int64"))', "return y"
    )
    assert bw.interpret(built, X) == 3


CLOSURES = {
    "known": """
        g = R.make_closure(cls.add, (x,))""",
    "chosen": """
        @R.function
        def negated(v: R.Tensor(("n",), "float32")):
            return R.negative(v)
        if b:
            g = R.make_closure(cls.add, (x,))
        else:
            g = negated""",
}


def invoked(how: str, stated: str, result: str = "y") -> Any:
    return bw.from_source(f"""
@I.ir_module
class Module:
    @R.function(private=True)
    def add(x: R.Tensor(("n",), "float32"), z: R.Tensor(("n",), "float32")):
        return R.add(x, z)
    @R.function
    def main(x: R.Tensor(("n",), "float32"), b: R.Tensor((), "bool")):
        n = T.int64()
{CLOSURES[how]}
        y = R.invoke_closure(g, (x,), sinfo_args=({stated},))
        return {result}
""")


@pytest.mark.parametrize("how", CLOSURES)
@pytest.mark.parametrize(
    "stated",
    [
        'R.Tensor((n + 1,), "float32")', 'R.Tensor((n,), "float16")', "R.Tensor(ndim=2)",
        f"R.Tuple({V})", 'R.Prim("int64")', "R.Shape((n,))",
    ],
)  # fmt: skip
def test_what_a_call_of_a_closure_states_does_not_contradict_its_signature(
    how: str, stated: str
) -> None:
    for entry in (bw.validate, bw.build, bw.compile):
        with pytest.raises(bw.BlockwrightError) as caught:
            entry(invoked(how, stated))
        assert caught.value.code == "BW408"


@pytest.mark.parametrize("how", CLOSURES)
@pytest.mark.parametrize("result", ["y", "R.add(y, y)"])
def test_what_the_signature_does_not_imply_is_checked_at_the_call(how: str, result: str) -> None:
    built = invoked(how, 'R.Tensor((4,), "float32")', result)
    exe, four, flag = bw.compile(built), np.arange(4, dtype="float32"), np.array(True)
    factor = 2 if result == "y" else 4
    np.testing.assert_array_equal(exe(four, flag), factor * four)
    np.testing.assert_array_equal(bw.interpret(built, four, flag), factor * four)
    with pytest.raises(bw.BlockwrightError) as caught:
        exe(X, flag)
    assert caught.value.code == "BW704"
    with pytest.raises(bw.InterpretError):
        bw.interpret(built, X, flag)


@pytest.mark.parametrize("how", CLOSURES)
@pytest.mark.parametrize("stated", [V, "R.Object", 'R.Tensor(ndim=1, dtype="float32")'])
def test_a_coarser_statement_loses_nothing(how: str, stated: str) -> None:
    built = invoked(how, stated, "R.add(y, x)")
    np.testing.assert_array_equal(bw.compile(built)(X, np.array(True)), 3 * X)


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ((X, X + 1), X, ""),
        ((X, X, X), X, "BW702"),
        (X, X, "BW702"),
        ((X, X), 3, "BW702"),
        ((X, X), X.astype("float64"), "BW703"),
        ((X, X), X[None], "BW704"),
    ],
)
def test_the_checks_are_in_the_host_program(first: Any, second: Any, code: str) -> None:
    exe = bw.compile(
        module(
            f'y = R.call_packed("first", x, sinfo_args=R.Tuple({V}, {V}))',
            'z = R.call_packed("second", x, sinfo_args=R.Tensor(ndim=1, dtype="float32"))',
            f"w = R.match_cast(z, {V})",
            "return R.add(y[1], w)",
        )
    )
    out = np.zeros(3, "float32")

    def one(x: Any) -> Any:
        return first

    def two(x: Any) -> Any:
        return second

    packed = {"first": one, "second": two}
    if not code:
        bw.interpret(exe.lowered, X, out, packed=packed)
        np.testing.assert_array_equal(out, 2 * X + 1)
        return
    with pytest.raises(bw.InterpretError) as caught:
        bw.interpret(exe.lowered, X, out, packed=packed)
    assert caught.value.code == code
