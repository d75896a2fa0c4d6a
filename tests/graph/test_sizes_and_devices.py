"""Sizes that a call cannot have, and devices that the target is not."""

from __future__ import annotations

import textwrap
import warnings

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.sizes import divides_by_zero, nonzero_divisors
from blockwright.arith import Analyzer
from blockwright.support import ArgumentError, BlockwrightError

VECTOR = 'x: R.Tensor(("n",), "float32")'
ON = 'x: R.Tensor((4,), "float32", device="{}"), y: R.Tensor((4,), "float32", device="{}")'


def module(body: str, params: str = VECTOR, result: str = "") -> ir.IRModule:
    arrow = f" -> {result}" if result else ""
    main = f"@R.function\ndef main({params}){arrow}:\n{textwrap.indent(body, '    ')}\n"
    return bw.from_source(f"@I.ir_module\nclass M:\n{textwrap.indent(main, '    ')}\n")


def codes(built: ir.IRModule) -> list[str]:
    """What validation for the target and compilation refuse a module with; "" where it is fine."""
    found: list[str] = []
    for check in (lambda m: bw.validate(m, "native"), bw.compile):
        try:
            check(built)
            found.append("")
        except BlockwrightError as error:
            found.append(error.code)
    return found


def call(compiled: bw.Executable, *sizes: int) -> str:
    """The code of the error of a call with vectors of those sizes; "" of none."""
    try:
        compiled(*(np.ones(n, "float32") for n in sizes))
    except ArgumentError as error:
        return error.code
    return ""


# ---------------------------------------------------------------------------------------- devices
@pytest.mark.parametrize("device", ["cuda:0", "gpu", "foo:7", "cuda:x"])
def test_devices_that_the_target_is_not(device: str) -> None:
    tensor = f'R.Tensor((4,), "float32", device="{device}")'
    cast = f"y = R.match_cast(x, {tensor})\nreturn R.add(y, y)"
    host = 'x: R.Tensor((4,), "float32")'
    assert codes(module("return R.add(x, x)", f"x: {tensor}")) == ["BW258"] * 2
    assert codes(module(cast, host)) == ["BW258"] * 2
    assert codes(module("return R.add(x, x)", host, tensor)) == ["BW258"] * 2
    assert codes(module("return t[0]", f"t: R.Tuple({tensor})")) == ["BW258"] * 2


def test_devices_of_one_operator() -> None:
    with pytest.raises(BlockwrightError, match="different devices: cuda, cpu") as caught:
        bw.validate(module("return R.add(x, y)", ON.format("cuda", "cpu")))
    assert caught.value.code == "BW401"
    bw.validate(module("return R.add(x, y)", ON.format("cuda", "cuda")))
    assert codes(module("return R.add(x, y)", ON.format("cpu", "cpu:1"))) == ["BW401"] * 2


def test_the_target_itself() -> None:
    for other in ("cpu", "cpu:0", "llvm", "cpu:0:global"):
        assert codes(module("return R.add(x, y)", ON.format("cpu", other))) == ["", ""]


# ------------------------------------------------------------------------------------------ sizes
@pytest.mark.parametrize("size", ["n // 0", "n % 0", "3 + 6 // (2 * n - n - n)"])
@pytest.mark.parametrize("body", [
    "return R.zeros(R.shape([{}]), dtype='float32')",
    "y: R.Tensor(({},), 'float32') = R.add(x, x)\nreturn y",
    "s = R.shape([{}])\nreturn x",
    "y = R.match_cast(x, R.Tensor(({},), 'float32'))\nreturn y",
])  # fmt: skip
def test_sizes_that_divide_by_the_constant_zero(size: str, body: str) -> None:
    assert codes(module(body.format(size))) == ["BW250"] * 2


def test_extents_of_programs_that_divide_by_the_constant_zero() -> None:
    program = """
@T.prim_func
def f(a: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.alloc_buffer((n // 0,), "float32")
    A[0] = T.float32(1)
"""
    with pytest.raises(BlockwrightError) as caught:
        bw.validate(bw.from_source(program))
    assert caught.value.code == "BW250"


@pytest.mark.parametrize("body", [
    "return R.zeros(R.shape([{}]), dtype='float32')",
    "return R.sum(R.zeros(R.shape([{}]), dtype='float32'))",
    "y = R.match_cast(x, R.Tensor(({},), 'float32'))\nreturn R.sum(x)",
])  # fmt: skip
def test_sizes_of_results_and_values_in_calls(body: str) -> None:
    """36 // (n - 6): by zero at 6, negative at 5, of the cast another one than n at 8."""
    compiled = bw.compile(module(body.format("36 // (n - 6)")))
    wrong = "BW704" if "cast" in body else ""
    assert [call(compiled, n) for n in (6, 5, 8)] == ["BW716", "BW708", wrong]


def test_divisions_in_parameters() -> None:
    compiled = bw.compile(
        module("return R.add(x, x)", f'{VECTOR}, y: R.Tensor(("6 // n",), "float32")')
    )
    assert [call(compiled, 2, 3), call(compiled, 0, 0), call(compiled, 2, 2)] == [
        "",
        "BW716",
        "BW704",
    ]


@pytest.mark.parametrize(
    ("size", "fine", "negative"), [("n + 3", 3, 2), ("2 * n + 4", 4, 2), ("5 - n", 5, 6)]
)
def test_symbols_that_are_solved_for_are_not_negative(size: str, fine: int, negative: int) -> None:
    compiled = bw.compile(module("return R.add(x, x)", f'x: R.Tensor(("{size}",), "float32")'))
    assert [call(compiled, fine), call(compiled, negative)] == ["", "BW708"]


def test_conditions_for_divisors() -> None:
    n, m = ir.var("n", "int64"), ir.var("m", "int64")
    zero = ir.const(0, "int64")
    assert divides_by_zero(ir.add(n, ir.FloorDiv(n, zero)))
    assert not divides_by_zero(ir.FloorDiv(zero, n))
    assert not nonzero_divisors([ir.floordiv(n, 2), ir.floormod(n, -3)])
    twice = nonzero_divisors([ir.FloorDiv(m, n), ir.FloorMod(m, n)])
    assert [repr(holds) for holds in twice] == ["n != 0"]
    chosen = ir.Select(ir.compare(ir.GT, n, zero), ir.FloorDiv(m, n), zero)
    (holds,) = nonzero_divisors([chosen])
    assert Analyzer().prove(ir.substitute(holds, {n: zero}))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint32", "uint64"])
def test_symbols_of_other_types(kind: str) -> None:
    body = f"n = T.{kind}()\nreturn R.add(x, R.zeros(R.shape([n]), dtype='float32'))"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert codes(module(body)) == ["BW250"] * 2


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint32", "uint64"])
@pytest.mark.parametrize(
    "body",
    [
        "return R.full(R.shape([{size}]), R.const(1.0, 'float32'))",
        "s = R.shape([{size}, 4])\nreturn R.reshape(R.concat((x, x, x, x)), s)",
        "y: R.Tensor(({size},), 'float32') = x\nreturn y",
    ],
)
def test_expressions_of_other_types(kind: str, body: str) -> None:
    """A conversion to one of them and back is a size: it is reduced modulo 2**n."""
    narrow = f"T.Cast('{kind}', n)"
    built = module("n = T.int64()\n" + body.format(size=narrow))
    assert codes(built) == ["BW250"] * 2


@pytest.mark.parametrize(("kind", "size"), [("int8", 44), ("uint8", 44), ("uint32", 300)])
def test_a_size_is_reduced_modulo_the_width_of_a_narrower_type(kind: str, size: int) -> None:
    narrow = f"R.shape([T.Cast('int64', T.Cast('{kind}', n))])"
    built = module(f"n = T.int64()\nreturn R.full({narrow}, R.const(1.0, 'float32'))")
    x = np.zeros(300, "float32")
    assert bw.interpret(built, x).shape == bw.compile(built)(x).shape == (size,)


def test_sizes_of_int32_bind_symbols_of_int64() -> None:
    """The limits of a symbol's range may not fit the type of its value."""
    built = bw.from_source("""
@I.ir_module
class M:
    @T.prim_func(private=True)
    def copy(x: T.handle, y: T.handle):
        n = T.int64()
        X = T.match_buffer(x, (n,), "float32")
        Y = T.match_buffer(y, (n,), "float32")
        for i in range(n):
            with T.block("Y"):
                vi = T.axis.spatial(n, i)
                Y[vi] = X[vi]

    @R.function(private=True)
    def exp(a: R.Tensor(("p",), "float32")) -> R.Tensor(("p",), "float32"):
        return R.exp(a)

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        y = R.call_tir(cls.copy, (x,), out_sinfo=R.Tensor((T.Cast("int32", n),), "float32"))
        return cls.exp(y)
""")
    x = np.arange(3, dtype="float32")
    np.testing.assert_allclose(bw.compile(built)(x), np.exp(x), rtol=1e-6)


def test_sizes_whose_factors_are_too_large() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        body = "return R.zeros(R.shape([n * 2**40, 2**40 * n]), dtype='float32')"
        assert codes(module(body)) == ["BW250"] * 2


@pytest.mark.parametrize(("value", "kind", "fits"), [
    ("1.5", "int32", False), ("[1, 2.5]", "int64", False), ("9", "int4", False),
    ("300", "uint8", False), ("float('nan')", "int32", False), ("1.0", "int32", True),
    ("2**63", "uint64", True), ("2**53 + 1", "int64", True), ("True", "int32", True),
    ("0.1", "float32", True), ("[]", "int64", True),
])  # fmt: skip
def test_numbers_of_constants(value: str, kind: str, fits: bool) -> None:
    text = f"return R.const({value}, '{kind}')"
    if fits:
        bw.validate(module(text))
        return
    with pytest.raises(BlockwrightError) as caught:
        module(text)
    assert caught.value.code in ("BW107", "BW109")
