"""Dot products of lanes: meaning, interpreter, native code, verifier, printing and validation."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.intrin.hardware import DOT_PRODUCTS, DotProduct
from blockwright.target import Target

LANES = (1, 4, 12, 16, 48)
EXACT = [name for name, dot in DOT_PRODUCTS.items() if not dot.odd]
"""Rows that compute a sum; the others are tested in test_round_to_odd.py."""
LOW_TARGETS = ("x86-64", "x86-64-v3", "native")


def program(dot: DotProduct, lanes: int) -> ir.PrimFunc:
    """C[lanes] += the dot product of A and B, in one vector statement."""
    wide = lanes * dot.group
    return bw.from_source(f"""
@T.prim_func
def dot(A: T.Buffer(({wide},), "{dot.a}"), B: T.Buffer(({wide},), "{dot.b}"),
        C: T.Buffer(({lanes},), "{dot.accumulator}")):
    with T.block("C"):
        T.reads(A[0:{wide}], B[0:{wide}], C[0:{lanes}])
        T.writes(C[0:{lanes}])
        C[T.ramp(0, 1, {lanes})] = T.call_intrin(
            "{dot.accumulator}{f"x{lanes}" if lanes > 1 else ""}", "tir.{dot.name}",
            C[T.ramp(0, 1, {lanes})], A[T.ramp(0, 1, {wide})], B[T.ramp(0, 1, {wide})])
""")


def arrays(dot: DotProduct, lanes: int, seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    wide = lanes * dot.group
    if dot.exact:
        a, b = (
            rng.integers(info.min, info.max, wide, dtype=kind, endpoint=True)
            for kind in (dot.a, dot.b)
            for info in (np.iinfo(kind),)
        )
        c = rng.integers(-(2**31), 2**31, lanes).astype(np.int32)
        a[0], b[0] = np.iinfo(dot.a).max, np.iinfo(dot.b).min  # the ends
        return [a, b, c]
    a, b = (rng.standard_normal(wide).astype(ml_dtypes.bfloat16) for _ in range(2))
    return [a, b, rng.standard_normal(lanes).astype(np.float32)]


def reference(dot: DotProduct, a: Any, b: Any, c: Any) -> np.ndarray[Any, Any]:
    """By NumPy: exact integers modulo 2**32; rounded after each product, the odd one first."""
    x, y = (v.reshape(-1, dot.group) for v in (a, b))
    if dot.exact:
        total = c.astype(np.int64) + (x.astype(np.int64) * y.astype(np.int64)).sum(1)
        return (total & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    total = c.astype(np.float64)
    for k in (1, 0):  # a product of two bfloat16 and a float32 sum: float64 rounds once, rarely two
        total = (total + x[:, k].astype(np.float64) * y[:, k]).astype(np.float32).astype(np.float64)
    return total.astype(np.float32)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", EXACT)
def test_interpreter_and_native_code_compute_the_meaning(name: str, lanes: int) -> None:
    dot = DOT_PRODUCTS[name]
    func = program(dot, lanes)
    targets = [Target(t) for t in LOW_TARGETS]
    compiled = [build(func, t)["dot"] for t in targets if t.is_host]
    for seed in range(3):
        a, b, c = arrays(dot, lanes, seed)
        want = reference(dot, a, b, c)
        for vectorize in (False, True):
            got = c.copy()
            bw.interpret(func, a, b, got, vectorize=vectorize)
            np.testing.assert_array_equal(got, want)
        for run in compiled:
            got = c.copy()
            run(a, b, got)
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", DOT_PRODUCTS)
def test_a_target_with_the_instruction_uses_it(name: str) -> None:
    dot = DOT_PRODUCTS[name]
    for lanes, forms in dot.forms.items():
        for form in forms:
            arm = form.intrinsic.startswith("aarch64")
            base = "aarch64" if arm else "x86-64-v4" if lanes == 16 else "x86-64-v3"
            known = Target(base).feature_set
            extra = sorted(form.features - known)
            module = build(program(dot, lanes), Target("+".join((base, *extra))))
            for intrinsic in filter(None, (form.intrinsic, form.then)):
                assert f"llvm.{intrinsic}" in module.source("llvm")


def test_the_table_names_instructions_of_the_processor() -> None:
    func = program(DOT_PRODUCTS["dot4_u8s8"], 16)
    assert "vpdpbusd" in build(func, "x86-64-v4+avx512vnni").source("asm")
    assert "vpdpbusd" not in build(func, "x86-64-v4").source("asm")
    func = program(DOT_PRODUCTS["dot2_bf16"], 8)
    assert "vdpbf16ps" in build(func, "x86-64-v3+avx512f+avx512vl+avx512bf16").source("asm")


@pytest.mark.parametrize("name", EXACT)
def test_the_verifier_expands_the_meaning(name: str) -> None:
    """Against a reduction over the group; with one factor wrong, it is refuted."""
    dot = DOT_PRODUCTS[name]
    lanes, g = 8, dot.group
    k = "k" if dot.exact else f"{g - 1} - k"
    x, y = (f'T.Cast("{dot.accumulator}", {v}[vi * {g} + {k.replace("k", "vk")}])' for v in "AB")
    value = f"C[vi] + {x} * {y}"  # which may be contracted to an fma
    text = f"""
@T.prim_func
def dot(A: T.Buffer(({lanes * g},), "{dot.a}"), B: T.Buffer(({lanes * g},), "{dot.b}"),
        C: T.Buffer(({lanes},), "{dot.accumulator}")):
    for i, k in T.grid({lanes}, {g}):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            C[vi] = {value}
"""
    func = program(dot, lanes)
    assert bw.verify(bw.from_source(text), func).verdict == "proved"
    wrong = text.replace(y, y.replace("vi *", "(7 - vi) *"))
    assert bw.verify(bw.from_source(wrong), func).verdict == "refuted"


@pytest.mark.parametrize("name", DOT_PRODUCTS)
def test_programs_round_trip(name: str) -> None:
    func = program(DOT_PRODUCTS[name], 4)
    ir.assert_structural_equal(bw.from_source(func.script()), func)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("A[T.ramp(0, 1, 16)]", "A[T.ramp(0, 1, 8)]"),
        ("A[T.ramp(0, 1, 16)]", "B[T.ramp(0, 1, 16)]"),
        (", B[T.ramp(0, 1, 16)])", ")"),
    ],
)
def test_operands_have_fixed_types(before: str, after: str) -> None:
    text = program(DOT_PRODUCTS["dot4_u8s8"], 4).script()
    assert before in text
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.build(bw.from_source(text.replace(before, after)))
    assert caught.value.code in ("BW106", "BW260")


@pytest.mark.parametrize("kind", ["serial", "vectorized", "unroll", "parallel"])
def test_a_loop_over_groups_computes_the_same(kind: str) -> None:
    func = bw.from_source(f"""
@T.prim_func
def dots(A: T.Buffer((32,), "uint8"), B: T.Buffer((32,), "int8"), C: T.Buffer((8,), "int32")):
    for i in T.{kind}(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            T.reads(A[vi * 4:vi * 4 + 4], B[vi * 4:vi * 4 + 4], C[vi])
            T.writes(C[vi])
            C[vi] = T.dot4_u8s8(C[vi], A[T.ramp(vi * 4, 1, 4)], B[T.ramp(vi * 4, 1, 4)])
""")
    dot = DOT_PRODUCTS["dot4_u8s8"]
    a, b, c = arrays(dot, 8, 0)
    want = reference(dot, a, b, c)
    got = c.copy()
    bw.interpret(func, a, b, got)
    np.testing.assert_array_equal(got, want)
    build(func)["dots"](a, b, c)
    np.testing.assert_array_equal(c, want)
