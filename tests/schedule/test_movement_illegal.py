"""Copies, layouts, padding and split-up reductions that would change what a program means.

Every case names the step that must be refused, the code, and words of the reason.
"""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.schedule import BlockRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from tests.schedule.refusals import CHAIN, COPY, Case, Step, block, function, loop, require_refusal

IN_PLACE = """
for i, j in T.grid(32, 32):
    with T.block("A"):
        vi, vj = T.axis.remap("SS", [i, j])
        A[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] + 1.0
"""
READ_THEN_WRITTEN = """
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] + 1.0
for i, j in T.grid(32, 32):
    with T.block("A"):
        vi, vj = T.axis.remap("SS", [i, j])
        A[vi, vj] = T.float32(0)
"""
HALF = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.where(i < 20)
        C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(20, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj] + 1.0
"""
GUARDED = HALF.replace("T.grid(20, 32)", "T.grid(32, 32)").replace(
    "C[vi, vj] + 1.0", "T.if_then_else(vi < 20, C[vi, vj], T.float32(0))"
)
STRIDED = (
    HALF.replace("T.where(i < 20)", "T.where(i < 16)")
    .replace("C[vi, vj] = A", "C[vi * 2, vj] = A")
    .replace("T.grid(20, 32)", "T.grid(16, 32)")
    .replace("C[vi, vj] + 1", "C[vi * 2, vj] + 1")
)
BETWEEN = """
C = T.alloc_buffer((32, 32), "float32")
D = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(16, 32):
    with T.block("C0"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj]
for i, j in T.grid(32, 32):
    with T.block("D"):
        vi, vj = T.axis.remap("SS", [i, j])
        D[vi, vj] = T.if_then_else(vi < 16, C[vi, vj], T.float32(0))
for i, j in T.grid(16, 32):
    with T.block("C1"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi + 16, vj] = A[vi + 16, vj] * 2.0
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj] + D[vi, vj]
"""
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
LATE_CONSUMER = """
C = T.alloc_buffer((32, 32), "float32")
D = T.alloc_buffer((32, 32), "float32")
for i in range(32):
    for j in range(32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * 2.0
    for j in range(32):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] + 1.0
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj] + D[vi, vj]
"""
SUM = """
C = T.alloc_buffer((32,), "float32")
for i, k in T.grid(32, 32):
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
COUPLED = SUM.replace("vi, vk = T", "T.where(i * 32 + k < 700)\n        vi, vk = T")
PRODUCT = """
C = T.alloc_buffer((32, 32), "float32")
for i, j, k in T.grid(32, 32, 32):
    with T.block("C"):
        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = C[vi, vj] + A[vi, vk] * A[vj, vk]
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj] + 1.0
"""
PAD = """
C = T.alloc_buffer((36, 32), "float32")
for i, j in T.grid(36, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = T.if_then_else(vi < 32, A[vi, vj], T.float32(0))
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi + 4, vj]
"""
SCAN = """
for i, j in T.grid(32, 31):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj + 1] = B[vi, vj] + A[vi, vj]
"""
INDIRECT = COPY.replace("A[vi, vj]", "A[T.cast(A[vi, 0], 'int32'), vj]")


def blockized(sch: Schedule, name: str) -> BlockRV:
    return sch.blockize(loop(sch, name, 1))


SET_SCOPE: dict[str, Case] = {
    "set_scope: parameter": (
        COPY, lambda s: s.set_scope(block(s, "B"), 0, "local"), "BW321", "is a parameter"),
    "set_scope: no such region": (
        CHAIN, lambda s: s.set_scope(block(s, "C"), 1, "local"), "BW320", "there is no number 1"),
    "set_scope: no such name": (
        CHAIN, lambda s: s.set_scope(block(s, "C"), "A", "local"), "BW320",
        "only reads 'A' and does not write it"),
    "set_scope: no name": (
        CHAIN, lambda s: s.set_scope(block(s, "C"), 0, "fast memory"), "BW304",
        "is not a storage scope"),
    "set_scope: type": (CHAIN, lambda s: s.set_scope(block(s, "C"), 0, 3), "BW304",
                        "argument 3, 'storage_scope': expected a string, got int 3"),
}  # fmt: skip
CACHE_READ: dict[str, Case] = {
    "cache_read: no name": (COPY, lambda s: s.cache_read(block(s, "B"), 0, ""), "BW304",
                            "is not a storage scope"),
    "cache_read: block changes what it reads": (
        IN_PLACE, lambda s: s.cache_read(block(s, "A"), 0, "local"), "BW323", "cannot read a copy"),
    "cache_read: read before it is written": (
        READ_THEN_WRITTEN, lambda s: s.cache_read(block(s, "B"), 0, "local"), "BW323",
        "reads it before it is written"),
    "cache_read: partly written": (
        GUARDED, lambda s: s.cache_read(block(s, "B"), 0, "local"), "BW323",
        "does not write every element"),
    "cache_read: between writers": (
        BETWEEN, lambda s: s.cache_read(block(s, "D"), "C", "local"), "BW323",
        "reads it before it is written"),
    "cache_read: consumer outside the shared loops": (
        LATE_CONSUMER, lambda s: s.cache_read(block(s, "D"), "C", "local"), "BW323",
        "outside the loops that its producer shares"),
    "cache_read: not a consumer": (
        CHAIN, lambda s: s.cache_read(block(s, "B"), 0, "local", [block(s, "C")]), "BW322",
        "block C does not read C in this scope"),
    "cache_read: no consumers": (
        CHAIN, lambda s: s.cache_read(block(s, "B"), 0, "local", []), "BW322",
        "no block would read the copy"),
    "cache_read: the root": (CHAIN, lambda s: s.cache_read(block(s, "root"), 0, "local"), "BW320",
                             "0 read regions"),
}  # fmt: skip
CACHE_WRITE: dict[str, Case] = {
    "cache_write: earlier values are read": (
        IN_PLACE, lambda s: s.cache_write(block(s, "A"), 0, "local"), "BW323",
        "would not hold the earlier values"),
    "cache_write: recurrence": (
        SCAN, lambda s: s.cache_write(block(s, "B"), 0, "local"), "BW323",
        "would not hold the earlier values"),
    "cache_write: every second row": (
        STRIDED, lambda s: s.cache_write(block(s, "C"), 0, "local"), "BW323",
        "does not write every element"),
    "cache_write: reader between writers": (
        BETWEEN, lambda s: s.cache_write(block(s, "C0"), 0, "local"), "BW323",
        "block D reads elements of C that block C0, C1 has not written"),
    "cache_write: not a consumer": (
        CHAIN, lambda s: s.cache_write(block(s, "C"), 0, "local", [block(s, "C")]), "BW322",
        "block C does not read C in this scope"),
    "cache_write: consumer before the block": (
        READ_THEN_WRITTEN, lambda s: s.cache_write(block(s, "A"), 0, "local", [block(s, "B")]),
        "BW323", "has not written"),
}  # fmt: skip
REINDEX: dict[str, Case] = {
    "reindex: no buffer": (COPY, lambda s: s.reindex(block(s, "B"), 3), "BW320", "names no buffer"),
    "reindex: producer in the same loops": (
        SHARED, lambda s: s.reindex(block(s, "B"), ("read", 0)), "BW323", "uses C too"),
    "reindex: consumer in the same loops": (
        SHARED, lambda s: s.reindex(block(s, "C"), ("write", 0)), "BW323", "uses C too"),
    "reindex: earlier values are read": (
        IN_PLACE, lambda s: s.reindex(block(s, "A"), ("write", 0)), "BW323",
        "would not hold the earlier values"),
    "reindex: predicate on the writer": (
        HALF, lambda s: s.reindex(block(s, "C"), ("write", 0)), "BW361",
        "do not reach its whole domain"),
    "reindex: predicate on fused loops of the writer": (
        HALF, lambda s: (s.fuse(*s.get_loops("C")), s.reindex(block(s, "C"), ("write", 0))),
        "BW361", "do not reach its whole domain"),
    "reindex: guarded read outside the buffer": (
        PAD, lambda s: s.reindex(block(s, "C"), ("read", 0)), "BW363", "may lie outside it"),
    "reindex: index from memory": (
        INDIRECT, lambda s: s.reindex(block(s, "B"), ("read", 0)), "BW325", "different indices"),
    "reindex: two indices": (
        PRODUCT, lambda s: s.reindex(block(s, "C"), ("read", 0)), "BW325", "different indices"),
    "reindex: many to one": (
        COPY.replace("B[vi, vj]", "B[vi // 2, vj]"),
        lambda s: s.reindex(block(s, "B"), ("write", 0)), "BW325", "not one to one"),
    "reindex: behind a view": (
        CHAIN, lambda s: s.reindex(blockized(s, "B"), ("read", 0)), "BW362", "has inner blocks"),
}  # fmt: skip
LAYOUT: dict[str, Case] = {
    "transform_layout: parameter": (
        COPY, lambda s: s.transform_layout(block(s, "B"), "A", lambda i, j: (j, i)), "BW321",
        "is a parameter"),
    "transform_layout: overlapping": (
        CHAIN, lambda s: s.transform_layout(block(s, "C"), "C", lambda i, j: (i + j,)), "BW324",
        "not one to one"),
    "transform_layout: number of indices": (
        CHAIN, lambda s: s.transform_layout(block(s, "C"), "C", lambda i, j, k: (i, j, k)),
        "BW324", "takes 3 indices, C has 2"),
    "transform_layout: negative places": (
        CHAIN, lambda s: s.transform_layout(block(s, "C"), "C", lambda i, j: (i - 1, j)),
        "BW324", "negative indices"),
    "transform_block_layout: shifted": (
        COPY, lambda s: s.transform_block_layout(block(s, "B"), lambda i, j: (i + 1, j)),
        "BW324", "does not start at 0"),
    "transform_layout: indices by keyword": (
        CHAIN, lambda s: s.transform_layout(block(s, "C"), "C", lambda **i: i), "BW304",
        "write one parameter per index"),
    "transform_block_layout: number of iterators": (
        COPY, lambda s: s.transform_block_layout(block(s, "B"), lambda i: (i,)), "BW324",
        "takes 1 iterators, B has 2"),
    "transform_block_layout: overlapping": (
        COPY, lambda s: s.transform_block_layout(block(s, "B"), lambda i, j: (i * 20 + j,)),
        "BW324", "not one to one"),
    "transform_block_layout: kinds mixed": (
        SUM, lambda s: s.transform_block_layout(block(s, "C"), lambda i, k: (i * 32 + k,)),
        "BW364", "mix spatial and reduction"),
    "transform_block_layout: split loop": (
        COPY, lambda s: (s.split(loop(s, "B", 0), [None, 8]),
                         s.transform_block_layout(block(s, "B"), lambda i, j: (j, i))),
        "BW322", "not bound to a plain loop of its own"),
    "transform_block_layout: parallel loop": (
        COPY, lambda s: (s.parallel(loop(s, "B", 0)),
                         s.transform_block_layout(block(s, "B"), lambda i, j: (j, i))),
        "BW322", "not bound to a plain loop of its own"),
    "transform_block_layout: annotated loop": (
        COPY, lambda s: (s.annotate(loop(s, "B", 0), "note", 1),
                         s.transform_block_layout(block(s, "B"), lambda i, j: (j, i))),
        "BW322", "not bound to a plain loop of its own"),
    "transform_block_layout: predicate": (
        HALF, lambda s: s.transform_block_layout(block(s, "C"), lambda i, j: (j, i)), "BW322",
        "predicate"),
    "transform_block_layout: part of the domain": (
        COPY.replace('T.axis.remap("SS", [i, j])', "T.axis.spatial(32, i), T.axis.spatial(32, j)")
        .replace("T.grid(32, 32)", "T.grid(20, 32)"),
        lambda s: s.transform_block_layout(block(s, "B"), lambda i, j: (j, i)), "BW322",
        "not bound to a plain loop of its own"),
    "transform_block_layout: carried dependence": (
        SCAN, lambda s: s.transform_block_layout(block(s, "B"), lambda i, j: (j, i)), "BW314",
        "it reads and writes B"),
}  # fmt: skip


def pad(name: str, *padding: int, mode: str = "zero") -> Step:
    return lambda s: s.pad_einsum(block(s, name), list(padding), mode)


PADDING: dict[str, Case] = {
    "pad_einsum: numbers": (CHAIN, pad("C", 5), "BW304", "one number of at least 1"),
    "pad_einsum: nothing": (CHAIN, pad("C", 0, 1), "BW304", "one number of at least 1"),
    "pad_einsum: mode": (CHAIN, pad("C", 5, 1, mode="edge"), "BW304", "got 'edge'"),
    "pad_einsum: predicate": (HALF, pad("C", 5, 1), "BW322", "predicate"),
    "pad_einsum: shared loops": (SHARED, pad("C", 5, 1), "BW322", "not bound to a plain loop"),
    "pad_einsum: iterator in the value": (
        CHAIN.replace("A[vi, vj] * 2.0", "A[vi, vj] * T.cast(vi, 'float32')"),
        pad("C", 5, 1, mode="clamp"), "BW326", "used other than in an index"),
    "pad_einsum: iterator in a condition": (
        CHAIN.replace("A[vi, vj] * 2.0", "T.if_then_else(vi < 3, A[vi, vj], T.float32(0))"),
        pad("C", 5, 1, mode="clamp"), "BW326", "used other than in an index"),
    "pad_einsum: computed index": (
        CHAIN.replace("A[vi, vj] * 2.0", "A[31 - vi, vj]"), pad("C", 5, 1), "BW326",
        "becomes negative on padded points"),
    "pad_einsum: clamped reduction": (
        PRODUCT, pad("C", 1, 1, 5, mode="clamp"), "BW326", "padded terms would change the result"),
    "pad_einsum: factor without the reduction iterator": (
        PRODUCT.replace("A[vi, vk] * A[vj, vk]", "A[vi, vk] * A[vi, vj]"), pad("C", 1, 1, 5),
        "BW326", "every factor is indexed by the iterator"),
    "pad_einsum: factor that is not zero": (
        PRODUCT.replace("A[vi, vk] * A[vj, vk]", "A[vi, vk] * (A[vj, vk] + 1.0)"),
        pad("C", 1, 1, 5), "BW326", "the padded terms would change the result"),
    "pad_einsum: maximum": (
        PRODUCT.replace("C[vi, vj] + A[vi, vk] * A[vj, vk]",
                        "T.max(C[vi, vj], A[vi, vk] * A[vj, vk])")
        .replace("T.float32(0)", "T.float32('-inf')"),
        pad("C", 1, 1, 5), "BW326", "the padded terms would change the result"),
    "pad_einsum: result without the iterator": (
        SUM.replace('"SR"', '"SS"').replace("C[vi] + A[vi, vk]", "A[vi, vk]")
        .replace("        with T.init():\n            C[vi] = T.float32(0)\n", ""),
        pad("C", 1, 5), "BW326", "is not an index of C"),
    "pad_einsum: result not filled": (
        CHAIN.replace("C = T.alloc_buffer((32, 32)", "C = T.alloc_buffer((40, 32)"),
        pad("C", 5, 1), "BW323|BW326", "does not fill C|does not write every element"),
    "pad_einsum: decomposed reduction": (
        PRODUCT, lambda s: (s.decompose_reduction(block(s, "C"), loop(s, "C", 0)),
                            s.pad_einsum(block(s, "C"), [5, 1, 1], "clamp")),
        "BW322|BW323", "earlier values|other than by a loop|uses C too"),
}  # fmt: skip
INT_DIVISION = """
@T.prim_func
def main(A: T.Buffer((6,), "int32"), B: T.Buffer((6,), "int32")):
    C = T.alloc_buffer((6,), "int32")
    for i in range(6):
        with T.block("C"):
            vi = T.axis.spatial(6, i)
            C[vi] = 100 // A[vi]
    for i in range(6):
        with T.block("B"):
            vi = T.axis.spatial(6, i)
            B[vi] = C[vi]
"""
REDUCTION: dict[str, Case] = {
    "rfactor: spatial loop": (SUM, lambda s: s.rfactor(loop(s, "C", 0), 0), "BW332",
                              "binds no reduction iterator"),
    "rfactor: axis": (SUM, lambda s: s.rfactor(loop(s, "C", 1), 2), "BW304",
                      "factor_axis must be between -2 and 1"),
    "rfactor: several blocks": (
        SHARED, lambda s: s.rfactor(loop(s, "C", 0), 0), "BW310", "exactly one block below"),
    "rfactor: initial value that counts": (
        SUM.replace("T.float32(0)", "T.float32(1)"), lambda s: s.rfactor(loop(s, "C", 1), 0),
        "BW330", "is not known to be neutral and would be combined"),
    "rfactor: difference": (
        SUM.replace("C[vi] + A[vi, vk]", "C[vi] - A[vi, vk]"),
        lambda s: s.rfactor(loop(s, "C", 1), 0), "BW330", "not a sum, product"),
    "rfactor: term reads the result": (
        SUM.replace("C[vi] + A[vi, vk]", "C[vi] + A[vi, vk] * C[vi]"),
        lambda s: s.rfactor(loop(s, "C", 1), 0), "BW330", "a term free of it"),
    "rfactor: decomposed": (
        SUM, lambda s: (s.decompose_reduction(block(s, "C"), loop(s, "C", 1)),
                        s.rfactor(loop(s, "C", 1), 0)), "BW330", "no initial value"),
    "rfactor: condition on a split loop": (
        COUPLED,
        lambda s: (s.split(loop(s, "C", 0), [None, 8]), s.rfactor(loop(s, "C", 2), 0)),
        "BW331", "couples loops"),
    "rfactor: shared reduction loop": (
        """
C = T.alloc_buffer((32,), "float32")
for k0 in range(4):
    for i, k1 in T.grid(32, 8):
        with T.block("C"):
            vi = T.axis.spatial(32, i)
            vk = T.axis.reduce(32, k0 * 8 + k1)
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]
    for i in range(32):
        with T.block("B"):
            vi, vk = T.axis.remap("SS", [i, k0])
            B[vi, vk] = C[vi]
""", lambda s: s.rfactor(loop(s, "C", 2), 0), "BW310", "share the body of reduction loop k0"),
    "decompose_reduction: loop elsewhere": (
        SUM, lambda s: s.decompose_reduction(block(s, "C"), loop(s, "B", 0)), "BW310",
        "is not above C"),
    "decompose_reduction: twice": (
        SUM, lambda s: (s.decompose_reduction(block(s, "C"), loop(s, "C", 1)),
                        s.decompose_reduction(block(s, "C"), loop(s, "C", 1))), "BW331",
        "no initial value"),
    "decompose_reduction: fused spatial and reduction loop": (
        SUM, lambda s: s.decompose_reduction(block(s, "C"), s.fuse(*s.get_loops(block(s, "C")))),
        "BW364", "binds spatial and reduction iterators"),
    "decompose_reduction: condition that mixes loops": (
        COUPLED,
        lambda s: s.decompose_reduction(block(s, "C"), loop(s, "C", 1)), "BW331",
        "couples loops"),
    "decompose_reduction: earlier values are read": (
        """
C = T.alloc_buffer((32,), "float32")
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = C[31 - vi]
    for k in range(32):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]
""", lambda s: s.decompose_reduction(block(s, "C"), loop(s, "C", 0)), "BW323",
        "reads C in iterations of loop i before those"),
    "decompose_reduction: guarded nest": (
        """
for i in range(32):
    if i < 20:
        for k in range(32):
            with T.block("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi, 0] = T.float32(0)
                B[vi, 0] = B[vi, 0] + A[vi, vk]
""", lambda s: s.decompose_reduction(block(s, "B"), loop(s, "B", 0)), "BW351",
        "decides what runs"),
}  # fmt: skip

CASES = {**SET_SCOPE, **CACHE_READ, **CACHE_WRITE, **REINDEX, **LAYOUT, **PADDING, **REDUCTION}


UNMARKED = {
    "set_scope: no name",
    "set_scope: type",
    "cache_read: no name",
    "transform_layout: indices by keyword",
}
"""Where nothing in the program is wrong: the argument is none, whatever the program."""


@pytest.mark.parametrize("name", CASES)
def test_the_step_is_refused(name: str) -> None:
    require_refusal(name, CASES[name], UNMARKED)


def test_zero_padding_under_an_integer_division_is_refused() -> None:
    sch = Schedule(from_source(INT_DIVISION))
    with pytest.raises(ScheduleError, match="which would be zero in the padding") as caught:
        sch.pad_einsum(sch.get_block("C"), [4])
    assert caught.value.code == "BW326"
    sch.pad_einsum(sch.get_block("C"), [4], "clamp")


VIEWED = """
C = T.alloc_buffer((32, 32), "float32")
for i in range(32):
    with T.block("C"):
        vi = T.axis.spatial(32, i)
        T.reads(A[vi, 0:32])
        T.writes(C[vi, 0:32])
        row = T.match_buffer(C[vi, 0:32], (32,), "float32")
        for j in range(32):
            row[j] = A[vi, j]
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj] + 1.0
"""


def test_a_viewed_buffer_keeps_its_layout() -> None:
    sch = Schedule(function(VIEWED))
    with pytest.raises(ScheduleError, match="through a view") as caught:
        sch.transform_layout(sch.get_block("B"), "C", lambda i, j: (j, i))
    assert caught.value.code == "BW359"


def test_a_copy_is_made_where_views_are() -> None:
    """A view is taken of the copy when its block becomes a consumer or writer of it."""
    sch = Schedule(function(VIEWED), verify="full")
    sch.cache_write(sch.get_block("C"), 0, "global")
    (match,) = ir.collect(sch.func, ir.MatchBufferRegion)
    assert match.source.buffer.name == "C_global"


def test_a_written_block_in_place_may_still_feed_other_readers() -> None:
    """The copy for a later reader is made behind the block that changes the buffer."""
    sch = Schedule(function(IN_PLACE), verify="full")
    sch.cache_read(sch.get_block("B"), 0, "global", [sch.get_block("B")])
    assert [b.name for b in ir.blocks(sch.func)] == ["root", "A", "A_global", "B"]
    again = Schedule(function(IN_PLACE), verify="full")
    first, second = again.get_block("A"), again.get_block("B")
    again.cache_read(first, 0, "global", [second])
    assert [b.name for b in ir.blocks(again.func)] == ["root", "A", "A_global", "B"]
