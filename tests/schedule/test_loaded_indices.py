"""Loaded values that become indices: arithmetic on them may leave their type, as with indices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

POSITIONS = np.array([1, 50, 99, 0], "int32")
DATA = np.arange(7, dtype="float32") * 3 + 1
EXPRESSIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "v * 65536 * 65536 % 7": lambda v: v * 65536 * 65536 % 7,
    "(v * 65536 + 9) * 65536 % 7": lambda v: (v * 65536 + 9) * 65536 % 7,
    "(v + 2147483640) // 2 % 7": lambda v: (v + 2147483640) // 2 % 7,
    "T.max(v, 40) * 100000000 // 7 % 7": lambda v: np.maximum(v, 40) * 100000000 // 7 % 7,
    "T.Select(v < 60, v, 60) * 99999989 % 7": lambda v: np.minimum(v, 60) * 99999989 % 7,
    "T.if_then_else(v < 60, v * 99999989, v) % 7": lambda v: np.where(v < 60, v * 99999989, v) % 7,
    "v % 7": lambda v: v % 7,
}


def parsed(text: str) -> ir.PrimFunc:
    func = bw.from_source(text)
    assert isinstance(func, ir.PrimFunc)
    return func


def results(func: ir.PrimFunc) -> list[np.ndarray]:
    interpreted, built = np.zeros(4, "float32"), np.zeros(4, "float32")
    bw.interpret(func, POSITIONS.copy(), DATA.copy(), interpreted)
    bw.build(func)["main"](POSITIONS.copy(), DATA.copy(), built)
    return [interpreted, built]


def assert_right(func: ir.PrimFunc, text: str) -> None:
    expected = DATA[EXPRESSIONS[text](POSITIONS.astype("int64"))]
    again = parsed(func.script())
    assert ir.structural_equal(again, func)
    for result in results(func):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("text", EXPRESSIONS)
@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("cast", [False, True])
def test_an_iterator_bound_to_an_element_is_an_index(text: str, lanes: bool, cast: bool) -> None:
    """With a cast the iterator has 64 bits, and the arithmetic 32."""
    index = text.replace("v", 'T.Cast("int32", v)') if cast else text
    func = parsed(f"""
@T.prim_func{'(index_dtype="int64")' if cast else ""}
def main(x: T.Buffer((4,), "int32"), m: T.Buffer((7,), "float32"), o: T.Buffer((4,), "float32")):
    for i in {"T.vectorized" if lanes else "range"}(4):
        with T.block("o"):
            vi, v = T.axis.spatial(4, i), T.axis.spatial(100, x[i])
            T.reads(m[0:7])
            T.writes(o[vi])
            o[vi] = m[{index}]
""")
    assert_right(func, text)


@pytest.mark.parametrize("text", EXPRESSIONS)
@pytest.mark.parametrize("cast", [False, True])
def test_a_block_inlined_at_a_loaded_position(text: str, cast: bool) -> None:
    """With a cast the iterator has 64 bits, and the arithmetic 32."""
    index = text.replace("v", 'T.Cast("int32", v)') if cast else text
    func = parsed(f"""
@T.prim_func{'(index_dtype="int64")' if cast else ""}
def main(x: T.Buffer((4,), "int32"), m: T.Buffer((7,), "float32"), o: T.Buffer((4,), "float32")):
    t = T.alloc_buffer((100,), "float32")
    for i in range(100):
        with T.block("t"):
            v = T.axis.spatial(100, i)
            t[v] = m[{index}]
    for i in range(4):
        with T.block("o"):
            vi = T.axis.spatial(4, i)
            T.reads(t[0:100], x[vi])
            o[vi] = t[x[vi]]
""")
    schedule = bw.Schedule(func, verify="full")
    schedule.compute_inline("t")
    assert ("as_index" in schedule.func.script()) == (text != "v % 7")
    assert_right(schedule.func, text)


@pytest.mark.parametrize("text", ["(v * 65536 + 9) * 65536 % {}", "(v * 30 + 9) % {}"])
def test_indices_in_memory_are_those_that_memory_holds(text: str) -> None:
    func = parsed(f"""
@T.prim_func
def main(x: T.Buffer((4,), "int32"), m: T.Buffer((7,), "float32"), o: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.block("o"):
            v = T.axis.spatial(4, i)
            o[v] = m[{text.format(7)}] + m[{text.format(5)}]
""")
    for threshold in (0, 1):
        schedule = bw.Schedule(func, verify="full")
        assert schedule.cache_index("o", "global", threshold)
        for before, after in zip(results(func), results(schedule.func), strict=True):
            np.testing.assert_array_equal(after, before)


def test_a_table_that_wraps_around_is_not_proved_to_hold_its_indices() -> None:
    def table(stored: str, read: str) -> ir.PrimFunc:
        return parsed(f"""
@T.prim_func
def main(m: T.Buffer((7,), "float32"), o: T.Buffer((4,), "float32")):
    t = T.alloc_buffer((4,), "int32")
    for i in range(4):
        with T.block("t"):
            v = T.axis.spatial(4, i)
            t[v] = {stored}
    for i in range(4):
        with T.block("o"):
            v = T.axis.spatial(4, i)
            T.reads(m[0:7], t[v])
            o[v] = m[{read}]
""")

    large = "(v * 65536 + 9) * 65536"
    direct = table("v", f"{large} % 7")
    assert bw.verify(direct, table(large, "t[v] % 7")).verdict != "proved"
    assert (
        bw.verify(table("v", "(v * 30 + 9) % 7"), table("v * 30 + 9", "t[v] % 7")).verdict
        == "proved"
    )
