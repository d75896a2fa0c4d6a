"""Element types and builtin operations: docs/semantics.md, line by line."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockwright as bw
from blockwright import ir
from blockwright.build import build as compiled
from blockwright.interp import interpret, ops
from blockwright.intrin.hardware import PRODUCTS
from blockwright.script.compute import Program
from blockwright.support import InterpretError

INTS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]


def run(fn: Any, *arrays: Any, dtypes: tuple[str, ...] = (), vectorize: bool = True) -> Any:
    """Elementwise `fn` over equally long arrays."""
    p = Program("f")
    names = dtypes or tuple(ir.dtype_of(a.dtype).name for a in arrays)
    params = [
        p.param(f"A{k}", a.shape, t) for k, (a, t) in enumerate(zip(arrays, names, strict=True))
    ]
    y = p.compute("Y", arrays[0].shape, lambda i: fn(*(a[i] for a in params)))
    out = np.zeros(arrays[0].shape, y.dtype.numpy())
    interpret(p.finish([y], {"num_outputs": 1}), *arrays, out, vectorize=vectorize)
    return out


def one(fn: Any, *values: Any, dtype: str) -> Any:
    kind = ir.dtype_of(dtype).numpy()
    arrays = [np.array([v, v], kind) for v in values]
    lanes = run(fn, *arrays, dtypes=(dtype,) * len(values))
    single = run(fn, *arrays, dtypes=(dtype,) * len(values), vectorize=False)
    assert lanes.tobytes() == single.tobytes()
    return lanes[0]


@pytest.mark.parametrize("dtype", INTS)
def test_integer_values_wrap(dtype: str) -> None:
    low, high = ir.dtype_of(dtype).min_value, ir.dtype_of(dtype).max_value
    assert one(lambda a, b: a + b, high, 1, dtype=dtype) == low
    assert one(lambda a, b: a - b, low, 1, dtype=dtype) == high
    expected = (high * 3 - low) % (high - low + 1) + low
    assert one(lambda a, b: a * b, high, 3, dtype=dtype) == expected


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_smallest_number_divided_by_minus_one_wraps(dtype: str) -> None:
    low = ir.dtype_of(dtype).min_value
    assert one(lambda a, b: a // b, low, -1, dtype=dtype) == low
    assert one(lambda a, b: ir.Div(a, b), low, -1, dtype=dtype) == low
    assert one(lambda a, b: a % b, low, -1, dtype=dtype) == 0


def test_index_expressions_do_not_wrap() -> None:
    """The width of an index is that of its text only; a value of the same type wraps."""
    p = Program("f")
    big = ir.const(2**30, "int32")
    y = p.compute("Y", (2,), lambda i: ir.cast_to(ir.cast_to(i, "int32") * 0 + big * 1, "int64"))
    out = np.zeros(2, np.int64)
    interpret(p.finish([y]), out)
    assert out.tolist() == [2**30] * 2
    i = ir.Var("i", ir.dtype_of("int32"))
    a = ir.Buffer("A", ir.dtype_of("int64"), (ir.const(8, "int64"),))
    far = (i + 1) * big * 4 // big  # passes 2**32 on the way
    body = ir.For(
        i,
        ir.const(0, "int32"),
        ir.const(1, "int32"),
        ir.ForKind.SERIAL,
        ir.BufferStore(a, ir.const(7, "int64"), (far,)),
    )
    handle = ir.Var("h", ir.dtype_of("handle"))
    out = np.zeros(8, np.int64)
    interpret(ir.PrimFunc((handle,), ((handle, a),), body), out)
    assert out.tolist() == [0, 0, 0, 0, 7, 0, 0, 0]


@pytest.mark.parametrize(
    ("a", "b", "floor", "rest", "quotient", "remainder"),
    [(-7, 2, -4, 1, -3, -1), (7, -2, -4, -1, -3, 1), (-7, -2, 3, -1, 3, -1), (7, 2, 3, 1, 3, 1)],
)
def test_division_rounding(
    a: int, b: int, floor: int, rest: int, quotient: int, remainder: int
) -> None:
    assert one(lambda x, y: x // y, a, b, dtype="int32") == floor
    assert one(lambda x, y: x % y, a, b, dtype="int32") == rest
    assert one(lambda x, y: ir.Div(x, y), a, b, dtype="int32") == quotient
    assert one(lambda x, y: ir.Mod(x, y), a, b, dtype="int32") == remainder


def test_sub_byte_integers_compute_in_their_width() -> None:
    assert one(lambda a, b: a + b, 7, 1, dtype="int4") == -8
    assert one(lambda a, b: a * b, 5, 5, dtype="uint4") == 9
    wide = run(lambda a: ir.cast_to(a, "int4"), np.array([9, -9, 3], np.int32))
    assert wide.tolist() == [-7, 7, 3]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_compute_in_float32_and_round(dtype: str) -> None:
    kind = ir.dtype_of(dtype).numpy()
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(64).astype(np.float32).astype(kind) for _ in range(2))
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    for fn in (lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x - y):
        out = run(fn, a, b, dtypes=(dtype, dtype))
        np.testing.assert_array_equal(
            out.astype(np.float32), fn(wide_a, wide_b).astype(kind).astype(np.float32)
        )


def test_rounding_to_bfloat16_happens_once() -> None:
    value = np.array([1 + 2**-8 + 2**-40, 1 + 2**-8])  # just above a tie, and the tie itself
    out = run(lambda a: ir.cast_to(a, "bfloat16"), value)
    assert out.astype(np.float64).tolist() == [1 + 2**-7, 1.0]


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_float_to_integer_saturates(dtype: str, source: str) -> None:
    type_ = ir.dtype_of(dtype)
    values = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, 2.9, -2.9], source)
    out = run(lambda a: ir.cast_to(a, dtype), values)
    low, high = type_.min_value, type_.max_value
    assert [int(v) for v in out] == [high, low, high, low, 0, 2, max(-2, low)]


def test_other_casts() -> None:
    assert run(lambda a: ir.cast_to(a, "int8"), np.array([300, -129], np.int32)).tolist() == [
        44,
        127,
    ]
    nan = np.array([np.nan, 0.0, -0.0, 2.0], np.float32)
    assert run(lambda a: ir.cast_to(a, "bool"), nan).tolist() == [True, False, False, True]
    assert run(lambda a: ir.cast_to(a, "float32"), np.array([True, False])).tolist() == [1.0, 0.0]
    over = run(lambda a: ir.cast_to(a, "float8_e4m3fn"), np.array([1e6, 1.0], np.float32))
    assert math.isnan(over[0])
    assert run(lambda a: ir.cast_to(a, "float8_e5m2"), np.array([1e6], np.float32))[0] == math.inf


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_min_and_max_propagate_nan(dtype: str) -> None:
    for kind in (ir.Min, ir.Max):
        for pair in ((math.nan, 1.0), (1.0, math.nan)):
            assert math.isnan(one(lambda a, b, kind=kind: kind(a, b), *pair, dtype=dtype))


def test_comparisons_with_nan() -> None:
    nan, number = np.array([np.nan]), np.array([1.0])
    for kind, expected in ((ir.LT, False), (ir.GE, False), (ir.EQ, False), (ir.NE, True)):
        assert run(lambda a, b, kind=kind: kind(a, b), nan, number)[0] == expected


def test_float_remainders() -> None:
    assert one(lambda a, b: a % b, -1.5, 1.0, dtype="float32") == 0.5
    assert one(lambda a, b: ir.call("fmod", a, b), -1.5, 1.0, dtype="float32") == -0.5


def test_shifts_stay_inside_the_width() -> None:
    shift = lambda name: lambda a, b: ir.call(name, a, b)  # noqa: E731
    assert one(shift("shift_left"), 3, 7, dtype="int8") == -128
    assert one(shift("shift_right"), -8, 1, dtype="int8") == -4
    assert one(shift("shift_right"), 200, 3, dtype="uint8") == 25
    for amount in (8, -1):
        with pytest.raises(InterpretError, match="outside 0 … 7") as caught:
            one(shift("shift_left"), 1, amount, dtype="int8")
        assert caught.value.code == "BW759"


def test_every_pure_row_is_covered() -> None:
    special = {
        "if_then_else",
        "as_index",
        "checked_index",
        "checked_divisor",
        "reinterpret",
        "constant_data",
        "undef",
        "call_pure_extern",
        "call_llvm_pure_intrin",
        "llvm_lookup_intrinsic_id",  # an operand of the call above
    }
    rows = {name for name, row in ir.OPS.items() if row.kind == "pure"}
    assert rows - special <= set(ops.PURE) | set(PRODUCTS)  # these are expanded


REAL = {
    "exp": math.exp, "exp2": lambda x: 2.0**x, "exp10": lambda x: 10.0**x, "expm1": math.expm1,
    "log": math.log, "log2": math.log2, "log10": math.log10, "log1p": math.log1p,
    "sqrt": math.sqrt, "rsqrt": lambda x: 1 / math.sqrt(x), "sin": math.sin, "cos": math.cos,
    "tan": math.tan, "asin": math.asin, "acos": math.acos, "atan": math.atan, "sinh": math.sinh,
    "cosh": math.cosh, "tanh": math.tanh, "asinh": math.asinh, "atanh": math.atanh,
    "erf": math.erf, "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "floor": math.floor,
    "ceil": math.ceil, "trunc": math.trunc, "round": round, "nearbyint": round, "abs": abs,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REAL))
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_real_functions(name: str, dtype: str) -> None:
    kind = ir.dtype_of(dtype).numpy()
    values = np.array([0.125, 0.5, 0.75, 0.9375], kind)
    out = run(lambda a: ir.call(name, a), values, dtypes=(dtype,)).astype(np.float64)
    expected = [float(np.array(REAL[name](float(v))).astype(kind)) for v in values]
    digits = {"float32": 2e-7, "float64": 1e-15, "bfloat16": 1e-2}[dtype]
    np.testing.assert_allclose(out, expected, rtol=digits)


def test_rounding_ties_to_even() -> None:
    halves = np.array([0.5, 1.5, 2.5, -0.5], np.float32)
    for name in ("round", "nearbyint"):
        assert run(lambda a, name=name: ir.call(name, a), halves).tolist() == [0, 2, 2, 0]


def test_bit_counting() -> None:
    values = np.array([0, 1, -1, 6], np.int8)
    assert run(lambda a: ir.call("popcount", a), values).tolist() == [0, 1, 8, 2]
    assert run(lambda a: ir.call("clz", a), values).tolist() == [8, 7, 0, 5]
    assert run(lambda a: ir.call("bitwise_not", a), values).tolist() == [-1, -2, 0, -7]


def test_tests_of_floats() -> None:
    values = np.array([np.nan, np.inf, 1.0], np.float32)
    for name, expected in (("isnan", [1, 0, 0]), ("isinf", [0, 1, 0]), ("isfinite", [0, 0, 1])):
        assert run(lambda a, name=name: ir.call(name, a), values).tolist() == expected


def test_reinterpret_keeps_bits() -> None:
    out = run(lambda a: ir.call("reinterpret", a, dtype="int32"), np.array([1.0, -0.0], np.float32))
    assert out.tolist() == [0x3F800000, -(2**31)]


finite = st.floats(-1e6, 1e6, width=32)


@given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=8))
def test_fma_rounds_once(rows: list[tuple[float, float, float]]) -> None:
    from fractions import Fraction

    a, b, c = (np.array(column, np.float32) for column in zip(*rows, strict=True))
    fused = run(lambda x, y, z: ir.call("fma", x, y, z), a, b, c)
    for k, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        near = np.float32(fused[k])
        for other in (
            np.nextafter(near, np.float32(np.inf)),
            np.nextafter(near, np.float32(-np.inf)),
        ):
            assert abs(Fraction(float(near)) - exact) <= abs(Fraction(float(other)) - exact)


def test_fma_in_double_precision() -> None:
    a = np.array([1 + 2**-30])
    assert run(lambda x: ir.call("fma", x, x, x * 0.0 - 1.0), a)[0] == 2**-29 + 2**-60
    a = np.array([1 + 2**-52])
    product = run(lambda x: ir.call("fma", x, x, ir.const(-1.0, "float64") - x * 2**-51), a)
    assert product[0] != 0


def test_bfloat16_next_number() -> None:
    a = np.array([1.0], ml_dtypes.bfloat16)
    b = np.array([2.0], ml_dtypes.bfloat16)
    out = run(lambda x, y: ir.call("nextafter", x, y), a, b, dtypes=("bfloat16", "bfloat16"))
    assert float(out[0]) == 1 + 2**-7


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e4m3fnuz"])
def test_next_number_of_equal_ones_and_of_nan(dtype: str) -> None:
    kind = ir.dtype_of(dtype).numpy()
    a = np.array([0.0, -0.0, np.nan, 1.0, 1.0, -0.0]).astype(kind)
    b = np.array([-0.0, 0.0, 1.0, np.nan, 1.0, -1.0]).astype(kind)
    out = run(lambda x, y: ir.call("nextafter", x, y), a, b, dtypes=(dtype, dtype))
    wide = out.astype(np.float64)
    assert np.isnan(wide).tolist() == [False, False, True, True, False, False]
    assert np.signbit(wide[:2]).tolist() == np.signbit(b.astype(np.float64))[:2].tolist()
    assert wide[4] == 1
    assert wide[5] < 0


LEAVES = {"i32": np.int32, "f32": np.float32}


@st.composite
def expressions(draw: st.DrawFn, depth: int = 0) -> tuple[Any, Any]:
    """(IR builder, NumPy builder) of an int32 expression over two arrays."""
    if depth > 3 or draw(st.booleans()):
        which = draw(st.integers(0, 2))
        if which == 2:
            number = draw(st.integers(-5, 5))
            return (lambda a, b: ir.const(number, "int32")), (lambda a, b: np.int32(number))
        return (lambda a, b: (a, b)[which]), (lambda a, b: (a, b)[which])
    (x, nx), (y, ny) = draw(expressions(depth + 1)), draw(expressions(depth + 1))
    name = draw(st.sampled_from(["+", "-", "*", "min", "max", "where", "^"]))
    table = {
        "+": (lambda p, q: p + q, lambda p, q: p + q),
        "-": (lambda p, q: p - q, lambda p, q: p - q),
        "*": (lambda p, q: p * q, lambda p, q: p * q),
        "min": (ir.minimum, np.minimum), "max": (ir.maximum, np.maximum),
        "where": (lambda p, q: ir.if_then_else(p < q, q, p), lambda p, q: np.where(p < q, q, p)),
        "^": (lambda p, q: ir.call("bitwise_xor", p, q), np.bitwise_xor),
    }  # fmt: skip
    build, oracle = table[name]
    return (lambda a, b: build(x(a, b), y(a, b))), (lambda a, b: oracle(nx(a, b), ny(a, b)))


@given(expressions(), st.integers(0, 1000))
def test_random_elementwise_programs_agree_with_numpy(pair: tuple[Any, Any], seed: int) -> None:
    build, oracle = pair
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-(2**31), 2**31, 7, dtype=np.int64).astype(np.int32) for _ in range(2))
    with np.errstate(all="ignore"):
        expected = np.broadcast_to(oracle(a, b), (7,))
    for vectorize in (True, False):
        out = run(lambda x, y: ir.cast_to(build(x, y), "int32"), a, b, vectorize=vectorize)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        ("float4_e2m1fn", "uint8"), ("float4_e2m1fn", "float4_e2m1fn"),
        ("int4", "int8"), ("int4", "int4"), ("uint4", "uint8"), ("uint4", "uint4"),
        ("int2", "int8"), ("uint2", "uint8"),
    ],
)  # fmt: skip
def test_arrays_of_sub_byte_types(dtype: str, held: str) -> None:
    """The interpreter takes the arrays that compiled code takes, and writes them in place."""
    func = bw.from_source(f"""
@T.prim_func
def f(A: T.Buffer((16,), "{dtype}"), B: T.Buffer((16,), "float32")):
    for i in range(15):
        B[i] = T.Cast("float32", A[i])
        A[i] = A[i + 1]
""")
    results: list[tuple[Any, Any]] = []
    for native in (False, True):
        codes, numbers = np.arange(16, dtype=np.uint8), np.zeros(16, np.float32)
        array = codes.view(getattr(ml_dtypes, held, held))
        if native:
            compiled(func)["f"](array, numbers)
        else:
            bw.interpret(func, array, numbers)
        width = 2 if dtype.endswith("int2") else 4
        results.append((codes & ((1 << width) - 1), numbers))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert results[0][1][1] != results[0][1][2]
