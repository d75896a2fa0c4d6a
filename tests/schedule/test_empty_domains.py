"""Loops that run once or not at all: what holds inside of them must not leave their place.

Inside of a loop over `n // 16` its extent is at least 1; where 1 is also the most that it can be,
it is simplified to 1. A loop or initial value that a step puts outside must keep the extent.
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
    T.func_attr({"tir_var_upper_bound": {"n": 31}, "tir_var_lower_bound": {"n": 0}})
    n = T.int64()
    A = T.match_buffer(a, (n, 8), "float32")
    C = T.match_buffer(c, (n // 16, 8), "float32")
    B = T.alloc_buffer((n // 16, 8), "float32")
    S = T.alloc_buffer((n // 16, 8), "float32")
    for i, j in T.grid(n // 16, T.int64(8)):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi * 16, vj] + T.float32(1)
    for i, j, k in T.grid(n // 16, T.int64(8), T.int64(4)):
        with T.block("S"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                S[vi, vj] = T.float32(0)
            S[vi, vj] = S[vi, vj] + B[vi, (vj + vk) % 8]
    for i, j in T.grid(n // 16, T.int64(8)):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = S[vi, vj] * T.float32(2)
"""
Step = Callable[[Schedule], object]


def at(sch: Schedule, block: str, loop: int = 0) -> LoopRV:
    return sch.get_loops(block)[loop]


STEPS: dict[str, Step] = {
    "transform_block_layout, a sum": lambda s: s.transform_block_layout(
        "S", lambda i, j, k: (j, k, i)
    ),
    "transform_block_layout, fused": lambda s: s.transform_block_layout(
        "C", lambda i, j: (i * 8 + j,)
    ),
    "transform_block_layout, split": lambda s: s.transform_block_layout(
        "B", lambda i, j: (j // 4, i, j % 4)
    ),
    "and its producers moved": lambda s: (
        s.transform_block_layout("C", lambda i, j: (j, i)),
        s.compute_at("S", at(s, "C")),
        s.compute_at("B", at(s, "C")),
    ),
    "fuse and split": lambda s: s.split(s.fuse(*s.get_loops("C")), [None, 3]),
    "split": lambda s: s.split(at(s, "S"), [4, None]),
    "compute_at": lambda s: (s.compute_at("S", at(s, "C")), s.compute_at("B", at(s, "C"))),
    "reverse_compute_at": lambda s: s.reverse_compute_at("C", at(s, "S", 1)),
    "cache_read": lambda s: s.cache_read("S", "B", "local"),
    "cache_write": lambda s: s.cache_write("S", 0, "local"),
    "reindex": lambda s: (s.reindex("B", ("read", 0)), s.reindex("S", ("write", 0))),
    "reindex_cache_read": lambda s: s.reindex_cache_read("B", 0, "local", lambda i, j: (j, i)),
    "reindex_cache_write": lambda s: s.reindex_cache_write("C", 0, "local", lambda i, j: (j, i)),
    "read_at": lambda s: s.read_at(at(s, "S"), "S", 0, "local"),
    "write_at": lambda s: s.write_at(at(s, "C"), "C", 0, "local"),
    "transform_layout": lambda s: s.transform_layout("S", ("write", 0), lambda i, j: (j, i)),
    "transform_layout, padded": lambda s: s.transform_layout(
        "B", ("write", 0), lambda i, j: (i // 4, j, i % 4), pad_value=0.0
    ),
    "decompose_reduction": lambda s: s.decompose_reduction("S", at(s, "S", 2)),
    "decompose_reduction, outside": lambda s: s.decompose_reduction("S", at(s, "S")),
    "rfactor": lambda s: s.rfactor(at(s, "S", 2), 0),
    "pad_einsum": lambda s: s.pad_einsum("S", [4, 1, 1]),
    "blockize": lambda s: s.blockize(at(s, "S")),
    "blockize, inside": lambda s: s.blockize(at(s, "S", 1)),
    "compute_inline": lambda s: s.compute_inline("B"),
    "merge": lambda s: s.merge(at(s, "B"), at(s, "S")),
    "software_pipeline": lambda s: s.software_pipeline(at(s, "S"), [0]),
    "vectorize": lambda s: s.vectorize(at(s, "C", 1)),
    "parallel": lambda s: s.parallel(at(s, "S")),
}


def expected(a: np.ndarray) -> np.ndarray:
    rows = a.shape[0] // 16
    b = a[: rows * 16 : 16] + 1
    return 2 * sum((np.roll(b, -k, 1) for k in range(4)), np.zeros_like(b))


@pytest.mark.parametrize("name", STEPS)
def test_nothing_runs_where_nothing_is(name: str) -> None:
    func = from_source(TEXT)
    assert isinstance(func, PrimFunc)
    sch = Schedule(func, verify="full")
    STEPS[name](sch)
    native = bw.build(sch.func, sanitize=("bounds",))["main"]
    for n in (0, 15, 16, 31):
        a = np.random.default_rng(n).standard_normal((n, 8)).astype("float32")
        slow, fast = (np.full((n // 16, 8), np.nan, "float32") for _ in range(2))
        bw.interpret(sch.func, a, slow)
        native(a, fast)
        np.testing.assert_allclose(slow, expected(a), 1e-5, 1e-5)
        np.testing.assert_allclose(fast, expected(a), 1e-5, 1e-5)


def test_a_sum_without_terms_keeps_its_initial_value() -> None:
    """Inside of a block that does not run, the sum would not get one."""
    func = from_source("""
@T.prim_func
def main(a: T.handle, c: T.Buffer((), "float32")):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.alloc_buffer((n,), "float32")
    for k in range(n):
        with T.block("B"):
            vk = T.axis.spatial(n, k)
            B[vk] = A[vk] * T.float32(2)
        with T.block("S"):
            vk = T.axis.reduce(n, k)
            with T.init():
                c[()] = T.float32(0)
            c[()] = c[()] + B[vk]
""")
    assert isinstance(func, PrimFunc)
    sch = Schedule(func, verify="full")
    with pytest.raises(ScheduleError) as refused:
        sch.store_at("B", at(sch, "B"))
    assert refused.value.code == "BW365"
    sch.decompose_reduction("S", at(sch, "S"))
    sch.store_at("B", at(sch, "B"))
    native = bw.build(sch.func)["main"]
    for n in (0, 1, 5):
        total = np.full((), np.nan, "float32")
        native(np.arange(n, dtype="float32"), total)
        assert total == n * (n - 1)


def test_padding_repeats_nothing_where_there_is_nothing() -> None:
    """Of no elements none is the last one; the copy runs although the block does not."""
    func = from_source("""
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (T.max(n - 1, 0),), "float32")
    for i in range(T.max(n - 1, 0)):
        with T.block("B"):
            vi = T.axis.spatial(T.max(n - 1, 0), i)
            B[vi] = A[vi + 1]
""")
    assert isinstance(func, PrimFunc)
    sch = Schedule(func, verify="full")
    sch.pad_einsum("B", [2], mode="clamp")
    native = bw.build(sch.func, sanitize=("bounds",))["main"]
    for n in range(5):
        a = np.arange(n, dtype="float32")
        slow, fast = (np.full(max(n - 1, 0), np.nan, "float32") for _ in range(2))
        bw.interpret(sch.func, a, slow)
        native(a, fast)
        np.testing.assert_array_equal(slow, a[1:])
        np.testing.assert_array_equal(fast, a[1:])


BESIDE: dict[str, Step] = {
    "cache_index": lambda s: s.cache_index("B", "global"),
    "cache_read": lambda s: s.cache_read("B", 0, "global"),
    "cache_write": lambda s: s.cache_write("B", 0, "global"),
    "reindex, read": lambda s: s.reindex("B", ("read", 0)),
    "reindex, write": lambda s: s.reindex("B", ("write", 0)),
    "reindex_cache_write": lambda s: s.reindex_cache_write("B", 0, "global", lambda i, j: (j, i)),
    "pad_einsum": lambda s: s.pad_einsum("B", [2, 4]),
    "pad_einsum, clamped": lambda s: s.pad_einsum("B", [2, 4], mode="clamp"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_copy_beside_a_loop_that_may_not_run(name: str) -> None:
    """Inside of the loop over `n` columns `max(n - 1, 0) + 2` is `n + 1`; not so beside it."""
    func = from_source("""
@T.prim_func
def main(a: T.handle, b: T.handle):
    T.func_attr({"tir_var_upper_bound": {"n": 9}, "tir_var_lower_bound": {"n": 0}})
    n = T.int64()
    A = T.match_buffer(a, (n, T.max(n - 1, 0) + 3), "float32")
    B = T.match_buffer(b, (n, T.max(n - 1, 0) + 2), "float32")
    for i, j in T.grid(n, T.max(n - 1, 0) + 2):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            vj = T.axis.spatial(T.max(n - 1, 0) + 2, j)
            B[vi, vj] = A[vi, vj + 1]
""")
    assert isinstance(func, PrimFunc)
    sch = Schedule(func, verify="full")
    BESIDE[name](sch)
    assert sch.func is not func
    native = bw.build(sch.func, sanitize=("bounds",))["main"]
    for n in range(4):
        a = np.random.default_rng(n).standard_normal((n, max(n - 1, 0) + 3)).astype("float32")
        slow, fast = (np.full((n, max(n - 1, 0) + 2), np.nan, "float32") for _ in range(2))
        bw.interpret(sch.func, a, slow)
        native(a, fast)
        np.testing.assert_array_equal(slow, a[:, 1:])
        np.testing.assert_array_equal(fast, a[:, 1:])


def test_a_copy_reads_nothing_that_a_block_may_not_have_written() -> None:
    """The one element of `B` has a value only where the loop over `min(n, 1)` runs."""
    func = from_source("""
@T.prim_func
def main(a: T.handle, c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    C = T.match_buffer(c, (T.min(n, 1),), "float32")
    B = T.alloc_buffer((3,), "float32")
    for i in range(T.min(n, 1)):
        with T.block("B"):
            vi = T.axis.spatial(T.min(n, 1), i)
            B[2] = A[vi]
    for i in range(T.min(n, 1)):
        with T.block("C"):
            vi = T.axis.spatial(T.min(n, 1), i)
            C[vi] = B[2]
""")
    assert isinstance(func, PrimFunc)
    with pytest.raises(ScheduleError) as refused:
        Schedule(func).cache_read("C", "B", "local")
    assert refused.value.code == "BW323"


def test_a_size_of_zero_divides_nothing_where_a_copy_is_moved_to() -> None:
    """The first block runs in `m * 5` of the shared loop's iterations: where none divides by m."""
    func = from_source("""
@T.prim_func(index_dtype="int64")
def main(a: T.handle, b: T.handle, c: T.handle):
    m = T.int64()
    A = T.match_buffer(a, (5, m, m), "float32")
    B = T.match_buffer(b, (5, m, m), "float32")
    C = T.match_buffer(c, (5, m, m), "float32")
    for i, j, k in T.grid(5, m, m):
        with T.block("B"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            B[vi, vj, vk] = A[vi, vj, vk]
    for i, j, k in T.grid(5, m, m):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            C[4 - vi, vj, vk] = A[4 - vi, vj, vk]
""")
    sch = Schedule(func)
    rows = sch.fuse(*sch.get_loops("B")[:2])
    sch.horizontal_fuse(rows, sch.get_loops("C")[0])
    copy = sch.cache_read("C", 0, "global")
    sch.compute_at(copy, sch.get_loops("C")[0])
    assert "// T.max(m, 1)" in sch.func.script()
    for m in (0, 1, 3):
        a = np.arange(5 * m * m, dtype=np.float32).reshape(5, m, m)
        b, c = np.zeros_like(a), np.zeros_like(a)
        bw.interpret(sch.func, a, b, c)
        np.testing.assert_array_equal(b, a)
        np.testing.assert_array_equal(c, a)


@pytest.mark.parametrize("size", ["T.min(n, 1)", "n // 9", "n % 2", "T.min(n, 3)"])
@pytest.mark.parametrize("step", ["block", "buffer"])
def test_a_tile_larger_than_the_domain_adds_nothing(size: str, step: str) -> None:
    func = from_source(f"""
@T.prim_func(index_dtype="int64")
def main(a: T.handle, c: T.handle):
    T.func_attr({{"tir_var_upper_bound": {{"n": 9}}, "tir_var_lower_bound": {{"n": 0}}}})
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    C = T.match_buffer(c, (), "float32")
    B = T.alloc_buffer(({size},), "float32")
    for i in range({size}):
        with T.block("B"):
            vi = T.axis.spatial({size}, i)
            B[vi] = A[vi]
    for k in range({size}):
        with T.block("C"):
            vk = T.axis.reduce({size}, k)
            with T.init():
                C[()] = T.float32(0)
            C[()] = C[()] + B[vk]
""")
    sch = Schedule(func)
    if step == "block":
        sch.transform_block_layout("C", lambda i: (i // 4, i % 4))
    else:
        sch.transform_layout("B", ("write", 0), lambda i: (i // 4, i % 4), pad_value=0.0)
    for n in (0, 1, 2, 4, 9):
        a = np.arange(1, n + 1, dtype=np.float32)
        want, got = np.full((), 7, np.float32), np.full((), 7, np.float32)
        bw.interpret(func, a, want)
        bw.interpret(sch.func, a, got)
        assert got == want


SUM_AND_COPY = """
@T.prim_func
def main(a: T.handle, B: T.Buffer((1,), "float32"), C: T.Buffer((), "float32")):
    T.func_attr({"tir_var_upper_bound": {"n": 2}, "tir_var_lower_bound": {"n": 0}})
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    for k in range(LENGTH):
        with T.block("C"):
            vk = T.axis.reduce(LENGTH, k)
            with T.init():
                C[()] = T.float32(0)
            C[()] = C[()] + A[vk]
    for i in range(1):
        with T.block("B"):
            vi = T.axis.spatial(1, i)
            B[vi] = T.float32(1)
"""


def _fuse_both(sch: Schedule) -> None:
    sch.horizontal_fuse(*sch.get_loops("C"), *sch.get_loops("B"))


MAY_BE_EMPTY: dict[str, Callable[[Schedule], object]] = {
    "one iteration": lambda s: s.split(s.get_loops("C")[0], [1, 1]),
    "one iteration, no loop": lambda s: s.split(
        s.get_loops("C")[0], [1, 1], preserve_unit_iters=False
    ),
    "more iterations": lambda s: s.split(s.get_loops("C")[0], [2, 1]),
    "as many iterations": lambda s: s.split(s.get_loops("C")[0], [None, 1]),
    "one loop": _fuse_both,
}


@pytest.mark.parametrize("length", ["0", "n // 2", "n"])
@pytest.mark.parametrize("name", MAY_BE_EMPTY)
def test_a_sum_that_may_be_empty_keeps_its_initial_value(name: str, length: str) -> None:
    """One iteration does not drive the sum: its condition would guard the initial value."""
    func = from_source(SUM_AND_COPY.replace("LENGTH", length))
    assert isinstance(func, PrimFunc)
    sch = Schedule(func, verify="full")
    refused = None
    try:
        MAY_BE_EMPTY[name](sch)
    except ScheduleError as error:
        refused = error.code
    assert refused in (None, "BW318" if length == "n" else "BW365")
    assert refused is None or "one" in name
    for n in (0, 1, 2):
        a, b, c = np.ones(n, "float32"), np.zeros(1, "float32"), np.full((), 7, "float32")
        bw.interpret(sch.func, a, b, c)
        assert (b[0], c) == (1, {"0": 0, "n // 2": n // 2, "n": n}[length])
