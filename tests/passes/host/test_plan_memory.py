"""Memory planning: storage is shared where it is proved large enough for every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.passes.host.plan_memory import ArenaPlan, plan_memory
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


def test_two_n_and_n_two_share_two_storages(parse: Any, run: Any) -> None:
    """(2, n) and (n, 2) are the same number of bytes for every n."""
    found = plan(run(parse(FIGURE), *UP_TO_PLANNING))
    assert [s.holds for s in found.storages] == [["lv0", "lv2"], ["lv1", "lv3"]]
    module = parse(FIGURE)
    unfused = bw.default_pipeline().without("fuse_ops", "fuse_tir")
    exe = bw.compile(module, options={"pipeline": unfused})
    plan_of_exe = exe.memory_plan
    for n in (1, 5, 16, 100):
        padded = -(-2 * n * 4 // 64) * 64
        assert evaluate_size(plan_of_exe.arena, {"n": n}) == 2 * padded
        assert evaluate_size(plan_of_exe.unshared, {"n": n}) == 4 * padded
        x = np.random.default_rng(n).random((2, n), dtype="f4")
        np.testing.assert_allclose(exe(x), -np.sqrt(np.exp(x)), rtol=1e-6)


def test_storage_is_not_shared_without_a_proof(parse: Any, run: Any) -> None:
    """n·m bytes may be more or fewer than k·k."""
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
    assert found.place[var(found, "a")] != found.place[var(found, "c")]


def var(found: ArenaPlan, name: str) -> ir.GraphVar:
    return next(v for v in found.place if v.name == name)


def test_a_smaller_value_uses_a_larger_storage(parse: Any, run: Any) -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 8), "float32")):
    n = T.int64()
    a = R.exp(x)
    b = R.sum(a, axes=(1,))
    c = R.sqrt(b)
    d = R.exp(c)
    return R.negative(d)
"""
    found = plan(run(parse(text), *UP_TO_PLANNING))
    assert found.place[var(found, "c")] == found.place[var(found, "a")]


def test_a_storage_grows_for_a_larger_value(parse: Any, run: Any) -> None:
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n", 8), "float32")):
    n = T.int64()
    a = R.exp(x)
    b = R.sum(a, axes=(0,))
    c = R.exp(y)
    return R.add(c, b)
"""
    found = plan(run(parse(text), *UP_TO_PLANNING))
    assert found.place[var(found, "c")] == found.place[var(found, "a")]


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
    a, b, c = (found.place[var(found, name)] for name in "abc")
    assert len({a, b, c}) == 3
    assert found.place[var(found, "d")] == b


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
    assert found.place[var(found, "a")] != found.place[var(found, "c")]
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
    module = run(parse(text), *UP_TO_PLANNING)
    found = plan(module)
    bindings = module["main"].bindings
    position = {b.var: i for i, b in enumerate(bindings)}
    last = dict(position)
    for index, binding in enumerate(bindings):
        for used in ir.collect(binding.value, ir.GraphVar):
            last[used] = index
    from blockwright.passes.host.plan_memory import byte_size
    from blockwright.passes.host.size_text import size_text

    for n, m in [(1, 1), (3, 50), (50, 3), (17, 17)]:

        def number(size: ir.Expr, n: int = n, m: int = m) -> int:
            return evaluate_size(size_text(size), {"n": n, "m": m})

        spans = {}
        for value, index in found.place.items():
            storage = found.storages[index]
            assert storage.offset is not None
            start = number(storage.offset)
            assert number(byte_size(value.tensor_info)) <= number(storage.size)
            spans[value] = (start, start + number(byte_size(value.tensor_info)))
        assert max(end for _, end in spans.values()) <= number(found.total)
        for a in spans:
            for b in spans:
                alive = position[a] <= last[b] and position[b] <= last[a]
                if a is not b and alive:
                    assert spans[a][1] <= spans[b][0] or spans[b][1] <= spans[a][0]
