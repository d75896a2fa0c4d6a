"""Indices are exact and values wrap, in the interpreter, in native code and in proofs alike.

What an expression means is written down here once more, in Python's integers: casts to all integer
types, shifts and `&`, at numbers around the ends of 32 bits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

Numbers = np.ndarray[Any, Any]
ROWS, COLUMNS = 5, 4
WIDTHS = (8, 16, 32, 64)
TYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in WIDTHS]


class Number(msgspec.Struct, frozen=True):
    """An expression of `v` and `w`: its text, its type, its sort, and what it is."""

    text: str
    type: str
    index: bool
    at: Callable[[int, int], int]

    def value(self, v: int, w: int) -> int:
        return wrapped(self.at(v, w), self.type)


def wrapped(number: int, dtype: str) -> int:
    type_ = ir.dtype_of(dtype)
    return (number - type_.min_value) % (1 << type_.bits) + type_.min_value


def constant(number: int, dtype: str) -> Number:
    return Number(f"T.{dtype}({number})", dtype, dtype in ("int32", "int64"), lambda v, w: number)


def cast(dtype: str, a: Number) -> Number:
    index = a.index and dtype in ("int32", "int64")

    def reduced(v: int, w: int) -> int:
        return wrapped(a.at(v, w), dtype)

    return Number(f"T.Cast('{dtype}', {a.text})", dtype, index, a.at if index else reduced)


def operation(form: str, a: Number, b: Number, of: Callable[[int, int], int]) -> Number:
    index = a.index and b.index

    def at(v: int, w: int) -> int:
        if index:
            return of(a.at(v, w), b.at(v, w))
        return wrapped(of(a.value(v, w), b.value(v, w)), a.type)

    return Number(form.format(a.text, b.text), a.type, index, at)


def chosen(a: Number, b: Number, yes: Number, no: Number) -> Number:
    """`yes` where `a < b`, else `no`."""
    exact = a.index and b.index
    index = exact and yes.index and no.index

    def at(v: int, w: int) -> int:
        holds = a.at(v, w) < b.at(v, w) if exact else a.value(v, w) < b.value(v, w)
        number = (yes if holds else no).at(v, w)
        return number if index else wrapped(number, yes.type)

    text = f"T.Select({a.text} < {b.text}, {yes.text}, {no.text})"
    return Number(text, yes.type, index, at)


V = Number("v", "int32", True, lambda v, w: v)
W = Number("w", "int32", True, lambda v, w: w)
ENDS = (3, -5, 2**31 - 1, -(2**31), 1_500_000_000)


def some(chance: random.Random, depth: int) -> Number:
    """A random int32 expression."""
    if depth == 0:
        return chance.choice((V, W))
    a, b = some(chance, depth - 1), some(chance, depth - 1)
    match chance.randrange(9):
        case 0:
            return operation("({} + {})", a, constant(chance.choice(ENDS), "int32"), int.__add__)
        case 1:
            return operation("({} - {})", a, b, int.__sub__)
        case 2:
            by = constant(chance.choice((-1, 3, 65536, 1_500_000_000)), "int32")
            return operation("({} * {})", a, by, int.__mul__)
        case 3:
            by = chance.choice((W, constant(1, "int32"), constant(4, "int32")))
            return operation("({} << {})", a, by, int.__lshift__)
        case 4:
            by = chance.choice((W, constant(1, "int32"), constant(31, "int32")))
            return operation("({} >> {})", a, by, int.__rshift__)
        case 5:
            mask = chance.choice((b, V, constant(63, "int32"), constant(-8, "int32")))
            return operation("({} & {})", a, mask, int.__and__)
        case 6:
            return cast("int32", cast(chance.choice(TYPES), a))
        case 7:
            dtype = chance.choice(TYPES)
            x, y = cast(dtype, a), cast(dtype, b)
            form, of = chance.choice((("({} + {})", int.__add__), ("({} * {})", int.__mul__)))
            return cast("int32", operation(form, x, y, of))
        case _:
            dtype = chance.choice(TYPES)
            return chosen(cast(dtype, a), cast(dtype, b), a, b)


def program(*numbers: str) -> ir.PrimFunc:
    """Store 64-bit numbers at each `v` and `w`."""
    stores = "\n            ".join(f"O[{k}, v, w] = {text}" for k, text in enumerate(numbers))
    func = bw.from_source(f"""
@T.prim_func
def main(O: T.Buffer(({len(numbers)}, {ROWS}, {COLUMNS}), "int64")):
    for i, j in T.grid({ROWS}, {COLUMNS}):
        with T.block("x"):
            v, w = T.axis.remap("SS", [i, j])
            {stores}
""")
    assert isinstance(func, ir.PrimFunc)
    return func


def results(func: ir.PrimFunc) -> list[Numbers]:
    """What the interpreter and native code compute."""
    shape = [int(ir.const_int(n) or 0) for n in func.buffers[0].shape]
    exact, native = np.zeros(shape, "int64"), np.zeros(shape, "int64")
    bw.interpret(func, exact)
    bw.build(func)["main"](native)
    return [exact, native]


def right(number: Number) -> Numbers:
    whole = cast("int64", number).at
    return np.array([[whole(v, w) for w in range(COLUMNS)] for v in range(ROWS)])


@pytest.mark.parametrize("seed", range(12))
def test_random_expressions(seed: int) -> None:
    chance = random.Random(seed)
    numbers = [some(chance, 2) for _ in range(12)]
    func = program(*(f'T.Cast("int64", {n.text})' for n in numbers))
    for found in results(func):
        for number, array in zip(numbers, found, strict=True):
            np.testing.assert_array_equal(array, right(number), number.text)


@pytest.mark.parametrize("seed", range(30))
def test_proofs_of_random_expressions(seed: int) -> None:
    """A single element against its number, and against the numbers of other sorts."""
    chance = random.Random(seed)
    number = some(chance, 2)
    v, w = chance.randrange(ROWS), chance.randrange(COLUMNS)
    whole = cast("int64", number)
    element = f"T.if_then_else(v == {v} and w == {w}, {{}}, T.int64(0))"
    before = program(element.format(whole.text))
    for more in (0, 1 << 31, 1 << 32, -(1 << 32)):
        after = program(element.format(f"T.int64({whole.at(v, w) + more})"))
        verdict = bw.verify(before, after).verdict
        assert verdict != ("proved" if more else "refuted"), (number.text, v, w, more)


ALIKE = [
    ("T.Cast('uint32', v - 3) < T.uint32(1)", "v == 3"),
    ("T.Cast('uint32', v) - T.uint32(3) < T.uint32(5)", "v >= 3"),
    ("T.Cast('uint64', v) - T.uint64(1) > T.uint64(5)", "v == 0"),
    ("T.max(T.Cast('uint32', -v), T.uint32(0)) == T.uint32(0)", "v == 0"),
    ("(v * 1500000000) << 1 == T.Cast('int64', v) * T.int64(3000000000)", "v >= 0"),
    ("(v + 2147483646) >> 1 == 1073741823", "v < 2"),
    ("(v * 1500000000) & 7 == 0", "v >= 0"),
    ("(v << 30) >> 28 == v * 4", "v >= 0"),
]
UNLIKE = [
    ("T.Cast('uint32', v - 3) < T.uint32(1)", "v < 4"),
    ("T.Cast('uint32', v) - T.uint32(1) < T.Cast('uint32', v)", "v >= 0"),
    ("T.Cast('int64', T.Cast('uint32', -v)) == T.Cast('int64', -v)", "v >= 0"),
    ("(v + 2147483646) >> 1 > 0", "v < 2"),
    ("(v << 30) >> 28 == v * 4", "v < 2"),
]


@pytest.mark.parametrize(
    ("a", "b", "same"), [(*p, True) for p in ALIKE] + [(*p, False) for p in UNLIKE]
)
def test_proofs(a: str, b: str, same: bool) -> None:
    pair = [program(f"T.Select({text}, T.int64(1), T.int64(2))") for text in (a, b)]
    assert bw.verify(*pair).verdict == ("proved" if same else "refuted")
    first, second = (results(func) for func in pair)
    for x, y in zip(first, second, strict=True):
        assert np.array_equal(x, y) == same


def test_a_stored_shift_wraps_unlike_the_index() -> None:
    def through(text: str) -> ir.PrimFunc:
        func = bw.from_source(f"""
@T.prim_func
def main(O: T.Buffer((4,), "int64")):
    M = T.alloc_buffer((4,), "int32")
    for i in range(4):
        with T.block("m"):
            v = T.axis.spatial(4, i)
            M[v] = (v * 1500000000) & (v * 1500000000 + v)
    for i in range(4):
        with T.block("o"):
            v = T.axis.spatial(4, i)
            O[v] = T.Cast("int64", {text})
""")
        assert isinstance(func, ir.PrimFunc)
        return func

    stored, direct = through("M[v]"), through("(v * 1500000000) & (v * 1500000000 + v)")
    assert bw.verify(stored, direct).verdict != "proved"
    for one, other in zip(results(stored), results(direct), strict=True):
        assert not np.array_equal(one, other)


def test_an_inlined_unsigned_buffer_is_proved() -> None:
    func = bw.from_source("""
@T.prim_func
def main(A: T.Buffer((64,), "int64"), O: T.Buffer((4,), "int64")):
    M = T.alloc_buffer((4,), "uint32")
    for i in range(4):
        with T.block("m"):
            v = T.axis.spatial(4, i)
            M[v] = T.Cast("uint32", v) - T.uint32(1)
    for i in range(4):
        with T.block("o"):
            v = T.axis.spatial(4, i)
            O[v] = A[T.Cast("int32", M[v] % T.uint32(60))]
""")
    assert isinstance(func, ir.PrimFunc)
    schedule = bw.Schedule(func, verify="prove")
    schedule.compute_inline("m")
    schedule.cache_index("o", "global")
    given, expected = np.arange(64), np.array([15, 0, 1, 2])
    for one in (func, schedule.func):
        exact, native = np.zeros(4, "int64"), np.zeros(4, "int64")
        bw.interpret(one, given, exact)
        bw.build(one)["main"](given, native)
        np.testing.assert_array_equal(exact, expected)
        np.testing.assert_array_equal(native, expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_loops_of_every_type(dtype: str) -> None:
    func = bw.from_source(f"""
@T.prim_func
def main(O: T.Buffer((4,), "int64")):
    for i in T.serial(T.{dtype}(0), T.{dtype}(4)):
        O[i] = T.Cast("int64", (i - T.{dtype}(1)) // T.{dtype}(2))
""")
    assert isinstance(func, ir.PrimFunc)
    first = -1 if dtype.startswith("int") else (2 ** int(dtype[4:]) - 1) // 2
    for found in results(func):
        np.testing.assert_array_equal(found, [first, 0, 0, 1])


def test_indices_are_widened_in_shifts_and_masks_of_sizes() -> None:
    func = bw.from_source("""
@T.prim_func
def main(a: T.handle, o: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n, n), "int32")
    O = T.match_buffer(o, (n, n), "int32")
    for i, j in T.grid(n, n):
        with T.block("x"):
            vi, vj = T.axis.remap("SS", [i, j])
            O[vi, vj] = A[vi, (vi * n + vj) & vj]
""")
    given = np.arange(16, dtype="int32").reshape(4, 4)
    result = np.zeros_like(given)
    bw.build(func)["main"](given, result)
    np.testing.assert_array_equal(result, given)


def test_a_shift_beyond_64_bits_is_reported() -> None:
    with pytest.raises(bw.BlockwrightError, match="BW767"):
        bw.interpret(
            program("T.Cast('int64', (v + 1) * 1500000000 << 31 << 20)"),
            np.zeros((1, 5, 4), "int64"),
        )


MIXED = (
    "X[v] > L", "X[v] < L", "X[v] == L", "X[v] + L > 5", "T.max(X[v], L)", "T.min(X[v], L) + 1",
    "X[v] // (L + 7)", "X[v] - L < X[v]", "T.Select(X[v] > 0, L, 3) + 1",
    "T.Select(X[v] > 0, L, 3) > 100", "T.min(T.min(X[v], L), 5) < 6", "X[v] > L + v",
    "T.if_then_else(X[v] > L, X[v] - L, 1)", "T.min(X[v], L) <= L",
)  # fmt: skip


@pytest.mark.parametrize(
    "large", ["(v + 2147483647)", "(v * 1500000000)", "(v - 2147483647 - 5)", "(v - 3)"]
)
def test_an_index_beside_a_value_is_taken_modulo_the_type(large: str) -> None:
    """Nothing follows from the exact index where it may be out of range."""
    x = np.array([0, 1, -1, 2**31 - 1, -(2**31), 2**31 - 2, 4 - 2**31, 7], "int32")
    for k, text in enumerate(MIXED):
        program = bw.from_source(f"""
@T.prim_func
def main(X: T.Buffer((8,), "int32"), O: T.Buffer((8,), "int64")):
    for i in range(8):
        with T.block("x"):
            v = T.axis.spatial(8, i)
            O[v] = T.Cast("int64", {text.replace("L", large)})
""")
        found, wanted = np.zeros(8, "int64"), np.zeros(8, "int64")
        bw.interpret(program, x, wanted)
        bw.build(program)["main"](x, found)
        np.testing.assert_array_equal(found, wanted, err_msg=MIXED[k])
