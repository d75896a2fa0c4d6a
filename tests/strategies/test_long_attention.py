"""Attention over keys that come in pieces, each with a softmax of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.lower import lower
from blockwright.ops.implementation import lower_call
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS
from blockwright.script.compute import Program
from blockwright.strategies import apply_strategies
from blockwright.target import Cache, Target

ROW = OPERATORS["attention"]


def info(shape: tuple[ir.Expr | int, ...], dtype: str) -> ir.TensorInfo:
    sizes = (ir.const(n, "int64") if isinstance(n, int) else n for n in shape)
    return ir.TensorInfo(tuple(sizes), ir.dtype_of(dtype))


def program(
    rows: int = 13,
    keys: int = 24,
    heads: int = 2,
    kv_heads: int = 2,
    head: int = 16,
    mask: str = "",
    causal: bool = False,
    batch: ir.Expr | int = 1,
    dtype: str = "float32",
    piece: int = 8,
) -> ir.PrimFunc:
    shapes = [(batch, heads, rows, head), *[(batch, kv_heads, keys, head)] * 2]
    infos = [info(shape, dtype) for shape in shapes]
    if mask:
        infos.append(info((batch, 1, 1, keys), mask))
    attrs = {"scale": 0.25, "is_causal": causal, "implementation": f"split_kv(block={piece})"}
    return lower_call(ROW, OpContext("attention"), infos, attrs)


def small_caches(size: int) -> Target:
    """This machine, with a second and last cache of so many bytes."""
    return Target("native", caches=(Cache(size // 4), Cache(size), Cache(4 * size)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rows": 2, "keys": 16},
        {"rows": 6, "head": 12},
        {"causal": True, "rows": 24},
        {"mask": "float32"},
        {"mask": "bool"},
        {"heads": 4, "kv_heads": 2, "keys": 28, "piece": 4},
        {"keys": 4, "piece": 2, "causal": True},
        {"head": 32, "keys": 16, "batch": 2},
        {"dtype": "float16"},
        {"dtype": "float16", "mask": "float16", "head": 12, "rows": 24, "causal": True},
    ],
    ids=str,
)
def test_the_schedule_means_the_same(checks: Any, settings: dict[str, Any]) -> None:
    func = program(**settings)
    assert "O1" in {b.name for b in ir.blocks(func.body)}
    checks.taken_by("attention", func, {})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_batch_may_be_unknown(checks: Any, dtype: str) -> None:
    func = program(batch=ir.var("b", "int64"), heads=4, dtype=dtype)
    assert "O1" in {b.name for b in ir.blocks(func.body)}
    checks.taken_by("attention", func, {"b": 1}, {"b": 3})


def test_a_task_keeps_the_scores_of_one_piece() -> None:
    machine = Target("x86-64-v4", num_threads=2)
    func = apply_strategies(program(rows=600, keys=512, heads=1, kv_heads=1), machine).func
    kept = {
        n.buffer.name: ir.const_int(n.buffer.shape[0])
        for n in ir.collect(lower(func, machine).body, ir.Allocate)
    }
    rows, rest = divmod(kept["S_masked"] or 0, 8)
    assert 0 < rows <= 32
    assert not rest
    assert kept["P"] == kept["S_masked"]  # of a tile of rows and a piece
    assert kept["O1"] == 150 * (512 // 8) * 16  # of the rows of a task


def test_groups_of_keys_that_nothing_puts_together_are_no_pieces(checks: Any) -> None:
    """Queries that attend to each of three groups of keys, with a result for each."""
    p = Program("groups")
    q = p.param("Q", (2, 8, 16), "float32")
    k, v = (p.param(name, (2, 3, 12, 16), "float32") for name in "KV")
    shape = (2, 8, 3, 12)
    s = p.reduce("S", shape, (16,), lambda b, i, g, j, d: q[b, i, d] * k[b, g, j, d])
    e = p.compute("P", shape, lambda b, i, g, j: ir.call("exp", s[b, i, g, j]))
    n = p.reduce("L", shape[:3], (12,), lambda b, i, g, j: e[b, i, g, j])
    o = p.reduce("O", (2, 8, 3, 16), (12,), lambda b, i, g, d, j: e[b, i, g, j] * v[b, g, j, d])
    func = p.finish([p.compute("Y", (2, 8, 3, 16), lambda b, i, g, d: o[b, i, g, d] / n[b, i, g])])
    why = "no block combines the results of the kv blocks"
    assert checks.refusal("attention", func) == why
    assert not apply_strategies(func, Target("x86-64-v3")).faults


@pytest.mark.parametrize("causal", [False, True])
def test_many_keys_are_as_exact_as_few(causal: bool) -> None:
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(q, k, v, is_causal=causal)

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 64, generator=generator) for n in (40, 32768, 32768))
    exe = bw.compile(Attention(), (q, k, v), target=small_caches(1 << 20))
    assert ("O1" in exe.show("programs")) != causal
    wide = Attention()(q.double(), k.double(), v.double()).numpy()
    found = np.asarray(exe(q.numpy(), k.numpy(), v.numpy()))
    # Averages of 32768 values of size 1: their roundings are far below 1e-6.
    np.testing.assert_allclose(found, wide, rtol=0, atol=1e-6)


def test_heads_are_merged_where_the_pieces_are_put_together() -> None:
    torch = pytest.importorskip("torch")

    class Merged(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return found.transpose(1, 2).flatten(2)

    generator = torch.Generator().manual_seed(0)

    def inputs(batch: int) -> list[Any]:
        shapes = ((batch, 2, 21, 16), *[(batch, 2, 768, 16)] * 2)
        return [torch.randn(shape, generator=generator) for shape in shapes]

    axis = torch.export.Dim("batch", min=1, max=8)
    exe = bw.compile(
        Merged(), inputs(2), target=small_caches(1 << 14), dynamic_shapes=({0: axis},) * 3
    )
    assert len(exe.context.traces) == 1  # of one kernel
    assert "O1" in exe.show("programs")
    for batch in (1, 3):
        given = inputs(batch)
        wide = Merged()(*(one.double() for one in given)).numpy()
        # Averages of 768 values of size 1.
        np.testing.assert_allclose(np.asarray(exe(*given)), wide, rtol=0, atol=1e-6)
