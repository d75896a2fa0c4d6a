"""Programs that differ only in where integers wrap around are never proved equal."""

from __future__ import annotations

import re

import pytest

import blockwright as bw
from blockwright import ir

SIGNED = ("int8", "int16", "int32", "int64")
MOST = "2147483647"


def elements(
    text: str, dtype: str, result: str, scalars: str = "", before: str = "pass"
) -> ir.PrimFunc:
    text = re.sub(r"\b([xy])\b", lambda m: f"{m[0].upper()}[vi]", text.replace("T.K", f"T.{dtype}"))
    func = bw.from_source(f'''
@T.prim_func
def main(X: T.Buffer((8,), "{dtype}"), Y: T.Buffer((8,), "{dtype}"),
         Z: T.Buffer((8,), "{result}"){scalars}):
    for i in range(8):
        with T.block("Z"):
            vi = T.axis.spatial(8, i)
            {before}
            Z[vi] = {text}
''')
    assert isinstance(func, ir.PrimFunc)
    return func


def through(stored: str, text: str, result: str) -> ir.PrimFunc:
    func = bw.from_source(f'''
@T.prim_func
def main(X: T.Buffer((8,), "int32"), Y: T.Buffer((8,), "int32"), Z: T.Buffer((8,), "{result}")):
    B = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = {stored}
    for i in range(8):
        with T.block("Z"):
            vi = T.axis.spatial(8, i)
            Z[vi] = {text.replace("x", "X[vi]").replace("b", "B[vi]")}
''')
    assert isinstance(func, ir.PrimFunc)
    return func


WRONG = [
    ("x > T.K(-3)", "x + T.K(3) > T.K(0)", "bool"),
    ("x > T.K(-3)", "T.K(0) < x + T.K(3)", "bool"),
    ("x < y", "x - y < T.K(0)", "bool"),
    ("x + T.K(1) > x", "T.bool(True)", "bool"),
    ("x + T.K(3) >= y", "x >= y - T.K(3)", "bool"),
    ("x * T.K(2) > y * T.K(2)", "x > y", "bool"),
    ("T.max(x, y) - x", "T.max(T.K(0), y - x)", ""),
    ("T.max(x, T.K(3)) - T.K(4)", "T.max(x - T.K(4), T.K(-1))", ""),
    ("T.min(x, y) + y", "T.min(x + y, y + y)", ""),
    ("T.max(x + T.K(1), x)", "x + T.K(1)", ""),
    ("x // T.K(-3)", "(T.K(0) - x) // T.K(3)", ""),
    ("x % T.K(-3)", "T.K(0) - ((T.K(0) - x) % T.K(3))", ""),
    ("T.truncdiv(x, T.K(-3))", "T.truncdiv(T.K(0) - x, T.K(3))", ""),
    ("(x * T.K(2)) // T.K(2)", "x", ""),
    ("(x * T.K(3)) % T.K(3)", "T.K(0)", ""),
    ("(x + T.K(4)) // T.K(4)", "x // T.K(4) + T.K(1)", ""),
    ("T.Select(x + T.K(1) > x, x, y)", "x", ""),
    ("T.Select(x > T.K(0), T.K(100), T.K(0)) + T.K(100) > T.K(0)", "T.bool(True)", "bool"),
]


@pytest.mark.parametrize(("before", "after", "result"), WRONG)
def test_rules_of_indices_prove_nothing_of_values(before: str, after: str, result: str) -> None:
    for dtype in SIGNED:
        if "100" in before and dtype != "int8":
            before = before.replace("100", str((1 << ir.dtype_of(dtype).bits - 1) - 1))
        a, b = (elements(t, dtype, result or dtype) for t in (before, after))
        assert bw.verify(a, b).verdict != "proved", dtype
        assert bw.verify(b, a).verdict != "proved", dtype


INLINED = [
    (MOST, "b + vi > vi", f"{MOST} + vi > vi", "bool"),
    ("vi", f"b + {MOST} > b", f"vi + {MOST} > vi", "bool"),
    ("vi", f"b + {MOST} > b", "T.bool(True)", "bool"),
    ("vi * 268435456", "b * 2 < b * 3", "vi * 268435456 * 2 < vi * 268435456 * 3", "bool"),
    ("vi", f"T.Select(b + {MOST} > 0, x, 0)", f"T.Select(vi + {MOST} > 0, x, 0)", "int32"),
    ("vi", f"T.Select(b + {MOST} > 0, x, 0)", "x", "int32"),
    ("vi", "(b * 536870912 * 2) // 2", "vi * 536870912", "int32"),
    ("vi", f"T.Cast('int64', b + {MOST})", f"T.Cast('int64', vi) + T.int64({MOST})", "int64"),
]


@pytest.mark.parametrize(("stored", "read", "inlined", "result"), INLINED)
def test_an_index_that_was_stored_is_a_value_where_it_is_read(
    stored: str, read: str, inlined: str, result: str
) -> None:
    before, after = through(stored, read, result), elements(inlined, "int32", result)
    assert bw.verify(before, after).verdict == "refuted"
    schedule = bw.Schedule(before)
    schedule.compute_inline("B")
    assert bw.verify(before, schedule.func).verdict == "proved"


CONVERTED = [
    ("T.Cast('int64', vi * 1000000000)", "T.Cast('int64', T.reinterpret('int32', vi * 1000000000))",
     "int32", "int64"),
    ("T.Cast('int8', x)", "T.Cast('int8', T.Cast('float32', x))", "uint8", "int8"),
    ("T.Cast('int32', x)", "T.Cast('int32', T.Cast('float64', x))", "uint32", "int32"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "dtype", "result"), CONVERTED)
def test_conversions_that_wrap_or_saturate_differ(
    before: str, after: str, dtype: str, result: str
) -> None:
    a, b = (elements(t, dtype, result) for t in (before, after))
    assert bw.verify(a, b).verdict != "proved"
    assert bw.verify(b, a).verdict != "proved"


def test_integers_saturate_alike_from_every_float_that_holds_them() -> None:
    a, b = (
        elements(f"T.Cast('int8', T.Cast('{between}', x))", "uint8", "int8")
        for between in ("float32", "float64")
    )
    assert bw.verify(a, b).verdict == "proved"


SCALARS = [
    ("n + 3 > 3", "n > 0", "bool"),
    ("n + vi > n", "vi > 0", "bool"),
    ("T.Select(n + 3 > 3, x, 0)", "T.Select(n > 0, x, 0)", "int32"),
    ("T.if_then_else(n + vi > n, x, 0)", "T.if_then_else(vi > 0, x, 0)", "int32"),
    ("T.max(n + vi, n)", "n + vi", "int32"),
    ("n * 2 // 2", "n", "int32"),
    ("X[(n + vi) % 7]", "X[((n % 7) + vi) % 7]", "int32"),
    ("T.Cast('int64', n + vi)", "T.Cast('int64', n) + T.Cast('int64', vi)", "int64"),
    ("X[(x + 7) % 7]", "X[x % 7]", "int32"),
]


@pytest.mark.parametrize(("before", "after", "result"), SCALARS)
def test_scalar_parameters_wrap(before: str, after: str, result: str) -> None:
    a, b = (elements(t, "int32", result, ", n: T.int32") for t in (before, after))
    assert bw.verify(a, b).verdict != "proved"


def test_names_of_values_wrap() -> None:
    named = elements(
        "v + vi > vi",
        "int32",
        "bool",
        before=f"v: T.int32 = T.max(X[vi], {MOST})",
    )
    index = elements("v + vi > vi", "int32", "bool", before=f"v: T.int32 = {MOST}")
    assert bw.verify(named, index).verdict != "proved"


RIGHT = [
    ("vi", "b + 1 > x", "vi + 1 > x", "bool"),
    ("vi + 1", "x + b", "x + (vi + 1)", "int32"),
    ("vi * 2", "X[(b + 1) // 3]", "X[(vi * 2 + 1) // 3]", "int32"),
]


@pytest.mark.parametrize(("stored", "read", "inlined", "result"), RIGHT)
def test_what_cannot_wrap_is_proved(stored: str, read: str, inlined: str, result: str) -> None:
    before, after = through(stored, read, result), elements(inlined, "int32", result)
    assert bw.verify(before, after).verdict == "proved"


def test_a_table_of_a_symbolic_size_may_wrap() -> None:
    def program(value: str) -> ir.PrimFunc:
        func = bw.from_source(f"""
@T.prim_func
def main(z: T.handle):
    n = T.int32()
    Z = T.match_buffer(z, (n,), "bool")
    B = T.alloc_buffer((n,), "int32")
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = vi
    for i in range(n):
        with T.block("Z"):
            vi = T.axis.spatial(n, i)
            Z[vi] = {value}
""")
        assert isinstance(func, ir.PrimFunc)
        return func

    assert (
        bw.verify(program("B[vi] + 2147483647 > B[vi]"), program("T.bool(True)")).verdict
        != "proved"
    )
    assert bw.verify(program("B[vi] + 1 > B[vi]"), program("T.bool(True)")).verdict == "proved"
