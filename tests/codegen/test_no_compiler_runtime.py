"""Code for processors without an instruction for an operation needs no compiler runtime."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import blockwright as bw
from blockwright.codegen.llvm.masked_stores import may_narrow, with_scalar_stores
from blockwright.support import BuildError


def casts(source: str, target: str, count: int, machine: str) -> bw.Module:
    """`Y` by scalar and `Z` by vector code."""
    text = f"""
@T.prim_func
def main(X: T.Buffer(({count},), "{source}"), Y: T.Buffer(({count},), "{target}"),
         Z: T.Buffer(({count},), "{target}")):
    for i in range({count}):
        Y[i] = T.Cast("{target}", X[i])
    for i in range({count // 8}):
        for j in T.vectorized(8):
            Z[i * 8 + j] = T.Cast("{target}", X[i * 8 + j])
"""
    return bw.build(bw.from_source(text), target=machine)


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal numbers and signs; NaN equals NaN."""
    nan = np.isnan(a)
    same = np.array_equal(nan, np.isnan(b)) and np.array_equal(a[~nan], b[~nan])
    return bool(same and np.array_equal(np.signbit(a[~nan]), np.signbit(b[~nan])))


HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
OLD = ["x86-64", "x86-64-v2"]


@pytest.mark.parametrize("machine", OLD)
def test_all_halves_widen_exactly_without_f16c(machine: str) -> None:
    y, z = np.zeros((2, len(HALVES)), np.float32)
    casts("float16", "float32", len(HALVES), machine)(HALVES, y, z)
    expected = HALVES.astype(np.float32)
    assert equal(y, expected)
    assert equal(z, expected)


@pytest.mark.parametrize("machine", OLD)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_numbers_round_to_the_nearest_half_without_f16c(machine: str, source: str) -> None:
    """Every half, every midpoint of two halves, their neighbors, and random bit patterns."""
    warnings.simplefilter("ignore")  # NumPy's, of overflow
    finite = np.sort(HALVES[np.isfinite(HALVES)].astype(source))
    places = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2])
    limits = np.array([65519.996, 65520, 65536, 1e30, np.inf, np.nan, 2**-25, 1e-45], source)
    random = np.random.default_rng(1).integers(0, 2**32, 1 << 16, np.uint32).view(np.float32)
    down, up = (np.nextafter(places, end) for end in np.array([-np.inf, np.inf], source))
    x = np.concatenate([places, down, up, limits, -limits, random.astype(source)])
    x = x[: len(x) // 8 * 8]
    y, z = np.zeros((2, len(x)), np.float16)
    casts(source, "float16", len(x), machine)(x, y, z)
    assert equal(y, x.astype(np.float16))
    assert equal(z, x.astype(np.float16))


def test_half_denormals_do_not_depend_on_the_mode_of_the_processor() -> None:
    """The conversion uses no number that is denormal in single precision."""
    torch = pytest.importorskip("torch")
    built = casts("float16", "float32", 1024, "x86-64-v2")
    y, z = np.zeros((2, 1024), np.float32)
    assert torch.set_flush_denormal(True)
    try:
        built(HALVES[:1024], y, z)
    finally:
        torch.set_flush_denormal(False)
    expected = np.arange(1024, dtype=np.float32) * np.float32(2.0**-24)
    assert np.array_equal(y, expected)
    assert np.array_equal(z, expected)


def test_half_arithmetic_rounds_after_each_operation_without_f16c() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((64,), "float16"), B: T.Buffer((64,), "float16"),
         C: T.Buffer((64,), "float16")):
    for i in range(8):
        for j in T.vectorized(8):
            C[i * 8 + j] = T.sqrt(A[i * 8 + j] * B[i * 8 + j]) + A[i * 8 + j]
"""
    a, b = np.random.default_rng(2).random((2, 64)).astype(np.float16)
    c = np.zeros(64, np.float16)
    bw.build(bw.from_source(text), target="x86-64")(a, b, c)
    assert np.array_equal(c, np.sqrt(a * b) + a)


FLOATS = ("float64", "float32", "float16", "bfloat16")
SIGNS = (
    "T.copysign({x}, {y})",
    "T.abs({x})",
    "{x} + {y}",
    "T.sqrt({x}) * {y}",
    "-{x}",
    "T.expm1({x})",
)


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("machine", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"])
@pytest.mark.parametrize("third", ["float16", "bfloat16"])
def test_roundings_in_steps_need_no_function(machine: str, lanes: int, third: str) -> None:
    """An operation in one type, rounded to a second, then to a third.

    LLVM folds fptrunc(copysign(x, y)) to copysign(fptrunc(x), y), with operands of two types.
    """
    chains = [
        (sign, first, second)
        for sign in SIGNS
        for first in FLOATS[:2]
        for second in FLOATS[1:]
        if second != third and not (sign.startswith("T.e") and first == "float64")
    ]
    lines: list[str] = []
    for k, (sign, first, second) in enumerate(chains):
        x, y = (f'T.Cast("{first}", {name}[{k}, i * {lanes} + j])' for name in "XY")
        value = f'T.Cast("{third}", T.Cast("{second}", {sign.format(x=x, y=y)}))'
        lines.append(f"            Z[{k}, i * {lanes} + j] = {value}")
    values = [0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, 6e-8, -6e-8, 65519.99, -1e-300, 2049.0000001]
    x = np.tile((values * 3)[:24], (len(chains), 1))
    y = x[:, ::-1].copy()
    loop = f"for j in T.vectorized({lanes}):" if lanes > 1 else "for j in range(1):"
    text = f"""
@T.prim_func
def main(X: T.Buffer(({len(chains)}, 24), "float64"),
         Y: T.Buffer(({len(chains)}, 24), "float64"),
         Z: T.Buffer(({len(chains)}, 24), "{third}")):
    for i in range({24 // lanes}):
        {loop}
""" + "\n".join(lines)
    built = bw.build(bw.from_source(text), target=machine)
    if bw.Target(machine).is_host:
        dtype = np.float16 if third == "float16" else np.dtype(ml_dtypes.bfloat16)
        z, expected = np.zeros((2, len(chains), 24), dtype)
        built(x, y, z)
        with np.errstate(all="ignore"):
            bw.interpret(bw.from_source(text), x, y, expected)
        assert equal(z.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("arguments", ["", '""', '"x"', '"%"'])
def test_prints_of_at_most_one_character(arguments: str) -> None:
    """LLVM calls `putchar` instead of `printf`."""
    text = f"@T.prim_func\ndef main():\n    T.evaluate(T.print({arguments}))\n"
    bw.build(bw.from_source(text))


def calling(what: str) -> Callable[[], bw.Module]:
    text = f"""
@T.prim_func
def main(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    for i in range(4):
        Y[i] = T.Cast("float32", {what})
"""
    return lambda: bw.build(bw.from_source(text))


def test_an_intrinsic_may_become_a_call_of_the_math_library() -> None:
    built = calling('T.call_llvm_pure_intrin("int64", "llvm.lround.i64.f32", X[i])')()
    y = np.zeros(4, np.float32)
    built(np.array([0.5, -0.5, 2.4, 1e6], np.float32), y)
    assert y.tolist() == [1.0, -1.0, 2.0, 1e6]


def test_functions_of_the_c_libraries() -> None:
    """Also those that LLVM compiles to instructions."""
    called = (
        'T.call_extern("float32", "fabsf", X[i]) '
        '+ T.Cast("float32", T.call_extern("int32", "abs", i - 3))'
    )
    y = np.zeros(4, np.float32)
    calling(called)()(np.array([0.5, -0.5, 2.0, -1e6], np.float32), y)
    assert y.tolist() == [3.5, 2.5, 3.0, 1e6]


def test_unknown_external_functions_are_named() -> None:
    with pytest.raises(BuildError, match="call_extern calls 'absent'") as caught:
        calling('T.call_extern("float32", "absent", X[i])')()
    assert caught.value.code == "BW616"


def test_three_bytes_are_stored_one_by_one_on_aarch64() -> None:
    """LLVM aborts when it folds a truncation of 64-bit lanes into a store of three bytes."""
    text = """
@T.prim_func
def main(X: T.Buffer((9,), "int64"), Y: T.Buffer((9,), "int8")):
    for i in range(3):
        for j in T.vectorized(3):
            Y[i * 3 + j] = T.Cast("int8", X[i * 3 + j])
"""
    # The replacement alone first: without it, the build ends the process.
    head = 'target triple = "aarch64-linux-gnu"\n'
    store = "  store <3 x i8> %t, ptr %p, align 1\n"
    assert may_narrow(head + store)
    assert not may_narrow(store)
    lines = with_scalar_stores(head + store).splitlines()
    assert [line for line in lines if "store" in line] == [
        f"  store i8 %byte.lane.{k}, ptr %byte.place.{k}, align 1" for k in range(3)
    ]
    assert bw.build(bw.from_source(text), target="aarch64").source("asm")
