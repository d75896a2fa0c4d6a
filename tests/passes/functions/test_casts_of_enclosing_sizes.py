"""match_cast to a size of the enclosing function, in a branch or a local function, is a check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw

Call = Callable[..., Any]

BRANCHES = """
@I.ir_module
class Module:
    @R.function
    def main(
        y: R.Tensor(("m",), "float32"), x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")
    ):
        n = T.int64()
        m = T.int64()
        k = T.int64()
        if c:
            r = {then}
        else:
{otherwise}
        return r
"""


def f32(size: int) -> np.ndarray[Any, Any]:
    return np.arange(1, size + 1, dtype=np.float32)


def lines(text: str, depth: int) -> str:
    return "\n".join(" " * depth + line for line in text.strip().splitlines())


def executors(text: str) -> list[Call]:
    module = bw.from_source(text)
    return [lambda *args: bw.interpret(module, *args), bw.compile(module)]


def value(result: Any) -> Any:
    return np.from_dlpack(result).tolist()


def assert_cast_fails(run: Call, *args: Any) -> None:
    with pytest.raises((bw.BlockwrightError, ValueError), match="BW704"):
        run(*args)


@pytest.mark.parametrize(
    ("otherwise", "then", "wanted"),
    [
        ('q = R.match_cast(y, R.Tensor((n,), "float32"))\nr = R.sum(q)', "R.sum(x)", 6),
        # The size of the result is that of the enclosing function.
        (
            'q = R.match_cast(y, R.Tensor((n,), "float32"))\nr = R.add(q, q)',
            "R.add(x, x)",
            [2, 4, 6],
        ),
        # The size is used before the cast.
        (
            """
w = R.full(R.shape([n]), R.const(2.0, "float32"))
q = R.match_cast(y, R.Tensor((n,), "float32"))
r = R.sum(R.add(q, w))
""",
            "R.sum(x)",
            12,
        ),
        (
            """
s = R.shape_of(y)
t = R.match_cast(s, R.Shape((n,)))
r = R.sum(R.ones(t, "float32"))
""",
            "R.sum(x)",
            3,
        ),
        # A cast of the result.
        ('r = R.match_cast(y, R.Tensor((n,), "float32"))', "R.add(x, x)", [1, 2, 3]),
        # The size is bound by a cast before the `if` in a nested branch.
        (
            """
a = R.match_cast(R.concat([x, x], axis=0), R.Tensor((k,), "float32"))
if R.less(R.sum(x), R.const(0.0, "float32")):
    r = R.sum(a)
else:
    q = R.match_cast(R.concat([x, y], axis=0), R.Tensor((k,), "float32"))
    r = R.sum(q)
""",
            "R.sum(x)",
            12,
        ),
    ],
)
def test_a_cast_in_a_branch_checks_the_size(otherwise: str, then: str, wanted: Any) -> None:
    for run in executors(BRANCHES.format(then=then, otherwise=lines(otherwise, 12))):
        assert value(run(f32(3), f32(3), np.array(False))) == wanted
        assert_cast_fails(run, f32(4), f32(3), np.array(False))
        run(f32(4), f32(3), np.array(True))  # the other branch makes no cast


def test_a_branch_ends_with_the_size_of_an_axis() -> None:
    module = bw.from_source("""
@R.function
def main(y: R.Tensor(ndim=1, dtype="float32"), c: R.Tensor((), "bool")):
    if c:
        r = R.get_shape_value(y, axis=0)
    else:
        r = R.prim_value(7)
    return r
""")
    assert int(bw.interpret(module, f32(3), np.array(True))) == 3
    assert int(bw.interpret(module, f32(3), np.array(False))) == 7


def test_branches_bind_a_symbol_each() -> None:
    otherwise = 'q = R.match_cast(y, R.Tensor((k,), "float32"))\nr = R.sum(q)'
    text = BRANCHES.format(then="THEN", otherwise=lines(otherwise, 12)).replace(
        "            r = THEN",
        lines('p = R.match_cast(x, R.Tensor((k,), "float32"))\nr = R.sum(p)', 12),
    )
    for run in executors(text):
        assert value(run(f32(4), f32(3), np.array(False))) == 10
        assert value(run(f32(4), f32(3), np.array(True))) == 6


CHOSEN = """
@I.ir_module
class Module:
    @R.function
    def main(
        y: R.Tensor(("m",), "float32"), x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")
    ):
        n = T.int64()
        m = T.int64()

        @R.function
        def g(v: {param}):
            k = T.int64()
            q = R.match_cast(v, R.Tensor((n,), "float32"))
            return R.sum(q)

        @R.function
        def h(v: {param}):
            k = T.int64()
            return R.sum(v)

        if c:
            f = g
        else:
            f = h
        return f(y)
"""


@pytest.mark.parametrize(
    "param", ['R.Tensor(("k",), "float32")', 'R.Tensor(ndim=1, dtype="float32")']
)
def test_a_chosen_local_function_checks_the_size(param: str) -> None:
    for run in executors(CHOSEN.format(param=param)):
        assert value(run(f32(3), f32(3), np.array(True))) == 6
        assert_cast_fails(run, f32(4), f32(3), np.array(True))
        assert value(run(f32(4), f32(3), np.array(False))) == 10


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        ("R.sum(q)", 6),
        ("R.sum(R.add(q, x))", 12),
        ('R.add(q, R.full(R.shape([n]), R.const(1.0, "float32")))', [2, 3, 4]),
    ],
)
def test_a_returned_local_function_takes_any_vector(result: str, wanted: Any) -> None:
    """Its parameter is not narrowed to what it casts it to."""
    text = f"""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()

        @R.function
        def g(v: R.Tensor(ndim=1, dtype="float32")):
            q = R.match_cast(v, R.Tensor((n,), "float32"))
            return {result}

        return g
"""
    for run in executors(text):
        g = run(f32(3))
        assert value(g(f32(3))) == wanted
        assert_cast_fails(g, f32(4))
