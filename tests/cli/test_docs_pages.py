"""The worked examples of the documentation run, and do what the pages say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.build import build
from blockwright.interp import interpret
from blockwright.ops.row import OpContext, OpRow, Sample
from blockwright.script.compute import Program
from blockwright.strategies.strategy import Strategy, try_strategies
from blockwright.support import GraphError
from blockwright.target import Target

DOCS = Path(__file__).resolve().parents[2] / "docs"


def run_page(name: str) -> dict[str, Any]:
    """Names defined by the Python blocks of a page, run in order."""
    text = (DOCS / name).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks
    for number, block in enumerate(blocks):
        exec(compile(block, f"{name}, block {number}", "exec"), names)
    return names


@pytest.fixture(scope="module")
def rows() -> dict[str, OpRow]:
    return {row.name: row for row in run_page("new-operator.md")["ROWS"]}


def arrays_of(sample: Sample) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(0)
    return [make(generator) for make in sample.args]


def info_of(array: np.ndarray[Any, Any]) -> ir.TensorInfo:
    shape = tuple(ir.const(size, "int64") for size in array.shape)
    return ir.TensorInfo(shape, ir.dtype_of(array.dtype))


@pytest.mark.parametrize("name", ["softsign", "squared_distance"])
@pytest.mark.parametrize(
    "run", [interpret, lambda func, *arrays: build(func)(*arrays)], ids=["interpreted", "compiled"]
)
def test_the_operators_mean_what_their_oracles_say(
    rows: dict[str, OpRow], name: str, run: Callable[..., Any]
) -> None:
    row = rows[name]
    assert row.lower is not None
    for sample in row.samples:
        arrays = arrays_of(sample)
        wanted = row.oracle(*arrays)
        func = row.lower(OpContext(name), [info_of(a) for a in arrays], sample.attrs)
        found = np.zeros_like(wanted)
        run(func, *arrays, found)
        step = np.spacing(np.abs(wanted).max(initial=1))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=float(sample.tolerance * step))


def test_shapes_are_deduced_with_symbols(rows: dict[str, OpRow]) -> None:
    row = rows["squared_distance"]
    n, m, k = (ir.var(name, "int64") for name in "nmk")

    def info(*shape: ir.Expr) -> ir.TensorInfo:
        return ir.TensorInfo(shape, ir.dtype_of("float32"))

    found = row.deduce(OpContext(row.name), [info(n, k), info(m, k)], {})
    assert isinstance(found, ir.TensorInfo)
    assert found.shape is not None
    assert [dim is want for dim, want in zip(found.shape, (n, m), strict=True)] == [True, True]
    with pytest.raises(GraphError, match="as many coordinates"):
        row.deduce(OpContext(row.name), [info(n, k), info(m, n)], {})
    with pytest.raises(GraphError, match="two matrices"):
        row.deduce(OpContext(row.name), [info(n), info(m, k)], {})


def test_the_rule_takes_and_refuses_as_described() -> None:
    rule: Strategy = run_page("new-strategy.md")["STRATEGY"]
    n = ir.var("n", "int64")

    spatial = Program("scale")
    x = spatial.param("x", (n, 4), "float32")
    scaled = spatial.compute("y", (n, 4), lambda i, j: x[i, j] * ir.const(2.0, "float32"))
    program = spatial.finish([scaled])
    result = try_strategies([rule], program, Target("native"))
    assert result.strategy == "parallel_outermost"
    assert "sch.parallel" in result.trace.as_python()
    kinds = [loop.kind for loop in ir.collect(result.func, ir.For)]
    assert kinds == [ir.ForKind.PARALLEL, ir.ForKind.SERIAL, ir.ForKind.SERIAL]

    given = np.arange(12, dtype="float32").reshape(3, 4)
    outs = [np.zeros_like(given) for _ in range(2)]
    interpret(program, given, outs[0])
    interpret(result.func, given, outs[1])
    np.testing.assert_array_equal(outs[0], outs[1])

    sums = Program("sums")
    a = sums.param("a", (n, 4), "float32")
    total = sums.reduce("s", (n,), (4,), lambda i, k: a[i, k])
    refused = try_strategies([rule], sums.finish([total]), Target("native"))
    assert refused.strategy == "unscheduled"
    assert refused.refusals == (("parallel_outermost", "the block reduces"),)
