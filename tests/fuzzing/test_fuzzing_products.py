"""Random matrix products: fixed seeds, their meaning, and faults that are put in."""

from __future__ import annotations

import ast
from typing import Any

import msgspec
import numpy as np
import pytest

from fuzzing.products import judge as judge_file
from fuzzing.products.campaign import play
from fuzzing.products.draw import draw
from fuzzing.products.judge import judge
from fuzzing.products.product import Product

PLAIN = Product("matmul", ("bfloat16",) * 3, (3, 5), (5, 4), steps=("bias",), exact=True)
BYTES = Product("matmul", ("uint8", "int8", "int32"), (2, 9), (9, 3), steps=("float", "scale"))


def test_products_are_those_of_wider_types() -> None:
    found = [play(seed) for seed in range(3)]
    assert [result.verdict.what for result in found] == ["passed"] * 3


@pytest.mark.parametrize("product", [PLAIN, BYTES], ids=["bfloat16", "bytes"])
def test_a_wrong_element_is_found(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(product, 1).what == "passed"
    right = judge_file.called

    def wrong(executable: Any, inputs: tuple[Any, ...]) -> Any:
        result = right(executable, inputs)
        result[1, 2] += 1
        return result

    monkeypatch.setattr(judge_file, "called", wrong)
    verdict = judge(product, 1)
    assert verdict.symptom == "wrong matmul"
    assert "first at (1, 2)" in verdict.words


def test_exact_sums_have_no_error_and_others_a_small_one() -> None:
    exact, rounded = PLAIN, msgspec.structs.replace(PLAIN, exact=False)
    assert not exact.expected(exact.operands(0, 1))[1].any()
    value, near = rounded.expected(rounded.operands(0, 1))
    assert (near > 0).all()
    assert (near < 0.02 * (1 + np.abs(value))).all()


def test_seeds_stand_for_products_of_every_form() -> None:
    products = [draw(seed) for seed in range(200)]
    assert products[:5] == [draw(seed) for seed in range(5)]
    assert {p.form for p in products} == {"matmul", "linear", "einsum", "conv1d", "conv2d"}
    assert {p.types[0] for p in products} == {"bfloat16", "float16", "float32", "uint8", "int8"}
    for flag in ("constant", "exact", "integers", "symbolic", "shared", "steps"):
        assert {bool(getattr(p, flag)) for p in products} == {True, False}, flag


def test_a_finding_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(product: Product, *_: Any) -> str:
        return "an error" if product.types[0] == "bfloat16" else ""

    monkeypatch.setattr(judge_file, "_difference", wrong)
    seed = next(s for s in range(99) if draw(s).form == "matmul" and draw(s).types[0] == "bfloat16")
    found = play(seed)
    ast.parse(found.script)
    assert "steps=()" in found.script
    assert "threads=1" in found.script
