"""What a loop tells of sizes is used only where that loop surely runs.

The sum takes `9 - n` steps, so that wherever it takes one `n` is at most 8. Initial values are set,
buffers allocated and other blocks run for larger `n` too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright.ir import PrimFunc
from blockwright.schedule import LoopRV, Schedule
from blockwright.script.ir import from_source
from blockwright.support import ScheduleError

TEXT = """
@T.prim_func
def main(a: T.handle, c: T.handle):
    T.func_attr({"tir_var_lower_bound": {"n": 5}})
    n = T.int64()
    A = T.match_buffer(a, (n, 8), "float32")
    C = T.match_buffer(c, (n,), "float32")
    B = T.alloc_buffer((n, 8), "float32")
    S = T.alloc_buffer((n,), "float32")
    for i, j in T.grid(n, T.int64(8)):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
    for LOOPS:
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + B[vi, vk]
    for i in range(n):
        with T.block("C"):
            vi = T.axis.spatial(n, i)
            C[vi] = S[vi] * T.float32(2) + B[vi, 0]
"""
ORDERS = {"inside": "i, k in T.grid(n, 9 - n)", "outside": "k, i in T.grid(9 - n, n)"}
Step = Callable[[Schedule], object]


def loop(sch: Schedule, block: str, name: str) -> LoopRV:
    return next(f for f in sch.get_loops(block) if sch.get(f).loop_var.name == name)


def tiled(sch: Schedule) -> None:
    sch.split(loop(sch, "S", "i"), [None, 4])


def tiles_outside(sch: Schedule) -> None:
    tiled(sch)
    sch.reorder(loop(sch, "S", "i_0"), loop(sch, "S", "k"), loop(sch, "S", "i_1"))


STEPS: dict[str, Step] = {
    "split": tiled,
    "split, outer part given": lambda s: s.split(loop(s, "S", "i"), [4, None]),
    "split, then fuse": lambda s: (tiled(s), s.fuse(*s.get_loops("S"))),
    "transform_block_layout": lambda s: s.transform_block_layout(
        "S", lambda i, k: (i // 4, i % 4, k)
    ),
    "transform_block_layout, steps outside": lambda s: s.transform_block_layout(
        "S", lambda i, k: (k // 2, k % 2, i // 4, i % 4)
    ),
    "steps fused with rows of a tile": lambda s: (
        s.transform_block_layout("S", lambda i, k: (i // 4, i % 4, k)),
        s.fuse(*s.get_loops("S")[1:]),
    ),
    "pad_einsum": lambda s: s.pad_einsum("S", [4, 1]),
    "pad_einsum, steps too": lambda s: s.pad_einsum("S", [4, 4]),
    "transform_layout, of the sums": lambda s: s.transform_layout(
        "S", ("write", 0), lambda i: (i // 4, i % 4), pad_value=0.0
    ),
    "transform_layout, of what is summed": lambda s: s.transform_layout(
        "S", ("read", 0), lambda i, j: (i // 4, i % 4, j), pad_value=0.0
    ),
    "reindex_cache_read": lambda s: s.reindex_cache_read(
        "S", 0, "local", lambda i, k: (i // 4, i % 4, k)
    ),
    "reindex_cache_write": lambda s: s.reindex_cache_write(
        "S", 0, "local", lambda i, k: (i // 4, i % 4)
    ),
    "blockize, of a tile": lambda s: (tiles_outside(s), s.blockize(s.get_loops("S")[1])),
    "blockize, of the inner loop": lambda s: (tiled(s), s.blockize(s.get_loops("S")[2])),
    "blockize, of two blocks": lambda s: s.blockize([s.get_block("S"), s.get_block("C")]),
    "rfactor": lambda s: s.rfactor(loop(s, "S", "k"), 0),
    "compute_at": lambda s: (
        s.split(s.get_loops("C")[0], [None, 4]),
        s.compute_at("S", s.get_loops("C")[0]),
    ),
    "decompose_reduction": lambda s: s.decompose_reduction("S", s.get_loops("S")[0]),
    "cache_write": lambda s: s.cache_write("S", 0, "local"),
}


def scheduled(text: str, step: Step) -> PrimFunc:
    func = from_source(text)
    assert isinstance(func, PrimFunc)
    sch = Schedule(func)
    step(sch)
    return sch.func


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", STEPS)
def test_sums_without_a_step(name: str, order: str) -> None:
    func = scheduled(TEXT.replace("LOOPS", ORDERS[order]), STEPS[name])
    for n in (5, 8, 9, 13):
        a = np.random.default_rng(n).standard_normal((n, 8)).astype("float32")
        c = np.full(n, np.nan, "float32")
        bw.interpret(func, a, c)
        sums = (a[:, : max(9 - n, 0)] + 1).sum(1)
        np.testing.assert_allclose(c, 2 * sums + a[:, 0] + 1, 1e-5, 1e-5)


def test_an_initial_value_is_seen_to_fill_what_no_step_reaches() -> None:
    """`validate` asks whether all that is read was written; for steps, `n` is at most 8."""
    bw.validate(scheduled(TEXT.replace("LOOPS", ORDERS["outside"]), STEPS["pad_einsum"]))


@pytest.mark.parametrize("order", ["RS", "SR"])
def test_a_moved_sum_keeps_the_condition_on_its_initial_value(order: str) -> None:
    """Where the sum takes a step `n` is 8, and no tile of 4 needs a condition."""
    text = TEXT.replace("LOOPS", ORDERS["inside"]).replace('{"n": 5}', '{"n": 8}')
    if order == "RS":
        text = text.replace(
            'vi, vk = T.axis.remap("SR", [i, k])', 'vk, vi = T.axis.remap("RS", [k, i])'
        )
    func = scheduled(text, STEPS["compute_at"])
    for n in (8, 9):
        a, c = np.ones((n, 8), "float32"), np.full(n, np.nan, "float32")
        bw.interpret(func, a, c)
        np.testing.assert_array_equal(c, [4 * (9 - n) + 2] * n)


@pytest.mark.parametrize("kind", ["transform_layout", "reindex_cache_write"])
def test_a_map_is_one_to_one_for_all_who_use_the_buffer(kind: str) -> None:
    def step(sch: Schedule) -> None:
        if kind == "transform_layout":
            sch.transform_layout("S", ("read", 0), lambda i, j: (i % 8, j))
        else:
            sch.reindex_cache_write("S", 0, "local", lambda i, k: (i % 8,))

    with pytest.raises(ScheduleError) as caught:
        scheduled(TEXT.replace("LOOPS", ORDERS["inside"]), step)
    assert caught.value.code == "BW324"


GATHERED = """
@T.prim_func
def main(d: T.Buffer((2,), "float32"), c: T.handle):
    n = T.int64()
    C = T.match_buffer(c, (n,), "float32")
    for i, k in T.grid(n, 9 - n):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(1)
            C[vi] = C[vi] + VALUE
"""


@pytest.mark.parametrize("value", ["d[vi // 4]", "T.if_then_else(vk < 3, d[vi // 4], 2.0)"])
def test_a_copy_outside_reads_only_what_exists_there(value: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        scheduled(GATHERED.replace("VALUE", value), lambda s: s.reindex("C", "d"))
    assert caught.value.code == "BW363"


def test_a_block_fills_the_new_layout_only_if_it_fills_the_old_one_always() -> None:
    text = """
@T.prim_func
def main(a: T.handle, c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    C = T.match_buffer(c, (n,), "float32")
    B = T.alloc_buffer((T.max(n, 1),), "float32")
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] + T.float32(1)
    for i in range(n):
        with T.block("C"):
            vi = T.axis.spatial(n, i)
            C[vi] = B[vi] * T.float32(2)
"""

    def step(sch: Schedule) -> None:
        sch.transform_layout("B", ("write", 0), lambda i: (i // 4, i % 4), pad_value=0.0)

    func = scheduled(text, step)
    for n in (0, 1, 5):
        c = np.full(n, np.nan, "float32")
        bw.interpret(func, np.ones(n, "float32"), c)
        np.testing.assert_array_equal(c, [4] * n)


def test_ranges_stated_for_a_block_hold_in_any_loop() -> None:
    """The loop around runs only where `n` is at most 8, and states nothing of the block itself."""
    func = from_source("""
@T.prim_func
def main(a: T.handle, b: T.handle):
    T.func_attr({"tir_var_lower_bound": {"n": 8}})
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for r, i in T.grid(9 - n, n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi // 8]
""")
    assert isinstance(func, PrimFunc)
    sch = Schedule(func)
    with pytest.raises(ScheduleError) as caught:
        sch.annotate_buffer_access("B", "A", "read", lambda i: [(0, 1)])
    assert caught.value.code == "BW366"
