"""The attention rule: scores, softmax and the product with V in one kernel per head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ir.annotations import REGISTER_PRESSURE
from blockwright.lower import lower
from blockwright.script.compute import Program
from blockwright.strategies import apply_strategies
from blockwright.target import Target

B, S = (ir.var(name, "int64") for name in "bs")
Size = ir.Expr | int


def attention(
    heads: int = 2,
    depth: Size = 16,
    length: Size = S,
    batch: Size = B,
    masked: bool = True,
    merged: bool = False,
) -> ir.PrimFunc:
    """softmax(0.25 Q K^T + mask) V, optionally with the heads merged in the result."""
    p = Program("attention")
    q, k, v = (p.param(name, (batch, heads, length, depth), "float32") for name in "QKV")
    mask = p.param("mask", (batch, length), "float32")
    square, rows = (batch, heads, length, length), (batch, heads, length)
    s = p.reduce("S", square, (depth,), lambda b, h, i, j, d: q[b, h, i, d] * k[b, h, j, d])
    z = p.compute(
        "Z", square, lambda b, h, i, j: s[b, h, i, j] * 0.25 + (mask[b, j] if masked else 0.0)
    )
    m = p.reduce("M", rows, (length,), lambda b, h, i, j: z[b, h, i, j], "max")
    e = p.compute("P", square, lambda b, h, i, j: ir.call("exp", z[b, h, i, j] - m[b, h, i]))
    n = p.reduce("L", rows, (length,), lambda b, h, i, j: e[b, h, i, j])
    w = p.compute("W", square, lambda b, h, i, j: e[b, h, i, j] / n[b, h, i])
    o = p.reduce(
        "O",
        (batch, heads, length, depth),
        (length,),
        lambda b, h, i, d, j: w[b, h, i, j] * v[b, h, j, d],
    )
    if not merged:
        return p.finish([o])
    t = p.compute("T", (batch, length, heads, depth), lambda b, i, h, d: o[b, h, i, d])
    return p.finish([t])


def expected(q: Any, k: Any, v: Any, mask: Any) -> Any:
    z = q.astype("float64") @ k.swapaxes(-1, -2) * 0.25 + mask[:, None, None, :]
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


PROGRAMS: dict[str, tuple[ir.PrimFunc, list[dict[str, int]]]] = {
    "symbolic batch and length": (
        attention(), [{"b": 1, "s": 1}, {"b": 2, "s": 5}, {"b": 1, "s": 9}]),
    "fixed odd length": (attention(length=7), [{"b": 2}]),
    "head that is no whole number of vectors": (attention(depth=12), [{"b": 1, "s": 3}]),
    "head shorter than a vector": (attention(depth=3), [{"b": 2, "s": 6}]),
    "two rows, of which a tile takes one": (attention(length=2), [{"b": 2}]),
    "two rows of a short head": (attention(depth=4, length=2), [{"b": 2}]),
    "head of an odd size": (attention(depth=17), [{"b": 1, "s": 5}]),
    "head in pieces": (attention(depth=32), [{"b": 1, "s": 7}]),
    "head in pieces, the last of which is no whole vector": (
        attention(depth=46, length=7), [{"b": 1}]),
    "one head, whose rows are shared out": (attention(heads=1, batch=1, length=53), [{}]),
    "without a mask": (attention(masked=False), [{"b": 1, "s": 4}]),
    "heads merged behind it": (attention(merged=True), [{"b": 2, "s": 3}]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_schedule_means_the_same(checks: Any, name: str) -> None:
    func, sizes = PROGRAMS[name]
    checks.taken_by("attention", func, *sizes)


def test_a_head_of_one_element_is_left_to_rows(checks: Any) -> None:
    checks.taken_by("inner_reduction", attention(depth=1, length=5), {"b": 2})


@pytest.mark.parametrize("most", [5, 31, 32, 48, 64])
def test_a_stated_bound_of_the_length_is_kept_to(checks: Any, most: int) -> None:
    """Partial results for more lanes than there are keys would leave a reduction without steps."""
    func = attention()
    bounded = func.replace(attrs={**func.attrs, "tir_var_upper_bound": {"s": most}})
    checks.taken_by("attention", bounded, {"b": 1, "s": most}, {"b": 1, "s": 1})


def causal(length: Size = S, depth: int = 16) -> ir.PrimFunc:
    """softmax(0.25 Q K^T, keys up to the query) V; keys behind it are neutral in every step."""
    p = Program("causal")
    q, k, v = (p.param(name, (B, 2, length, depth), "float32") for name in "QKV")
    square, rows = (B, 2, length, length), (B, 2, length)

    def seen(i: Any, j: Any, value: Any, neutral: float) -> Any:
        return ir.select(j <= i, value, ir.const(neutral, "float32"))

    s = p.reduce("S", square, (depth,), lambda b, h, i, j, d: q[b, h, i, d] * k[b, h, j, d])
    z = p.compute("Z", square, lambda b, h, i, j: seen(i, j, s[b, h, i, j] * 0.25, float("-inf")))
    m = p.reduce("M", rows, (length,), lambda b, h, i, j: z[b, h, i, j], "max")
    e = p.compute(
        "P", square, lambda b, h, i, j: seen(i, j, ir.call("exp", z[b, h, i, j] - m[b, h, i]), 0.0)
    )
    n = p.reduce("L", rows, (length,), lambda b, h, i, j: e[b, h, i, j])
    o = p.reduce(
        "O",
        (B, 2, length, depth),
        (length,),
        lambda b, h, i, d, j: seen(i, j, e[b, h, i, j] * v[b, h, j, d], -0.0),
    )
    return p.finish(
        [p.compute("Y", (B, 2, length, depth), lambda b, h, i, d: o[b, h, i, d] / n[b, h, i])]
    )


@pytest.mark.parametrize(
    ("func", "sizes"), [(causal(), [{"b": 1, "s": 1}, {"b": 1, "s": 19}]), (causal(11), [{"b": 2}])]
)
def test_the_causal_form_means_the_same(
    checks: Any, func: ir.PrimFunc, sizes: list[dict[str, int]]
) -> None:
    checks.taken_by("attention", func, *sizes)


def test_the_causal_library_agrees_with_numpy_and_never_looks_ahead(checks: Any) -> None:
    run = checks.native(causal())
    for length in (1, 9, 16, 67, 130):
        q, k, v = (checks.normal(1, 2, length, 16, seed=n) for n in range(3))
        mask = np.where(np.tril(np.ones((length, length))) > 0, 0.0, -np.inf)
        z = q.astype("float64") @ k.swapaxes(-1, -2) * 0.25 + mask
        e = np.exp(z - z.max(-1, keepdims=True))
        want = e / e.sum(-1, keepdims=True) @ v
        out = np.full(q.shape, np.nan, "float32")
        run(q, k, v, out)
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
        k[:, :, -1], v[:, :, -1] = np.nan, np.nan  # only the last query sees the last key
        again = np.zeros_like(out)
        run(q, k, v, again)
        np.testing.assert_array_equal(again[:, :, :-1], out[:, :, :-1])


def test_a_task_is_a_head_and_holds_everything(checks: Any) -> None:
    func = checks.taken_by("attention", attention()).func
    kinds = checks.loop_kinds(func)
    assert kinds.count("parallel") == 1
    assert kinds[0] == "parallel"
    assert {"vectorized", "unrolled"} <= set(kinds)


def single() -> ir.PrimFunc:
    p = Program("single")
    q, k = (p.param(name, (B, 2, S, 16), "float32") for name in "QK")
    return p.finish(
        [p.reduce("C", (B, 2, S, S), (16,), lambda b, h, i, j, d: q[b, h, i, d] * k[b, h, j, d])]
    )


def unbatched() -> ir.PrimFunc:
    p = Program("unbatched")
    x, w, v = (p.param(name, (8, 8), "float32") for name in "XWV")
    c = p.reduce("C", (8, 8), (8,), lambda i, j, k: x[i, k] * w[j, k])
    return p.finish([p.reduce("D", (8, 8), (8,), lambda i, j, k: c[i, k] * v[j, k])])


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (single(), "1 contractions instead of two"),
        (unbatched(), "the contractions have different batch axes"),
        (attention(depth=ir.var("d", "int64")), "the head size is symbolic"),
        (attention(length=1), "an axis has one element"),
    ],
)
def test_what_is_refused_says_why(checks: Any, func: ir.PrimFunc, reason: str) -> None:
    assert checks.refusal("attention", func) == reason


def pieces(machine: str, depth: int) -> list[str]:
    """The accumulators of the product with V: rows × columns, and of how many pieces."""
    func = apply_strategies(attention(depth=depth), Target(machine, num_threads=2)).func
    found: list[str] = []
    for loop in ir.loops(func.body):
        block = next(iter(ir.collect(loop.body, ir.Block)), None)
        if block is not None and block.name.startswith("O_init"):
            found.append(str(ir.const_int(loop.extent)))
    return found


@pytest.mark.parametrize(
    ("machine", "depth", "nest"),
    [
        ("x86-64-v3", 16, ["6", "1", "16"]),  # two vectors: six rows of them fit into registers
        ("x86-64-v3", 64, ["4", "6", "1", "16"]),  # eight: two rows would wait for V, and spill
        ("x86-64-v4", 64, ["4", "1", "64"]),  # twice as many registers of twice the length
    ],
)
def test_a_head_that_leaves_few_rows_is_passed_in_pieces(
    machine: str, depth: int, nest: list[str]
) -> None:
    found = pieces(machine, depth)
    assert found[-len(nest) :] == nest


@pytest.mark.parametrize("batch", [B, 4])
def test_a_task_keeps_keys_and_values_of_its_head_alone(batch: Size) -> None:
    machine = Target("x86-64-v3", num_threads=2)
    func = apply_strategies(attention(heads=12, depth=32, length=128, batch=batch), machine).func
    kept = {
        n.buffer.name: ir.const_int(n.buffer.shape[0])
        for n in ir.collect(lower(func, machine).body, ir.Allocate)
    }
    assert kept["K_reindex"] == kept["V_reindex"] == 128 * 32


@pytest.mark.parametrize(("heads", "tasks"), [(12, 12), (1, 2), (3, 6)])
def test_rows_of_few_heads_are_shared_out(heads: int, tasks: int) -> None:
    func = attention(heads=heads, batch=1, length=256)
    found = apply_strategies(func, Target("x86-64-v3", num_threads=2)).func
    (parallel,) = [f for f in ir.loops(found.body) if f.kind is ir.ForKind.PARALLEL]
    assert ir.const_int(parallel.extent) == tasks


def test_the_library_agrees_with_numpy(checks: Any) -> None:
    run = checks.native(attention(depth=64))
    for batch, length in ((1, 1), (2, 13), (1, 64)):
        q, k, v = (checks.normal(batch, 2, length, 64, seed=n) for n in range(3))
        mask = np.zeros((batch, length), "float32")
        mask[:, length // 2 + 1 :] = np.finfo("float32").min
        out = np.full(q.shape, np.nan, "float32")
        run(q, k, v, mask, out)
        np.testing.assert_allclose(out, expected(q, k, v, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth", [63, 65, 67])
def test_values_of_odd_heads_are_read_without_a_condition(depth: int) -> None:
    """They are laid out in slices that hold zeros behind the last column; a mask for each load, and
    the zeros it chooses, would take registers that the sums fill."""
    target = Target("x86-64-v3", num_threads=2)
    func = attention(depth=depth, length=64, batch=1, masked=False)
    found = apply_strategies(func, target)
    assert (found.strategy, found.note) == ("attention", "")
    lowered = lower(found.func, target)
    sums = [n for n in ir.collect(lowered.body, ir.For) if n.annotations.get(REGISTER_PRESSURE)]
    assert sums
    for loop in sums:
        assert not any(n.op == "if_then_else" for n in ir.collect(loop.body, ir.Call))


def test_sums_of_values_have_the_registers_to_themselves() -> None:
    target = Target("x86-64-v3", num_threads=2)
    text = bw.build(apply_strategies(causal(64, 65), target).func, target=target).source("llvm")
    assert 'call void asm sideeffect "", "~{xmm0},' in text
