"""Arm's BFDOT and BFMMLA: products and sums rounded to odd, against exact rational numbers."""

from __future__ import annotations

import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import blockwright as bw
from blockwright.build import build
from blockwright.intrin import TensorIntrin
from blockwright.intrin.hardware import PRODUCTS
from blockwright.ir import dtype_of
from blockwright.strategies.cpu.micro_kernel import micro_kernel
from blockwright.target import Target
from tests.intrin.odd_rounding import assert_same_bits, dot, operands, rounded
from tests.intrin.test_hardware_operations import program
from tests.intrin.test_matrix_tiles import operation

DOT, MATRIX = PRODUCTS["dot2_bf16_odd"], PRODUCTS["mma_2x2x4_bf16_odd"]


def test_the_oracle_rounds_to_odd() -> None:
    one, last = Fraction(1), Fraction(1, 1 << 23)
    assert rounded(one + last / 4) == float(one + last)  # inexact: the last bit is set
    assert rounded(one + last * 5 / 4) == float(one + last)  # it is set already
    assert rounded(one + 2 * last) == float(one + 2 * last)  # exact: unchanged
    assert rounded(Fraction(2) ** 128) == np.inf
    assert np.signbit(rounded(-(Fraction(2) ** -127)))


def test_the_operation_computes_the_same_bits_everywhere() -> None:
    lanes = 20
    func = program(DOT, lanes)
    runs = [build(func, target)["dot"] for target in ("x86-64", "native")]
    runs.append(lambda *arrays: bw.interpret(func, *arrays))
    rounded_to_nearest = 0
    for seed in range(10):
        a, b, c = operands(seed, 2 * lanes, lanes)
        want = np.array(
            [dot(float(c[i]), a[2 * i : 2 * i + 2], b[2 * i : 2 * i + 2]) for i in range(lanes)],
            np.float32,
        )
        for run in runs:
            got = c.copy()
            run(a, b, got)
            assert_same_bits(got, want)
        with np.errstate(all="ignore"):
            x, y = a.astype(np.float32), b.astype(np.float32)
            plain = c + (x * y).reshape(-1, 2).sum(1)
        rounded_to_nearest += int((plain.view(np.uint32) != want.view(np.uint32)).sum())
    assert rounded_to_nearest > 20  # the rounding makes a difference


def test_a_matrix_is_two_dot_products_per_element() -> None:
    func = operation(MATRIX)
    native = build(func, "native")["product"]
    for seed in range(20):
        a, b, c = operands(seed, 8, 4)
        want = np.array(
            [
                dot(float(c[2 * i + j]), a[4 * i : 4 * i + 4], b[4 * j : 4 * j + 4])
                for i in range(2)
                for j in range(2)
            ],
            np.float32,
        )
        for run in (native, lambda *arrays: bw.interpret(func, *arrays)):
            got = c.copy()
            run(a, b, got)
            assert_same_bits(got, want)


@pytest.mark.parametrize(
    ("name", "lanes", "instructions"),
    [
        ("dot2_bf16_odd", 2, ["bfdot"]),
        ("dot2_bf16_odd", 8, ["bfdot"] * 2),
        ("dot2_bf16", 4, ["bfmlalt", "bfmlalb"]),  # the odd products first
        ("mma_2x2x4_bf16_odd", 4, ["bfmmla"]),
    ],
)
def test_instructions_of_aarch64(name: str, lanes: int, instructions: list[str]) -> None:
    func = operation(PRODUCTS[name]) if name.startswith("mma") else program(PRODUCTS[name], lanes)
    text = build(func, "aarch64+bf16").source("asm")
    assert re.findall(r"^\s+(bf\w+)\b", text, re.MULTILINE) == instructions
    assert not re.search(r"^\s+bf\w+\b", build(func, "aarch64").source("asm"), re.MULTILINE)


@pytest.mark.parametrize("name", ["dot2_bf16_odd_4x16", "mma_2x2x4_bf16_odd"])
def test_no_intrinsic_rounds_a_plain_sum_to_odd(name: str) -> None:
    with pytest.raises(bw.IRError) as caught:
        TensorIntrin.get(name)
    assert caught.value.code == "BW220"


def test_strategies_multiply_bfloat16_by_the_exact_row() -> None:
    kernel = micro_kernel(Target("aarch64+bf16"), *map(dtype_of, ("bfloat16",) * 2 + ("float32",)))
    assert kernel is not None
    assert kernel.dot == "dot2_bf16"


def test_the_verifier_knows_the_rounding() -> None:
    """Not a sum in another order, but equal to its own definition in any form."""
    func = program(DOT, 8)
    plain = bw.from_source("""
@T.prim_func
def dot(A: T.Buffer((16,), "bfloat16"), B: T.Buffer((16,), "bfloat16"),
        C: T.Buffer((8,), "float32")):
    for i, k in T.grid(8, 2):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            C[vi] = C[vi] + T.Cast("float32", A[vi * 2 + vk]) * T.Cast("float32", B[vi * 2 + vk])
""")
    by_lane = bw.from_source("""
@T.prim_func
def dot(A: T.Buffer((16,), "bfloat16"), B: T.Buffer((16,), "bfloat16"),
        C: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            T.reads(A[vi * 2:vi * 2 + 2], B[vi * 2:vi * 2 + 2], C[vi])
            T.writes(C[vi])
            C[vi] = T.dot2_bf16_odd(C[vi], A[T.ramp(vi * 2, 1, 2)], B[T.ramp(vi * 2, 1, 2)])
""")
    assert bw.verify(by_lane, func).verdict == "proved"
    assert bw.verify(plain, func).verdict == "unknown"


def test_special_values() -> None:
    """Infinities and NaN as IEEE 754 has them; a subnormal factor is 0, 0 times infinity NaN."""
    inf, nan, tiny = np.inf, np.nan, 2.0**-130
    cases = [
        ((1, inf), (1, 1), 0, inf), ((1, inf), (1, -1), inf, nan), ((nan, 0), (0, 0), 0, nan),
        ((tiny, 1), (inf, 1), 0, nan), ((tiny, 0), (2.0**20, 0), 0.0, 0.0),
        ((2.0**-70, 0), (-(2.0**-70), -1), -0.0, -0.0), ((2.0**100, 0), (2.0**100, 0), -1, inf),
        ((1, 0), (1, 0), tiny, 1.0),
    ]  # fmt: skip
    for a, b, c, want in cases:
        x, y = (np.array(v, ml_dtypes.bfloat16) for v in (a, b))
        got = np.array([c], np.float32)
        bw.interpret(program(DOT, 1), x, y, got)
        assert_same_bits(got, np.array([dot(float(np.float32(c)), x, y)], np.float32))
        assert_same_bits(got, np.array([want], np.float32))
