"""Declared views lie inside the memory of their buffers: views that provably do not are refused."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright.support import ValidationError

HEAD = """
@T.prim_func
def main(a: T.handle, O: T.Buffer((1,), "int32"), k: T.int64):
    n = T.int64()
    A = T.match_buffer(a, ({size},), "int32")
"""
VIEW = 'V = T.decl_buffer({shape}, "{dtype}", data=A.data, elem_offset={start})\n'


def validate(lines: str, size: str = "8") -> None:
    text = HEAD.format(size=size)
    text = text if "n" in size else text.replace("    n = T.int64()\n", "")
    bw.validate(bw.from_source(text + lines))


def view(shape: str, start: str, dtype: str = "int32") -> str:
    first = ", ".join("0" for _ in range(shape.count(",") + (not shape.endswith(",)"))))
    declared = VIEW.format(shape=shape, dtype=dtype, start=start)
    return f'    {declared}    O[0] = T.Cast("int32", V[{first}])\n'


@pytest.mark.parametrize(
    ("shape", "start", "dtype", "size"),
    [
        ("(8,)", "1", "int32", "8"),
        ("(16,)", "0", "int32", "8"),
        ("(4,)", "6", "float32", "8"),
        ("(4,)", "-2", "int32", "8"),
        ("(4,)", "-2", "float32", "8"),
        ("(17,)", "0", "int16", "8"),
        ("(2,)", "7", "float64", "16"),
        ("(n,)", "1", "int32", "n"),
        ("(4,)", "n", "float32", "n"),
        ("(n + 1,)", "0", "int32", "n"),
        ("(n, 2)", "1", "int32", "n * 2"),
        ("(4,)", "0, strides=(3,)", "int32", "8"),
    ],
)
def test_a_view_that_leaves_its_buffer_is_refused(
    shape: str, start: str, dtype: str, size: str
) -> None:
    with pytest.raises(ValidationError, match="the memory of A") as caught:
        validate(view(shape, start, dtype), size)
    assert caught.value.code == "BW241"


@pytest.mark.parametrize(
    ("shape", "start", "dtype", "size"),
    [
        ("(8,)", "0", "int32", "8"),
        ("(4,)", "4", "float32", "8"),
        ("(16,)", "0", "int16", "8"),
        ("(4,)", "k", "float32", "8"),
        ("(n,)", "0", "float32", "n"),
        ("(n, 2)", "0", "float32", "n * 2"),
        ("(3,)", "1, strides=(3,)", "float32", "8"),
    ],
)
def test_a_view_that_may_lie_inside_is_accepted(
    shape: str, start: str, dtype: str, size: str
) -> None:
    validate(view(shape, start, dtype), size)


LOOP = """
    for i in range({extent}):
        with T.block("O"):
            vi = T.axis.spatial({extent}, i)
            {condition}
            V = T.decl_buffer((4,), "float32", data=A.data, elem_offset={start})
            O[0] = T.Cast("int32", V[0])
"""


@pytest.mark.parametrize(
    ("extent", "start", "refused"),
    [("2", "vi * 4", False), ("3", "vi * 4", True), ("2", "vi * 4 - 4", True),
     ("k", "vi * 4", False)],
)  # fmt: skip
def test_the_first_and_the_last_iteration_are_tried(extent: str, start: str, refused: bool) -> None:
    text = LOOP.format(extent=extent, start=start, condition="")
    if not refused:
        validate(text)
        return
    with pytest.raises(ValidationError) as caught:
        validate(text)
    assert caught.value.code == "BW241"


def test_iterations_that_a_condition_may_skip_are_not_tried() -> None:
    validate(LOOP.format(extent="3", start="vi * 4", condition="T.where(i < k)"))


def test_a_view_of_a_view_lies_in_the_memory_behind_both() -> None:
    text = """
    V = T.decl_buffer((4,), "float32", data=A.data, elem_offset=4)
    W = T.decl_buffer((4,), "int32", data=V.data, elem_offset={start})
    O[0] = W[0]
"""
    validate(text.format(start=-4))
    with pytest.raises(ValidationError, match="view W ends behind the memory of A"):
        validate(text.format(start=1))
