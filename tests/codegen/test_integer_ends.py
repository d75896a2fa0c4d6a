"""Integers at the ends of their types: native code and interpreter compute as NumPy does."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SIGNED = ("int8", "int16", "int32", "int64")
Array = np.ndarray[Any, Any]


def pairs(dtype: str) -> tuple[Array, Array]:
    """Every pair of numbers at the ends of a type and around 0."""
    info = np.iinfo(dtype)
    near = {info.min, info.min + 1, info.max - 1, info.max, *range(max(info.min, -4), 5)}
    ends = np.array(sorted(near), dtype)
    x, y = np.meshgrid(ends, ends)
    return np.ascontiguousarray(x.reshape(-1)), np.ascontiguousarray(y.reshape(-1))


def run(dtype: str, text: str, *, result: str | None = None) -> tuple[Array, Array, Array]:
    """What a program that stores the expression `text` of `x` and `y` computes, with its inputs.

    Interpreter and native code, as loops and as vectors, must agree.
    """
    x, y = pairs(dtype)
    n, result = len(x), result or dtype
    body = re.sub(r"\b([xy])\b", lambda name: f"{name[0].upper()}[vi]", text)
    func = bw.from_source(f'''
@T.prim_func
def main(X: T.Buffer(({n},), "{dtype}"), Y: T.Buffer(({n},), "{dtype}"),
         Z: T.Buffer(({n},), "{result}")):
    for i in range({n}):
        with T.block("Z"):
            vi = T.axis.spatial({n}, i)
            Z[vi] = {body}
''')
    assert isinstance(func, ir.PrimFunc)
    vector = bw.Schedule(func)
    _, inner = vector.split(vector.get_loops("Z")[0], [None, 8])
    vector.vectorize(inner)
    expected = np.zeros(n, result)
    bw.interpret(func, x, y, expected)
    for made in (func, vector.func):
        actual = np.zeros(n, result)
        bw.build(made)["main"](x, y, actual)
        np.testing.assert_array_equal(actual, expected, text)
    return x, y, expected


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("number", [-3, 1, 3])
def test_comparisons_with_a_number(dtype: str, number: int) -> None:
    low = np.iinfo(dtype).min
    for op, fn in (
        (">", np.greater),
        ("<", np.less),
        (">=", np.greater_equal),
        ("<=", np.less_equal),
        ("==", np.equal),
    ):
        x, _, z = run(dtype, f"x {op} T.{dtype}({number})", result="bool")
        np.testing.assert_array_equal(z, fn(x, np.array(number, dtype)))
    x, _, z = run(dtype, f"x > T.{dtype}({low})", result="bool")
    np.testing.assert_array_equal(z, x != low)
    x, _, z = run(dtype, f"T.{dtype}({low}) + x == T.{dtype}(0)", result="bool")
    np.testing.assert_array_equal(z, x == low)


@pytest.mark.parametrize("dtype", TYPES)
def test_sums_with_extrema_wrap(dtype: str) -> None:
    with np.errstate(all="ignore"):
        x, y, z = run(dtype, "T.max(x, y) - x")
        np.testing.assert_array_equal(z, np.maximum(x, y) - x)
        x, y, z = run(dtype, "T.max(x, y) - T.min(x, y)")
        np.testing.assert_array_equal(z, np.maximum(x, y) - np.minimum(x, y))
        three, four = np.array(3, dtype), np.array(4, dtype)
        x, y, z = run(dtype, f"T.max(x, T.{dtype}(3)) - T.{dtype}(4)")
        np.testing.assert_array_equal(z, np.maximum(x, three) - four)
        x, y, z = run(dtype, "T.min(x + y, x) - x")
        np.testing.assert_array_equal(z, np.minimum(x + y, x) - x)
        x, y, z = run(dtype, f"T.Select(x + T.{dtype}(1) > x, x, y)")
        np.testing.assert_array_equal(z, np.where(x + np.array(1, dtype) > x, x, y))


@pytest.mark.parametrize("dtype", TYPES)
def test_quotients_by_a_number(dtype: str) -> None:
    for number in (-3, -2, -1, 2, 3, 7) if dtype.startswith("int") else (2, 3, 7):
        c = np.array(number, dtype)
        with np.errstate(all="ignore"):
            for text, fn in (
                ("x // {}", np.floor_divide),
                ("x % {}", np.mod),
                ("T.truncmod(x, {})", np.fmod),
            ):
                x, _, z = run(dtype, text.format(f"T.{dtype}({number})"))
                np.testing.assert_array_equal(z, fn(x, c), text)
            x, _, z = run(dtype, f"T.truncdiv(x, T.{dtype}({number}))")
            np.testing.assert_array_equal(z, np.floor_divide(x - np.fmod(x, c), c))


@pytest.mark.parametrize("dtype", SIGNED)
def test_least_number(dtype: str) -> None:
    low = np.iinfo(dtype).min
    x, _, z = run(dtype, "T.abs(x)")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(z, np.abs(x))
        x, _, z = run(dtype, f"T.{dtype}(0) - x")
        np.testing.assert_array_equal(z, -x)
    _, y, z = run(dtype, f"T.{dtype}({low}) // (y | T.{dtype}(1))")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(z, np.floor_divide(np.array(low, dtype), y | 1))


def test_narrow_products_in_a_wide_type_do_not_lose_their_sign() -> None:
    """A product of two unsigned 16-bit numbers may be negative in 32 bits, and is divided so."""
    text = "T.Cast('int32', x) * T.Cast('int32', y) // T.int32(3)"
    x, y, z = run("uint16", text, result="int32")
    product = x.astype(np.int32) * y.astype(np.int32)
    np.testing.assert_array_equal(z, np.floor_divide(product, 3))
    x, y, z = run("uint32", "T.Cast('int32', x) // T.int32(5)", result="int32")
    np.testing.assert_array_equal(z, np.floor_divide(x.astype(np.int32), 5))


def test_casts_of_sums_widen_what_wrapped() -> None:
    x, y, z = run("int32", "T.Cast('int64', x + y) - T.Cast('int64', x)", result="int64")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(z, (x + y).astype(np.int64) - x.astype(np.int64))


# ------------------------------------------------------------------------------ other values
def native_and_interpreted(text: str, *arrays: Any) -> Array:
    """The last array after a call, the same from native code and from the interpreter."""
    func = bw.from_source(text)
    assert isinstance(func, ir.PrimFunc)
    *given, last = arrays
    interpreted, native = np.array(last), np.array(last)
    bw.interpret(func, *given, interpreted)
    bw.build(func)["main"](*given, native)
    np.testing.assert_array_equal(native, interpreted)
    return native


MOST = 2**31 - 1


def test_a_scalar_parameter_is_a_value() -> None:
    text = """
@T.prim_func
def main(n: T.int32, B: T.Buffer((3,), "int32")):
    with T.block("B"):
        B[0] = T.max(n + 1, n)
        B[1] = T.max(n, 3) - 4
        B[2] = T.Select(n + 1 > n, 1, 0)
"""
    b = np.zeros(3, np.int32)
    np.testing.assert_array_equal(native_and_interpreted(text, MOST, b), [MOST, MOST - 4, 0])
    np.testing.assert_array_equal(native_and_interpreted(text, -MOST - 1, b), [-MOST, -1, 1])


def test_a_named_value_is_a_value() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((1,), "int32"), B: T.Buffer((3,), "int32")):
    with T.block("B"):
        x: T.int32 = A[0] + 1
        y: T.int32 = x + 1
        B[0] = T.max(x, y)
        B[1] = T.Select(y > x, 1, 0)
        B[2] = (x + y) // -2
"""
    a = np.array([MOST - 1], np.int32)
    found = native_and_interpreted(text, a, np.zeros(3, np.int32))
    np.testing.assert_array_equal(found, [MOST, 0, 0])


@pytest.mark.parametrize(
    "index", ["(X[0] + 1) % 7", "(X[0] * X[1]) % 5", "T.max(X[0] + 1, 2)", "(X[0] + X[0]) & 3"]
)
def test_a_loaded_index_wraps_and_is_then_checked(index: str) -> None:
    text = f"""
@T.prim_func
def main(X: T.Buffer((2,), "int32"), A: T.Buffer((8,), "int32"), B: T.Buffer((1,), "int32")):
    with T.block("B"):
        B[0] = A[{index}]
"""
    x = np.array([MOST, 3], np.int32)
    with np.errstate(all="ignore"):
        total, product, double = x[0] + np.int32(1), x[0] * x[1], x[0] + x[0]
    places = {
        "(X[0] + 1) % 7": total % 7,
        "(X[0] * X[1]) % 5": product % 5,
        "T.max(X[0] + 1, 2)": max(total, 2),
        "(X[0] + X[0]) & 3": double & 3,
    }
    found = native_and_interpreted(text, x, np.arange(8, dtype=np.int32), np.zeros(1, np.int32))
    assert found[0] == places[index]


# ------------------------------------------------------------------------------ floats
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_floor_division_of_floats_is_numpys(dtype: str) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    numbers = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        0.1285,
        -0.1285,
        1.87,
        -1.87,
        np.inf,
        -np.inf,
        np.nan,
        7.0,
        -7.0,
        0.1,
        1e4,
        float(tiny),
        -float(tiny),
    ]
    x, y = (
        np.ascontiguousarray(g.reshape(-1)) for g in np.meshgrid(*[np.array(numbers, dtype)] * 2)
    )
    n = len(x)
    func = bw.from_source(f'''
@T.prim_func
def main(X: T.Buffer(({n},), "{dtype}"), Y: T.Buffer(({n},), "{dtype}"),
         Z: T.Buffer(({n},), "{dtype}"), R: T.Buffer(({n},), "{dtype}")):
    for i in range({n}):
        with T.block("Z"):
            vi = T.axis.spatial({n}, i)
            Z[vi] = X[vi] // Y[vi]
            R[vi] = X[vi] % Y[vi]
''')
    assert isinstance(func, ir.PrimFunc)
    with np.errstate(all="ignore"):
        quotient, rest = np.floor_divide(x, y), np.mod(x, y)
    for native in (False, True):
        z, r = np.zeros(n, dtype), np.zeros(n, dtype)
        if native:
            bw.build(func)["main"](x, y, z, r)
        else:
            bw.interpret(func, x, y, z, r)
        for found, right in ((z, quotient), (r, rest)):
            np.testing.assert_array_equal(found, right)
            signs = np.signbit(found) == np.signbit(right)
            assert (signs | np.isnan(right)).all(), (x[~signs], y[~signs], found[~signs])


CHOICES = {
    "select": "T.Select(x > 0, 2147483647, 0)",
    "if_then_else": "T.if_then_else(x > 0, 2147483647, 0)",
    "joined": "T.Select(x > 0 and y > x, 2147483647, 0)",
    "negated": "T.Select(not (x > 0), 0, 2147483647)",
    "within an extremum": "T.max(T.Select(x > 0, 2147483647, 0), 5)",
    "cast condition": "T.Cast('int32', x > 0) + 2147483646",
    "nested": "T.Select(T.Select(x > 0, 1, 0) == 1, 2147483647, 0)",
    "equal branches": "T.Select(x > 0, 2147483647, 2147483647)",
    "a difference": "x - x + 2147483647",
}


@pytest.mark.parametrize("text", CHOICES.values(), ids=CHOICES.keys())
def test_a_choice_that_depends_on_a_value_wraps(text: str) -> None:
    _, _, chosen = run("int32", text)
    with np.errstate(all="ignore"):
        expected = chosen + np.int32(1) > chosen
    assert not expected.all()
    _, _, z = run("int32", f"({text}) + 1 > ({text})", result="bool")
    np.testing.assert_array_equal(z, expected)
    _, _, z = run("int32", f"({text}) + 1 > 0", result="bool")
    np.testing.assert_array_equal(z, chosen + np.int32(1) > 0)


SCALARS = """
@T.prim_func
def main(A: T.Buffer((4,), "int64"), p: T.int8, r: T.bool, s: T.uint64, u: T.uint8):
    A[0] = T.Cast("int64", p)
    A[1] = T.Cast("int64", r)
    A[2] = T.Cast("int64", s)
    A[3] = T.Cast("int64", u)
"""


def test_scalars_outside_of_their_type_are_refused_alike() -> None:
    func = bw.from_source(SCALARS)
    module = bw.build(func)
    run = (lambda *a: bw.interpret(func, *a)), module["main"]
    taken = [(-128, True, 2**63 - 1, 255), (np.int8(3), np.bool_(False), np.uint64(5), np.uint8(9))]
    for call, given in itertools.product(run, taken):
        out = np.zeros(4, "int64")
        call(out, *given)
        assert out.tolist() == [int(v) for v in given]
    refused = [
        (300, 1, 1, 1),
        (1, 5, 1, 1),
        (1, 1, -1, 1),
        (1, 1, 2**64, 1),
        (1, 1, 1, -1),
        (1.0, 1, 1, 1),
        (1, 1, 1, np.float32(2)),
    ]
    for call, given in itertools.product(run, refused):
        with pytest.raises(bw.BlockwrightError) as caught:
            call(np.zeros(4, "int64"), *given)
        assert caught.value.code == "BW702"


@pytest.mark.parametrize("op", ["bitwise_xor", "shift_left", "popcount", "clz", "bitwise_not"])
def test_bits_of_floats_are_refused(op: str) -> None:
    operands = "A[i]" if op in ("popcount", "clz", "bitwise_not") else "A[i], A[i]"
    func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((4,), "float32")):
    for i in range(4):
        A[i] = T.{op}({operands})
""")
    with pytest.raises(bw.BlockwrightError, match=r"BW611.*float32"):
        bw.build(func)
