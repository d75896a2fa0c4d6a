"""What makes the packed operand of a product is computed while its panels are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.script.compute import Program

N = ir.var("n", "int64")


def quantized(rows: ir.Expr | int, columns: int, depth: int, layout: str) -> ir.PrimFunc:
    """x times weights of eight bits, with a scale for each column and one zero point."""
    p = Program("quantized")
    x = p.param("X", (rows, depth), "float32")
    shape = (columns, depth) if layout == "nk" else (depth, columns)
    q, scale = p.param("Q", shape, "int8"), p.param("scale", (columns,), "float32")
    w = p.compute(
        "W",
        shape,
        lambda a, b: (ir.cast_to(q[a, b], "float32") - 3.0) * scale[a if layout == "nk" else b],
    )
    c = p.reduce(
        "C",
        (rows, columns),
        (depth,),
        lambda i, j, k: x[i, k] * (w[j, k] if layout == "nk" else w[k, j]),
    )
    return p.finish([p.compute("D", (rows, columns), lambda i, j: c[i, j] + 1.0)])


def looked_up(columns: int, depth: int) -> ir.PrimFunc:
    """x times chosen rows of a table."""
    p = Program("looked_up")
    x, table = p.param("X", (N, depth), "float32"), p.param("T", (100, depth), "float32")
    at = p.param("at", (columns,), "int64")
    w = p.compute("W", (columns, depth), lambda j, k: table[at[j], k] * 2.0)
    return p.finish([p.reduce("C", (N, columns), (depth,), lambda i, j, k: x[i, k] * w[j, k])])


def shared(rows: int) -> ir.PrimFunc:
    """Two products with one computed operand, and one with a computed left operand."""
    p = Program("shared")
    x, w = p.param("X", (rows, 12), "float32"), p.param("W", (24, 12), "float32")
    v = p.compute("V", (24, 12), lambda j, k: ir.call("exp", w[j, k]))
    c = p.reduce("C", (rows, 24), (12,), lambda i, j, k: x[i, k] * v[j, k])
    d = p.reduce("D", (rows, 24), (12,), lambda i, j, k: x[i, k] * v[j, k])
    return p.finish([c, d])


def computed_left(rows: int) -> ir.PrimFunc:
    p = Program("computed_left")
    x, w = p.param("X", (rows, 12), "float32"), p.param("W", (24, 12), "float32")
    y = p.compute("Y", (rows, 12), lambda i, k: ir.call("exp", x[i, k]))
    return p.finish([p.reduce("C", (rows, 24), (12,), lambda i, j, k: y[i, k] * w[j, k])])


def written(func: ir.PrimFunc) -> set[str]:
    """Names of what a scheduled program stores, less the parts of them."""
    return {region.buffer.name for block in ir.blocks(func.body) for region in block.writes}


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize(("columns", "depth"), [(48, 24), (50, 9), (17, 5)])
def test_weights_of_few_bits_are_never_stored_in_single_precision(
    checks: Any, columns: int, depth: int, layout: str
) -> None:
    func = quantized(N, columns, depth, layout)
    result = checks.taken_by("gemm", func, {"n": 1}, {"n": 13})
    assert "W" not in written(result.func)


def test_rows_are_looked_up_at_packing(checks: Any) -> None:
    run = checks.native(looked_up(40, 24))
    x, table = checks.normal(30, 24), checks.normal(100, 24, seed=1)
    at = np.random.default_rng(2).integers(0, 100, 40)
    out = np.empty((30, 40), "float32")
    run(x, table, at, out)
    np.testing.assert_allclose(out, x @ (2 * table[at]).T, rtol=1e-5, atol=1e-5)
    assert "W" not in written(checks.taken_by("gemm", looked_up(40, 24)).func)


@pytest.mark.parametrize("program", [shared, computed_left])
def test_what_several_tiles_read_is_computed_once(checks: Any, program: Any) -> None:
    result = checks.taken_by("gemm", program(40), {})
    calls = [n for n in ir.walk(result.func.body) if isinstance(n, ir.Call)]
    assert [ir.op_row(n.op).name for n in calls].count("exp") == 1
    assert written(result.func) & {"V", "Y"}


def graph(rows: int, columns: int = 64, depth: int = 96, *, left: bool = False) -> ir.GraphFunction:
    """x W^T, W being a sigmoid of what callers give; `left`: x is."""
    b = GraphBuilder()
    f32 = ir.dtype_of("float32")

    def param(name: str, *shape: int) -> ir.GraphVar:
        return b.param(name, ir.TensorInfo(tuple(ir.const(n, "int64") for n in shape), f32))

    x, w = param("x", rows, depth), param("w", columns, depth)
    if left:
        x = b.op("sigmoid", x)
    else:
        w = b.op("permute_dims", b.op("sigmoid", w), axes=(1, 0))
        return b.finish("main", b.op("matmul", x, w))
    return b.finish("main", b.op("matmul", x, b.op("permute_dims", w, axes=(1, 0))))


@pytest.mark.parametrize(("rows", "left", "kernels"), [(64, False, 1), (64, True, 2)])
def test_a_packed_operand_brings_its_maker_along(rows: int, left: bool, kernels: int) -> None:
    exe = bw.compile(graph(rows, left=left))
    assert len(exe.context.traces) == kernels
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype("f4") for s in ((rows, 96), (64, 96)))
    y = 1 / (1 + np.exp(-(x if left else w).astype("f8")))
    want = (y @ w.T) if left else x @ y.T
    np.testing.assert_allclose(exe(x, w), want, rtol=1e-5, atol=1e-5)
