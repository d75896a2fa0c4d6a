"""Texts and integers that compiled code cannot hold: coded errors that can be printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.runtime import threads

HUGE = 10**5000  # Python refuses to format it
GRAPH = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    y = VALUE
    return y
"""
ASSERTION = """
@T.prim_func
def f(A: T.Buffer((4,), "float32")):
    assert A[0] > 0.0, "MESSAGE"
    A[0] = 1.0
"""


def graph(value: str) -> Any:
    return bw.from_source(GRAPH.replace("VALUE", value))


def refused(code: str, action: Callable[[], object]) -> bw.BlockwrightError:
    with pytest.raises(bw.BlockwrightError) as caught:
        action()
    assert caught.value.code == code
    str(caught.value).encode()
    return caught.value


@pytest.mark.parametrize("text", ["\\ud800", "a\\x00b", "é\\udfff"])
def test_messages_and_names_are_c_strings(text: str) -> None:
    refused("BW259", lambda: bw.build(bw.from_source(ASSERTION.replace("MESSAGE", text))))
    call = f'R.call_dps_library("{text}", (x,), out_sinfo=R.Tensor((4,), "float32"))'
    error = refused("BW259", lambda: bw.compile(graph(call)))
    assert error.diagnostics[0].span is not None
    cast = f'R.match_cast(x, R.Tensor((4,), "float32"), "{text}")'
    refused("BW259", lambda: bw.validate(graph(cast)))


def test_messages_in_other_scripts_are_kept() -> None:
    f = bw.build(bw.from_source(ASSERTION.replace("MESSAGE", "größer als 零")))
    error = refused("BW712", lambda: f(np.zeros(4, "float32")))
    assert "größer als 零" in error.message


def test_source_text_with_half_a_surrogate_pair() -> None:
    refused("BW101", lambda: bw.from_source("# \ud800\n" + GRAPH))
    refused("BW101", lambda: bw.from_source("def f(:", name="\ud800"))


def test_paths_that_no_file_can_have() -> None:
    refused("BW805", lambda: bw.load("\ud800"))
    model = bw.compile(graph("R.exp(x)"))
    refused("BW805", lambda: model.save("\ud800"))
    refused("BW701", lambda: model(**{"\ud800": 1}))
    refused("BW702", lambda: model(HUGE))
    refused("BW702", lambda: model(x=-HUGE))


@pytest.mark.parametrize(
    "value",
    [
        "R.add(x, scalar=10**5000)",
        "R.sum(x, axes=[10**5000])",
        "R.slice(x, begin=10**5000)",
        "R.full(R.shape([2]), fill_value=10**5000)",
        "R.softplus(x, beta=10**400)",
        "R.pad(x, pad_width=[[10**5000, 0]])",
    ],
)
def test_integers_beyond_all_types(value: str) -> None:
    refused("BW259", lambda: bw.compile(graph(value)))
    graph(value).script()


def test_huge_integers_in_the_api() -> None:
    refused("BW207", lambda: ir.const(HUGE, "float32"))
    refused("BW207", lambda: ir.const(10**400, "float64"))
    assert isinstance(ir.const(10**300, "float64"), ir.FloatImm)
    refused("BW710", lambda: bw.set_num_threads(HUGE))
    refused(
        "BW107",
        lambda: bw.from_source(
            GRAPH.replace("y =", "R.func_attr({'a': VALUE})\n    y =")
            .replace("VALUE", "10**5000", 1)
            .replace("VALUE", "x")
        ),
    )


@pytest.mark.parametrize("count", ["9" * 5000, "\u0661", "0" * 30 + "1"])
def test_thread_counts_of_the_environment(count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.ENVIRONMENT, count)
    refused("BW903", threads.default_num_threads)


def test_a_sum_of_sizes_beyond_64_bits_is_refused() -> None:
    refused("BW250", lambda: bw.compile(graph("R.pad(x, pad_width=[[2**62, 2**62]])")))


def test_lines_end_where_pythons_tokenizer_ends_them() -> None:
    text = GRAPH.replace("    y =", '    """a\x0cb\x1cc\u2028d"""\n    y =').replace("VALUE", "zz")
    error = refused("BW102", lambda: bw.from_source(text))
    span = error.diagnostics[0].span
    assert span is not None
    assert span.source.line(span.line)[span.column : span.end_column] == "zz"


def test_script_text_cannot_read_attributes_by_format() -> None:
    refused("BW104", lambda: graph('"{0.__class__}".format(x)'))
    refused("BW104", lambda: graph('str.format("{0.__class__}", x)'))


def test_operators_and_constants_of_the_script() -> None:
    refused("BW107", lambda: graph("R.op(3)(x)"))
    refused("BW107", lambda: graph("R.split(x, indices_or_sections=2)[10**5000]"))
    refused("BW107", lambda: graph('R.const(1, "float32x4")'))
