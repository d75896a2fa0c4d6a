"""Copies, layouts and padding on programs as people write them; what each step is good for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.interp import interpret
from blockwright.ir.printer import script
from blockwright.schedule import RECORDS, IndexMap, LoopRV, Schedule, ScheduleError, Trace
from blockwright.script import tir as T
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning
from blockwright.testing.moves.checks import FORMS, check_replay

HEAD = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 12), "float32")
    B = T.match_buffer(b, (n, 12), "float32")
"""
CHAIN = """
C = T.alloc_buffer((n, 12), "float32")
for i, j in T.grid(n, 12):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(n, 12):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj] + 1.0
"""
CONCAT = """
C = T.alloc_buffer((n, 12), "float32")
for i, j in T.grid(n, 5):
    with T.block("left"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(n, 7):
    with T.block("right"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj + 5] = A[vi, vj + 5] - 1.0
for i, j in T.grid(n, 12):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, 11 - vj]
"""
AMONG = """
for i, j in T.grid(n, 12):
    with T.block("before"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(n, 12):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] + 1.0
for i, j in T.grid(n, 5):
    with T.block("after"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj + 2] = B[vi, vj + 2] * A[vi, vj]
"""
ROWS = """
S = T.alloc_buffer((n,), "float32")
for i, k in T.grid(n, 12):
    with T.block("S"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            S[vi] = T.float32(0)
        S[vi] = S[vi] + A[vi, vk]
for i, j in T.grid(n, 12):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] - S[vi]
"""
IN_PLACE = """
for i, j in T.grid(n, 12):
    with T.block("A"):
        vi, vj = T.axis.remap("SS", [i, j])
        A[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(n, 12):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] + 1.0
"""
SOME_IN_PLACE = IN_PLACE.replace(
    "vi, vj] = A[vi, vj] * 2", "vi, vj * 2] = A[vi, vj * 2] * 2"
).replace("T.grid(n, 12)", "T.grid(n, 6)", 1)
WINDOW = """
P = T.alloc_buffer((n, 14), "float32")
for i, j in T.grid(n, 14):
    with T.block("P"):
        vi, vj = T.axis.remap("SS", [i, j])
        P[vi, vj] = T.if_then_else(1 <= vj and vj < 13, A[vi, vj - 1], T.float32(0))
for i, j, r in T.grid(n, 12, 3):
    with T.block("B"):
        vi, vj, vr = T.axis.remap("SSR", [i, j, r])
        with T.init():
            B[vi, vj] = T.float32(0)
        B[vi, vj] = B[vi, vj] + P[vi, vj + vr]
"""
INSIDE = """
for i in range(n):
    with T.block("row"):
        vi = T.axis.spatial(n, i)
        T.reads(A[vi, 0:12])
        T.writes(B[vi, 0:12])
        C = T.alloc_buffer((12,), "float32")
        for j in range(12):
            with T.block("C"):
                vj = T.axis.spatial(12, j)
                C[vj] = A[vi, vj] * 2.0
        for j in range(12):
            with T.block("B"):
                vj = T.axis.spatial(12, j)
                B[vi, vj] = C[vj] + A[vi, vj]
"""
RESIZE = """
for i, j in T.grid(n, 12):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, (vj + 1) // 2] * A[vi // 2, (vj + 1) // 2]
"""


def function(text: str) -> ir.PrimFunc:
    lines = "".join(f"    {line}\n" for line in text.strip("\n").splitlines())
    return from_source(HEAD + lines)


def loop(sch: Schedule, name: str, position: int) -> LoopRV:
    return sch.get_loops(sch.get_block(name))[position]


def check(func: ir.PrimFunc, sch: Schedule) -> None:
    """Same bits for sizes that divide evenly or not; text and trace bring the program back."""
    for n in (1, 3, 8):
        assert_same_meaning(func, sch.func, sizes={"n": n}, exact=True)
    ir.assert_structural_equal(from_source(script(sch.func)), sch.func)
    again = Schedule(func)
    data = json.loads(json.dumps(sch.trace.as_json()))
    again.replay(Trace.from_json(data, RECORDS, func))
    ir.assert_structural_equal(again.func, sch.func)
    as_python = Schedule(func)
    exec(sch.trace.as_python(), {"sch": as_python, "T": T})
    ir.assert_structural_equal(as_python.func, sch.func)


def names(sch: Schedule) -> list[str]:
    return [b.name for b in ir.blocks(sch.func)]


Steps = Callable[[Schedule], object]


def tiled(sch: Schedule, name: str) -> LoopRV:
    """The outer one of two loops over rows, in tiles of 4."""
    return sch.split(loop(sch, name, 0), [None, 4])[0]


CASES: dict[str, tuple[str, Steps]] = {
    "a copy of what two producers wrote": (
        CONCAT, lambda s: s.cache_read(s.get_block("B"), "C", "global")),
    "two producers share a copy": (
        CONCAT, lambda s: s.cache_write(s.get_block("left"), 0, "global")),
    "a decomposed reduction through a copy": (
        ROWS, lambda s: (s.decompose_reduction(s.get_block("S"), loop(s, "S", 1)),
                         s.cache_write(s.get_block("S"), 0, "local"))),
    "one of two consumers": (
        ROWS, lambda s: s.cache_read(s.get_block("B"), "A", "local", [s.get_block("B")])),
    "a copy inside a block": (
        INSIDE, lambda s: s.cache_read(s.get_block("B"), "A", "local", [s.get_block("B")])),
    "results kept back inside a block": (
        INSIDE, lambda s: s.cache_write(s.get_block("B"), 0, "local")),
    "a tile of the input at a loop": (
        WINDOW, lambda s: s.read_at(tiled(s, "B"), s.get_block("B"), "P", "local")),
    "a window at an inner loop": (
        WINDOW, lambda s: s.read_at(loop(s, "B", 1), s.get_block("B"), "P", "local")),
    "a tile of the result at a loop": (
        WINDOW, lambda s: s.write_at(loop(s, "B", 0), s.get_block("B"), 0, "local")),
    "partial sums in a copy at a loop": (
        ROWS, lambda s: (s.reorder(loop(s, "S", 1), loop(s, "S", 0)),
                         s.write_at(loop(s, "S", 0), s.get_block("S"), 0, "local"))),
    "an update inside a block that starts it": (
        ROWS, lambda s: (s.blockize(loop(s, "S", 1)), s.cache_inplace("S", "S", "local"))),
    "in place": (IN_PLACE, lambda s: s.cache_inplace(s.get_block("A"), 0, "local")),
    "every second column in place": (
        SOME_IN_PLACE, lambda s: s.cache_inplace(s.get_block("A"), 0, "local")),
    "columns first": (
        WINDOW, lambda s: s.reindex_cache_write(s.get_block("P"), 0, "local", lambda i, j: (j, i))),
    "a copy in blocks of columns": (
        CHAIN, lambda s: s.reindex_cache_read(s.get_block("B"), 0, "global",
                                              lambda i, j: (j // 4, i, j % 4))),
    "indices looked up": (RESIZE, lambda s: s.cache_index(s.get_block("B"), "global")),
    "a common index looked up": (RESIZE, lambda s: s.cache_index(s.get_block("B"), "global", 1)),
    "rows of 4 with a remainder": (
        CHAIN, lambda s: s.transform_layout(s.get_block("C"), "C",
                                            lambda i, j: (i // 4, j, i % 4), pad_value=0)),
    "padding in front, holding its index": (
        CHAIN, lambda s: s.transform_layout(s.get_block("B"), ("read", 0),
                                            lambda i, j: (i, j + 3),
                                            pad_value=lambda i, j: i * 16 + j)),
    "padding of a reduction's result": (
        ROWS, lambda s: s.transform_layout(s.get_block("S"), "S", lambda i: (i // 8, i % 8),
                                           pad_value=float("-inf"))),
    "iterators in tiles with a remainder": (
        ROWS, lambda s: s.transform_block_layout(s.get_block("S"),
                                                 lambda i, k: (i // 4, i % 4, k // 5, k % 5))),
    "padding filled in first": (
        WINDOW, lambda s: s.decompose_padding(s.get_block("P"), loop(s, "P", 0))),
    "padding filled in row by row": (
        WINDOW, lambda s: s.decompose_padding(s.get_block("P"), loop(s, "P", 1))),
    "padding under split loops": (
        WINDOW, lambda s: (s.split(loop(s, "P", 1), [None, 4]),
                           s.decompose_padding(s.get_block("P"), loop(s, "P", 0)))),
    "a window rounded up": (WINDOW, lambda s: s.pad_einsum(s.get_block("B"), [4, 8, 1])),
    "a window rounded up by its edge": (
        WINDOW, lambda s: s.pad_einsum(s.get_block("B"), [4, 5, 1], "clamp")),
    "sums that begin at what another buffer holds": (
        WINDOW.replace("B[vi, vj] = T.float32(0)", "B[vi, vj] = A[vi, vj] * T.float32(2)"),
        lambda s: s.pad_einsum(s.get_block("B"), [4, 8, 1])),
    "a maximum over a row rounded up": (
        ROWS.replace("S[vi] + A[vi, vk]", "T.max(S[vi], A[vi, vk])").replace(
            "T.float32(0)", "T.float32('-inf')"),
        lambda s: s.pad_einsum(s.get_block("S"), [4, 8], "clamp")),
    "a writer among others rounded up": (
        AMONG, lambda s: s.pad_einsum(s.get_block("B"), [4, 5], "clamp")),
    "separated axes": (
        CHAIN, lambda s: (s.set_axis_separator(s.get_block("C"), "C", [1]),
                          s.set_axis_separator(s.get_block("B"), ("write", 0), [1]))),
    "aligned rows": (
        CHAIN, lambda s: (s.storage_align(s.get_block("C"), 0, 0, 16, 1),
                          s.compute_at(s.get_block("C"), loop(s, "B", 0)))),
    "aligned rows of a tile": (
        CHAIN, lambda s: (s.storage_align(s.cache_read(s.get_block("B"), 0, "global"), 0, -2, 8, 4),
                          s.compute_at(s.get_block("C_global"), tiled(s, "B")))),
    "a wider region of what is read": (
        WINDOW, lambda s: s.annotate_buffer_access(
            s.get_block("B"), 0, "read", lambda i, j, r: (i, (0, 14)))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_program_means_the_same(name: str) -> None:
    text, steps = CASES[name]
    func = function(text)
    sch = Schedule(func, verify="full")
    steps(sch)
    assert sch.func is not func
    check(func, sch)


# ------------------------------------------------------------------------------ what is copied
def test_only_the_part_that_is_read_is_copied() -> None:
    """Columns 5 to 11 of a matrix, and the sizes of the loops that copy them."""
    func = function(CONCAT)
    sch = Schedule(func, verify="full")
    sch.cache_read(sch.get_block("right"), "A", "local", [sch.get_block("right")])
    copied = sch.get(sch.get_block("A_local"))
    assert isinstance(copied, ir.Block)
    assert script(copied.reads[0]) == "A[v0, v1]"
    extents = [ir.const_int(sch.get(x).extent) for x in sch.get_loops(sch.get_block("A_local"))]
    assert extents == [None, 7]
    check(func, sch)


def test_what_is_written_under_a_condition_is_copied_back_and_no_more() -> None:
    func = from_source("""
@T.prim_func
def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    for i in range(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            T.where(i < 10)
            B[vi] = A[vi] * 2.0
""")
    sch = Schedule(func, verify="full")
    back = sch.cache_write(sch.get_block("B"), 0, "local")
    x = np.arange(16, dtype="float32")
    y = np.full(16, -1, "float32")
    interpret(sch.func, x, y)
    np.testing.assert_array_equal(y, [*(2 * x[:10]), *([-1] * 6)])
    (only,) = sch.get_loops(back)
    found = sch.get(only)
    assert isinstance(found, ir.For)
    assert ir.const_int(found.extent) == 10


def test_a_copy_with_one_bank_offset_per_row() -> None:
    """The exclusive or of a swizzle is no iterator map; it is tried on every index."""
    func = from_source("""
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
    for i, j in T.grid(8, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vj, vi]
""")
    sch = Schedule(func, verify="full")
    sch.reindex_cache_read(sch.get_block("B"), 0, "shared", lambda i, j: (j, i ^ j))
    assert_same_meaning(func, sch.func, exact=True)
    other = Schedule(func, verify="full")
    other.cache_read(other.get_block("B"), 0, "shared")
    other.transform_layout(
        other.get_block("B"), ("read", 0), lambda i, j: (i, j ^ i), assume_injective_transform=True
    )
    assert_same_meaning(func, other.func, exact=True)
    ir.assert_structural_equal(from_source(script(other.func)), other.func)
    again = Schedule(func)
    again.replay(Trace.from_json(json.loads(json.dumps(other.trace.as_json())), RECORDS, func))
    ir.assert_structural_equal(again.func, other.func)


@pytest.mark.parametrize(("text", "buffer", "order"), [
    (ROWS, "A", ["A_reindex", "S", "B"]),
    (ROWS, "S", ["S", "S_reindex", "B"]),
    (AMONG, "A", ["A_reindex", "before", "B", "after"]),
])  # fmt: skip
def test_a_copy_of_what_is_read_is_made_as_soon_as_it_can_be(
    text: str, buffer: str, order: list[str]
) -> None:
    """So that the reader can move up to blocks that stand before it."""
    func = function(text)
    sch = Schedule(func)
    sch.reindex(sch.get_block("B"), buffer)
    check(func, sch)
    assert [b.name for b in ir.blocks(sch.func.root.body)] == order


# ------------------------------------------------------------------------------------- padding
PADDED = """
@T.prim_func
def main(A: T.Buffer((10,), "float32"), B: T.Buffer((10,), "float32")):
    C = T.alloc_buffer((10,), "float32")
    for i in range(10):
        with T.block("C"):
            vi = T.axis.spatial(10, i)
            C[vi] = A[vi]
    for i in range(10):
        with T.block("B"):
            vi = T.axis.spatial(10, i)
            B[vi] = C[vi]
"""


def test_consumers_may_rely_on_the_padding() -> None:
    """A block on whole tiles of 4 reads padding; the sum over it is that of the elements."""
    sch = Schedule(from_source(PADDED), verify="full")
    sch.transform_layout(sch.get_block("C"), "C", lambda i: (i // 4, i % 4), pad_value=0.25)
    text = script(sch.func).replace("B[vi] = C[vi // 4, vi % 4]", "B[vi] = C[2, 2] + C[2, 3]")
    out = np.zeros(10, "float32")
    interpret(from_source(text), np.ones(10, "float32"), out)
    np.testing.assert_array_equal(out, np.full(10, 0.5))


def test_a_producer_of_single_elements_writes_the_padding_itself() -> None:
    sch = Schedule(from_source(PADDED), verify="full")
    sch.transform_layout(sch.get_block("C"), "C", lambda i: (i // 4, i % 4), pad_value=0)
    assert names(sch) == ["root", "C", "B"]
    split = Schedule(from_source(PADDED), verify="full")
    split.split(loop(split, "C", 0), [None, 5])
    split.transform_layout(split.get_block("C"), "C", lambda i: (i // 4, i % 4), pad_value=0)
    assert names(split) == ["root", "C", "C_pad", "B"]


@pytest.mark.parametrize("in_a_block", [False, True])
def test_padding_stays_in_the_parallel_loop_whose_iterations_have_the_buffer_for_themselves(
    in_a_block: bool,
) -> None:
    """Behind the loop, it would make one buffer of those that the iterations have."""
    sch = Schedule(function(CHAIN), verify="full")
    sch.compute_at(sch.get_block("C"), loop(sch, "B", 0))
    sch.parallel(loop(sch, "B", 0))
    if in_a_block:
        sch.blockize(sch.add_unit_loop(loop(sch, "B", 0)))
    sch.transform_layout(sch.get_block("C"), "C", lambda i, j: (j // 8, i, j % 8), pad_value=0)
    (parallel,) = [f for f in ir.loops(sch.func) if f.kind is ir.ForKind.PARALLEL]
    assert {"C", "C_pad", "B"} <= {b.name for b in ir.blocks(parallel)}
    bw.validate(sch.func)


def test_axes_are_separated_by_the_map() -> None:
    sch = Schedule(from_source(PADDED), verify="full")
    sch.transform_layout(
        sch.get_block("C"), "C", lambda i: (i // 5, IndexMap.AXIS_SEPARATOR, i % 5)
    )
    buffer = next(b for b in sch.func.root.alloc_buffers)
    assert buffer.axis_separators == (1,)
    assert "lambda i0: (i0 // 5, ..., i0 % 5)" in sch.trace.as_python()


# ---------------------------------------------------------------------------------- native code
STRIDE = """
@T.prim_func
def main(A: T.Buffer((6, 10), "float32"), B: T.Buffer((6, 10), "float32"),
         S: T.Buffer((1,), "int64")):
    C = T.alloc_buffer((6, 10), "float32")
    for i, j in T.grid(6, 10):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * 2.0
    for i in range(6):
        with T.block("B"):
            vi = T.axis.spatial(6, i)
            T.reads(C[0:6, 0:10])
            T.writes(B[vi, 0:10], S[0])
            s0 = T.int64()
            s1 = T.int64()
            view = T.match_buffer(C[0:6, 0:10], (6, 10), "float32", strides=(s0, s1))
            S[0] = s0
            for j in range(10):
                B[vi, j] = view[vi, j]
"""


@pytest.mark.parametrize(("factor", "offset", "stride"), [(1, 0, 10), (16, 0, 16), (8, 3, 11)])
def test_aligned_rows_are_that_far_apart(factor: int, offset: int, stride: int) -> None:
    sch = Schedule(from_source(STRIDE), verify="full")
    sch.storage_align(sch.get_block("C"), 0, 0, factor, offset)
    x = np.random.default_rng(0).random((6, 10), "float32")
    for run in (lambda *a: interpret(sch.func, *a), bw.build(sch.func)["main"]):
        out, found = np.zeros_like(x), np.zeros(1, "int64")
        run(x, out, found)
        np.testing.assert_array_equal(out, x * 2)
        assert found[0] == stride


NATIVE = {name: CASES[name] for name in (
    "aligned rows", "aligned rows of a tile", "rows of 4 with a remainder", "separated axes",
    "padding of a reduction's result", "iterators in tiles with a remainder",
    "padding in front, holding its index", "a tile of the input at a loop", "indices looked up",
    "padding under split loops", "a window rounded up",
)}  # fmt: skip


@pytest.mark.parametrize("name", NATIVE)
def test_native_code_agrees(name: str) -> None:
    text, steps = NATIVE[name]
    func = function(text)
    sch = Schedule(func, verify="full")
    steps(sch)
    for n in (1, 7):
        x = np.random.default_rng(n).random((n, 12), "float32")
        expected, found = np.zeros_like(x), np.zeros_like(x)
        interpret(func, x, expected)
        bw.build(sch.func)["main"](x, found)
        np.testing.assert_allclose(found, expected, rtol=1e-6)  # contraction may round once less


def test_a_region_can_be_vouched_for() -> None:
    """Row numbers in a table are even: half of it is read, which no check can see."""
    func = from_source("""
@T.prim_func
def main(A: T.Buffer((16,), "int32"), rows: T.Buffer((4,), "int32"), B: T.Buffer((4,), "int32")):
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = A[rows[vi]]
""")
    sch = Schedule(func)
    sch.unsafe.annotate_buffer_access("B", "A", "read", lambda i: ((0, 8),))
    (block,) = ir.blocks(sch.func)[1:]
    assert "A[0:8]" in [script(r) for r in block.reads]


def test_sizes_in_an_index_map_have_the_type_of_the_indices() -> None:
    """Recorded maps are over int64; the loops of this program are not."""
    func = from_source("""
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] * T.float32(2)
""")
    sch = Schedule(func)
    size = ir.cast_to(sch.symbol("n"), "int64")
    sch.transform_block_layout(sch.get_block("B"), IndexMap.from_func(lambda i: (size - 1 - i,), 1))
    (loop,) = ir.loops(sch.func.body)
    assert loop.loop_var.dtype is loop.extent.dtype is ir.dtype_of("int32")
    assert_same_meaning(func, sch.func, exact=True)


FILLED = """
@T.prim_func
def main(A: T.Buffer((8,), "{0}"), B: T.Buffer((8,), "{0}")):
    V = T.alloc_buffer((8,), "{0}")
    for i in range(8):
        with T.block("V"):
            vi = T.axis.spatial(8, i)
            V[vi] = A[vi]
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = V[7 - vi]
"""


@pytest.mark.parametrize(
    ("dtype", "pad"),
    [
        ("int8", 300),
        ("int8", 0.5),
        ("uint8", -1),
        ("int32", math.nan),
        ("int64", 2**63),
        ("int32", lambda i, j: "text"),
        ("float32x4", lambda i, j: T.broadcast(T.float32(1), 2)),
    ],
)
def test_padding_of_another_type_is_rejected(dtype: str, pad: Any) -> None:
    sch = Schedule(bw.from_source(FILLED.format(dtype)))
    with pytest.raises(ScheduleError) as caught:
        sch.transform_layout("V", ("write", 0), lambda i: (i // 3, i % 3), pad_value=pad)
    assert caught.value.code == "BW324"


@pytest.mark.parametrize(
    "pad", [lambda i, j: i * 2, lambda i, j: T.broadcast(T.float32(1), 4), 3.0]
)
def test_padding_of_vector_elements(pad: Any) -> None:
    func = bw.from_source(FILLED.format("float32x4"))
    sch = Schedule(func, verify="full")
    sch.transform_layout("V", ("write", 0), lambda i: (i // 3, i % 3), pad_value=pad)
    assert_same_meaning(func, sch.func, exact=True)
    for form in FORMS:
        check_replay(func, sch.trace, sch.func, form)
