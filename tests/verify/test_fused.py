"""Loops fused from constant factors, which are taken apart before anything is asked."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("islpy")

from blockwright import ir
from blockwright.script.compute import Program
from blockwright.strategies import apply_strategies
from blockwright.target import Target
from blockwright.verify import verify
from blockwright.verify.normalize.unfuse import unfused
from tests.verify.pairs import program

ARGUMENTS = "A[n, 7, 5]; C[n, 7, 5]"
BODY = """
for f in T.{kind}({extent}):
    with T.block("C"):
        v0 = T.axis.spatial(n, {first})
        v1 = T.axis.spatial(7, {second})
        v2 = T.axis.spatial(5, {third})
        C[v0, v1, v2] = A[v0, v1, v2]
"""


def fused(extent: str, first: str, second: str, third: str, kind: str = "serial") -> ir.PrimFunc:
    return program(ARGUMENTS, BODY.format(**locals()), "n")


def extents(func: ir.PrimFunc) -> list[str]:
    return [repr(loop.extent) for loop in ir.loops(unfused(func.body))]


@pytest.mark.parametrize("kind", ["serial", "parallel", "unroll"])
@pytest.mark.parametrize(
    ("extent", "third"), [("n * 35", "f % 5"), ("7 * (n * 5)", "f % 5"), ("n * 35", "f % 35 % 5")]
)
def test_three_digits_are_three_loops(extent: str, third: str, kind: str) -> None:
    func = fused(extent, "f // 35", "f % 35 // 5", third, kind)
    plain = fused("n * 35", "f // 35", "f // 5 % 7", "f % 5", kind)
    assert [ir.const_int(f.extent) for f in ir.loops(unfused(plain.body))] == [None, 7, 5]
    assert verify(plain, func).verdict == "proved"
    assert verify(func, plain).verdict == "proved"


@pytest.mark.parametrize(
    ("extent", "first", "why"),
    [
        ("n * 35 + 5", "f // 35", "more iterations than the digits have values"),
        ("n * 35", "(f + 1) // 35", "a use of its own"),
        ("n * 35", "T.min(f // 35, f)", "a use of its own"),
    ],
)
def test_what_is_no_pair_of_digits_stays(extent: str, first: str, why: str) -> None:
    func = fused(extent, first, "f // 5 % 7", "f % 5")
    assert len(ir.loops(unfused(func.body))) == 1, why


def test_a_digit_in_the_wrong_place_is_refuted() -> None:
    func = fused("n * 35", "f // 35", "f // 5 % 7", "f % 5")
    wrong = fused("n * 35", "f // 35", "f // 7 % 7", "f % 5")
    assert verify(func, wrong).verdict != "proved"
    assert extents(wrong) == extents(fused("n * 35", "f // 35", "f // 7 % 7", "f % 5"))


def linear(*rows: ir.Expr, columns: int, depth: int) -> ir.PrimFunc:
    p = Program("linear")
    x, w = p.param("X", (*rows, depth), "float32"), p.param("W", (columns, depth), "float32")
    bias = p.param("bias", (columns,), "float32")
    c = p.reduce("C", (*rows, columns), (depth,), lambda *at: x[*at[:-2], at[-1]] * w[at[-2:]])
    return p.finish([p.compute("D", (*rows, columns), lambda *at: c[at] + bias[at[-1]])])


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("names", ["n", "bn"])
@pytest.mark.parametrize(("columns", "depth"), [(100, 300), (300, 100)])
def test_products_of_sizes_that_no_tile_divides(
    target: str, names: str, columns: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedules have tiles of 3 to 8 rows and 16 to 56 columns in a fused parallel loop."""
    proof = importlib.import_module("blockwright.verify.prove.proof")
    monkeypatch.setattr(proof, "UNITS", 6_000_000)  # two thirds of the budget
    func = linear(*(ir.var(n, "int64") for n in names), columns=columns, depth=depth)
    assert verify(func, apply_strategies(func, Target(target)).func).verdict == "proved"
