"""Memory planning: storage is shared where it is proved large enough for every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.passes.host.plan_memory import ArenaPlan, plan_memory
from blockwright.passes.host.size_text import size_text
from blockwright.runtime.sizes import evaluate_size

UP_TO_PLANNING = ("normalize", "legalize")


def plan(module: ir.IRModule) -> ArenaPlan:
    return plan_memory(module["main"], module)


FIGURE = """
@R.function
def main(x: R.Tensor((2, "n"), "float32")):
    n = T.int64()
    lv0 = R.exp(x)
    lv1 = R.permute_dims(lv0, axes=(1, 0))
    lv2 = R.sqrt(lv1)
    lv3 = R.permute_dims(lv2, axes=(1, 0))
    return R.negative(lv3)
"""


def test_two_n_and_n_two_share_memory(parse: Any, run: Any) -> None:
    """(2, n) and (n, 2) are the same number of bytes for every n. lv2 overwrites lv1, and the
    result, which holds lv0 before, overwrites lv3."""
    found = plan(run(parse(FIGURE), *UP_TO_PLANNING))
    assert where(found, "lv0") == where(found, "lv3") == ("gv", 0)
    assert where(found, "lv1") == where(found, "lv2") == ("", 0)
    module = parse(FIGURE)
    unfused = bw.default_pipeline().without("fuse_ops", "fuse_tir")
    exe = bw.compile(module, options={"pipeline": unfused})
    plan_of_exe = exe.memory_plan
    for n in (1, 5, 16, 100):
        assert evaluate_size(plan_of_exe.arena, {"n": n}) == padded(2 * n * 4)
        assert evaluate_size(plan_of_exe.unshared, {"n": n}) == 4 * padded(2 * n * 4)
        x = np.random.default_rng(n).random((2, n), dtype="f4")
        np.testing.assert_allclose(exe(x), -np.sqrt(np.exp(x)), rtol=1e-6)


def test_values_of_unrelated_sizes_share_memory_in_turn(parse: Any, run: Any) -> None:
    """n·m bytes may be more or fewer than k·k: the arena has room for the larger one."""
    text = """
@R.function
def main(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("k", "k"), "float32")):
    n = T.int64()
    m = T.int64()
    k = T.int64()
    a = R.exp(x)
    b = R.sum(a, axes=(0, 1))
    c = R.exp(y)
    d = R.sum(c, axes=(0, 1))
    return R.add(b, d)
"""
    found = plan(run(parse(text), *UP_TO_PLANNING))
    assert where(found, "a")[1] == where(found, "c")[1] == 0
    for n, m, k in [(3, 50, 2), (3, 5, 70)]:
        total = evaluate_size(size_text(found.total), {"n": n, "m": m, "k": k})
        assert total <= max(padded(n * m * 4), padded(k * k * 4)) + 2 * 64


def test_memory_is_not_shared_without_a_proof(parse: Any, run: Any) -> None:
    """`d` is alive with `b`, and n·m may be less than k·k: it does not take the place of `a`."""
    text = """
@R.function
def main(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("k", "k"), "float32")):
    n = T.int64()
    m = T.int64()
    k = T.int64()
    a = R.exp(x)
    b = R.exp(a)
    d = R.exp(y)
    e = R.exp(d)
    return R.add(R.sum(b, axes=(0, 1)), R.sum(e, axes=(0, 1)))
"""
    found = plan(run(parse(text), *UP_TO_PLANNING))
    for n, m, k in [(3, 50, 2), (3, 5, 70)]:
        _require_apart(found, {"n": n, "m": m, "k": k})


def padded(size: int) -> int:
    return -(-size // 64) * 64


def var(found: ArenaPlan, name: str) -> ir.GraphVar:
    return next(v for v in found.place if v.name == name)


def where(found: ArenaPlan, name: str) -> tuple[str, int | str]:
    """The result in whose memory a value is ("" for the arena), and its offset there."""
    place = found.place[var(found, name)]
    return "" if place.result is None else place.result.name, size_text(place.offset)


def test_a_smaller_value_uses_the_place_of_a_larger_one(parse: Any, run: Any) -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 8), "float32")):
    n = T.int64()
    a = R.exp(x)
    b = R.sum(a, axes=(1,))
    c = R.softmax(b, axis=0)
    d = R.softmax(c, axis=0)
    return R.sum(d, axes=(0,))
"""
    found = plan(run(parse(text), *UP_TO_PLANNING))
    for n in (1, 5, 100):
        total = evaluate_size(size_text(found.total), {"n": n})
        assert total <= padded(n * 32) + padded(n * 4)


def test_bounds_of_symbols_order_sizes(parse: Any, run: Any) -> None:
    """Up to 64, n·n floats are at most 64·n: `c` fits where `a` was, and `d` takes 64 bytes."""
    text = """
@R.function
def main(x: R.Tensor(("n", 64), "float32"), y: R.Tensor(("n", "n"), "float32")):
    R.func_attr({"tir_var_upper_bound": {"n": 64}})
    n = T.int64()
    a = R.exp(x)
    b = R.softmax(a, axis=1)
    c = R.exp(y)
    d = R.sum(c, axes=(0, 1))
    return R.add(R.sum(b, axes=(0, 1)), d)
"""
    found = plan(run(parse(text), *UP_TO_PLANNING))
    _require_apart(found, {"n": 50})
    assert found.upper_bound is not None
    assert 0 <= found.upper_bound - 2 * 64 * 64 * 4 <= 64
    unbounded = text.replace('R.func_attr({"tir_var_upper_bound": {"n": 64}})', "")
    assert plan(run(parse(unbounded), *UP_TO_PLANNING)).upper_bound is None


def test_small_values_do_not_take_the_place_of_large_ones(parse: Any, run: Any) -> None:
    """A long row of small values between large ones: one large place is enough."""
    lines = [
        f"small{i} = R.sum(x, axes=(0, 1), keepdims=True)\n    large{i} = R.exp(x)\n"
        f"    used{i} = R.sum(large{i}, axes=(0, 1), keepdims=True)"
        for i in range(4)
    ]
    every = "[" + ", ".join(f"small{i}, used{i}" for i in range(4)) + "]"
    text = (
        '@R.function\ndef main(x: R.Tensor(("n", 16), "float32")):\n    n = T.int64()\n    '
        + "\n    ".join(lines)
        + f"\n    return R.concat({every}, axis=0)\n"
    )
    found = plan(run(parse(text), *UP_TO_PLANNING))
    for n in (1, 5, 100):
        total = evaluate_size(size_text(found.total), {"n": n})
        assert total <= 64 * n + 8 * 64


def test_values_alive_together_never_share(parse: Any, run: Any) -> None:
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    a = R.exp(x)
    b = R.sqrt(x)
    c = R.add(a, b)
    d = R.multiply(c, a)
    return R.negative(d)
"""
    found = plan(run(parse(text), *UP_TO_PLANNING))
    assert where(found, "a") != where(found, "b")
    _require_apart(found, {"n": 100})


def test_a_result_overwrites_an_operand_that_nothing_else_reads(parse: Any, run: Any) -> None:
    """`c` takes the place of `b`, not that of `a`, which `d` reads; the rest is the result."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    a = R.exp(x)
    b = R.sqrt(x)
    c = R.add(a, b)
    d = R.multiply(c, a)
    return R.negative(d)
"""
    found = plan(run(parse(text), *UP_TO_PLANNING))
    assert where(found, "c") == where(found, "b")
    assert var(found, "d") in found.over
    assert size_text(found.total) == "(((n + 15) // 16) * 64)"


def test_views_take_no_memory_and_keep_their_source_alive(parse: Any, run: Any) -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 6), "float32")):
    n = T.int64()
    a = R.exp(x)
    b = R.reshape(a, R.shape([n, 2, 3]))
    c = R.sqrt(x)
    d = R.add(b, R.reshape(c, R.shape([n, 2, 3])))
    return R.negative(d)
"""
    module = run(parse(text), *UP_TO_PLANNING)
    found = plan(module)
    assert {v.name for v in found.place} == {"a", "c", "d"}
    assert where(found, "a") != where(found, "c")
    assert {v.name for v in found.alias} >= {"b"}


def test_results_are_not_part_of_the_arena(parse: Any, run: Any) -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 6), "float32")):
    n = T.int64()
    a = R.exp(x)
    b = R.sqrt(a)
    return (a, R.reshape(b, R.shape([6 * n])))
"""
    found = plan(run(parse(text), *UP_TO_PLANNING))
    assert not found.place
    assert {v.name for v in found.results} == {"a", "b"}
    assert ir.const_int(found.total) == 0


@pytest.mark.parametrize("seed", range(8))
def test_live_values_are_disjoint_for_every_size(seed: int, parse: Any, run: Any) -> None:
    """A random graph: at random sizes no two values alive together overlap in the arena."""
    rng = np.random.default_rng(seed)
    shapes = ["(n, m)", "(m, n)", "(n, 2 * m)", "(n,)", "(m, 3)"]
    lines, values = ["n = T.int64()", "m = T.int64()"], [("x", "(n, m)")]
    for step in range(25):
        shape = shapes[int(rng.integers(len(shapes)))]
        picked = [values[int(i)][0] for i in rng.integers(max(0, len(values) - 6), len(values), 2)]
        lines.append(
            f'v{step} = R.call_dps_library("any", ({picked[0]}, {picked[1]}), '
            f'R.Tensor({shape}, "float32"))'
        )
        values.append((f"v{step}", shape))
    body = "\n    ".join(lines)
    text = (
        f'@R.function\ndef main(x: R.Tensor(("n", "m"), "float32")):\n    {body}\n'
        "    return R.exp(v24)\n"
    )
    found = plan(run(parse(text), *UP_TO_PLANNING))
    for n, m in [(1, 1), (3, 50), (50, 3), (17, 17)]:
        _require_apart(found, {"n": n, "m": m})


def _require_apart(found: ArenaPlan, sizes: dict[str, int]) -> None:
    """No two values alive together overlap, none exceeds its memory, and a result is not written
    before the values in its memory have been read."""
    over = {(a.name, b.name) for a, b in found.over.items()}
    spans: dict[str, list[tuple[int, int, int, int, str]]] = {}
    for value in found.values:
        inside = "" if value.place.result is None else value.place.result.name
        start, size = (evaluate_size(size_text(s), sizes) for s in (value.place.offset, value.size))
        last = 1 << 30 if value.result else value.last
        row = (start, start + size, value.first, last, value.name)
        spans.setdefault(inside, []).append(row)
    for name, inside in spans.items():
        room = next((v.size for v in found.values if v.name == name), found.total)
        assert max(row[1] for row in inside) <= evaluate_size(size_text(room), sizes)
        for k, a in enumerate(inside):
            for b in inside[k + 1 :]:
                if (b[4], a[4]) in over:
                    assert a[:2] == b[:2]
                    assert a[3] == b[2]
                elif a[2] <= b[3] and b[2] <= a[3]:
                    assert a[1] <= b[0] or b[1] <= a[0]


def test_memory_of_a_result_holds_no_wider_elements(parse: Any, run: Any) -> None:
    """The caller may provide it at any address that suits its own elements."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    a = R.softmax(x, axis=0)
    b = R.softmax(a, axis=0)
    c = R.astype(R.softmax(b, axis=0), dtype="int8")
    return R.concat([c, c, c, c, c, c, c, c], axis=0)
"""
    found = plan(run(parse(text), *UP_TO_PLANNING))
    assert where(found, "a")[0] == where(found, "b")[0] == ""
