"""Size expressions as text: equal parts of a long one are named, and evaluated once."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.passes.host.size_text import size_text
from blockwright.runtime.sizes import bind_symbols, evaluate_size
from blockwright.support import ArtefactError


def nested(depth: int, n: ir.Expr) -> ir.Expr:
    """(a + a // 3) of `depth` levels: a tree of 2**depth symbols."""
    for _ in range(depth):
        n = ir.add(n, ir.floordiv(n, ir.const(3, "int64")))
    return n


def of_number(depth: int, n: int) -> int:
    for _ in range(depth):
        n += n // 3
    return n


@pytest.mark.parametrize("depth", [1, 5, 12, 60])
def test_text_grows_with_the_graph_of_an_expression_not_with_its_tree(depth: int) -> None:
    text = size_text(nested(depth, ir.var("n", "int64")))
    assert isinstance(text, str)
    assert len(text) < 4000
    for n in (0, 1, 7, 1000):
        assert evaluate_size(text, {"n": n}) == of_number(depth, n)


def test_short_texts_have_no_names() -> None:
    n = ir.var("n", "int64")
    assert size_text(nested(1, n)) == "(n + (n // 3))"


def test_names_differ_from_those_of_symbols() -> None:
    text = size_text(nested(30, ir.var("_0", "int64")))
    assert evaluate_size(text, {"_0": 9}) == of_number(30, 9)


def test_a_common_part_that_is_not_reached_is_not_evaluated() -> None:
    """Only one side of a conditional is evaluated; the other may divide by zero."""
    assert evaluate_size("a = 6 // n; (a * a if n > 0 else n)", {"n": 0}) == 0
    assert evaluate_size("a = 6 // n; (a * a if n > 0 else n)", {"n": 3}) == 4


def test_a_symbol_is_solved_for_through_common_parts() -> None:
    assert bind_symbols([(("a = n + 1; a + a",), (10,))]) == {"n": 4}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a = 1",
        "a = b; a",
        "a = a + 1; a",
        "a = 1; a = 2; a",
        "a, b = 1, 2; a",
        "n; n",
        "a = n;",
    ],
)
def test_malformed_texts_are_refused(text: str) -> None:
    with pytest.raises(ArtefactError, match="BW804"):
        evaluate_size(text, {"n": 1})


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32"])
def test_conversions_to_narrow_types_are_reduced(kind: str) -> None:
    text = size_text(ir.cast_to(ir.var("n", "int64"), ir.dtype_of(kind)))
    for n in (0, 1, 127, 128, 255, 300, 40000, 70000):
        assert evaluate_size(text, {"n": n}) == int(np.int64(n).astype(kind))


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ("T.abs(n - 5)", (3, 2)),
        ("T.bitwise_not(0 - n)", (1, 6)),
        ("T.likely(n)", (2, 7)),
        ("T.max(n, 3) + T.min(n, 3)", (5, 10)),
    ],
)
def test_sizes_that_functions_compute(size: str, wanted: tuple[int, int]) -> None:
    built = bw.from_source(f"""
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    return R.full(R.shape([{size}]), R.const(1.0, "float32"))
""")
    compiled = bw.compile(built)
    for n, found in zip((2, 7), wanted, strict=True):
        x = np.zeros(n, "float32")
        assert compiled(x).shape == bw.interpret(built, x).shape == (found,)
