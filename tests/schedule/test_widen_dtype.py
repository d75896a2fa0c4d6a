"""widen_dtype: values stay the same over the range of the old type, or the step is refused."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.interp import interpret
from blockwright.schedule import Schedule, ScheduleError

WIDER = [
    ("int8", "int16"), ("uint8", "int16"), ("uint8", "uint32"), ("int16", "float32"),
    ("bfloat16", "float32"), ("float16", "float64"), ("float32", "float64"), ("uint32", "float64"),
]  # fmt: skip
NARROWER = [
    ("int8", "uint8"), ("int8", "uint64"), ("int32", "float32"), ("float16", "bfloat16"),
    ("float64", "float32"), ("uint64", "int64"), ("bfloat16", "float16"),
]  # fmt: skip


def program(dtype: str, result: str = "int32") -> ir.PrimFunc:
    """Two readers of B: one converts its elements, the other computes in the type itself."""
    parsed = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((256,), "{dtype}"), C: T.Buffer((256,), "{result}"),
         D: T.Buffer((256,), "{dtype}")):
    B = T.alloc_buffer((256,), "{dtype}")
    for i in range(256):
        with T.block("B"):
            vi = T.axis.spatial(256, i)
            B[vi] = A[vi] + A[255 - vi]
    for i in range(256):
        with T.block("C"):
            vi = T.axis.spatial(256, i)
            C[vi] = T.Cast("{result}", B[vi]) * T.Cast("{result}", B[vi])
    for i in range(256):
        with T.block("D"):
            vi = T.axis.spatial(256, i)
            D[vi] = B[vi] + B[vi]
""")
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


def operand(dtype: str) -> np.ndarray:
    """All bit patterns of 8-bit types; 256 values over the whole range of others."""
    rng = np.random.default_rng(0)
    if "float" in dtype:
        scale = 2.0 ** rng.integers(-12, 12, 256)
        return np.asarray(rng.standard_normal(256) * scale).astype(dtype)
    ends = np.iinfo(dtype)
    values = np.linspace(ends.min, ends.max, 256, dtype=np.float64)
    return np.clip(values, ends.min, ends.max - 1024 * (ends.bits > 32)).astype(dtype)


@pytest.mark.parametrize(("old", "new"), WIDER)
def test_every_reader_sees_the_same_values(old: str, new: str) -> None:
    result = "float64" if "float" in new else "int32"
    func = program(old, result)
    sch = Schedule(func, verify="full")
    sch.widen_dtype(sch.get_block("B"), "B", new)
    stored = [b.dtype.name for b in ir.collect(sch.func, ir.Buffer) if b.name == "B"]
    assert set(stored) == {new}
    a = operand(old)
    outputs = []
    for candidate in (func, sch.func):
        c, d = np.zeros(256, result), np.zeros(256, old)
        interpret(candidate, a, c, d)
        outputs.append((c, d))
    c, d = np.zeros(256, result), np.zeros(256, old)
    build(sch.func)["main"](a, c, d)
    outputs.append((c, d))
    for other in outputs[1:]:
        for x, y in zip(outputs[0], other, strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_conversion_starts_from_the_new_type() -> None:
    sch = Schedule(program("bfloat16", "float32"))
    sch.widen_dtype(sch.get_block("B"), 0, "float32")
    (store,) = ir.collect(sch.get(sch.get_block("C")), ir.BufferStore)
    assert not ir.collect(store, ir.Cast)


@pytest.mark.parametrize(("old", "new"), NARROWER)
def test_types_that_lack_a_value_are_refused(old: str, new: str) -> None:
    sch = Schedule(program(old, "float64"))
    with pytest.raises(ScheduleError, match=f"does not hold every value of {old}") as caught:
        sch.widen_dtype(sch.get_block("B"), 0, new)
    assert caught.value.code == "BW304"


def test_parameters_keep_their_type() -> None:
    sch = Schedule(program("int8"))
    with pytest.raises(ScheduleError) as caught:
        sch.widen_dtype(sch.get_block("C"), 0, "int64")
    assert caught.value.code == "BW321"


@pytest.mark.parametrize("place", ["B[vi % 4]", "T.address_of(B[vi % 4])"])
@pytest.mark.parametrize("step", ["widen_dtype", "unsafe.set_dtype"])
def test_atomic_updates_keep_the_type_of_their_memory(step: str, place: str) -> None:
    """In float64, the sum would round otherwise."""
    func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((64,), "float32"), C: T.Buffer((4,), "float32")):
    B = T.alloc_buffer((4,), "float32")
    for i in range(4):
        with T.block("zero"):
            vi = T.axis.spatial(4, i)
            B[vi] = T.float32(0)
    for i in T.parallel(64):
        with T.block("B"):
            vi = T.axis.spatial(64, i)
            T.atomic_add({place}, A[vi])
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = B[vi]
""")
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func)
    change = sch.widen_dtype if step == "widen_dtype" else sch.unsafe.set_dtype
    with pytest.raises(ScheduleError, match="in its own element type") as caught:
        change(sch.get_block("zero"), 0, "float64")
    assert caught.value.code == "BW359"
    assert sch.func is func


def test_the_step_is_proved() -> None:
    sch = Schedule(program("uint8"))
    sch.widen_dtype(sch.get_block("B"), 0, "int16")
    assert bw.verify(program("uint8"), sch.func).verdict == "proved"


def stored_and_read(stored: str, old: str, read: str, result: str) -> ir.PrimFunc:
    parsed = bw.from_source(f"""
@T.prim_func
def main(X: T.Buffer((4,), "uint8"), C: T.Buffer((4,), "{result}")):
    B = T.alloc_buffer((4,), "{old}")
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = {stored}
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = {read}
""")
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


WRAPPED = [0, 10**9, 2 * 10**9, 3 * 10**9 - 2**32]
OVERFLOWING = [
    ("vi * 1000000000", "int32", "int64", "int64", WRAPPED),
    ("vi * 1000000000", "int32", "float64", "float64", WRAPPED),
    ("T.Cast('int32', T.Cast('int64', vi) * 1000000000)", "int32", "int64", "int64", WRAPPED),
    ("T.Select(vi > 1, vi * 1000000000, 3)", "int32", "int64", "int64", [3, 3, *WRAPPED[2:]]),
    ("T.Cast('uint32', vi - 2)", "uint32", "int64", "int64", [2**32 - 2, 2**32 - 1, 0, 1]),
    ("T.Cast('int8', vi * 100)", "int8", "int64", "int64", [0, 100, -56, 44]),
    ("T.if_then_else(vi < 3, 7, vi * 1000000000)", "int32", "int64", "int64",
     [7, 7, 7, WRAPPED[3]]),
]  # fmt: skip


@pytest.mark.parametrize(("stored", "old", "new", "result", "expected"), OVERFLOWING)
@pytest.mark.parametrize("step", ["widen_dtype", "unsafe.set_dtype"])
def test_a_stored_index_keeps_its_wrap(
    step: str, stored: str, old: str, new: str, result: str, expected: list[int]
) -> None:
    """A stored index is reduced to the old type first: in the wider one it would fit."""
    func = stored_and_read(stored, old, f"T.Cast('{result}', B[vi])", result)
    sch = Schedule(func, verify="check" if step.startswith("unsafe") else "full")
    change = sch.widen_dtype if step == "widen_dtype" else sch.unsafe.set_dtype
    change("B", 0, new)
    ir.assert_structural_equal(bw.from_source(sch.func.script()), sch.func)
    for program in (func, sch.func):
        interpreted, built = np.zeros(4, result), np.zeros(4, result)
        interpret(program, np.zeros(4, "uint8"), interpreted)
        build(program)["main"](np.zeros(4, "uint8"), built)
        np.testing.assert_array_equal(interpreted, expected)
        np.testing.assert_array_equal(built, expected)


def test_an_index_that_fits_is_stored_without_a_mark() -> None:
    sch = Schedule(stored_and_read("vi * 1000", "int32", "T.Cast('int64', B[vi])", "int64"))
    sch.widen_dtype("B", 0, "int64")
    assert not ir.collect(sch.func.body, ir.Call)


def test_an_index_of_inner_loops_that_fits_is_stored_without_a_mark() -> None:
    func = bw.from_source("""
@T.prim_func
def main(C: T.Buffer((8,), "int64")):
    B = T.alloc_buffer((8,), "int32")
    for i in range(2):
        with T.block("B"):
            vi = T.axis.spatial(2, i)
            for k in range(4):
                B[vi * 4 + k] = vi * 1000 + k
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = T.Cast("int64", B[vi])
""")
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    sch.widen_dtype("B", 0, "int64")
    assert not ir.collect(sch.func.body, ir.Call)


@pytest.mark.parametrize(
    ("stored", "old", "new", "result", "expected"),
    [
        ("X[vi]", "uint8", "float32", "int8", [100, -106, -56, -1]),
        ("T.Cast('uint32', X[vi]) << T.uint32(24)", "uint32", "float64", "int32",
         [100 << 24, (150 << 24) - 2**32, (200 << 24) - 2**32, (255 << 24) - 2**32]),
    ],
)  # fmt: skip
def test_integers_in_floats_wrap_to_narrower_integers(
    stored: str, old: str, new: str, result: str, expected: list[int]
) -> None:
    """A float saturates where an integer wraps: 200 becomes 127 or -56 in an int8."""
    func = stored_and_read(stored, old, f"T.Cast('{result}', B[vi])", result)
    sch = Schedule(func, verify="full")
    sch.widen_dtype("B", 0, new)
    x, interpreted, built = np.array([100, 150, 200, 255], "uint8"), *np.zeros((2, 4), result)
    interpret(sch.func, x, interpreted)
    build(sch.func)["main"](x, built)
    np.testing.assert_array_equal(interpreted, expected)
    np.testing.assert_array_equal(built, expected)
    saturating = stored_and_read(stored, old, f"T.Cast('{result}', T.Cast('{new}', B[vi]))", result)
    assert bw.verify(func, saturating).verdict != "proved"
