"""hoist_slices: calls compute only the rows that are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

HEAD = """
@R.function
def main(x: R.Tensor((2, "n", 8), "float32"), w: R.Tensor((6, 8), "float32"),
         r: R.Tensor((2, 9, 8), "float32"), i: R.Tensor((2, 9, 8), "int32"),
         q: R.Tensor((2, 3, 9, 4), "float32"), m: R.Tensor((9, 9), "float32")):
    n = T.int64()
"""


@pytest.fixture
def hoisted(parse: Any, run: Any) -> Any:
    """The calls of a function after the pass: operator → sizes of their results."""

    def calls(body: str) -> dict[str, list[tuple[int | None, ...]]]:
        names = ("normalize", "hoist_slices", "eliminate_common", "eliminate_dead")
        main = run(parse(HEAD + body), *names)["main"]
        found: dict[str, list[tuple[int | None, ...]]] = {}
        for binding in main.bindings:
            info = binding.var.info
            assert isinstance(info, ir.TensorInfo)
            assert info.shape is not None
            sizes = tuple(map(ir.const_int, info.shape))
            found.setdefault(binding.value.op.name, []).append(sizes)
        return found

    return calls


def test_rows_of_a_layer(hoisted: Any) -> None:
    found = hoisted("""
    y = R.add(r, R.exp(R.linear(R.linear(r, w), R.permute_dims(w))))
    return R.slice(R.layer_norm(y, axes=(-1,)), axis=1, begin=-1)
""")
    assert found["slice"] == [(2, 1, 8)]  # of r alone, for both readers
    assert found["linear"] == [(2, 1, 6), (2, 1, 8)]
    assert found["layer_norm"] == found["add"] == found["exp"] == [(2, 1, 8)]


def test_the_same_slice_taken_twice(hoisted: Any) -> None:
    found = hoisted("""
    y = R.exp(r)
    return R.add(R.slice(y, axis=1, end=2), R.negative(R.slice(y, axis=-2, end=2)))
""")
    assert found["slice"] == found["exp"] == found["add"] == [(2, 2, 8)]


def test_operands_that_are_broadcast_stay_whole(hoisted: Any) -> None:
    found = hoisted("""
    column = R.slice(r, axis=1, end=1)
    y = R.add(R.multiply(r, column), R.const([1.0] * 8, "float32"))
    return R.slice(y, axis=1, begin=3, end=5)
""")
    assert sorted(found["slice"]) == [(2, 1, 8), (2, 2, 8)]
    assert found["multiply"] == [(2, 2, 8)]


def test_queries_through_other_shapes(hoisted: Any) -> None:
    found = hoisted("""
    y = R.permute_dims(R.attention(q, q, q, m), axes=(0, 2, 1, 3))
    return R.slice(R.reshape(y, (2, 9, 12)), axis=1, end=1)
""")
    assert found["attention"] == [(2, 3, 1, 4)]
    assert sorted(found["slice"]) == [(1, 9), (2, 3, 1, 4)]
    assert found["reshape"] == [(2, 1, 12)]


@pytest.mark.parametrize(
    ("body", "operator", "sizes"),
    [
        ("y = R.exp(r)\n    return (R.slice(y, axis=1, end=1), y)", "exp", (2, 9, 8)),
        ("y = R.exp(r)\n    return R.add(R.slice(y, axis=1, end=1), "
         "R.slice(y, axis=1, begin=1, end=2))", "exp", (2, 9, 8)),
        ("return R.slice(R.exp(r), axis=1, end=5)", "exp", (2, 9, 8)),
        ("return R.slice(R.softmax(r, axis=1), axis=1, end=1)", "softmax", (2, 9, 8)),
        ("return R.slice(R.linear(r, w), axis=2, end=1)", "linear", (2, 9, 6)),
        ("return R.slice(R.floor_divide(i, i), axis=1, end=1)", "floor_divide", (2, 9, 8)),
        ("return R.slice(R.attention(q, q, q, is_causal=True), axis=2, end=1)",
         "attention", (2, 3, 9, 4)),
        ("return R.slice(R.reshape(r, (9, 2, 8)), axis=0, end=1)", "reshape", (9, 2, 8)),
        ("return R.slice(R.exp(x), axis=1, end=4)", "exp", (2, None, 8)),
    ],
    ids=["returned", "two slices", "more than half", "mixed by a softmax", "columns of weights",
         "integers", "causal", "another axis", "of unknown length"],
)  # fmt: skip
def test_whole_values_that_stay(
    hoisted: Any, body: str, operator: str, sizes: tuple[int | None, ...]
) -> None:
    assert hoisted(f"    {body}\n")[operator] == [sizes]


def test_a_layer_computes_the_same() -> None:
    """With and without the pass, for the last of several rows and for a single one."""
    text = """
@R.function
def main(x: R.Tensor((2, "n", 8), "float32"), w: R.Tensor((6, 8), "float32")):
    y = R.add(x, R.linear(R.gelu(R.linear(R.layer_norm(x, axes=(-1,)), w)), R.permute_dims(w)))
    return R.softmax(R.slice(y, axis=1, begin=-1), axis=-1)
"""
    pipeline = bw.default_pipeline()
    models = [
        bw.compile(bw.from_source(text), options={"pipeline": chosen})
        for chosen in (pipeline, pipeline.without("hoist_slices"))
    ]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((6, 8)).astype("float32")
    for n in (1, 2, 7):
        x = rng.standard_normal((2, n, 8)).astype("float32")
        got, want = (np.asarray(model(x, w)) for model in models)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
