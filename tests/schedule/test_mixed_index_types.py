"""Steps on nests whose loops differ in type, as those of `T.grid(n, 4)` with an int64 size do, keep
operands of one type: printed programs read back as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.testing import assert_same_meaning

SOURCE = """
@T.prim_func
def main(a: T.handle, c: T.handle, n: T.int64):
    A = T.match_buffer(a, (n, 4), "float32")
    C = T.match_buffer(c, (n, 4), "float32")
    B = T.alloc_buffer((n, 4), "float32")
    for i, j in T.grid(n, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.Cast("float32", vj * 3 + 1)
    for i, j in T.grid(n, T.int64(4)):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, T.int64(3) - vj] + T.Cast("float32", vj * T.int64(5) + vi)
"""
TILED = """
@T.prim_func
def main(a: T.handle, c: T.handle, n: T.int64):
    A = T.match_buffer(a, (n, 8), "float32")
    C = T.match_buffer(c, (n, 8), "float32")
    for i, j in T.grid(n, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            tile = T.match_buffer(A[vi, vj * 2 : vj * 2 + 2], (2,), "float32", offset_factor=1)
            for k in range(2):
                C[vi, vj * 2 + k] = tile[1 - k] + T.Cast("float32", vj * 3 + k)
"""
STEPS: dict[str, tuple[str, Callable[[Schedule], object]]] = {
    "inline": (SOURCE, lambda s: s.compute_inline("B")),
    "reverse_compute_inline": (SOURCE, lambda s: s.reverse_compute_inline("C")),
    "digits": (SOURCE, lambda s: s.transform_block_layout("B", lambda i, j: (i, j // 2, j % 2))),
    "turned": (SOURCE, lambda s: s.transform_block_layout("B", lambda i, j: (j, i))),
    "fused": (TILED, lambda s: s.transform_block_layout("C", lambda i, j: (i * 4 + j,))),
    "tiles": (TILED, lambda s: s.transform_block_layout("C", lambda i, j: (j, i))),
}


@pytest.mark.parametrize("name", STEPS)
def test_operands_keep_one_type(name: str) -> None:
    source, step = STEPS[name]
    func = bw.from_source(source)
    sch = Schedule(func, verify="full")
    step(sch)
    assert_same_meaning(func, sch.func, sizes={"n": 3})
    ir.assert_structural_equal(bw.from_source(sch.func.script()), sch.func)
    for node in ir.walk(sch.func):
        if isinstance(node, (ir.Add, ir.Sub, ir.Mul, ir.FloorDiv, ir.FloorMod, ir.GT, ir.GE)):
            assert node.a.dtype is node.b.dtype, node


WIDE_INDICES = """
@T.prim_func
def main(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32")):
    H = T.alloc_buffer((T.int64(8),), "float32")
    for i in range(8):
        with T.block("H"):
            vi = T.axis.spatial(8, i)
            H[T.Cast("int64", vi)] = X[(vi + 4) % 8] + T.Cast("float32", vi * 3)
    for i in range(8):
        with T.block("Y"):
            vi = T.axis.spatial(8, i)
            Y[vi] = H[T.Cast("int64", 7 - vi)]
"""
SHIFTED = """
@T.prim_func
def main(x: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n, 8), "float32")
    Y = T.match_buffer(y, (n, 8), "float32")
    H = T.alloc_buffer((n, 8), "float32")
    for i, j in T.grid(n, 8):
        with T.block("H"):
            vi, vj = T.axis.remap("SS", [i, j])
            H[vi, vj] = X[vi, (vj + 4) % 8]
    for i, j in T.grid(n, 8):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = H[vi, vj] * T.Cast("float32", vj * 3 + 1)
"""
LAYOUTS: dict[str, Callable[[Schedule], object]] = {
    "turned": lambda s: s.transform_layout("H", "H", lambda i, j: (j, i)),
    "tiled": lambda s: s.transform_layout("H", "H", lambda i, j: (j // 4, i, j % 4)),
    "fused": lambda s: s.transform_layout("H", "H", lambda i, j: (i * 8 + j,)),
    "reindexed": lambda s: s.reindex("Y", "H"),
    "copied": lambda s: s.reindex_cache_read("Y", 0, "global", lambda i, j: (j, i)),
}
INLINES: dict[str, Callable[[Schedule], object]] = {
    "compute_inline": lambda s: s.compute_inline("H"),
    "reverse_compute_inline": lambda s: s.reverse_compute_inline("Y"),
}


def require_well_typed(sch: Schedule, source: str) -> None:
    """The program builds, does the same as before, and its text reads back as it is."""
    bw.build(sch.func)
    ir.assert_structural_equal(bw.from_source(sch.func.script()), sch.func)
    assert_same_meaning(bw.from_source(source), sch.func, sizes={"n": 3})


@pytest.mark.parametrize("inline", INLINES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inlining_through_wider_indices(layout: str, inline: str) -> None:
    """Iterators that are found from indices of a wider type are converted to their own."""
    sch = Schedule(bw.from_source(SHIFTED), verify="full")
    LAYOUTS[layout](sch)
    INLINES[inline](sch)
    require_well_typed(sch, SHIFTED)


def test_an_iterator_that_was_widened_for_an_index_is_inlined_as_itself() -> None:
    sch = Schedule(bw.from_source(WIDE_INDICES), verify="full")
    sch.compute_inline("H")
    require_well_typed(sch, WIDE_INDICES)
    assert 'Y[vi] = X[(7 - vi + 4) % 8] + T.Cast("float32", (7 - vi) * 3)' in sch.func.script()


def test_a_wide_iterator_of_a_narrow_index_keeps_its_type() -> None:
    source = WIDE_INDICES.replace("T.int64(8)", "8").replace('"int64"', '"int32"')
    source = source.replace("range(8)", "range(T.int64(8))", 1)
    source = source.replace("X[(vi + 4) % 8]", "X[(vi + T.int64(4)) % T.int64(8)]")
    source = source.replace("vi * 3", "vi * T.int64(3)").replace(
        'T.Cast("int32", 7 - vi)', "7 - vi"
    )
    sch = Schedule(bw.from_source(source), verify="full")
    sch.compute_inline("H")
    require_well_typed(sch, source)
