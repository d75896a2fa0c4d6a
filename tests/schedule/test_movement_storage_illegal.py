"""Copies at loops, layouts with padding, alignment, regions by hand: what is refused and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright.schedule import Schedule
from blockwright.support import ScheduleError
from tests.schedule.refusals import CHAIN, Case, block, function, loop, require_refusal

SHARED = """
C = T.alloc_buffer((32, 32), "float32")
for i in range(32):
    for j in range(32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * 2.0
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] + 1.0
"""
GUARDED = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(20, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = T.if_then_else(vi < 20, C[vi, vj], T.float32(0))
"""
PADDED_OUTSIDE = """
C = T.alloc_buffer((32, 5, 8), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj // 7, vj % 7] = A[vi, vj] * 2.0
for i in range(32):
    with T.block("row"):
        vi = T.axis.spatial(32, i)
        for j in range(32):
            with T.block("B"):
                vj = T.axis.spatial(32, j)
                B[vi, vj] = C[vi, vj // 7, vj % 7]
"""
SUM = """
C = T.alloc_buffer((32,), "float32")
for k in range(32):
    for i in range(32):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] - C[vi]
"""
SUM_WITH_OTHER = SUM.replace(
    "for i, j in",
    """for i in range(1):
    with T.block("more"):
        vi = T.axis.spatial(1, i)
        C[vi] = T.float32(1)
for i, j in""",
)
TRIANGLE = """
for i in range(32):
    for j in range(i + 1):
        for k in range(1):
            with T.block("B"):
                vi = T.axis.spatial(32, i)
                vj = T.axis.spatial(32, j)
                B[vi, vj] = A[vi, vj]
"""
STARTED_INSIDE = """
for i in range(32):
    with T.block("row"):
        vr = T.axis.spatial(32, i)
        T.reads(A[vr, 0:32], B[vr, 0])
        T.writes(B[vr, 0])
        with T.block("start"):
            vi = T.axis.spatial(32, vr)
            B[vi, 0] = T.float32(0)
        for k in range(32):
            with T.block("sum"):
                vi = T.axis.spatial(32, vr)
                vk = T.axis.reduce(32, k)
                B[vi, 0] = B[vi, 0] + A[vi, vk]
"""
LANES = """
for i in range(32):
    for j in T.vectorized(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]
"""
FIRST_ROW = """
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[0, vj]
"""
EVERY_SECOND = """
for i in T.parallel(16):
    for j in range(16):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj * 2] = A[vi, vj * 2] * 2.0
    for j in range(16):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]
"""
UNWRITTEN = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = C[vi, vj] + A[vi, vj]
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj]
"""
OUTER = """
for i in range(32):
    with T.block("row"):
        vi = T.axis.spatial(32, i)
        T.reads(A[vi, 0:32])
        T.writes(B[vi, 0:32])
        for j in range(32):
            with T.block("B"):
                vj = T.axis.spatial(32, j)
                B[vi, vj] = A[vi, (vj + 1) // 2]
"""
LATE = """
for i, j in T.grid(32, 15):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        vj = T.axis.spatial((2, 17), j + 2)
        B[vi, vj] = A[vi, vj * 2 - 4]
"""
VIEW = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] * 2.0
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        T.reads(C[vi, 0:32])
        T.writes(B[vi, 0:32])
        row = T.match_buffer(C[vi, 0:32], (1, 32), "float32", strides=(32, 1))
        for j in range(32):
            B[vi, j] = row[0, j]
"""
PAD = """
C = T.alloc_buffer((34, 32), "float32")
for i, j in T.grid(34, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = T.if_then_else(vi < 32, A[vi, vj], T.float32(0))
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi + 2, vj]
"""
DATA_PAD = PAD.replace("vi < 32, A", "A[vi % 32, 0] > 0.5, A").replace(
    "A[vi, vj]", "A[vi % 32, vj]"
)
EARLY_USE = """
C = T.alloc_buffer((34, 32), "float32")
for t in range(34):
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [t, j])
            B[vi % 32, vj] = C[33 - vi, vj]
    for j in range(32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [t, j])
            C[vi, vj] = T.if_then_else(vi < 32, A[vi, vj], T.float32(0))
"""


HALO = """
C = T.alloc_buffer((34, 32), "float32")
for o in range(4):
    for t in T.parallel(8):
        for u, j in T.grid(3, 32):
            with T.block("C"):
                vi = T.axis.spatial(34, o * 8 + t + u)
                vj = T.axis.spatial(32, j)
                C[vi, vj] = T.if_then_else(vi < 32, A[vi, vj], T.float32(0))
        for j in range(32):
            with T.block("B"):
                vi = T.axis.spatial(32, o * 8 + t)
                vj = T.axis.spatial(32, j)
                B[vi, vj] = C[vi, vj] + C[vi + 2, vj]
"""
OUTER_SUM = """
for i, k in T.grid(32, 32):
    with T.block("outer"):
        vi, vk = T.axis.remap("SR", [i, k])
        for u in range(1):
            with T.block("B"):
                wi = T.axis.spatial(32, vi)
                wk = T.axis.reduce(32, vk)
                with T.init():
                    B[wi, 0] = T.float32(0)
                B[wi, 0] = B[wi, 0] + A[wi, wk]
"""
NESTED_SUM = """
for i, k in T.grid(32, 32):
    with T.block("outer"):
        vi, vk = T.axis.remap("SR", [i, k])
        for u in range(1):
            with T.block("mid"):
                vu = T.axis.spatial(1, u)
                with T.block("B"):
                    wi = T.axis.spatial(32, vi)
                    wk = T.axis.reduce(32, vk)
                    with T.init():
                        B[wi, 0] = T.float32(0)
                    B[wi, 0] = B[wi, 0] + A[wi, wk]
"""


def guarded_sum(sch: Schedule) -> None:
    """`C` adds up over two loops; another block writes it in between."""
    sch.write_at(loop(sch, "C", 1), block(sch, "C"), 0, "local")


AT: dict[str, Case] = {
    "read_at: block elsewhere": (
        CHAIN, lambda s: s.read_at(loop(s, "B", 0), block(s, "C"), 0, "local"), "BW310",
        "is not below loop"),
    "read_at: no name": (
        CHAIN, lambda s: s.read_at(loop(s, "B", 0), block(s, "B"), 0, "a b"), "BW304",
        "is not a storage scope"),
    "read_at: written in the loop": (
        SHARED, lambda s: s.read_at(loop(s, "B", 0), block(s, "B"), "C", "local"), "BW323",
        "block C below loop i writes C"),
    "read_at: not all is written": (
        GUARDED, lambda s: s.read_at(loop(s, "B", 0), block(s, "B"), "C", "local"), "BW323",
        "does not write every element"),
    "read_at: not all is written before the block around": (
        PADDED_OUTSIDE, lambda s: (s.split(loop(s, "B", 0), [None, 8]),
                                   s.read_at(loop(s, "B", 0), block(s, "B"), 0, "local")), "BW323",
        "block C does not write every element of C"),
    "cache_read: not all is written before the block around": (
        PADDED_OUTSIDE, lambda s: s.cache_read(block(s, "B"), 0, "local"), "BW323",
        "block C does not write every element of C"),
    "read_at: triangle": (
        TRIANGLE, lambda s: s.read_at(loop(s, "B", 1), block(s, "B"), 0, "local"), "BW350",
        "depends on another loop"),
    "read_at: lanes": (
        LANES, lambda s: s.read_at(loop(s, "B", 1), block(s, "B"), 0, "local"), "BW317",
        "lanes of loop j would share the copy"),
    "read_at: thread blocks would fill one copy": (
        FIRST_ROW, lambda s: (s.bind(loop(s, "B", 0), "blockIdx.x"),
                              s.read_at(loop(s, "B", 0), block(s, "B"), 0, "global")), "BW317",
        "may write the same elements of A_global"),
    "write_at: block elsewhere": (
        CHAIN, lambda s: s.write_at(loop(s, "B", 0), block(s, "C"), 0, "local"), "BW310",
        "is not below loop"),
    "write_at: out of the iterations' own copies": (
        HALO, lambda s: s.write_at(loop(s, "C", 0), block(s, "C"), 0, "global"), "BW317",
        "a store after it would make it shared"),
    "write_at: no such region": (
        CHAIN, lambda s: s.write_at(loop(s, "B", 0), block(s, "B"), 1, "local"), "BW320",
        "there is no number 1"),
    "write_at: another block writes between the sums": (
        SUM_WITH_OTHER, guarded_sum, "BW323", "adds to C in more than one iteration"),
    "write_at: sums of earlier visits": (
        OUTER_SUM, lambda s: s.write_at(loop(s, "B", 0), block(s, "B"), 0, "local"), "BW314",
        "accumulates onto results of earlier executions"),
    "write_at: sums of earlier visits, in a block inside": (
        NESTED_SUM, lambda s: s.write_at(loop(s, "mid", 0), block(s, "mid"), 0, "local"), "BW314",
        "accumulates onto results of earlier executions"),
    "cache_write: sums of earlier visits, in a block inside": (
        NESTED_SUM, lambda s: s.cache_write(block(s, "mid"), 0, "local"), "BW314",
        "accumulates onto results of earlier executions"),
    "write_at: earlier values": (
        EVERY_SECOND, lambda s: s.write_at(loop(s, "A", 0), block(s, "A"), 0, "local"), "BW323",
        "would not hold the earlier values"),
}  # fmt: skip
IN_PLACE: dict[str, Case] = {
    "cache_inplace: only read": (
        CHAIN, lambda s: s.cache_inplace(block(s, "B"), 0, "local"), "BW320", "does not write C"),
    "cache_inplace: no such region": (
        CHAIN, lambda s: s.cache_inplace(block(s, "B"), "A", "local"), "BW320",
        "reads no single buffer called 'A'"),
    "cache_inplace: gaps under a parallel loop": (
        EVERY_SECOND, lambda s: s.cache_inplace(block(s, "A"), 0, "local"), "BW317",
        "does not write all of the box of A"),
    "cache_inplace: nothing there yet": (
        UNWRITTEN, lambda s: s.cache_inplace(block(s, "C"), "C", "local"), "BW322",
        "nothing writes C before"),
    "cache_inplace: first values come from inside": (
        STARTED_INSIDE, lambda s: s.cache_inplace(block(s, "row"), "B", "local"), "BW362",
        "initializes B"),
    "cache_index: the root": (
        CHAIN, lambda s: s.cache_index(block(s, "root"), "local"), "BW311", "root block"),
    "cache_index: blocks inside": (
        OUTER, lambda s: s.cache_index(block(s, "row"), "local"), "BW362", "has inner blocks"),
    "cache_index: threshold": (
        CHAIN, lambda s: s.cache_index(block(s, "B"), "local", -1), "BW304",
        "must not be negative"),
    "cache_index: domain": (
        LATE, lambda s: s.cache_index(block(s, "B"), "local"), "BW350", "does not start at 0"),
}  # fmt: skip
REINDEX: dict[str, Case] = {
    "reindex_cache_read: number of iterators": (
        CHAIN, lambda s: s.reindex_cache_read(block(s, "B"), 0, "local", lambda i: (i,)), "BW324",
        "takes 1 iterators, B has 2"),
    "reindex_cache_read: overlapping": (
        CHAIN, lambda s: s.reindex_cache_read(block(s, "B"), 0, "local", lambda i, j: (i + j,)),
        "BW324", "not one to one"),
    "reindex_cache_read: negative": (
        CHAIN, lambda s: s.reindex_cache_read(block(s, "B"), 0, "local", lambda i, j: (i - 1, j)),
        "BW324", "negative indices"),
    "reindex_cache_read: iterator that does not choose": (
        SUM, lambda s: s.reindex_cache_read(block(s, "B"), "C", "local", lambda i, j: (i, j)),
        "BW324", "the map uses iterator vj"),
    "reindex_cache_read: changed in place": (
        UNWRITTEN, lambda s: s.reindex_cache_read(block(s, "C"), "C", "local",
                                                  lambda i, j: (i, j)), "BW323",
        "the copy would be stale"),
    "reindex_cache_write: reduction iterator": (
        SUM, lambda s: s.reindex_cache_write(block(s, "C"), 0, "local", lambda i, k: (i, k)),
        "BW324", "the map uses iterator vk"),
    "reindex_cache_write: earlier values": (
        UNWRITTEN, lambda s: s.reindex_cache_write(block(s, "C"), 0, "local",
                                                   lambda i, j: (i, j)), "BW323",
        "would not hold the earlier values"),
}  # fmt: skip
LAYOUT: dict[str, Case] = {
    "storage_align: parameter": (
        CHAIN, lambda s: s.storage_align(block(s, "B"), 0, 0, 8, 0), "BW321", "is a parameter"),
    "storage_align: axis": (
        CHAIN, lambda s: s.storage_align(block(s, "C"), 0, 2, 8, 0), "BW304",
        "axis 2 is out of range"),
    "storage_align: factor": (
        CHAIN, lambda s: s.storage_align(block(s, "C"), 0, 0, 0, 0), "BW304", "at least 1, got 0"),
    "storage_align: view with fixed strides": (
        VIEW, lambda s: s.storage_align(block(s, "C"), 0, 0, 8, 0), "BW328",
        "a view with fixed strides"),
    "storage_align: strides stated": (
        CHAIN.replace('(32, 32), "float32")', '(32, 32), "float32", strides=(40, 1))', 1),
        lambda s: s.storage_align(block(s, "C"), 0, 0, 8, 0), "BW328", "declares explicit strides"),
    "transform_layout: alignment stated before": (
        CHAIN, lambda s: (s.storage_align(block(s, "C"), 0, 0, 8, 0),
                          s.transform_layout(block(s, "C"), "C", lambda i, j: (j, i))), "BW328",
        "C has a stride alignment"),
    "transform_layout: padding without a value": (
        CHAIN, lambda s: s.transform_layout(block(s, "C"), "C", lambda i, j: (i, j // 5, j % 5)),
        "BW324", "has padding: no element of C"),
    "transform_layout: value of other indices": (
        CHAIN, lambda s: s.transform_layout(block(s, "C"), "C", lambda i, j: (i, j // 5, j % 5),
                                            pad_value=lambda i: i), "BW324",
        "a function of the 3 new indices"),
    "transform_layout: value of another kind": (
        CHAIN, lambda s: s.transform_layout(block(s, "C"), "C", lambda i, j: (i, j // 5, j % 5),
                                            pad_value="zero"), "BW304",
        "expected a number or a function"),
    "transform_layout: padding of a parameter": (
        CHAIN, lambda s: s.transform_layout(block(s, "C"), "A", lambda i, j: (i, j + 1),
                                            pad_value=0), "BW321", "is a parameter"),
    "transform_layout: assumed and wrong": (
        CHAIN, lambda s: s.transform_layout(block(s, "C"), "C", lambda i, j: (i, j & i),
                                            assume_injective_transform=True), "BW324",
        "not one to one"),
    "set_scope: threads would not see it": (
        CHAIN, lambda s: (s.bind(loop(s, "C", 0), "threadIdx.x"),
                          s.set_scope(block(s, "C"), 0, "local")), "BW317",
        "each member of threadIdx.x would have a private C"),
    "set_axis_separator: order": (
        CHAIN, lambda s: s.set_axis_separator(block(s, "C"), "C", [1, 1]), "BW304",
        "not increasing positions"),
    "set_axis_separator: end": (
        CHAIN, lambda s: s.set_axis_separator(block(s, "C"), "C", [2]), "BW304",
        "not increasing positions"),
    "set_axis_separator: buffer": (
        CHAIN, lambda s: s.set_axis_separator(block(s, "C"), "B", [1]), "BW320",
        "no single buffer called 'B'"),
}  # fmt: skip
PADDING: dict[str, Case] = {
    "decompose_padding: loop elsewhere": (
        PAD, lambda s: s.decompose_padding(block(s, "C"), loop(s, "B", 0)), "BW310",
        "is not above C"),
    "decompose_padding: no choice": (
        CHAIN, lambda s: s.decompose_padding(block(s, "C"), loop(s, "C", 0)), "BW333",
        "not a single store of if_then_else"),
    "decompose_padding: condition from memory": (
        DATA_PAD, lambda s: s.decompose_padding(block(s, "C"), loop(s, "C", 0)), "BW333",
        "depends on memory"),
    "decompose_padding: the constant would show": (
        EARLY_USE, lambda s: s.decompose_padding(block(s, "C"), loop(s, "C", 0)), "BW314|BW323",
        "where the constant would show"),
    "decompose_padding: out of the iterations' own copies": (
        HALO, lambda s: s.decompose_padding(block(s, "C"), loop(s, "C", 0)), "BW317",
        "C is private to each iteration of loop t"),
    "decompose_padding: twice": (
        PAD, lambda s: (s.decompose_padding(block(s, "C"), loop(s, "C", 0)),
                        s.decompose_padding(block(s, "C"), loop(s, "C", 0))), "BW333",
        "not a single store"),
    "pad_einsum: reduction over a window": (
        PAD.replace("C[vi + 2, vj]", "C[vi + 2, vj]"),
        lambda s: s.pad_einsum(block(s, "B"), [5]), "BW304", "one number of at least 1"),
}  # fmt: skip
REGIONS: dict[str, Case] = {
    "annotate_buffer_access: less than is read": (
        CHAIN, lambda s: s.annotate_buffer_access(block(s, "B"), 0, "read",
                                                  lambda i, j: (i, (0, 16))), "BW366",
        "reads more of C than the ranges cover"),
    "annotate_buffer_access: writes that do not happen": (
        CHAIN, lambda s: s.annotate_buffer_access(block(s, "B"), 0, "write",
                                                  lambda i, j: (i, (0, 32))), "BW366",
        "claim elements of B"),
    "annotate_buffer_access: dimensions": (
        CHAIN, lambda s: s.annotate_buffer_access(block(s, "B"), 0, "read", lambda i, j: (i,)),
        "BW304", "returns 1 ranges"),
    "annotate_buffer_access: kind": (
        CHAIN, lambda s: s.annotate_buffer_access(block(s, "B"), 0, "reads", lambda i, j: (i, j)),
        "BW304", "must be 'read' or 'write'"),
    "annotate_buffer_access: no function": (
        CHAIN, lambda s: s.annotate_buffer_access(block(s, "B"), 0, "read", 3), "BW304",
        "expected a function from iterators to ranges"),
}  # fmt: skip
CASES = {**AT, **IN_PLACE, **REINDEX, **LAYOUT, **PADDING, **REGIONS}


UNMARKED = {
    "read_at: no name",
    "transform_layout: value of another kind",
    "annotate_buffer_access: no function",
}
"""Where nothing in the program is wrong: the argument is none, whatever the program."""


@pytest.mark.parametrize("name", CASES)
def test_the_step_is_refused(name: str) -> None:
    require_refusal(name, CASES[name], UNMARKED)


@pytest.mark.parametrize("step", [
    lambda s: s.reindex("C", ("write", 0)),
    lambda s: s.reindex_cache_write("C", 0, "global", lambda i, j: (i * 32 + j,)),
])  # fmt: skip
def test_a_stated_alignment_is_of_the_layout_that_is_there(
    step: Callable[[Schedule], object],
) -> None:
    sch = Schedule(function(CHAIN), verify="full")
    sch.storage_align("C", 0, 1, 8, 1)
    with pytest.raises(ScheduleError, match=r"BW328.*declares a stride alignment"):
        step(sch)
