"""Refusals that nothing else asked for, found by the mutation test: each with code and reason."""

from __future__ import annotations

from typing import Any

import pytest

import blockwright as bw
import blockwright.testing.moves
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.testing.check import assert_same_meaning
from tests.schedule.refusals import CHAIN, COPY, Case, block, function, loop, require_refusal

TRIANGLE = """
for i in range(32):
    for j in range(i + 1):
        with T.block("B"):
            vi = T.axis.spatial(32, i)
            vj = T.axis.spatial(32, j)
            B[vi, vj] = A[vi, vj] * 2.0
"""
PAIR = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] + 1.0
"""
GUARDED = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 30):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = T.if_then_else(vj < 30, C[vi, vj], T.float32(0))
"""
THREADS = """
C = T.alloc_buffer((32, 32), "float32", scope="shared")
for i in T.thread_binding(32, thread="threadIdx.x"):
    for j in range(32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * 2.0
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] + 1.0
"""
IN_PLACE = """
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = B[vi, vj] + A[vi, vj]
"""
SUM = """
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SR", [i, j])
        with T.init():
            B[0, vi] = T.float32(0)
        B[0, vi] = B[0, vi] + A[vi, vj]
"""
WINDOW = """
for i, j in T.grid(30, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi + 1, vj]
"""
CLAIM = """
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.reads(A[vi, vj], B[vi, vj])
        T.writes(B[vi, vj])
        B[vi, vj] = A[vi, vj]
"""
KINDS = """
C = T.alloc_buffer((32, 32), "float32")
for i in range(32):
    for j in range(32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj]
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("RS", [i, j])
            B[0, vj] = B[0, vj] + C[vi, vj]
"""
SHIFTED = """
C = T.alloc_buffer((33, 32), "float32")
for i in range(32):
    for j in range(32):
        with T.block("C"):
            vi = T.axis.spatial(33, i + 1)
            vj = T.axis.spatial(32, j)
            C[vi, vj] = A[vi - 1, vj]
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi + 1, vj]
"""
NEST = """
for i in range(32):
    with T.block("outer"):
        vi = T.axis.spatial(32, i)
        for j in range(32):
            with T.block("B"):
                vj = T.axis.spatial(32, j)
                B[vi, vj] = A[vi, vj]
"""
EMPTY = """
for i, j in T.grid(0, 32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        vj = T.axis.spatial(32, j)
        B[vi, vj] = A[vi, vj]
"""
OUTSIDE = """
C = T.alloc_buffer((32, 32), "float32")
for i in range(32):
    with T.block("rows"):
        vi = T.axis.spatial(32, i)
        for j in range(32):
            with T.block("C"):
                vj = T.axis.spatial(32, j)
                C[vi, vj] = A[vi, vj]
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj]
"""
LEFT = """
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = A[vi, 0]
    if i > 3:
        break
for k in range(32):
    with T.block("D"):
        vk = T.axis.spatial(32, k)
        B[vk, 1] = A[vk, 1]
"""
STAGED = """
C = T.alloc_buffer((32,), "float32")
for i in range(32):
    with T.block("C"):
        vi = T.axis.spatial(32, i)
        C[vi] = A[vi, 0]
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = C[vi]
"""
READ_BETWEEN = """
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = A[vi, 0]
    if B[i, 0] > 0.0:
        with T.block("D"):
            vi = T.axis.spatial(32, i)
            B[vi, 1] = 1.0
"""
UPDATE = """
C = T.alloc_buffer((32,), "float32")
D = T.alloc_buffer((32,), "float16", scope="local")
for i, k in T.grid(32, 32):
    with T.block("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        C[vi] = C[vi] * 0.5 + A[vi, vk]
for i, k in T.grid(32, 32):
    with T.block("D"):
        vi, vk = T.axis.remap("SR", [i, k])
        D[vi] = T.max(D[vi], T.cast(A[vi, vk], "float16"))
"""
STEPS = """
C = T.alloc_buffer((32, 32), "float32")
for i in range(32):
    for j in range(i + 1):
        with T.block("C"):
            vi = T.axis.spatial(32, i)
            vj = T.axis.spatial(32, j)
            C[vi, vj] = A[vi, vj]
        with T.block("B"):
            vi = T.axis.spatial(32, i)
            vj = T.axis.spatial(32, j)
            B[vi, vj] = C[vi, vj]
"""
JOINED = """
C = T.alloc_buffer((32, 32), "float32")
for i in range(32):
    for j in range(32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj]
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj]
"""
TWICE = """
for i in range(32):
    with T.block("outer"):
        vi = T.axis.spatial(32, i)
        for u, j in T.grid(2, 32):
            with T.block("B"):
                vj = T.axis.spatial(32, j)
                B[vi, vj] = A[vi, vj]
"""
WHOLE_SUM = """
for i in range(32):
    with T.block("outer"):
        vi = T.axis.spatial(32, i)
        for k in range(32):
            with T.block("B"):
                vk = T.axis.reduce(32, k)
                with T.init():
                    B[0, vi] = 0.0
                B[0, vi] = B[0, vi] + A[vi, vk] * A[0, vk]
"""
BEFORE = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = T.if_then_else(A[vi, vj] > 1e30, C[vi, vj], 0.0)
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj]
"""
BESIDE = """
for i in range(16):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = A[vi, 0]
for i in range(2):
    with T.block("D0"):
        vi = T.axis.spatial(32, i)
        B[vi, 1] = A[vi, 1]
    for j in range(16):
        with T.block("D"):
            vi = T.axis.spatial(32, i)
            vj = T.axis.spatial(32, j + 2)
            B[vi, vj] = A[vi, vj]
"""
ROWS_OVER = """
for i, k in T.grid(32, 32):
    with T.block("B"):
        vi, vk = T.axis.remap("SR", [i, k])
        B[vi, vk] = A[vi, vk]
"""
SUMS = """
C = T.alloc_buffer((32,), "float32")
for i, k in T.grid(32, 32):
    with T.block("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            C[vi] = {start}
        C[vi] = C[vi] + A[vi, vk]
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        T.where({where})
        B[vi, 0] = {value} * 2.0
"""
LATE_SUM = """
C = T.alloc_buffer((32,), "float32")
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = T.if_then_else(A[vi, 0] > 1e30, C[vi], 0.0)
for i, k in T.grid(32, 32):
    with T.block("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            C[vi] = 0.0
        C[vi] = C[vi] + A[vi, vk]
"""
PADDED = """
for i in range(32):
    for j in range(i + 1):
        with T.block("B"):
            vi = T.axis.spatial(32, i)
            vj = T.axis.spatial(32, j)
            B[vi, vj] = T.if_then_else(vj >= 1, A[vi, vj - 1], 0.0)
"""
PADDED_LATE = """
for i in range(32):
    if i > 3:
        for j in range(32):
            with T.block("B"):
                vi = T.axis.spatial(32, i)
                vj = T.axis.spatial(32, j)
                B[vi, vj] = T.if_then_else(vj >= 1, A[vi, vj - 1], 0.0)
"""
HALF = """
for i in range(16):
    with T.block("first"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = A[vi, 0]
for i in range(32):
    with T.block("then"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = B[vi, 0] + A[vi, 1]
"""
COPY_32 = "random_copy_32_float32"
STRANGER = ir.Var("z", ir.dtype_of("int64"))


def turned(i: Any, j: Any) -> tuple[Any, Any]:
    return j, i


def elements(i: Any, j: Any) -> tuple[tuple[Any, Any], ...]:
    return (i, i + 1), (j, j + 1)


TERMS_BY_COLUMN = """
for k in range(32):
    for i in range(k):
        with T.block("B"):
            vk = T.axis.reduce(32, k)
            vi = T.axis.spatial(32, i)
            with T.init():
                B[vi, 0] = T.float32(0)
            B[vi, 0] = B[vi, 0] + A[vi, vk]
"""
TERMS_ALL = """
for i, k in T.grid(32, 32):
    with T.block("B"):
        vi, vk = T.axis.remap("SR", [i, k])
        T.where(i + k < 70)
        with T.init():
            B[vi, 0] = T.float32(0)
        B[vi, 0] = B[vi, 0] + A[vi, vk]
"""
UNUSED = """
for q in range(2):
    with T.block("outer"):
        vq = T.axis.spatial(2, q)
        C = T.alloc_buffer((32,), "float32")
        for i in range(32):
            with T.block("C"):
                vi = T.axis.spatial(32, i)
                C[vi] = A[vq, vi]
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = A[vi, 0]
"""
MADE_ANEW = """
C = T.alloc_buffer((32,), "float32")
S = T.alloc_buffer((1,), "float32")
for i in range(32):
    for k in range(32):
        with T.block("S"):
            vk = T.axis.reduce(32, k)
            with T.init():
                S[0] = T.float32(0)
            S[0] = S[0] + A[0, vk]
    with T.block("C"):
        vi = T.axis.spatial(32, i)
        C[vi] = A[vi, 1] * S[0]
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = C[vi] + 1.0
"""
MIRRORED = """
C = T.alloc_buffer((32,), "float32")
S = T.alloc_buffer((32,), "float32")
for i in range(32):
    with T.block("S"):
        vi = T.axis.spatial(32, i)
        S[vi] = A[vi, 0]
    with T.block("C"):
        vi = T.axis.spatial(32, i)
        C[vi] = READ
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = C[vi] + OTHER
"""
TERMS = """
C = T.alloc_buffer((32,), "float32")
for k in KIND:
    for q in range(TIMES):
        with T.block("C"):
            vk = T.axis.spatial(32, k)
            C[vk] = A[vk, 0]
for k in range(32):
    with T.block("B"):
        vk = T.axis.reduce(32, k)
        with T.init():
            B[0, 0] = T.float32(0)
        B[0, 0] = B[0, 0] + C[vk]
"""
HALVES = """
C = T.alloc_buffer((32,), "float32")
for i, k in T.grid(16, 32):
    with T.block("sums"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            C[vi] = T.float32(0)
        C[vi] = C[vi] + A[vi, vk]
for i in range(16):
    with T.block("C"):
        vi = T.axis.spatial(16, i)
        C[vi + 16] = A[vi, 0]
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = C[vi] + 1.0
"""
VIEWED = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj]
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        V = T.match_buffer(C[vi, vj], (1,), offset_factor=1)
        B[vi, vj] = V[0]
"""
USED_BETWEEN = """
C = T.alloc_buffer((32, 32), "float32")
S = T.alloc_buffer((32,), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj]
for i in range(32):
    with T.block("S"):
        vi = T.axis.spatial(32, i)
        S[vi] = B[vi, 0]
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj] + A[vi, 0]
"""
PART_READ = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj]
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = C[vi // 8, vi % 8]
"""
BELOW_ALL = """
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.where(i + j < 70)
        B[vi, vj] = A[vi, vj]
"""
CLAIMS_MORE = """
S = T.alloc_buffer((32,), "float32")
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.reads(A[vi, vj], S[vi])
        T.writes(B[vi, vj])
        B[vi, vj] = A[vi, vj]
"""

CASES: dict[str, Case] = {
    "compute_at: of what is made anew": (
        MADE_ANEW, lambda s: s.compute_at(block(s, "C"), loop(s, "B", 0)), "BW316",
        "block S rewrites the input of block C"),
    "compute_at: of what reads ahead": (
        MIRRORED.replace("READ", "S[31 - vi]").replace("OTHER", "1.0"),
        lambda s: s.compute_at(block(s, "C"), loop(s, "B", 0)), "BW316",
        "block S has not written all of S that block C reads"),
    "compute_at: an index beyond": (
        CHAIN, lambda s: s.compute_at(block(s, "C"), loop(s, "B", 0), index=5), "BW357",
        "index 5 is outside the legal positions 0 to 0"),
    "reverse_compute_inline: of what then reads ahead": (
        MIRRORED.replace("READ", "A[vi, 1]").replace("OTHER", "S[31 - vi]"),
        lambda s: s.reverse_compute_inline(block(s, "B")), "BW316", "after the move"),
    "reverse_compute_inline: into halves": (
        HALVES, lambda s: s.reverse_compute_inline(block(s, "B")), "BW314",
        "block sums is not complete"),
    "reverse_compute_inline: through a view": (
        VIEWED, lambda s: s.reverse_compute_inline(block(s, "B")), "BW359", "as a whole"),
    "reverse_compute_inline: past a reader": (
        USED_BETWEEN, lambda s: s.reverse_compute_inline(block(s, "B")), "BW316",
        "block S uses B, which block B would write earlier or later"),
    "reverse_compute_inline: of a part": (
        PART_READ, lambda s: s.reverse_compute_inline(block(s, "B")), "BW314",
        "its instances may write the same element of B"),
    "reverse_compute_at: terms twice": (
        TERMS.replace("KIND", "range(32)").replace("TIMES", "2"),
        lambda s: s.reverse_compute_at(block(s, "B"), loop(s, "C", 1)), "BW315",
        "iterations would share terms"),
    "reverse_compute_at: terms at the same time": (
        TERMS.replace("KIND", "T.parallel(32)").replace("TIMES", "1"),
        lambda s: s.reverse_compute_at(block(s, "B"), loop(s, "C", 0)), "BW317",
        "drives the reduction iterator vk of block B, so it cannot be parallel"),
    "blockize: a condition on two iterators": (
        BELOW_ALL, lambda s: s.blockize(loop(s, "B", 1)), "BW356", "bound of a single iterator"),
    "reindex: what is not accessed": (
        CLAIMS_MORE, lambda s: s.reindex(block(s, "B"), ("read", 1)), "BW359",
        "does not access S by elements"),
    "transform_layout: squares": (
        CHAIN, lambda s: s.transform_layout(
            block(s, "C"), ("write", 0), lambda i, j: (i * i, j), pad_value=0.0,
            assume_injective_transform=True), "BW324", "the inverse of the map"),
    "decompose_reduction: by columns": (
        TERMS_BY_COLUMN, lambda s: s.decompose_reduction(block(s, "B"), loop(s, "B", 0)), "BW350",
        "the extent of loop i depends on a reduction loop"),
    "decompose_reduction: a condition on both": (
        TERMS_ALL, lambda s: s.decompose_reduction(block(s, "B"), loop(s, "B", 0)), "BW364",
        "mixes spatial and reduction loops"),
    "compute_inline: all that a block holds": (
        UNUSED, lambda s: s.compute_inline(block(s, "C")), "BW349", "nothing would be left"),
    "fuse: nothing": (COPY, lambda s: s.fuse(), "BW304", "no loops are given"),
    "reorder: nothing": (COPY, lambda s: s.reorder(), "BW304", "no loops are given"),
    "split: nothing": (COPY, lambda s: s.split(loop(s, "B", 0), []), "BW304", "no factors"),
    "split: a stranger": (COPY, lambda s: s.split(loop(s, "B", 0), [None, STRANGER]), "BW304",
                          "is not a size symbol of the program"),
    "loop_partition: too much": (COPY, lambda s: s.loop_partition(loop(s, "B", 0), [30, 3]),
                                 "BW318", "more iterations than"),
    "fuse: a triangle": (TRIANGLE, lambda s: s.fuse(*s.get_loops("B")), "BW350", "depends on"),
    "reorder: a triangle": (TRIANGLE, lambda s: s.reorder(*s.get_loops("B")[::-1]), "BW350",
                            "would move inside"),
    "rfactor: a spatial loop": (SUM, lambda s: s.rfactor(loop(s, "B", 0), 0), "BW332",
                                "binds no reduction iterator"),
    "merge: one nest": (COPY, lambda s: s.merge(*s.get_loops("B")), "BW310", "in adjacent nests"),
    "merge: the later first": (
        CHAIN, lambda s: s.merge(loop(s, "B", 0), loop(s, "C", 0)), "BW310", "program order"),
    "merge: different depths": (
        CHAIN, lambda s: s.merge(loop(s, "C", 0), loop(s, "B", 1)), "BW310", "at depth"),
    "cache_write: scope": (
        CHAIN, lambda s: s.cache_write(block(s, "C"), 0, "a b"), "BW304", "scope"),
    "cache_index: scope": (
        WINDOW, lambda s: s.cache_index(block(s, "B"), "a b"), "BW304", "scope"),
    "cache_inplace: scope": (
        IN_PLACE, lambda s: s.cache_inplace(block(s, "B"), 0, "a b"), "BW304", "scope"),
    "write_at: scope": (
        CHAIN, lambda s: s.write_at(loop(s, "C", 0), block(s, "C"), 0, "a b"), "BW304", "scope"),
    "reindex_cache_read: scope": (
        COPY, lambda s: s.reindex_cache_read(block(s, "B"), 0, "a b", turned),
        "BW304", "scope"),
    "reindex_cache_write: scope": (
        CHAIN, lambda s: s.reindex_cache_write(block(s, "C"), 0, "a b", turned),
        "BW304", "scope"),
    "annotate_buffer_access: nothing read": (
        CLAIM, lambda s: s.annotate_buffer_access(
            block(s, "B"), 1, "read", elements),
        "BW366", "does not read B;"),
    "blockize: a loop of two kinds": (
        KINDS, lambda s: s.blockize([block(s, "C"), block(s, "B")]), "BW364", "different kinds"),
    "blockize: bound apart": (
        SHIFTED, lambda s: s.blockize([block(s, "C"), block(s, "B")]), "BW315", "different ways"),
    "blockize: two scopes": (
        NEST, lambda s: s.blockize([block(s, "outer"), block(s, "B")]), "BW310", "one scope"),
    "vectorize: a triangle": (
        TRIANGLE, lambda s: s.vectorize(loop(s, "B", 1)), "BW354", "no constant extent"),
    "unroll: a triangle": (
        TRIANGLE, lambda s: s.unroll(loop(s, "B", 1)), "BW354", "no constant extent"),
    "unroll: a thread": (
        COPY, lambda s: (s.bind(loop(s, "B", 0), "blockIdx.x"), s.unroll(loop(s, "B", 0))),
        "BW312", "is bound to blockIdx.x already"),
    "vectorize: a thread": (
        COPY, lambda s: (s.bind(loop(s, "B", 0), "blockIdx.x"), s.vectorize(loop(s, "B", 0))),
        "BW312", "is bound to blockIdx.x already"),
    "parallel: a thread": (
        COPY, lambda s: (s.bind(loop(s, "B", 0), "blockIdx.x"), s.parallel(loop(s, "B", 0))),
        "BW312", "is bound to blockIdx.x already"),
    "loop_partition: two open factors": (
        COPY, lambda s: s.loop_partition(loop(s, "B", 0), [None, None]), "BW304",
        "more than one factor"),
    "loop_partition: nothing": (
        COPY, lambda s: s.loop_partition(loop(s, "B", 0), []), "BW304", "no factors"),
    "split: two open factors": (
        COPY, lambda s: s.split(loop(s, "B", 0), [None, None]), "BW304", "None"),
    "read_at: scope": (
        CHAIN, lambda s: s.read_at(loop(s, "B", 0), block(s, "B"), 0, "a b"), "BW304", "scope"),
    "cache_read: scope": (
        CHAIN, lambda s: s.cache_read(block(s, "B"), 0, "a b"), "BW304", "scope"),
    "set_scope: scope": (
        CHAIN, lambda s: s.set_scope(block(s, "C"), 0, "a b"), "BW304", "scope"),
    "annotate: twice": (
        COPY, lambda s: (s.annotate(loop(s, "B", 0), "note", 1),
                         s.annotate(loop(s, "B", 0), "note", 2)), "BW319", "annotated already"),
    "horizontal_fuse: the later first": (
        PAIR, lambda s: s.horizontal_fuse(loop(s, "B", 0), loop(s, "C", 0)), "BW310",
        "program order"),
    "reindex: partly written": (
        GUARDED, lambda s: s.reindex(block(s, "B"), ("read", 0)), "BW363",
        "not written everywhere"),
    "store_at: memory of all threads": (
        THREADS, lambda s: s.store_at(block(s, "C"), loop(s, "C", 0)), "BW352",
        "shared by the threads"),
    "horizontal_fuse: an annotated loop": (
        PAIR, lambda s: (s.annotate(loop(s, "C", 0), "note", 1),
                         s.horizontal_fuse(loop(s, "C", 0), loop(s, "B", 0))), "BW312",
        "is annotated with note"),
    "bind: a parallel loop": (
        COPY, lambda s: (s.parallel(loop(s, "B", 0)), s.bind(loop(s, "B", 0), "blockIdx.x")),
        "BW312", "is parallel already"),
    "annotate: streaming": (
        COPY, lambda s: s.annotate(loop(s, "B", 0), "nontemporal_stores", "yes"), "BW304",
        "number of bytes"),
    "sample_perfect_tile: parts": (
        COPY, lambda s: s.sample_perfect_tile(loop(s, "B", 0), 0), "BW304", "0 factors"),
    "sample_perfect_tile: decision": (
        COPY, lambda s: s.sample_perfect_tile(loop(s, "B", 0), 2, 16, [5, 5]), "BW318",
        "breaks a rule"),
    "sample_perfect_tile: no iterations": (
        EMPTY, lambda s: s.sample_perfect_tile(loop(s, "B", 0), 2), "BW318", "does not run"),
    "store_at: a layout of its own": (
        CHAIN, lambda s: (s.set_axis_separator(block(s, "C"), ("write", 0), [1]),
                          s.store_at(block(s, "C"), loop(s, "C", 0))), "BW328",
        "explicit layout"),
    "store_at: used around": (
        OUTSIDE, lambda s: s.store_at(block(s, "C"), loop(s, "C", 0)), "BW322",
        "used outside block rows"),
    "horizontal_fuse: left early": (
        LEFT, lambda s: s.horizontal_fuse(loop(s, "B", 0), loop(s, "D", 0)), "BW312",
        "contains a break or continue"),
    "software_pipeline: no such region": (
        STAGED, lambda s: (s.annotate(block(s, "C"), "double_buffer_scope", 3),
                           s.software_pipeline(loop(s, "B", 0), [0, 1])), "BW304",
        "not the position of one of its 1 write regions"),
    "software_pipeline: an output is no version": (
        STAGED, lambda s: (s.annotate(block(s, "B"), "double_buffer_scope", 0),
                           s.software_pipeline(loop(s, "B", 0), [0, 1])), "BW371",
        "cannot be double buffered"),
    "software_pipeline: read between blocks": (
        READ_BETWEEN, lambda s: s.software_pipeline(loop(s, "B", 0), [0, 1]), "BW313",
        "read outside blocks"),
    "atomic_update: scaled": (
        UPDATE, lambda s: s.atomic_update(block(s, "C")), "BW338", "update"),
    "atomic_update: halves": (
        UPDATE, lambda s: s.atomic_update(block(s, "D")), "BW338", "float16"),
    "store_at: a row as long as its number": (
        STEPS, lambda s: s.store_at(block(s, "C"), loop(s, "C", 1)), "BW350",
        "depends on another loop"),
    "tensorize: two blocks": (
        JOINED, lambda s: s.tensorize(s.blockize([block(s, "C"), block(s, "B")]), COPY_32),
        "BW327", "not loops around one block"),
    "tensorize: the same again": (
        TWICE, lambda s: s.tensorize(block(s, "outer"), COPY_32), "BW327",
        "do not run each of its instances once"),
    "tensorize: from the start": (
        WHOLE_SUM, lambda s: s.tensorize(block(s, "outer"), "random_dot_32_float32"), "BW327",
        "sets an initial value"),
    "compute_inline: a tile read as a whole": (
        JOINED, lambda s: (s.tensorize(loop(s, "B", 1), COPY_32), s.compute_inline("C")), "BW359",
        "as a whole, not element by element"),
    "compute_inline: read before": (
        BEFORE, lambda s: s.compute_inline(block(s, "C")), "BW316", "before block C writes"),
    "compute_at: read by nobody": (
        PAIR, lambda s: s.compute_at(block(s, "C"), loop(s, "B", 0)), "BW322",
        "nothing reads what block C writes"),
    "rolling_buffer: read by nobody": (
        PAIR, lambda s: s.rolling_buffer(block(s, "C"), 0), "BW322",
        "nothing reads what block C writes"),
    "merge: beside a block": (
        BESIDE, lambda s: s.merge(loop(s, "B", 0), loop(s, "D", 1)), "BW310",
        "contains other statements too"),
    "reindex: by a reduction": (
        ROWS_OVER, lambda s: s.reindex(block(s, "B"), ("write", 0)), "BW325",
        "use a reduction iterator"),
    "fuse_reduction_epilogue: of something else": (
        SUMS.format(start="0.0", where="True", value="A[vi, 0]"),
        lambda s: s.fuse_reduction_epilogue(block(s, "C"), block(s, "B")), "BW337",
        "does not read C"),
    "fuse_reduction_epilogue: from one": (
        SUMS.format(start="1.0", where="True", value="C[vi]"),
        lambda s: s.fuse_reduction_epilogue(block(s, "C"), block(s, "B")), "BW337",
        "does not start from the identity value"),
    "fuse_reduction_epilogue: of some rows": (
        SUMS.format(start="0.0", where="i % 2 == 0", value="C[vi]"),
        lambda s: s.fuse_reduction_epilogue(block(s, "C"), block(s, "B")), "BW356",
        "predicate beyond the domains"),
    "fuse_reduction_epilogue: too early": (
        LATE_SUM, lambda s: s.fuse_reduction_epilogue(block(s, "C"), block(s, "B")), "BW337",
        "comes before block C"),
    "decompose_padding: rows of different lengths": (
        PADDED,
        lambda s: s.decompose_padding(block(s, "B"), loop(s, "B", 0)), "BW350",
        "depends on another loop"),
    "decompose_padding: under a condition": (
        PADDED_LATE,
        lambda s: s.decompose_padding(block(s, "B"), loop(s, "B", 0)), "BW351",
        "decides what runs"),
    "store_at: a tile read as a whole": (
        JOINED, lambda s: (s.tensorize(loop(s, "B", 1), COPY_32),
                           s.store_at(block(s, "C"), loop(s, "C", 0))), "BW359",
        "used through a view"),
    "merge_reduction: a tile": (
        SUMS.format(start="0.0", where="True", value="C[vi]"),
        lambda s: (s.decompose_reduction(block(s, "C"), loop(s, "C", 0)),
                   s.blockize(loop(s, "C", 1)),
                   s.merge_reduction(block(s, "C_init"), block(s, "C_o"))), "BW336", "update"),
    "cache_write: a part of what is changed": (
        HALF, lambda s: s.cache_write(block(s, "first"), 0, "global"), "BW323",
        "has not written"),
    "transform_layout: skewed": (
        CHAIN, lambda s: s.transform_layout(block(s, "C"), ("write", 0),
                                            lambda i, j: (i + j, j), pad_value=0.0), "BW324",
        "not one to one"),
}  # fmt: skip
NO_NODES = {"fuse: nothing", "reorder: nothing", "sample_perfect_tile: parts"} | {
    name for name in CASES if name.endswith(": scope")
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_refused(name: str) -> None:
    require_refusal(name, CASES[name], unmarked=NO_NODES)


SYMBOLIC = """
@T.prim_func
def main(a: T.handle, b: T.handle, k: T.{dtype}):
    n = T.int32()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] * 2.0
"""


def test_a_symbolic_piece_is_positive() -> None:
    sch = Schedule(bw.from_source(SYMBOLIC.format(dtype="int32")))
    with pytest.raises(bw.ScheduleError, match="not provably positive") as caught:
        sch.loop_partition(sch.get_loops("B")[0], [sch.symbol("k"), None])
    assert caught.value.code == "BW318"


@pytest.mark.parametrize(
    ("dtype", "low", "words"),
    [("int32", {}, "not provably positive"), ("int64", {"k": 1}, "may be too large")],
)
def test_a_symbolic_factor_is_positive_and_fits_the_loop(
    dtype: str, low: dict[str, int], words: str
) -> None:
    func = bw.from_source(SYMBOLIC.format(dtype=dtype))
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func.with_attrs(tir_var_lower_bound=low))
    with pytest.raises(bw.ScheduleError, match=words) as caught:
        sch.split(sch.get_loops("B")[0], [None, sch.symbol("k")])
    assert caught.value.code == "BW318"


BOTH_ENDS = """
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.where({where})
        B[vi, vj] = A[vi, vj] * 2.0
"""


@pytest.mark.parametrize("where", ["i * 32 + j >= 1", "i * 32 + j < 1023", "i >= 1", "i < 31"])
@pytest.mark.parametrize("names", [("fuse",), ("split",), ("fuse", "split"), ("split", "fuse")])
def test_conditions_on_the_first_and_last_iteration_stay(where: str, names: tuple[str]) -> None:
    """New loops run from their first to their last iteration, and nothing else is known of them."""
    func = function(BOTH_ENDS.format(where=where))
    sch = Schedule(func, verify="full")
    for name in names:
        loops = sch.get_loops("B")
        if name == "fuse":
            sch.fuse(*loops[:2])
        else:
            sch.split(loops[0], [None, 8])
    assert_same_meaning(func, sch.func, exact=True)


PARALLEL_INSIDE = """
@T.prim_func
def main(A: T.Buffer((12, 8), "float32"), C: T.Buffer((10, 8), "float32")):
    B = T.alloc_buffer((12, 8), "float32")
    for i, j in T.grid(12, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]
    for i, j in T.grid(10, 8):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + B[vi + 2, vj]
"""


@pytest.mark.parametrize("parallel_first", [False, True])
def test_a_window_is_not_kept_by_iterations_of_a_parallel_loop(parallel_first: bool) -> None:
    """The buffer is private to them, and the loop around them starts them again."""
    sch = bw.Schedule(bw.from_source(PARALLEL_INSIDE))
    inner = sch.get_loops("C")[1]
    sch.compute_at("B", inner)
    steps = [lambda: sch.rolling_buffer("B", 0), lambda: sch.parallel(inner)]
    first, second = steps[::-1] if parallel_first else steps
    first()
    with pytest.raises(bw.ScheduleError) as caught:
        second()
    assert caught.value.code == ("BW312" if parallel_first else "BW316")
