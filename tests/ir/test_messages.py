"""Messages of assertions and casts: `%d` for each value, which is an integer, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis import find_violations
from blockwright.graph import check_graph

INT32, FLOAT = ir.dtype_of("int32"), ir.dtype_of("float32")
N = ir.Var("n", INT32)
M = ir.Var("m", FLOAT)
NOT_SHOWN = [
    "%s",
    "%n",
    "%f",
    "%e",
    "%a",
    "%c",
    "%x",
    "%i",
    "%r",
    "%5d",
    "%*d",
    "%(a)d",
    "%",
    "% d",
    "%ld",
    "%d %d",
    "no place",
    "%%d",
]


def program(message: Any, *values: ir.Expr) -> ir.PrimFunc:
    """An assertion, made through the API."""
    stop = ir.AssertStmt(ir.compare(ir.LT, N, ir.const(3, INT32)), message, values)
    return ir.prim_func(stop, [], scalars=[N, M])


def codes(func: ir.PrimFunc) -> list[str]:
    return [problem.code for problem in find_violations(func)]


@pytest.mark.parametrize("text", NOT_SHOWN)
def test_other_conversions_are_refused(text: str) -> None:
    assert codes(program(text, N)) == ["BW106"]
    source = f'@T.prim_func\ndef f(n: T.int32):\n    T.Assert(n < 3, "{text}", n)\n'
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.from_source(source)
    assert caught.value.code == "BW106"


@pytest.mark.parametrize("text", NOT_SHOWN)
def test_a_cast_has_the_same_messages(text: str) -> None:
    n, k = ir.var("n", "int64"), ir.var("k", "int64")
    x = ir.GraphVar("x", info=ir.TensorInfo((n,), FLOAT))
    y = ir.GraphVar("y", info=ir.TensorInfo((k,), FLOAT))
    z = ir.GraphVar("z", info=x.info)
    cast = ir.MatchCast(z, y, ir.TensorInfo((n,), FLOAT), text, (k,))
    body = ir.SeqExpr((ir.BindingBlock((cast,)),), z)
    with pytest.raises(bw.ValidationError) as caught:
        check_graph(ir.GraphFunction((x, y), body))
    assert [d.code for d in caught.value.diagnostics] == ["BW106"]
    source = f"""
@R.function
def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("k",), "float32")):
    z = R.match_cast(y, R.Tensor((n,), "float32"), "{text}", k)
    return z
"""
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.from_source(source)
    assert caught.value.code == "BW106"


@pytest.mark.parametrize("value", [M, ir.Broadcast(N, 4), ir.const(1.5, FLOAT)])
def test_a_value_is_an_integer(value: ir.Expr) -> None:
    assert codes(program("%d", value)) == ["BW107"]


def test_a_message_is_text() -> None:
    assert codes(program(5)) == ["BW107"]


def test_without_values_a_message_is_shown_as_it_is() -> None:
    assert codes(program("100 %s %n")) == []


def test_values_are_shown_as_they_are() -> None:
    wide = ir.const(2**64 - 1, "uint64")
    message = "%d%% of %d, %d, %%d"
    func = program(message, N, ir.compare(ir.LT, N, ir.const(9, INT32)), wide)
    assert codes(func) == []
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.build(func.with_attrs(global_symbol="f"))["f"](5, 1.0)
    assert caught.value.code == "BW712"
    assert "5% of 1, 18446744073709551615, %d" in caught.value.message
