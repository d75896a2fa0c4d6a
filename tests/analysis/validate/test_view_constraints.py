"""Layout constraints and bounds of region views."""

from __future__ import annotations

import pytest

from tests.analysis.validated import codes, program

VIEW = """
for i, j in T.grid(8, {tiles}):
    with T.block("tile"):
        vi = T.axis.spatial(8, i)
        vj = T.axis.spatial({tiles}, j)
        T.reads({source}[vi * 4:vi * 4 + 4, vj * {width}:vj * {width} + 8])
        T.writes(B[vi * 4:vi * 4 + 4, vj * {width}:vj * {width} + 8])
        a = T.match_buffer({source}[vi * 4:vi * 4 + 4, vj * {width}:vj * {width} + 8], (4, 8),
                           "float32"{demands})
        for x, y in T.grid(4, 8):
            B[vi * 4 + x, vj * {width} + y] = a[x, y]
"""


def view(demands: str, width: int = 8, tiles: int = 4, source: str = "A") -> list[str]:
    text = VIEW.format(demands=demands, width=width, tiles=tiles, source=source)
    if source == "C":
        fill = """
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj]
"""
        return codes(program(fill + text, allocate='C = T.alloc_buffer((32, 32), "float32")'))
    return codes(program(text))


@pytest.mark.parametrize(
    ("demands", "source"),
    [("", "A"), (", offset_factor=8", "A"), (", strides=(32, 1)", "A"), (", align=32", "C"),
     (", strides=(s, 1)", "A")],
)  # fmt: skip
def test_views_whose_demands_are_proved(demands: str, source: str) -> None:
    if "s," in demands:  # a name is bound to whatever the stride is
        demands = demands.replace("s,", 'T.var("s", "int32"),')
    assert view(demands, source=source) == []


@pytest.mark.parametrize(
    ("demands", "source"),
    [(", offset_factor=16", "A"), (", strides=(8, 1)", "A"), (", align=32", "A"),
     (", align=64", "C"), (', scope="shared"', "A")],
)  # fmt: skip
def test_views_whose_demands_are_not(demands: str, source: str) -> None:
    assert view(demands, source=source) == ["BW241"]


def test_views_stay_inside_their_buffer() -> None:
    assert "BW241" in view("", width=7, tiles=5)
