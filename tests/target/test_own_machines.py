"""Machines from outside the package: the unit of docs/new-target.md, and what registries refuse."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir, strategies
from blockwright.schedule import Schedule
from blockwright.strategies import apply_strategies
from blockwright.support import ScheduleError, TargetError
from blockwright.target import MemorySpace, Target, target_names
from tests.test_guides import load_page, without_registered


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names that docs/new-target.md defines; its machine is registered meanwhile."""
    with without_registered():
        yield load_page("new-target.md", tmp_path_factory.mktemp("guide"))


def product(rows: str, b_by_column: bool) -> ir.PrimFunc:
    shape, place = ("(9, 7)", "vj, vk") if b_by_column else ("(7, 9)", "vk, vj")
    return bw.from_source(f"""
@T.prim_func
def product(a: T.handle, B: T.Buffer({shape}, "float32"), c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, ({rows}, 7), "float32")
    C = T.match_buffer(c, ({rows}, 9), "float32")
    for i, j, k in T.grid({rows}, 9, 7):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[{place}]
""")


@pytest.mark.parametrize(("rows", "b_by_column"), [("6", True), ("n", False)])
def test_products_of_any_size_run_on_the_unit(
    guide: dict[str, Any], rows: str, b_by_column: bool
) -> None:
    func = product(rows, b_by_column)
    found = apply_strategies(func, guide["TARGET"])
    assert found.strategy == "accel"
    assert not found.note
    assert bw.verify(func, found.func).verdict == "proved"
    a, b = (np.random.default_rng(0).random(shape, "float32") for shape in ((6, 7), (7, 9)))
    c = np.full((6, 9), np.nan, "float32")
    bw.build(found.func, "accel")["product"](a, b.T.copy() if b_by_column else b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-6)


MODEL = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((10, 7), "float32"), w: R.Tensor((7, 9), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.relu(y)
            R.output(z)
        return z
"""


def test_a_model_runs_on_the_unit(guide: dict[str, Any]) -> None:
    """With the fused activation; schedules of outside strategies are proved, and not cached."""
    x, w = (np.random.default_rng(0).random(s, "float32") - 0.5 for s in ((10, 7), (7, 9)))
    for target, tiles in (("accel", True), ("native", False)):
        exe = bw.compile(bw.from_source(MODEL), target=target, verify="prove")
        np.testing.assert_allclose(exe(x, w), np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)
        assert ('"accel.mma"' in exe.show("schedule").replace("'", '"')) == tiles


def test_operands_in_another_layout_are_refused(guide: dict[str, Any]) -> None:
    """The unit reads 16 consecutive elements; rows of a matrix are further apart."""
    sch = Schedule(product("8", False))
    sch.pad_einsum("C", [4, 4, 4])
    a = sch.cache_read("C", 0, "accel.a")
    rows, columns = sch.get_loops(a)
    (r0, r1), (c0, c1) = (sch.split(loop, [None, 4]) for loop in (rows, columns))
    sch.reorder(r0, c0, r1, c1)
    with pytest.raises(ScheduleError, match=r"stride 4 in dimension 0") as caught:
        sch.tensorize(r1, "accel.load_a")
    assert caught.value.code == "BW373"


def test_another_process_knows_the_scopes_of_a_pickled_target(guide: dict[str, Any]) -> None:
    program = (
        "import pickle, sys; from blockwright.target.scopes import is_known_scope\n"
        "assert not is_known_scope('accel.acc')\n"
        "target = pickle.load(sys.stdin.buffer)\n"
        "assert is_known_scope('accel.acc') and target.memory_scope('accel.acc').max_bytes == 512"
    )
    data = pickle.dumps(guide["TARGET"])
    subprocess.run([sys.executable, "-c", program], input=data, check=True)


def test_the_table_shows_the_unit_and_its_memories(guide: dict[str, Any]) -> None:
    target = Target("accel")
    assert target == guide["TARGET"]
    assert "accel" in target_names()
    assert target != Target("native")
    assert target.key == Target("native").key  # the same instructions for the host
    table = target.describe()
    for text in ("accel.mma", "4×4×4", "512 B", "accel.acc", guide["SOURCE"]):
        assert text in table


def space(scope: str) -> MemorySpace:
    return MemorySpace("tile memory", 1024, 32, 2, 1, scope)


@pytest.mark.parametrize(
    ("base", "scopes", "message"),
    [
        ("native", ("local",), "there is a storage scope 'local'"),
        ("native", ("unit.a", "unit.a"), "there is a storage scope 'unit.a'"),
        ("native", ("",), "has the storage scope ''"),
        ("native", ("unit a",), "has the storage scope 'unit a'"),
        ("cuda-sm_80", ("unit.a",), "cuda-sm_80 is not a CPU"),
    ],
)
def test_memories_that_a_target_cannot_have(
    base: str, scopes: tuple[str, ...], message: str
) -> None:
    with pytest.raises(TargetError, match=message) as caught:
        Target(base, spaces=tuple(map(space, scopes)))
    assert caught.value.code == "BW655"


def test_names_of_targets() -> None:
    with without_registered():
        first = Target.register("my-unit", Target("x86-64-v3", spaces=(space("unit.a"),)))
        assert Target("my-unit") == first
        assert Target("my-unit", num_threads=1).own_spaces == first.own_spaces
        for name in ("my-unit", "native", "a b", "x86-64-v3+avxvnni"):
            with pytest.raises(TargetError) as caught:
                Target.register(name, first)
            assert caught.value.code == "BW656"
        Target.register("my-unit", Target("x86-64-v4"), override=True)
        assert not Target("my-unit").own_spaces
    with pytest.raises(TargetError, match="unknown target"):
        Target("my-unit")


def test_names_of_strategies() -> None:
    before = [s.name for s in strategies.STRATEGIES]
    gemm = next(s for s in strategies.STRATEGIES if s.name == "gemm")
    mine = strategies.Strategy("mine", gemm.match, gemm.apply, gemm.plan, gemm.plans)
    with without_registered():
        strategies.register(mine, before="gemm")
        names = [s.name for s in strategies.STRATEGIES]
        assert names.index("mine") + 1 == names.index("gemm")
        assert strategies.extended()
        strategies.register(mine, override=True)
        assert [s.name for s in strategies.STRATEGIES].count("mine") == 1
        assert strategies.STRATEGIES[0] is mine
        for strategy, place in ((mine, ""), (gemm, ""), (mine, "nothing")):
            with pytest.raises(ScheduleError) as caught:
                strategies.register(strategy, before=place, override=strategy is gemm)
            assert caught.value.code == "BW341"
    assert [s.name for s in strategies.STRATEGIES] == before
