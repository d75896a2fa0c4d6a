"""Access regions of blocks: what they read and write, as boxes over their own iterators."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.analysis import BlockScope, Tree, block_access_regions, relax_region
from blockwright.arith import Analyzer, covers
from blockwright.script.ir import from_source

HEAD = """
@T.prim_func
def main(
    A: T.Buffer((64, 64), "float32"), K: T.Buffer((64,), "int32"), B: T.Buffer((64, 64), "float32")
):
"""


def body(text: str) -> ir.PrimFunc:
    lines = "".join(f"    {line}\n" for line in text.strip("\n").splitlines())
    return from_source(HEAD + lines)


def regions(block: ir.Block) -> tuple[str, str]:
    reads, writes = block_access_regions(block)
    return tuple(", ".join(map(repr, found)) for found in (reads, writes))  # type: ignore[return-value]


def test_points_stay_the_indices_they_are() -> None:
    func = body("""
for i, j in T.grid(64, 63):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vj, vi] + A[vj + 1, vi]
""")
    block = ir.blocks(func)[1]
    assert regions(block) == ("A[vj:vj + 2, vi]", "B[vi, vj]")


def test_inner_loops_are_eliminated() -> None:
    func = body("""
for i in range(8):
    with T.block("B"):
        vi = T.axis.spatial(8, i)
        T.reads()
        T.writes()
        for j, k in T.grid(8, 64):
            B[vi * 8 + j, k] = A[vi * 8 + j, 63 - k] + A[0, j // 2]
""")
    block = ir.blocks(func)[1]
    assert regions(block) == ("A[0:vi * 8 + 8, 0:64]", "B[vi * 8:vi * 8 + 8, 0:64]")


def test_signatures_of_inner_blocks_are_used_under_their_predicate() -> None:
    func = body("""
with T.block("outer"):
    T.reads()
    T.writes()
    for i0, i1, j in T.grid(7, 10, 64):
        with T.block("B"):
            vi = T.axis.spatial(64, i0 * 10 + i1)
            vj = T.axis.spatial(64, j)
            T.where(i0 * 10 + i1 < 64)
            B[vi, vj] = A[vi, vj]
""")
    block = ir.blocks(func)[1]
    assert block.name == "outer"
    assert regions(block) == ("A[0:64, 0:64]", "B[0:64, 0:64]")


def test_a_block_that_never_runs_touches_nothing() -> None:
    func = body("""
with T.block("outer"):
    T.reads()
    T.writes()
    for i in range(2):
        with T.block("B"):
            vi = T.axis.spatial(64, i)
            B[vi, 0] = A[vi, 0]
    for i in range(2, 3):
        with T.block("dead"):
            vi = T.axis.spatial(64, i)
            T.where(i < 2)
            B[vi, 0] = A[vi, 0]
""")
    assert regions(ir.blocks(func)[1]) == ("A[0:2, 0]", "B[0:2, 0]")


SYMBOLIC = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n + 8,), "float32")
    B = T.match_buffer(b, (n + 8,), "float32")
    with T.block("outer"):
        T.reads()
        T.writes()
        for i in range(T.max(n - 2, 0)):
            with T.block("most"):
                vi = T.axis.spatial(n + 8, i + {ahead})
                B[vi] = A[vi]
        {rest}
"""


def written(ahead: int, rest: str) -> tuple[ir.Range, Analyzer]:
    """What a block writes of B around a loop that is empty for n < 3, and that n is at least 1."""
    func = from_source(SYMBOLIC.format(ahead=ahead, rest=rest.replace("\n", "\n        ")))
    n = func.buffers[0].shape[0]
    known = Analyzer(
        {v: ir.Range(ir.const(1, "int64"), ir.const(9, "int64")) for v in ir.free_vars(n)}
    )
    _, writes = block_access_regions(ir.blocks(func)[1], known)
    return writes[0].region[0], known


def test_a_loop_that_may_be_empty_says_nothing_of_what_stands_beside_it() -> None:
    region, known = written(3, "B[n] = A[n]")
    (n,) = ir.free_vars(region)
    assert covers([region], [ir.Range(n, ir.const(1, "int64"))], known)


def test_the_predicate_of_an_inner_block_tells_when_it_counts() -> None:
    """For n = 1 the second block does not run, so that nothing lies before element 0."""
    region, known = written(
        0,
        """with T.block("last but one"):
    v = T.axis.spatial(n + 8, n - 2)
    T.where(n - 1 >= 1)
    B[v] = A[v]
with T.block("last"):
    v = T.axis.spatial(n + 8, n - 1)
    B[v] = A[v]""",
    )
    (n,) = ir.free_vars(region)
    assert known.prove_equal(region.min, ir.const(0, "int64"))
    assert known.prove_equal(region.extent, n)


def test_an_index_from_memory_may_be_anywhere() -> None:
    func = body("""
for i, j in T.grid(64, 64):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[K[vi], vj]
""")
    assert regions(ir.blocks(func)[1]) == ("A[0:64, vj], K[vi]", "B[vi, vj]")


def test_what_a_reduction_updates_is_no_read_and_what_lives_inside_is_left_out() -> None:
    func = body("""
for i in range(64):
    with T.block("B"):
        vi = T.axis.spatial(64, i)
        t = T.alloc_buffer((1,), "float32")
        t[0] = A[vi, 0]
        B[vi, 0] = t[0]
for i, k in T.grid(64, 64):
    with T.block("R"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            B[vi, 1] = T.float32(0)
        B[vi, 1] = B[vi, 1] + A[vi, vk]
""")
    _, first, second = ir.blocks(func)
    assert regions(first) == ("A[vi, 0]", "B[vi, 0]")
    assert regions(second) == ("A[vi, vk]", "B[vi, 1]")


def test_views_are_seen_through() -> None:
    func = body("""
for i in range(8):
    with T.block("B"):
        vi = T.axis.spatial(8, i)
        T.reads(A[vi * 8:vi * 8 + 8, 0:64])
        T.writes(B[vi * 8:vi * 8 + 8, 0:64])
        V = T.match_buffer(A[vi * 8:vi * 8 + 8, 0:64], (8, 64), "float32", offset_factor=1)
        for j, k in T.grid(4, 64):
            B[vi * 8 + j, k] = V[j + 4, k]
""")
    assert regions(ir.blocks(func)[1]) == (
        "A[vi * 8 + 4:vi * 8 + 4 + 4, 0:64]",
        "B[vi * 8:vi * 8 + 4, 0:64]",
    )


def test_a_view_counts_in_the_integers_of_what_it_shows() -> None:
    func = body("""
for i in range(T.int64(8)):
    with T.block("B"):
        vi = T.axis.spatial(T.int64(8), i)
        T.reads(A[vi, 0:1])
        T.writes(B[vi, 0])
        V = T.match_buffer(A[vi, 0:1], (1, 1), "float32", offset_factor=1)
        B[vi, 0] = V[0, 0]
""")
    reads, _ = block_access_regions(ir.blocks(func)[1])
    row, column = reads[0].region
    assert row.extent.dtype is row.min.dtype is ir.dtype_of("int64")
    assert column.extent.dtype is column.min.dtype


@pytest.mark.parametrize(("tile", "count"), [(4, 16), (10, 7)])
def test_a_region_under_loops_with_symbolic_sizes(tile: int, count: int) -> None:
    n, i0, i1 = (ir.var(name, "int64") for name in ("n", "i0", "i1"))
    buffer = ir.Buffer("A", ir.dtype_of("float32"), (n,))
    index = i0 * tile + i1
    domains = {i1: ir.Range(ir.const(0, "int64"), ir.const(tile, "int64"))}
    analyzer = Analyzer({i0: ir.Range(ir.const(0, "int64"), ir.const(count, "int64"))})
    point = ir.point_region(buffer, [index])
    loose = relax_region(point, domains, analyzer)
    assert ir.const_int(loose.region[0].extent) == tile
    tight = relax_region(point, domains, analyzer, index < n)
    end = tight.region[0].min + tight.region[0].extent
    assert analyzer.prove(end <= n)


# ------------------------------------------------------------------------------------- data flow
CHAIN = body("""
T_ = T.alloc_buffer((64, 64), "float32")
S = T.alloc_buffer((64,), "float32")
for i in range(64):
    for j in range(64):
        with T.block("T"):
            vi, vj = T.axis.remap("SS", [i, j])
            T_[vi, vj] = A[vi, vj] * 2.0
    for k in range(64):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + T_[vi, vk]
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T_[vi, vj] + S[vi]
""")


def test_producers_consumers_and_kinds() -> None:
    scope = BlockScope(Tree(CHAIN), CHAIN.root)
    t, s, b = scope.blocks
    assert [scope.kind(x).value for x in (t, s, b)] == ["complete", "reduction", "complete"]
    assert scope.producers(b) == [t, s]
    assert scope.consumers(t) == [s, b]
    assert [scope.is_output(x) for x in (t, s, b)] == [False, False, True]
    assert scope.uncovered(s) == scope.uncovered(b) == ""


def test_a_consumer_that_reads_ahead_is_not_covered() -> None:
    func = from_source(
        CHAIN.script()
        .replace("T_[vi, vj] + S[vi]", "T_[vi, vj] + S[63 - vi]")
        .replace("T.reads(T_[vi, vj], S[vi])", "T.reads(T_[vi, vj], S[63 - vi])")
    )
    scope = BlockScope(Tree(func), func.root)
    assert "block S has not written all of S" in scope.uncovered(scope.blocks[2])


def test_a_partial_reduction_covers_nothing() -> None:
    func = body("""
S = T.alloc_buffer((64,), "float32")
for i, k in T.grid(64, 64):
    with T.block("S"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            S[vi] = T.float32(0)
        S[vi] = S[vi] + A[vi, vk]
    with T.block("B"):
        vi, vk = T.axis.remap("SS", [i, k])
        B[vi, vk] = S[vi]
""")
    scope = BlockScope(Tree(func), func.root)
    assert scope.uncovered(scope.blocks[1]) != ""


def test_reads_stand_in_order_of_first_access() -> None:
    """Also those of elements that the initial value does not give, whatever the buffers' hashes."""
    names = "abcdef"
    params = ", ".join(f'{n}: T.Buffer((8,), "float32")' for n in names)
    init = "".join(f"\n                {n}[vi % 2] = T.float32(0)" for n in names)
    body = "".join(f"\n            {n}[vi % 2] = {n}[vi // 2] + T.float32(1)" for n in names)
    func = from_source(f"""
@T.prim_func
def updates({params}):
    for i, k in T.grid(8, 8):
        with T.block("updates"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():{init}{body}
""")
    (block,) = [b for b in ir.blocks(func.body) if b.name == "updates"]
    assert [region.buffer.name for region in block.reads] == list(names)
