"""Tensors of sizes without limits leave branches and functions as objects that own their memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from tests.passes.host.test_run_time_sizes import NO, YES, checked, parse

X = np.array([3, 1, 2, 2, 1], "float32")

BRANCH = """
@R.function
def main(x: R.Tensor(("n",), "float32"), t: R.Tensor((1,), "int64"), c: R.Tensor((), "bool")):
    if c:
        y = R.zeros(R.tensor_to_shape(t), dtype="float32")
    else:
        y = x
    return R.exp(y)
"""
FIELDS = """
@R.function
def main(x: R.Tensor(("n",), "float32"), t: R.Tensor((2,), "int64"),
         c: R.Tensor((), "bool")):
    n = T.int64()
    u = R.unique(x)
    if c:
        y = (R.zeros(R.tensor_to_shape(t), dtype="float32"), u, R.sum(u), x)
    else:
        y = (R.reshape(x, R.shape([n, 1])), R.exp(x), R.sum(x), R.add(x, x))
    return R.exp(y[0]), y[1], y[2], R.exp(y[3])
"""
NESTED = """
@R.function
def main(x: R.Tensor(("n",), "float32"), t: R.Tensor((1,), "int64"), c: R.Tensor((), "bool")):
    if c:
        y = R.zeros(R.tensor_to_shape(t), dtype="float32")
        if R.less(R.sum(x), R.const(0.0, "float32")):
            z = R.concat((y, x), axis=0)
        else:
            z = y
    else:
        z = R.unique(x)
    return R.exp(z)
"""
GROW = """
@R.function
def main(x: R.Tensor(ndim=1, dtype="float32"), k: R.Tensor((), "int64")) -> R.Tensor(
    ndim=1, dtype="float32"
):
    if R.equal(k, R.const(0, "int64")):
        y = x
    else:
        longer = R.concat((x, R.add(x, R.const(1.0, "float32"))), axis=0)
        y = cls.main(longer, R.subtract(k, R.const(1, "int64")))
    return y
"""
UNIQUE = """
@R.function
def main(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")) -> R.Tensor(
    ndim=1, dtype="float32"
):
    if R.equal(k, R.const(0, "int64")):
        y = R.unique(x)
    else:
        y = R.exp(cls.main(R.add(x, x), R.subtract(k, R.const(1, "int64"))))
    return y
"""
EACH_OTHER = """
@R.function(private=True)
def even(x: R.Tensor(ndim=1, dtype="float32"), k: R.Tensor((), "int64")) -> R.Tuple(
    R.Tensor(ndim=1, dtype="float32"), R.Tensor((), "int64")
):
    if R.equal(k, R.const(0, "int64")):
        y = (x, k)
    else:
        y = cls.odd(R.concat((x, x), axis=0), R.subtract(k, R.const(1, "int64")))
    return y
@R.function(private=True)
def odd(x: R.Tensor(ndim=1, dtype="float32"), k: R.Tensor((), "int64")) -> R.Tuple(
    R.Tensor(ndim=1, dtype="float32"), R.Tensor((), "int64")
):
    if R.equal(k, R.const(0, "int64")):
        y = (R.exp(x), R.add(k, R.const(1, "int64")))
    else:
        y = cls.even(R.unique(x), R.subtract(k, R.const(1, "int64")))
    return y
@R.function
def main(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")):
    r = cls.even(x, k)
    return R.exp(r[0]), r[1]
"""


@pytest.mark.parametrize("text", [BRANCH, NESTED], ids=["branch", "nested"])
@pytest.mark.parametrize("chosen", [YES, NO])
@pytest.mark.parametrize("size", [0, 7])
def test_branches_return_tensors_of_any_size(text: str, chosen: Any, size: int) -> None:
    _, (found,) = checked(text, X, np.array([size]), chosen)
    assert found.size == (size if chosen else 5 if text is BRANCH else 3)


@pytest.mark.parametrize("chosen", [YES, NO])
def test_fields_of_branches_have_sizes_of_their_own(chosen: Any) -> None:
    _, found = checked(FIELDS, X, np.array([2, 3]), chosen)
    assert [a.shape for a in found] == [
        (2, 3) if chosen else (5, 1),
        (3 if chosen else 5,),
        (),
        (5,),
    ]


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("text", [GROW, UNIQUE, EACH_OTHER], ids=["grow", "unique", "each other"])
def test_recursive_functions_return_tensors_of_any_size(text: str, depth: int) -> None:
    _, found = checked(text, X / 8, np.array(depth))
    if text is GROW:
        assert found[0].size == 5 << depth


def test_too_deep_a_recursion_is_an_error_and_releases_everything() -> None:
    exe = bw.compile(parse(UNIQUE))
    with pytest.raises(bw.BlockwrightError, match="BW723"):
        exe(X * 0, np.array(100_000))
    np.testing.assert_array_equal(exe(X * 0, np.array(0)), [0])


CLOSURE = """
@R.function(private=True)
def f(x: R.Tensor(ndim=1, dtype="float32")):
    return R.unique(x)
@R.function
def main(x: R.Tensor(("n",), "float32")):
    g = R.make_closure(cls.f, ())
    return g, R.invoke_closure(g, (x,), sinfo_args=R.Object)
"""


def test_closures_return_tensors_of_any_size() -> None:
    function, found = bw.compile(parse(CLOSURE))(X)
    np.testing.assert_array_equal(np.from_dlpack(found), [1, 2, 3])
    np.testing.assert_array_equal(np.from_dlpack(function(X[:2])), [1, 3])


def test_a_saved_library_has_them_too(tmp_path: Path) -> None:
    exe = bw.compile(parse(GROW))
    exe.save(tmp_path / "grow.bwx")
    again = bw.load(tmp_path / "grow.bwx")
    np.testing.assert_array_equal(again(X, np.array(2)), exe(X, np.array(2)))


def test_memory_does_not_leak() -> None:
    exe = bw.compile(parse(GROW))
    exe(X, np.array(3))
    taken = exe.measure_memory(X, np.array(3))
    for _ in range(20):
        exe(X, np.array(3))
    assert exe.measure_memory(X, np.array(3)) == taken
