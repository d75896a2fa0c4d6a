"""Arithmetic, comparisons, casts and selections of every type against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.support import BuildError
from blockwright.target import Target

Evaluate = Callable[..., np.ndarray]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
_FLOAT_SPECIAL = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 3.25, -7.0, 100.0, 1e-3, -2.5]


def integers(dtype: str, count: int) -> np.ndarray:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(5)
    edge = [info.min, info.max, 0, 1, info.min + 1, info.max - 1, 3, 7]
    data = rng.integers(info.min, info.max, count - len(edge), dtype=dtype, endpoint=True)
    out = np.concatenate([np.array(edge, dtype), data])
    return out[rng.permutation(count)]


def pairs(dtype: str, count: int = 512) -> tuple[np.ndarray, np.ndarray]:
    if dtype in INTEGERS:
        x, y = integers(dtype, count), integers(dtype, count)[::-1].copy()
        y[: count // 2] %= 7  # small divisors, zero among them
        return x, y
    rng = np.random.default_rng(6)
    grid = np.array([(a, b) for a in _FLOAT_SPECIAL for b in _FLOAT_SPECIAL])
    more = rng.standard_normal((count - len(grid), 2)) * 10
    both = np.concatenate([grid, more]).astype(ir.dtype_of(dtype).numpy())
    return both[:, 0].copy(), both[:, 1].copy()


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit, but for the payload of NaN."""
    if a.dtype.kind in "fV" or a.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        nan = np.isnan(wide_a)
        return bool(
            np.array_equal(nan, np.isnan(wide_b))
            and np.array_equal(wide_a[~nan], wide_b[~nan])
            and np.array_equal(np.signbit(wide_a[~nan]), np.signbit(wide_b[~nan]))
        )
    return np.array_equal(a, b)


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic(dtype: str, lanes: int, evaluate: Evaluate) -> None:
    """Overflow wraps, division by zero gives zero, floor goes down and truncation to zero."""
    x, y = pairs(dtype)
    rows: dict[str, tuple[Callable[..., ir.Expr], Any]] = {
        "add": (ir.Add, x + y), "sub": (ir.Sub, x - y), "mul": (ir.Mul, x * y),
        "floordiv": (ir.FloorDiv, np.floor_divide(x, y)), "floormod": (ir.FloorMod, np.mod(x, y)),
        "min": (ir.Min, np.minimum(x, y)), "max": (ir.Max, np.maximum(x, y)),
        "truncmod": (ir.Mod, np.where(y == 0, 0, np.fmod(x, y))),
        "and": (lambda a, b: ir.call("bitwise_and", a, b), x & y),
        "or": (lambda a, b: ir.call("bitwise_or", a, b), x | y),
        "xor": (lambda a, b: ir.call("bitwise_xor", a, b), x ^ y),
        "not": (lambda a, b: ir.call("bitwise_not", a), ~x),
        "abs": (lambda a, b: ir.call("abs", a), np.abs(x)),
    }  # fmt: skip
    got = evaluate([r[0] for r in rows.values()], [x, y], dtype, lanes)
    for (name, (_, expected)), row in zip(rows.items(), got, strict=True):
        assert np.array_equal(row, expected.astype(dtype)), name


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint32"])
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 16, 100, -1, -3, -8])
def test_division_by_constants(dtype: str, divisor: int, evaluate: Evaluate) -> None:
    if divisor < 0 and dtype.startswith("u"):
        return
    x, _ = pairs(dtype)
    c = ir.const(divisor, dtype)
    rows = [ir.FloorDiv, ir.FloorMod, ir.Div, ir.Mod]
    got = evaluate([lambda a, op=op: op(a, c) for op in rows], [x], dtype)
    assert np.array_equal(got[0], np.floor_divide(x, np.array(divisor, dtype)))
    assert np.array_equal(got[1], np.mod(x, np.array(divisor, dtype)))
    wide = x.astype(object)
    trunc = np.array(
        [abs(v) // abs(divisor) * (1 if (v >= 0) == (divisor > 0) else -1) for v in wide], object
    )
    assert np.array_equal(got[2], wrapped(trunc, dtype))
    assert np.array_equal(got[3], wrapped(wide - trunc * divisor, dtype))


def wrapped(values: np.ndarray, dtype: str) -> np.ndarray:
    """Python integers reduced to a type."""
    bits = np.dtype(dtype).itemsize * 8
    return np.array([int(v) & ((1 << bits) - 1) for v in values], f"uint{bits}").view(dtype)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint8"])
def test_shifts_and_bits(dtype: str, evaluate: Evaluate) -> None:
    x, _ = pairs(dtype)
    bits = x.dtype.itemsize * 8
    y = (np.arange(len(x)) % (bits + 3)).astype(dtype)
    rows = [
        lambda a, b: ir.call("shift_left", a, b),
        lambda a, b: ir.call("shift_right", a, b),
        lambda a, b: ir.call("popcount", a),
        lambda a, b: ir.call("clz", a),
    ]
    got = evaluate(rows, [x, y], dtype, 16)
    unsigned = [int(v) & ((1 << bits) - 1) for v in x]
    left = [(v << int(s)) & ((1 << bits) - 1) for v, s in zip(unsigned, y, strict=True)]
    assert got[0].tobytes() == np.array(left, f"uint{bits}").tobytes()
    assert [int(v) for v in got[1]] == [int(v) >> int(s) for v, s in zip(x, y, strict=True)]
    assert [int(v) for v in got[2]] == [v.bit_count() for v in unsigned]
    assert [int(v) for v in got[3]] == [bits - v.bit_length() for v in unsigned]


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_integer_powers(dtype: str, evaluate: Evaluate) -> None:
    x, _ = pairs(dtype)
    y = (np.arange(len(x)) % 9).astype(dtype)
    seven = ir.const(7, ir.dtype_of(dtype).with_lanes(8))
    rows = [lambda a, b: ir.call("pow", a, b), lambda a, b: ir.call("pow", a, seven)]
    got = evaluate(rows, [x, y], dtype, 8)
    assert np.array_equal(got[0], x**y)
    assert np.array_equal(got[1], x ** np.array(7, dtype))


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_arithmetic(dtype: str, lanes: int, evaluate: Evaluate) -> None:
    """Each operation rounds once; min and max pass NaN on; remainders take Python's signs."""
    x, y = pairs(dtype)
    divided = [(x / y), np.minimum(x, y), np.maximum(x, y)]
    rows = [ir.Add, ir.Sub, ir.Mul, ir.Div, ir.Min, ir.Max]
    got = evaluate(rows, [x, y], dtype, lanes)
    for op, row, expected in zip(rows, got, [x + y, x - y, x * y, *divided], strict=True):
        keep = np.ones(len(x), bool) if op not in (ir.Min, ir.Max) else ~((x == 0) & (y == 0))
        assert same(row[keep], expected[keep]), op.__name__


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_remainders(dtype: str, evaluate: Evaluate) -> None:
    x, y = pairs(dtype)
    got = evaluate([ir.FloorMod, ir.FloorDiv, ir.Mod], [x, y], dtype, 4)
    for row, expected in zip(
        got, [np.mod(x, y), np.floor_divide(x, y), np.fmod(x, y)], strict=True
    ):
        assert same(row + 0.0, expected + 0.0)


@pytest.mark.parametrize("constant", [0.0, 2.5, np.nan, -np.nan, np.inf])
def test_extrema_with_a_constant_pass_nan_on(constant: float, evaluate: Evaluate) -> None:
    x = np.array([*_FLOAT_SPECIAL, 4.0, 5.0, -6.0, 0.25], np.float32)
    c = ir.const(constant, "float32x16")
    rows = [
        lambda a: ir.Max(a, c),
        lambda a: ir.Max(c, a),
        lambda a: ir.Min(a, c),
        lambda a: ir.Min(c, a),
    ]
    got = evaluate(rows, [x], "float32", 16)
    high, low = np.maximum(x, np.float32(constant)), np.minimum(x, np.float32(constant))
    for row, expected in zip(got, [high, high, low, low], strict=True):
        assert np.array_equal(row, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_comparisons(dtype: str, evaluate: Evaluate) -> None:
    x, y = pairs(dtype)
    y[::3] = x[::3]
    rows = [ir.EQ, ir.NE, ir.LT, ir.LE, ir.GT, ir.GE]
    got = evaluate(rows, [x, y], "bool", 16)
    for row, expected in zip(got, [x == y, x != y, x < y, x <= y, x > y, x >= y], strict=True):
        assert np.array_equal(row, expected)


@pytest.mark.parametrize("lanes", [1, 8])
def test_logic_and_select(lanes: int, evaluate: Evaluate) -> None:
    p = np.array([0, 0, 1, 1] * 8, bool)
    q = np.array([0, 1, 0, 1] * 8, bool)
    rows = [ir.And, ir.Or, lambda a, b: ir.Not(a), lambda a, b: ir.Select(a, b, ir.Not(b)), ir.EQ]
    got = evaluate(rows, [p, q], "bool", lanes)
    for row, expected in zip(got, [p & q, p | q, ~p, np.where(p, q, ~q), p == q], strict=True):
        assert np.array_equal(row, expected)


CASTS = [*INTEGERS, *FLOATS, "bool"]


@pytest.mark.parametrize("source", CASTS)
def test_casts(source: str, evaluate: Evaluate) -> None:
    """Integers wrap, floats round to nearest even, float to integer saturates and drops NaN."""
    if source == "bool":
        x = np.array([0, 1] * 16, bool)
    else:
        x, _ = pairs(source)
    for target in CASTS:
        dtype = ir.dtype_of(target)
        for lanes in (1, 16):
            to = dtype.with_lanes(lanes)
            got = evaluate([lambda a, to=to: ir.Cast(to, a)], [x], target, lanes)[0]
            assert same(got, expected_cast(x, target)), f"{source} to {target}, {lanes} lanes"


def expected_cast(x: np.ndarray, target: str) -> np.ndarray:
    dtype = ir.dtype_of(target).numpy()
    is_float = x.dtype.kind == "f" or x.dtype.name == "bfloat16"
    if is_float and target in INTEGERS:
        info = np.iinfo(dtype)
        wide = [0 if np.isnan(v) else float(v) for v in x.astype(np.float64)]
        whole = [info.max if v == np.inf else info.min if v == -np.inf else int(v) for v in wide]
        return np.array([min(max(v, info.min), info.max) for v in whole], dtype)
    if target == "bool":
        return x.astype(np.float64) != 0 if is_float else x != 0
    if x.dtype.kind in "iu" and target in ("float16", "bfloat16"):
        # 64-bit integers pass through double precision; all others are exact there
        return x.astype(np.float64).astype(dtype)
    if x.dtype == np.float64 and target == "bfloat16":
        return np.array([_nearest_bfloat(float(v)) for v in x], dtype)
    return x.astype(dtype)


def _nearest_bfloat(value: float) -> Any:
    """Direct rounding; ml_dtypes goes through single precision."""
    near = ml_dtypes.bfloat16(value)
    if not np.isfinite(value) or not np.isfinite(float(near)):
        return near
    bits = np.array(near).view(np.uint16)
    options = [
        np.array(int(bits) + d, np.uint16).view(ml_dtypes.bfloat16)
        for d in (-1, 0, 1)
        if (int(bits) + d) >> 15 == int(bits) >> 15
    ]
    return min(options, key=lambda o: (abs(float(o) - value), int(o.view(np.uint16)) & 1))


@pytest.mark.parametrize(
    "name",
    ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"],
)
def test_eight_bit_floats(name: str, evaluate: Evaluate) -> None:
    """All 256 values widen exactly; rounding agrees with the reference on a dense grid."""
    dtype = ir.dtype_of(name)
    every = np.arange(256, dtype=np.uint8)
    single, lanes = ir.dtype_of("float32x16"), dtype.with_lanes(16)

    def widen(a: ir.Expr) -> ir.Expr:
        return ir.Cast(single, ir.Call("reinterpret", (a,), lanes))

    widened = evaluate([widen], [every], "float32", 16)
    assert same(widened[0], every.view(dtype.numpy()).astype(np.float32))
    rng = np.random.default_rng(2)
    edges = [448, 460, 464, 465, 480, 500, 57344, 61439, 61440, 61441, 1e9, -1e9]
    edges += [240, 247, 248, 249, -248, 1.5, 3, 0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-45]
    edges += [2.0**-127, 1.49 * 2.0**-127, 1.5 * 2.0**-127, 2.0**-126, -(2.0**-140)]
    dense = [rng.standard_normal(4000) * 50, rng.standard_normal(1000) * 1e-3]
    x = np.concatenate([widened[0], *dense, edges])
    x = x.astype(np.float32)[: len(x) // 4 * 4]
    byte = ir.dtype_of("uint8x4")
    got = evaluate(
        [lambda a: ir.Call("reinterpret", (ir.Cast(dtype.with_lanes(4), a),), byte)],
        [x],
        "uint8",
        4,
    )
    assert same(got[0].view(dtype.numpy()), x.astype(dtype.numpy()))


def test_four_bit_floats_saturate(evaluate: Evaluate) -> None:
    """All 16 values widen exactly; rounding agrees with the reference, also for NaN."""
    dtype = ir.dtype_of("float4_e2m1fn")
    codes, four = np.arange(16, dtype=np.uint8), ir.dtype_of("uint4x4")

    def widen(a: ir.Expr) -> ir.Expr:
        bits = ir.Call("reinterpret", (ir.Cast(four, a),), dtype.with_lanes(4))
        return ir.Cast(ir.dtype_of("float32x4"), bits)

    def narrow(a: ir.Expr) -> ir.Expr:
        bits = ir.Call("reinterpret", (ir.Cast(dtype.with_lanes(4), a),), four)
        return ir.Cast(ir.dtype_of("uint8x4"), bits)

    assert same(evaluate([widen], [codes], "float32", 4)[0], codes.view(dtype.numpy()))
    x = np.concatenate([np.arange(-9, 9, 0.125), [np.inf, -np.inf, np.nan, 1e-9]]).astype("float32")
    wanted = x.astype(dtype.numpy()).view(np.uint8)
    np.testing.assert_array_equal(evaluate([narrow], [x], "uint8", 4)[0], wanted)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
def test_integers_below_a_byte_wrap(name: str, lanes: int, evaluate: Evaluate) -> None:
    dtype, wide = ir.dtype_of(name).with_lanes(lanes), ir.dtype_of("int32").with_lanes(lanes)
    x = np.arange(-40, 40, dtype=np.int32)
    rows = [
        lambda a: ir.Cast(wide, ir.Cast(dtype, a)),
        lambda a: ir.Cast(wide, ir.Mul(ir.Cast(dtype, a), ir.Cast(dtype, a))),
    ]
    low, span = dtype.min_value, 1 << dtype.bits
    for found, value in zip(evaluate(rows, [x], "int32", lanes), (x, x * x), strict=True):
        np.testing.assert_array_equal(found, (value - low) % span + low)


def test_reinterpret(evaluate: Evaluate) -> None:
    x, _ = pairs("float32")
    to = ir.dtype_of("int32x8")
    got = evaluate([lambda a: ir.Call("reinterpret", (a,), to)], [x], "int32", 8)
    assert got[0].tobytes() == x.tobytes()


def test_vectors_are_built_and_taken_apart(evaluate: Evaluate) -> None:
    x = np.arange(64, dtype=np.int32)
    rows = [
        lambda a: ir.Shuffle((a,), (3, 2, 1, 0)),
        lambda a: ir.Shuffle((a, a), (0, 4, 1, 5)),
        lambda a: ir.Add(a, ir.Ramp(ir.const(10, "int32"), ir.const(3, "int32"), 4)),
        lambda a: ir.Broadcast(ir.Shuffle((a,), (2,)), 4),
    ]
    got = evaluate(rows, [x], "int32", 4)
    quads = x.reshape(-1, 4)
    assert np.array_equal(got[0].reshape(-1, 4), quads[:, ::-1])
    assert np.array_equal(got[1].reshape(-1, 4), quads[:, [0, 0, 1, 1]])
    assert np.array_equal(got[2].reshape(-1, 4), quads + np.array([10, 13, 16, 19]))
    assert np.array_equal(got[3].reshape(-1, 4), np.repeat(quads[:, 2:3], 4, axis=1))


@pytest.mark.parametrize("lanes", [4, 7, 16])
def test_vector_reductions(lanes: int, evaluate: Evaluate) -> None:
    rng = np.random.default_rng(8)
    x = rng.integers(-9, 9, 16 * lanes).astype(np.float32)
    one = ir.dtype_of("float32")
    rows = [
        lambda a, k=k: ir.Broadcast(ir.Call(f"vector_reduce_{k}", (a,), one), lanes)
        for k in ("add", "min", "max")
    ]
    got = evaluate(rows, [x], "float32", lanes)
    parts = x.reshape(-1, lanes)
    for row, expected in zip(got, [parts.sum(1), parts.min(1), parts.max(1)], strict=True):
        assert np.array_equal(row.reshape(-1, lanes)[:, 0], expected)


def test_long_chains_of_operators(evaluate: Evaluate) -> None:
    """Thousands of operators in a row do not exhaust the stack."""

    def chain(a: ir.Expr) -> ir.Expr:
        total = a
        for _ in range(5000):
            total = ir.Add(total, a)
        return total

    x = np.arange(8, dtype=np.int64)
    assert np.array_equal(evaluate([chain], [x], "int64")[0], x * 5001)


def test_contraction_can_be_forbidden(evaluate: Evaluate) -> None:
    rng = np.random.default_rng(9)
    x, y = (
        rng.standard_normal(1024).astype(np.float32),
        rng.standard_normal(1024).astype(np.float32),
    )
    row = lambda a, b: ir.Sub(ir.Mul(a, b), a)  # noqa: E731
    separate = evaluate([row], [x, y], "float32", 8, **{"tir.fp_contract": "off"})[0]
    assert np.array_equal(separate, x * y - x)
    fused = evaluate([row], [x, y], "float32", 8)[0]
    exact = x.astype(np.float64) * y.astype(np.float64) - x.astype(np.float64)
    assert np.array_equal(fused, exact.astype(np.float32))


def test_fused_multiply_add(evaluate: Evaluate) -> None:
    rng = np.random.default_rng(4)
    x, y, z = (rng.standard_normal(512).astype(np.float32) for _ in range(3))
    got = evaluate([lambda a, b, c: ir.call("fma", a, b, c)], [x, y, z], "float32", 16)[0]
    exact = x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)
    assert np.array_equal(got, exact.astype(np.float32))


@pytest.mark.parametrize("lanes", [1, 8])
def test_narrow_floats_in_mathematical_functions(lanes: int, evaluate: Evaluate) -> None:
    x = np.linspace(-8, 8, 256).astype(ml_dtypes.bfloat16)
    got = evaluate([lambda a: ir.call("tanh", a)], [x], "bfloat16", lanes)[0]
    assert same(got, np.tanh(x.astype(np.float32)).astype(ml_dtypes.bfloat16))


def test_what_has_no_code_is_refused(evaluate: Evaluate) -> None:
    x = np.arange(16, dtype=np.int32)
    with pytest.raises(BuildError, match="exp of int32"):
        evaluate([lambda a: ir.call("exp", a)], [x], "int32")
    with pytest.raises(BuildError, match="int24 is not supported"):
        evaluate(
            [lambda a: ir.Cast(ir.dtype_of("int32"), ir.Cast(ir.dtype_of("int24"), a))],
            [x],
            "int32",
        )


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64-v4+avx512bf16"])
@pytest.mark.parametrize("lanes", [8, 16, 32, 48])
def test_bfloat16_keeps_denormals_and_nans(lanes: int, target: str) -> None:
    """AVX512-BF16 rounds whole registers; it would take denormals for zeros."""
    if not Target(target).is_host:
        pytest.skip("this machine lacks the instructions")
    func = bw.from_source(f"""
@T.prim_func
def narrow(A: T.Buffer((512, {lanes}), "float32"), B: T.Buffer((512, {lanes}), "bfloat16")):
    for i in range(512):
        for j in T.vectorized({lanes}):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = T.Cast("bfloat16", A[vi, vj])
""")
    bits = np.random.default_rng(0).integers(0, 2**32, (512, lanes), dtype=np.uint32)
    bits[:100] &= 0x807FFFFF  # denormal numbers, zeros among them
    bits[100:200] |= 0x7F800000  # infinities and NaNs
    bits[200:300, ::3] &= 0x807FFFFF
    bits[300:350] &= 0x80000000
    got = np.zeros((512, lanes), ml_dtypes.bfloat16)
    build(func, target)["narrow"](bits.view(np.float32), got)
    nan = np.isnan(bits.view(np.float32))
    odd = bits >> 16 & 1
    rounded = np.where(nan, bits | 0x400000, bits + (odd + 0x7FFF)) >> 16
    np.testing.assert_array_equal(got.view(np.uint16), rounded)
