"""The worked examples of the documentation run, and do what the pages say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.graph import GraphBuilder
from blockwright.interp import interpret
from blockwright.ops.row import OpContext, OpRow, Sample
from blockwright.ops.table import OPERATORS
from blockwright.script.compute import Program
from blockwright.strategies import OFFERS
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
        exec(compile(block, f"{name}, block {number}", "exec", dont_inherit=True), names)
    return names


@pytest.fixture(scope="module")
def operator_page() -> Iterator[dict[str, Any]]:
    """The names of the page; what it registers is gone after the tests."""
    before, offers = dict(OPERATORS), list(OFFERS)
    yield run_page("new-operator.md")
    OPERATORS.clear()
    OPERATORS.update(before)
    OFFERS[:] = offers


@pytest.fixture
def rows(operator_page: dict[str, Any]) -> dict[str, OpRow]:
    return {row.name: row for row in operator_page["ROWS"]}


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


def distances(n: Any, m: Any, dtype: str = "float32", **attrs: Any) -> ir.GraphFunction:
    """Squared distances of n and m points with 64 coordinates."""
    builder = GraphBuilder()
    shapes = [tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in (count, 64)) for count in (n, m)]
    infos = [ir.TensorInfo(shape, ir.dtype_of(dtype)) for shape in shapes]
    a, b = (builder.param(name, info) for name, info in zip("ab", infos, strict=True))
    return builder.finish("main", builder.op("squared_distance", a, b, **attrs))


@pytest.mark.parametrize("sums", ["float32", "float64"])
def test_another_implementation_means_the_same(operator_page: dict[str, Any], sums: str) -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((count, 64)).astype("float32") for count in (5, 7))
    exe = bw.compile(distances(5, 7, implementation=f"expanded(sums={sums!r})"))
    wanted = operator_page["oracle"](a, b)
    np.testing.assert_allclose(np.asarray(exe(a, b)), wanted, rtol=1e-5)


def test_its_rule_and_its_offer_are_asked(operator_page: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match="sums of float32 are narrower than float64"):
        distances(5, 7, "float64", implementation="expanded")
    large = bw.compile(distances(512, 512)).show("programs")
    (line,) = [one for one in large.splitlines() if "predicted" in one]
    assert re.search(r"predicted: default \d+ µs, expanded\(sums='float32'\) \d+ µs", line)
    n = ir.var("n", "int64")
    symbolic = bw.compile(distances(n, 7)).show("programs")
    assert "default; not expanded: only for CPUs and sizes that are numbers" in symbolic


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
