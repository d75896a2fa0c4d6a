"""Parameters with declared strides: compiled calls and the interpreter use an array in place if it
has them, use a contiguous copy if that has them, and otherwise reject the call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.support import ArgumentError, BlockwrightError, InterpretError

PROGRAM = """
@T.prim_func
def f(a: T.handle, b: T.handle):
    n = T.int64()
    m = T.int64()
    s = T.int64()
    t = T.int64()
    A = T.match_buffer(a, (n, m), "float32"{0})
    B = T.match_buffer(b, (n, m), "float32"{1})
    for i, j in T.grid(n, m):
        with T.block("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
"""
WAYS = ["interpreted", "compiled"]
DATA = np.arange(60, dtype=np.float32)


def strides(text: str) -> str:
    return f", strides=[{text}]" if text else ""


def program(a: str, b: str = "") -> Any:
    return bw.from_source(PROGRAM.format(strides(a), strides(b)))


def call(func: Any, how: str, *args: Any) -> int:
    """Call a program; return the number of arguments that were copied, where it is counted."""
    if how == "interpreted":
        bw.interpret(func, *args)
        return 0
    compiled = bw.build(func)["f"]
    compiled(*args)
    return compiled.copies


WIDE = DATA.reshape(6, 10)
ARRAYS = {
    "columns": WIDE[:3, :4],
    "every other": WIDE[:3, ::2],
    "transposed": WIDE[:3, :4].T,
    "backwards": WIDE[:3, 3::-1],
    "upwards": WIDE[2::-1, :4],
    "repeated": np.broadcast_to(WIDE[0, :4], (3, 4)),
    "contiguous": DATA[:12].reshape(3, 4),
    "one row": WIDE[:1, :4],
    "no rows": WIDE[:0, :4],
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
@pytest.mark.parametrize("declared", ["s, t", "s, 1"])
def test_symbolic_strides_take_any_array(declared: str, array: Any, how: str) -> None:
    result = np.zeros(array.shape, np.float32)
    call(program(declared), how, array, result)
    assert (result == array + 1).all()


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("declared", "array"),
    [
        ("10, 1", "columns"),
        ("10, 2", "every other"),
        ("1, 10", "transposed"),
        ("0, 1", "repeated"),
        ("m, 1", "contiguous"),
        ("4, 1", "contiguous"),
        ("7, 3", "no rows"),
        ("7, 1", "one row"),
        ("s, t", "transposed"),
        ("s, 1", "columns"),
    ],
)
def test_an_array_with_the_declared_strides_is_not_copied(
    declared: str, array: str, how: str
) -> None:
    x = ARRAYS[array]
    result = np.zeros(x.shape, np.float32)
    assert call(program(declared), how, x, result) == 0
    assert (result == x + 1).all()


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("declared", ["8, 1", "2 * m, 1", "s, 1"])
def test_results_are_written_into_such_an_array(declared: str, how: str) -> None:
    memory = np.zeros((3, 8), np.float32)
    x = DATA[:12].reshape(3, 4)
    assert call(program("", declared), how, x, memory[:, :4]) == 0
    assert (memory[:, :4] == x + 1).all()
    assert (memory[:, 4:] == 0).all()


@pytest.mark.parametrize("declared", ["8, 1", "s, 1"])
def test_torch_tensors_too(declared: str) -> None:
    torch = pytest.importorskip("torch")
    memory = torch.zeros(3, 8)
    x = torch.arange(24.0).reshape(3, 8)[:, 2:6]
    assert call(program(declared, declared), "compiled", x, memory[:, :4]) == 0
    assert torch.equal(memory[:, :4], x + 1)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("declared", "array"),
    [
        ("8, 1", "columns"),
        ("2 * m, 1", "contiguous"),
        ("1, n", "columns"),
        ("1, s", "columns"),
        ("10, 1", "upwards"),
    ],
)
def test_other_strides_are_rejected(declared: str, array: str, how: str) -> None:
    x = ARRAYS[array]
    error: type[BlockwrightError] = InterpretError if how == "interpreted" else ArgumentError
    with pytest.raises(error, match=r"BW706.*stride"):
        call(program(declared), how, x, np.zeros(x.shape, np.float32))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(("pitch", "copies"), [(10, 0), (6, 2), (4, 2)])
def test_one_symbol_for_two_pitches(pitch: int, copies: int, how: str) -> None:
    """Arrays with different pitches are copied: the symbol has one value."""
    x, memory = ARRAYS["columns"], np.zeros((3, pitch), np.float32)
    found = call(program("s, 1", "s, 1"), how, x, memory[:, :4])
    assert how == "interpreted" or found == copies
    assert (memory[:, :4] == x + 1).all()
    assert (memory[:, 4:] == 0).all()


@pytest.mark.parametrize("how", WAYS)
def test_only_the_array_with_other_strides_is_copied(how: str) -> None:
    x, memory = DATA[:24].reshape(3, 8)[:, :4], np.zeros((3, 8), np.float32)
    found = call(program("2 * m, 1", "m, 1"), how, x, memory[:, :4])
    assert how == "interpreted" or found == 1
    assert (memory[:, :4] == x + 1).all()


@pytest.mark.parametrize("how", WAYS)
def test_a_written_array_that_repeats_its_elements_is_rejected(how: str) -> None:
    x = DATA[:12].reshape(3, 4)
    target = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (3, 4), (0, 4))
    with pytest.raises(BlockwrightError, match=r"BW706.*share memory"):
        call(program("", "0, 1"), how, x, target)


def test_rows_of_one_array_that_alternate() -> None:
    """Ranges of memory that overlap although no element does: the call is made on a copy."""
    memory = DATA[:24].reshape(3, 8).copy()
    call(program("s, 1", "s, 1"), "compiled", memory[:, :4], memory[:, 4:])
    assert (memory[:, 4:] == memory[:, :4] + 1).all()


def test_the_plain_library_sees_the_overlap_of_spread_arrays() -> None:
    """Row 1 of the first array is row 0 of the second one, beyond the size of a dense array."""
    entry = bw.build(program("8, 1", "8, 1")).entry("f")
    memory = DATA[:32].reshape(4, 8).copy()
    with pytest.raises(Exception, match=r"BW706.*overlaps"):
        entry(memory[0:3, 0:2], memory[1:4, 0:2])
    entry(memory[0:2, 0:2], memory[2:4, 0:2])
    assert (memory[2:4, 0:2] == memory[0:2, 0:2] + 1).all()


def test_the_plain_library_takes_no_negative_strides() -> None:
    entry = bw.build(program("s, t")).entry("f")
    with pytest.raises(Exception, match=r"BW706.*at least 0"):
        entry(ARRAYS["backwards"], np.zeros((3, 4), np.float32))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("offset", ["3", "n", "s", "0"])
def test_the_offset_of_a_parameter_is_behind_its_first_element(offset: str, how: str) -> None:
    """An array begins with element 0, wherever in its memory that is."""
    func = bw.from_source(PROGRAM.format(f", elem_offset={offset}", ""))
    for x in (ARRAYS["contiguous"], WIDE[1:4], WIDE[1:4, 1:5]):
        result = np.zeros(x.shape, np.float32)
        call(func, how, x, result)
        assert (result == x + 1).all()
