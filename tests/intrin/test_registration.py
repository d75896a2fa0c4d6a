"""Implementations of tensor intrinsics are compared with their meaning when they are registered."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.intrin import IntrinVerdict, TensorIntrin
from blockwright.verify.prove.decide import decide


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    """What a test registers is gone afterwards."""
    known, families = dict(TensorIntrin._known), list(TensorIntrin._families)
    yield
    TensorIntrin._known.clear()
    TensorIntrin._known.update(known)
    TensorIntrin._families[:] = families


def program(operands: dict[str, tuple[tuple[int, ...], str]], body: str) -> ir.PrimFunc:
    """A program on operands with given shapes and types."""
    lines = [f"def tile({', '.join(f'{name.lower()}: T.handle' for name in operands)}):"]
    lines += [
        f'    {name} = T.match_buffer({name.lower()}, {shape}, "{kind}", offset_factor=1)'
        for name, (shape, kind) in operands.items()
    ]
    lines += ['    with T.block("root"):', *(f"        {x}" for x in body.strip().splitlines())]
    return bw.from_source("@T.prim_func\n" + "\n".join(lines))


def registered(operands: dict[str, Any], meaning: str, implementation: str) -> TensorIntrin:
    programs = (program(operands, meaning), program(operands, implementation))
    return bw.TensorIntrin.register("test.it", *programs)


def refusal(operands: dict[str, Any], meaning: str, implementation: str) -> str:
    """The message for an implementation that is refused; nothing is registered then."""
    with pytest.raises(bw.IRError) as caught:
        registered(operands, meaning, implementation)
    assert caught.value.code == "BW262"
    assert "test.it" not in {intrin.name for intrin in TensorIntrin.known()}
    return str(caught.value)


def product(a: str, b: str, c: str) -> dict[str, tuple[tuple[int, ...], str]]:
    return {"A": ((2, 4), a), "B": ((3, 4), b), "C": ((2, 3), c)}


def sums(c: str) -> str:
    return f"""
for i, j, k in T.grid(2, 3, 4):
    with T.block("update"):
        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
        C[vi, vj] = C[vi, vj] + T.Cast("{c}", A[vi, vk]) * T.Cast("{c}", B[vj, vk])"""


def loops(value: str) -> str:
    return f"""
for i, j, k in T.grid(2, 3, 4):
    C[i, j] = {value}"""


BYTES, FLOATS = product("uint8", "int8", "int32"), product("float32", "float32", "float32")
PAIRS = {"A": ((8,), "bfloat16"), "B": ((8,), "bfloat16"), "C": ((4,), "float32")}
WORDS = {"A": ((4,), "int8"), "B": ((4,), "int8"), "C": ((4,), "int8")}


def elementwise(value: str, extent: int = 4) -> str:
    return f"""
for i in range({extent}):
    with T.block("each"):
        vi = T.axis.spatial({extent}, i)
        C[vi] = {value}"""


# ------------------------------------------------------------------------------------------ proved
def test_a_sum_in_another_order_is_proved() -> None:
    backwards = loops("C[i, j] + A[i, 3 - k] * B[j, 3 - k]")
    verdict = registered(FLOATS, sums("float32"), backwards).verdict
    assert str(verdict) == "proved (up to the order of sums)"
    assert verdict


@pytest.mark.parametrize(
    "factor",
    [
        'T.Cast("int32", T.reinterpret("int8", A[i, k] ^ T.uint8(128))) + 128',
        'T.Cast("int32", A[i, k] >> T.uint8(4)) * 16 + T.Cast("int32", A[i, k] & T.uint8(15))',
        'T.Select(A[i, k] >= T.uint8(128), T.Cast("int32", T.reinterpret("int8", A[i, k])) + 256,'
        ' T.Cast("int32", T.reinterpret("int8", A[i, k])))',
    ],
)
def test_integer_identities_are_proved_by_bit_vectors(factor: str) -> None:
    implementation = loops(f'C[i, j] + ({factor}) * T.Cast("int32", B[j, k])')
    intrin = registered(BYTES, sums("int32"), implementation)
    assert decide(intrin.meaning, intrin.implementation).verdict == "unknown"
    assert str(intrin.verdict) == "proved (bit by bit)"


def test_the_steps_of_a_hardware_row_are_proved_in_its_order() -> None:
    """`dot2_bf16` adds the odd product first; an implementation by `fma` in that order is equal."""
    x, y = 'T.Cast("float32", A[vi * 2 + {}])', 'T.Cast("float32", B[vi * 2 + {}])'
    odd = f"T.fma({x.format(1)}, {y.format(1)}, C[vi])"
    right = elementwise(f"T.fma({x.format(0)}, {y.format(0)}, {odd})")
    assert str(registered(PAIRS, DOT, right).verdict) == "proved (bit by bit)"


DOT = elementwise(
    "T.dot2_bf16(C[vi], A[T.ramp(vi * 2, 1, 2)], B[T.ramp(vi * 2, 1, 2)])",
)


@pytest.mark.parametrize(
    "name",
    ["outer_product_4x8_float32", "dot4_u8s8_2x16", "dot2_bf16_2x32", "mma_2x2x8_s8s8"],
)
def test_the_families_of_the_package_are_proved_on_demand(name: str) -> None:
    intrin = TensorIntrin.get(name)
    assert intrin not in TensorIntrin._verdicts or intrin.verdict
    assert intrin.verdict.verdict == "proved"


# ------------------------------------------------------------------------------------------ refused
def test_a_wrong_index_is_refused() -> None:
    message = refusal(FLOATS, sums("float32"), loops("C[i, j] + A[i, k] * B[j, 3 - k]"))
    assert "error[BW262]" in message
    assert "does not compute the meaning: C[" in message
    assert "A = [[" in message  # the counterexample


def test_the_wrong_order_of_rounding_is_refused() -> None:
    """Each operation of a row is rounded where the row says so."""
    x, y = 'T.Cast("float32", A[vi * 2 + {}])', 'T.Cast("float32", B[vi * 2 + {}])'
    even = f"T.fma({x.format(0)}, {y.format(0)}, C[vi])"
    wrong = elementwise(f"T.fma({x.format(1)}, {y.format(1)}, {even})")
    assert "must be" in refusal(PAIRS, DOT, wrong)


def test_another_rounding_is_refused() -> None:
    """Rounding to odd differs from rounding to nearest in one bit at most."""
    assert registered(PAIRS, DOT, DOT).verdict
    TensorIntrin._known.pop("test.it")
    refusal(PAIRS, DOT, DOT.replace("dot2_bf16", "dot2_bf16_odd"))


def test_a_sum_that_is_no_reduction_keeps_its_order() -> None:
    floats = dict.fromkeys("ABC", ((4,), "float32"))
    meaning = elementwise("A[vi] + B[vi] + C[vi]")
    assert registered(floats, meaning, elementwise("(B[vi] + A[vi]) + C[vi]")).verdict
    TensorIntrin._known.pop("test.it")
    refusal(floats, meaning, elementwise("A[vi] + (B[vi] + C[vi])"))


def test_a_saturating_sum_is_not_a_wrapping_one() -> None:
    wide = 'T.Cast("int32", A[vi]) + T.Cast("int32", B[vi])'
    message = refusal(
        WORDS,
        elementwise("A[vi] + B[vi]"),
        elementwise(f'T.Cast("int8", T.max(T.min({wide}, 127), -128))'),
    )
    assert "C[" in message
    TensorIntrin.register(
        "test.it",
        program(WORDS, elementwise("A[vi] + B[vi]")),
        program(WORDS, elementwise(f'T.Cast("int8", {wide})')),
    )


def test_signed_bytes_are_not_unsigned_ones() -> None:
    signed = 'T.Cast("int32", T.reinterpret("int8", A[i, k]))'
    refusal(BYTES, sums("int32"), loops(f'C[i, j] + {signed} * T.Cast("int32", B[j, k])'))


def test_a_product_in_too_narrow_a_type_is_refused() -> None:
    narrow = 'T.Cast("int32", T.Cast("int16", A[i, k]) * T.Cast("int16", B[j, k]))'
    assert registered(BYTES, sums("int32"), loops(f"C[i, j] + {narrow}")).verdict  # fits 16 bits
    TensorIntrin._known.pop("test.it")
    bytes_ = 'T.Cast("int32", T.Cast("int8", A[i, k]) * B[j, k])'
    refusal(BYTES, sums("int32"), loops(f"C[i, j] + {bytes_}"))


def test_too_few_lanes_are_refused() -> None:
    whole = "C[T.ramp(0, 1, 4)] = A[T.ramp(0, 1, 4)] + B[T.ramp(0, 1, 4)]"
    meaning = elementwise("A[vi] + B[vi]")
    assert registered(WORDS, meaning, whole).verdict
    TensorIntrin._known.pop("test.it")
    refusal(WORDS, meaning, whole.replace("1, 4", "1, 2"))


@pytest.mark.parametrize(
    "wrong",
    [
        "for i in range(5):\n    C[i] = A[i] + B[i]",  # out of bounds
        "for i in T.parallel(4):\n    C[i] = A[i] + B[i]\n    C[3 - i] = A[3 - i] + B[3 - i]",
        't = T.alloc_buffer((4,), "int8")\nfor i in range(4):\n    C[i] = A[i] + B[i] + t[i]',
    ],
)
def test_programs_that_fail_are_refused(wrong: str) -> None:
    refusal(WORDS, elementwise("A[vi] + B[vi]"), wrong)


def test_an_intrinsic_is_not_replaced_by_a_wrong_one() -> None:
    first = registered(WORDS, elementwise("A[vi] + B[vi]"), elementwise("B[vi] + A[vi]"))
    programs = (
        program(WORDS, elementwise("A[vi] + B[vi]")),
        program(WORDS, elementwise("A[vi] - B[vi]")),
    )
    with pytest.raises(bw.IRError, match="does not compute the meaning"):
        TensorIntrin.register("test.it", *programs, override=True)
    assert TensorIntrin.get("test.it") is first


def test_a_family_is_compared_when_it_creates_an_intrinsic() -> None:
    meaning = program(WORDS, elementwise("A[vi] + B[vi]"))
    wrong = program(WORDS, elementwise("A[vi] - B[vi]"))
    TensorIntrin.add_family(
        lambda name: TensorIntrin(name, meaning, wrong) if name == "test.family" else None
    )
    with pytest.raises(bw.IRError, match="does not compute the meaning"):
        TensorIntrin.get("test.family")


# ------------------------------------------------------------------------------------------ unknown
def test_what_is_not_proved_is_tested() -> None:
    floats = dict.fromkeys("ABC", ((4,), "float32"))
    meaning = elementwise("A[vi] / T.float32(8)")
    verdict = registered(floats, meaning, elementwise("A[vi] * T.float32(0.125)")).verdict
    assert (verdict.verdict, verdict.tests) == ("unknown", 12)
    assert str(verdict).startswith("unknown, tested on 12 inputs (")
    assert not verdict
    TensorIntrin._known.pop("test.it")
    refusal(floats, elementwise("A[vi] / T.float32(10)"), elementwise("A[vi] * T.float32(0.1)"))


def test_special_values_are_tested() -> None:
    """`x - x` is 0 for all numbers, but not for infinities."""
    floats = dict.fromkeys("ABC", ((4,), "float32"))
    refusal(floats, elementwise("A[vi] - A[vi]"), elementwise("T.float32(0)"))


def test_a_function_of_the_machine_is_unknown_and_untested() -> None:
    implementation = (
        'T.evaluate(T.call_extern("int32", "accel_add", C.access_ptr("w"), A.access_ptr("r")))'
    )
    verdict = registered(WORDS, elementwise("A[vi] + B[vi]"), implementation).verdict
    assert verdict.verdict == "unknown"
    assert "not tested" in str(verdict)


def test_without_solvers_implementations_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    right = loops('C[i, j] + T.Cast("int32", A[i, k]) * T.Cast("int32", B[j, k])')
    verdict = registered(BYTES, sums("int32"), right).verdict
    assert verdict == IntrinVerdict("unknown", "islpy or z3-solver is not installed", 12)
    TensorIntrin._known.pop("test.it")
    refusal(BYTES, sums("int32"), right.replace("B[j, k]", "B[j, 0]"))


# ---------------------------------------------------------------------------------------- schedules
TRICK = 'T.Cast("int32", T.reinterpret("int8", A[i, k] ^ T.uint8(128))) + 128'
MATMUL = """
@T.prim_func
def matmul(A: T.Buffer((6, 8), "uint8"), B: T.Buffer((9, 8), "int8"),
           C: T.Buffer((6, 9), "int32")):
    for i, j, k in T.grid(6, 9, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + T.Cast("int32", A[vi, vk]) * T.Cast("int32", B[vj, vk])
"""


def tensorized(name: str) -> tuple[ir.PrimFunc, ir.PrimFunc]:
    """A matrix product and its schedule with an intrinsic; each step is proved."""
    func = bw.from_source(MATMUL)
    sch = bw.Schedule(func)
    i, j, k = sch.get_loops("C")
    i, ii = sch.split(i, [None, 2])
    j, jj = sch.split(j, [None, 3])
    k, kk = sch.split(k, [None, 4])
    sch.reorder(i, j, k, ii, jj, kk)
    sch.decompose_reduction("C", k)
    sch.tensorize(sch.get_loops("C")[3], name)
    return func, sch.func


def test_a_schedule_needs_the_meaning_only() -> None:
    """The verifier alone cannot decide the implementation, which bit vectors proved."""
    value = f'C[i, j] + ({TRICK}) * T.Cast("int32", B[j, k])'
    name = registered(BYTES, sums("int32"), loops(value)).name
    func, scheduled = tensorized(name)
    assert "128" in scheduled.script()
    assert bw.verify(func, scheduled).verdict == "proved"
    again = bw.from_source(scheduled.script())
    assert bw.verify(func, again).verdict == "proved"  # recognized by its content
    other = bw.from_source(scheduled.script().replace("+ 128", "+ 127"))
    assert bw.verify(func, other).verdict == "refuted"
    TensorIntrin._known.pop(name)
    assert bw.verify(func, scheduled).verdict == "unknown"


def test_an_intrinsic_that_is_only_tested_does_not_prove_a_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = f'C[i, j] + ({TRICK}) * T.Cast("int32", B[j, k])'
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        intrin = registered(BYTES, sums("int32"), loops(value))
    assert intrin.verdict.verdict == "unknown"
    assert bw.verify(*tensorized(intrin.name)).verdict == "unknown"


def test_operands_that_share_memory_are_compared_as_they_are() -> None:
    """The proof of an intrinsic takes its operands as separate memory."""
    shifted = {"A": ((4,), "int8"), "C": ((4,), "int8")}
    registered(
        shifted,
        elementwise("A[vi]"),
        "for i in range(4):\n    C[3 - i] = A[3 - i] ^ T.int8(0)",
    )
    text = """
@T.prim_func
def shift(X: T.Buffer((5,), "int8")):
    with T.block("tile"):
        T.reads(X[0:4])
        T.writes(X[1:5])
        A = T.match_buffer(X[0:4], (4,), "int8", offset_factor=1)
        C = T.match_buffer(X[1:5], (4,), "int8", offset_factor=1)
        for i in range(4):
            {body}
"""
    backwards = bw.from_source(text.format(body="C[3 - i] = A[3 - i] ^ T.int8(0)"))
    forwards = bw.from_source(text.format(body="C[i] = A[i]"))
    x = np.arange(5, dtype=np.int8)
    y = x.copy()
    bw.interpret(forwards, x)
    bw.interpret(backwards, y)
    assert x.tolist() != y.tolist()
    assert bw.verify(forwards, backwards).verdict != "proved"
