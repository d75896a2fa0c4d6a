"""Refusals for how a program is written, one for each place that asks: statements outside blocks,
conditions between loops and blocks, loops and iterators that start elsewhere, names and numbers."""

from __future__ import annotations

import pytest

from tests.schedule.refusals import CHAIN, COPY, Case, block, loop, require_refusal

PRODUCER, CONSUMER = CHAIN.split('\nfor i, j in T.grid(32, 32):\n    with T.block("B")')
LOOSE = f"""{PRODUCER}
C[0, 0] = T.float32(3)
for i, j in T.grid(32, 32):
    with T.block("B"){CONSUMER}"""
IN_PLACE = LOOSE.replace("C[vi, vj] = A[vi, vj]", "C[vi, vj] = C[vi, vj]")
EPILOGUE = """
C = T.alloc_buffer((32,), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SR", [i, j])
        with T.init():
            C[vi] = T.float32(0)
        C[vi] = C[vi] + A[vi, vj]
{element} = T.float32(3)
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[0, vi] = C[vi] + A[0, vi]
"""
GUARDED = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    if i < 16:
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(32, 32):
    if i < 16:
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] + 1.0
"""
WINDOW = """
C = T.alloc_buffer((32, 32), "float32")
for i in range(31):
    if i < 40:
        for a, j in T.grid(2, 32):
            with T.block("C"):
                vi = T.axis.spatial(32, i + a)
                vj = T.axis.spatial(32, j)
                C[vi, vj] = A[vi, vj] * 2.0
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] + C[vi + 1, vj]
"""
INSIDE = """
C = T.alloc_buffer((32, 32), "float32")
for i in range(32):
    for j in range(32):
        if j < 40:
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] * 2.0
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] + 1.0
"""
FROM_ONE = """
for i in range(1, 32):
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
"""
ITERATOR_FROM_ONE = """
for i, j in T.grid(31, 32):
    with T.block("B"):
        vi = T.axis.spatial((1, 32), i + 1)
        vj = T.axis.spatial(32, j)
        B[vi, vj] = A[vi, vj] * 2.0
"""
SUM = """
for i in range(32):
    for j in range({bounds}):
        with T.block("B"):
            vi = T.axis.spatial(32, i)
            vj = T.axis.reduce(32, j)
            with T.init():
                B[0, vi] = T.float32(0)
            B[0, vi] = B[0, vi] + A[vi, vj]
"""
SHARED_BODY = """
for j in range(32):
    for i in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                B[0, vi] = T.float32(0)
            B[0, vi] = B[0, vi] + A[vi, vj]
    B[1, j] = A[0, j]
"""
CASES: dict[str, Case] = {
    "cache_read": (
        LOOSE,
        lambda s: s.cache_read(block(s, "B"), 0, "local"),
        "BW313",
        "outside blocks",
    ),
    "cache_write": (
        LOOSE,
        lambda s: s.cache_write(block(s, "C"), 0, "local"),
        "BW313",
        "outside blocks",
    ),
    "cache_inplace": (
        IN_PLACE,
        lambda s: s.cache_inplace(block(s, "C"), 0, "local"),
        "BW313",
        "outside blocks",
    ),
    "compute_inline": (LOOSE, lambda s: s.compute_inline(block(s, "C")), "BW313", "outside blocks"),
    "reverse_compute_inline": (
        LOOSE,
        lambda s: s.reverse_compute_inline(block(s, "B")),
        "BW313",
        "outside blocks",
    ),
    "read_at": (
        LOOSE,
        lambda s: s.read_at(loop(s, "B", 0), block(s, "B"), 0, "local"),
        "BW313",
        "outside blocks",
    ),
    "write_at": (
        LOOSE,
        lambda s: s.write_at(loop(s, "C", 0), block(s, "C"), 0, "local"),
        "BW313",
        "outside blocks",
    ),
    "reindex": (LOOSE, lambda s: s.reindex(block(s, "B"), ("read", 0)), "BW313", "outside blocks"),
    "fuse_reduction_epilogue: the sum": (
        EPILOGUE.format(element="C[0]"),
        lambda s: s.fuse_reduction_epilogue(block(s, "C"), block(s, "B")),
        "BW313",
        "outside blocks",
    ),
    "fuse_reduction_epilogue: the result": (
        EPILOGUE.format(element="B[0, 0]"),
        lambda s: s.fuse_reduction_epilogue(block(s, "C"), block(s, "B")),
        "BW313",
        "outside blocks",
    ),
    "compute_inline: guarded": (
        GUARDED,
        lambda s: s.compute_inline(block(s, "C")),
        "BW351",
        "other than a loop",
    ),
    "reverse_compute_inline: guarded": (
        GUARDED,
        lambda s: s.reverse_compute_inline(block(s, "B")),
        "BW351",
        "other than a loop",
    ),
    "rolling_buffer: guarded": (
        WINDOW,
        lambda s: s.rolling_buffer(block(s, "C"), 0),
        "BW351",
        "other than a loop",
    ),
    "store_at: guarded": (
        INSIDE,
        lambda s: s.store_at(block(s, "C"), loop(s, "B", 0)),
        "BW351",
        "other than a loop",
    ),
    "bind: from 1": (
        FROM_ONE,
        lambda s: s.bind(loop(s, "B", 0), "threadIdx.x"),
        "BW350",
        "does not start at 0",
    ),
    "rfactor: from 1": (
        SUM.format(bounds="1, 32"),
        lambda s: s.rfactor(loop(s, "B", 1), 0),
        "BW350",
        "does not start at 0",
    ),
    "rfactor: a triangle": (
        SUM.format(bounds="0, i + 1"),
        lambda s: s.rfactor(loop(s, "B", 1), 0),
        "BW350",
        "depends on another loop",
    ),
    "rfactor: a body that is shared": (
        SHARED_BODY,
        lambda s: s.rfactor(loop(s, "B", 0), 0),
        "BW310",
        "share the loop",
    ),
    "reindex: from 1": (
        ITERATOR_FROM_ONE,
        lambda s: s.reindex(block(s, "B"), ("read", 0)),
        "BW350",
        "does not start at 0",
    ),
    "split: a name": (
        COPY,
        lambda s: s.split(loop(s, "B", 0), [None, 4], names=["a", "1b"]),
        "BW304",
        "'1b' is not a name",
    ),
    "split: a name too few": (
        COPY,
        lambda s: s.split(loop(s, "B", 0), [None, 4], names=["a"]),
        "BW304",
        "1 names for 2 loops",
    ),
    "sample_perfect_tile: no factor": (
        COPY,
        lambda s: s.sample_perfect_tile(loop(s, "B", 0), 0, 4),
        "BW304",
        "0 factors",
    ),
    "sample_perfect_tile: a decision": (
        COPY,
        lambda s: s.sample_perfect_tile(loop(s, "B", 0), 2, 4, decision=[3, 5]),
        "BW318",
        "product is 32",
    ),
}
UNMARKED = {"sample_perfect_tile: no factor"}


@pytest.mark.parametrize("name", CASES)
def test_refused_for_its_form(name: str) -> None:
    require_refusal(name, CASES[name], UNMARKED)
