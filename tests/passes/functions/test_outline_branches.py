"""Branches that return values of other kinds are refused, and the error shows both."""

from __future__ import annotations

import pytest

import blockwright as bw


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("x", 'R.astype(x, "float16")'),
        ("x", "R.expand_dims(x, 0)"),
        ("x", "(x, x)"),
        ("(x, x)", "(x, x, x)"),
        ("(x, (x, x))", '(x, (x, R.astype(x, "int32")))'),
    ],
)
def test_branches_differ_in_sizes_only(one: str, two: str) -> None:
    built = bw.from_source(f"""
@R.function
def main(x: R.Tensor(("n",), "float32"), b: R.Tensor((), "bool")):
    if b:
        y = {one}
    else:
        y = {two}
    return y
""")
    with pytest.raises(bw.GraphError, match=r"the branches of y.* return R\.T") as caught:
        bw.compile(built)
    assert caught.value.code == "BW435"
