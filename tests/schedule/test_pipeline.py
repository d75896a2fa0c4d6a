"""Software pipelines and double buffers: what they look like, what they refuse, how they run."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import Module
from blockwright.schedule import LoopRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning

CHAIN = """
B = T.alloc_buffer((32,), "float32")
for i in range(16):
    for j in range(32):
        with T.block("load"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vj] = A[vi, vj] * 2.0
    for j in range(32):
        with T.block("use"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vj] + 1.0
"""
ROLLING = """
B = T.alloc_buffer((32,), "float32")
for i in range(15):
    for j in range(32):
        with T.block("load"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vj] = C[vi, vj] * 2.0
    for j in range(32):
        with T.block("use"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi + 1, vj] = B[vj] + 1.0
"""
KEPT = (
    CHAIN
    + """
for j in range(32):
    with T.block("after"):
        vj = T.axis.spatial(32, j)
        A[0, vj] = B[vj]
"""
)
BARE = """
for i in range(16):
    A[i, 0] = 1.0
    for j in range(32):
        with T.block("use"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = 1.0
"""
ASSERTS = """
for i in range(16):
    with T.block("load"):
        vi = T.axis.spatial(16, i)
        T.evaluate(T.print("row", vi))
        C[vi, 0] = 1.0
    with T.block("use"):
        vi = T.axis.spatial(16, i)
        T.evaluate(T.print("done", vi))
        A[vi, 0] = 1.0
"""


def program(lines: str) -> ir.PrimFunc:
    names = ", ".join(f'{x}: T.Buffer((16, 32), "float32")' for x in "AC")
    head = f"@T.prim_func\ndef main({names}):\n"
    return from_source(head + textwrap.indent(lines.strip("\n"), "    "))


def outer_loop(sch: Schedule, name: str = "use") -> LoopRV:
    return sch.get_loops(sch.get_block(name))[0]


def shapes(func: ir.PrimFunc) -> dict[str, tuple[int | None, ...]]:
    buffers = [b for block in ir.blocks(func.body) for b in block.alloc_buffers]
    return {b.name: tuple(ir.const_int(n) for n in b.shape) for b in buffers}


# ---------------------------------------------------------------------------------------- refusals
Case = tuple[str, Callable[[Schedule], object], str, str]
REFUSED: dict[str, Case] = {
    "too few stages": (
        CHAIN, lambda s: s.software_pipeline(outer_loop(s), [0]), "BW304", "2 statements"),
    "too many orders": (
        CHAIN, lambda s: s.software_pipeline(outer_loop(s), [0, 1], [0, 1, 2]), "BW304",
        "orders has 3 entries"),
    "a negative stage": (
        CHAIN, lambda s: s.software_pipeline(outer_loop(s), [-1, 0]), "BW304", "negative"),
    "one place twice": (
        CHAIN, lambda s: s.software_pipeline(outer_loop(s), [0, 1], [1, 1]), "BW304",
        "same position"),
    "use before load": (
        CHAIN, lambda s: s.software_pipeline(outer_loop(s), [1, 0]), "BW370",
        "use uses B after block load in the same iteration"),
    "use first in one stage": (
        CHAIN, lambda s: s.software_pipeline(outer_loop(s), [0, 0], [1, 0]), "BW370",
        "would run before statement 0"),
    "a value from the iteration before": (
        ROLLING, lambda s: s.software_pipeline(outer_loop(s), [0, 1]), "BW371",
        r"load uses C 1 iteration\(s\) after block use"),
    "a buffer that is used after the loop": (
        KEPT, lambda s: s.software_pipeline(outer_loop(s), [0, 1]), "BW371",
        "block after outside the loop also uses B"),
    "statements outside blocks": (
        BARE, lambda s: s.software_pipeline(outer_loop(s), [0, 1]), "BW313", "outside blocks"),
    "effects change places": (
        ASSERTS, lambda s: s.software_pipeline(outer_loop(s), [0, 1]), "BW370", "have effects"),
    "a parallel loop": (
        CHAIN.replace("range(16)", "T.parallel(16)"),
        lambda s: s.software_pipeline(outer_loop(s), [0, 1]), "BW312", "parallel already"),
    "double buffer without a user": (
        CHAIN, lambda s: s.double_buffer(s.get_block("use"), 0), "BW322", "no statement after"),
    "double buffer of nothing": (
        CHAIN, lambda s: s.double_buffer(s.get_block("load"), 1), "BW320", "no number 1"),
    "double buffer used after the loop": (
        KEPT, lambda s: s.double_buffer(s.get_block("load"), 0), "BW371", "outside the loop"),
    "annotated stages that break a dependence": (
        CHAIN, lambda s: annotate(s, [1, 0], [0, 1]), "BW370", "would run before"),
    "annotated stages that are no numbers": (
        CHAIN, lambda s: annotate(s, ["a", "b"], [0, 1]), "BW304", "software_pipeline_stage"),
}  # fmt: skip


def annotate(sch: Schedule, stages: list[object], orders: list[object]) -> None:
    sch.annotate(outer_loop(sch), "software_pipeline_stage", stages)
    sch.annotate(outer_loop(sch), "software_pipeline_order", orders)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_meaning_is_refused(name: str) -> None:
    text, step, code, words = REFUSED[name]
    sch = Schedule(program(text))
    before = sch.func
    with pytest.raises(ScheduleError, match=words) as error:
        step(sch)
    assert error.value.code == code
    if "annotated" not in name:
        assert sch.func is before


# ------------------------------------------------------------------------------------- versions
def test_a_buffer_gets_as_many_versions_as_iterations_use_it() -> None:
    for stages, orders, wanted in [
        ([0, 1], None, (2, 32)),
        ([0, 1], [1, 0], (32,)),  # used before it is filled again
        ([0, 2], None, (3, 32)),
        ([0, 3], [1, 0], (3, 32)),
    ]:
        sch = Schedule(program(CHAIN), verify="full")
        sch.software_pipeline(outer_loop(sch), stages, orders)
        assert shapes(sch.func) == {"B": wanted}
        assert_same_meaning(program(CHAIN), sch.func, exact=True)


def test_fewer_iterations_than_stages() -> None:
    """With one iteration nothing overlaps, and no steady loop remains; block handles live on."""
    text = CHAIN.replace("range(16)", "range(1)")
    sch = Schedule(program(text), verify="full")
    load, loop = sch.get_block("load"), outer_loop(sch)
    sch.software_pipeline(loop, [0, 2])
    assert [b.name for b in ir.blocks(sch.func.body)] == ["root", "load_prologue", "use_epilogue"]
    assert sch.get(load).name == "load_prologue"  # type: ignore[union-attr]
    assert not sch.alive(loop)
    assert_same_meaning(program(text), sch.func, exact=True)


VECTORS = """
@T.prim_func
def main(a: T.handle, c: T.handle):
    T.func_attr({"tir_var_lower_bound": {"n": 1}, "tir_var_upper_bound": {"n": 9}})
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    C = T.match_buffer(c, (n,), "float32")
    B = T.alloc_buffer((n,), "float32")
"""
ROWS = (
    VECTORS
    + """
    for o in range(3):
        for i in range(n):
            with T.block("load"):
                vi = T.axis.spatial(n, o * n + i)
                T.where(o * n + i < n)
                B[vi] = A[vi] * 2.0
            with T.block("use"):
                vi = T.axis.spatial(n, o * n + i)
                T.where(o * n + i < n)
                C[vi] = B[vi] + 1.0
"""
)


def test_a_steady_loop_of_any_length_is_split_by_a_size() -> None:
    """The loop is empty for n < 3; that it runs says nothing of the epilogue beside it."""
    func = from_source(ROWS)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    sch.software_pipeline(sch.get_loops(sch.get_block("use"))[1], [0, 2])
    (pipeline,) = [b for b in ir.blocks(sch.func.body) if b.name == "i_pipeline"]
    stated = pipeline.writes
    sch.split(sch.get_loops(sch.get_block("use"))[-1], [None, 3, sch.symbol("n")])
    (pipeline,) = [b for b in ir.blocks(sch.func.body) if b.name == "i_pipeline"]
    assert all(map(ir.structural_equal, pipeline.writes, stated))
    for n in (1, 2, 7):
        assert_same_meaning(func, sch.func, sizes={"n": n}, exact=True)


TILES = (
    VECTORS
    + """
    for i in range(n):
        for j in range(T.min(n - i // 4 * 4, T.int64(4))):
            with T.block("load"):
                vj = T.axis.spatial(n, i // 4 * 4 + j)
                B[vj] = A[vj] * 2.0
        with T.block("tile"):
            vi = T.axis.spatial(n, i)
            S = T.alloc_buffer((1,), "float32")
            for k in range(4):
                with T.block("use"):
                    vk = T.axis.spatial(n, vi // 4 * 4 + k)
                    T.where(vi // 4 * 4 + k < n)
                    S[0] = B[vk] + 1.0
            with T.block("out"):
                C[vi] = S[0]
"""
)


def test_the_signature_of_a_block_around_others_holds_what_they_touch_of_a_version() -> None:
    """B is folded to four elements, where modulo hides that tiles begin at its first."""
    func = from_source(TILES)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    sch.software_pipeline(outer_loop(sch, "tile"), [0, 1])
    for n in (1, 2, 7):
        assert_same_meaning(func, sch.func, sizes={"n": n}, exact=True)


LOOPS_IN_BLOCKS = (
    VECTORS
    + """
    for i in range(n):
        with T.block("load"):
            vi = T.axis.spatial(n, i)
            for j in range(T.min(n - vi // 4 * 4, T.int64(4))):
                B[vi // 4 * 4 + j] = A[vi // 4 * 4 + j] * 2.0
        with T.block("use"):
            vi = T.axis.spatial(n, i)
            C[vi] = B[vi] + 1.0
"""
)


def test_the_signature_of_a_block_with_loops_holds_what_they_touch_of_a_version() -> None:
    func = from_source(LOOPS_IN_BLOCKS)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    sch.double_buffer(sch.get_block("load"), 0)
    for n in (1, 2, 7):
        assert_same_meaning(func, sch.func, sizes={"n": n}, exact=True)


def test_steps_inside_blocks_go_on_after_the_pipeline() -> None:
    """What is blockized before, keeps its inside: it can be scheduled afterwards."""
    sch = Schedule(program(CHAIN), verify="full")
    tile = sch.blockize(sch.get_loops(sch.get_block("use"))[1])
    sch.software_pipeline(outer_loop(sch, "use_o"), [0, 1])
    (j,) = sch.get_loops(sch.get_block("use"))
    sch.vectorize(sch.split(j, [None, 8])[1])
    assert sch.alive(tile)
    assert_same_meaning(program(CHAIN), sch.func, exact=True)


# ------------------------------------------------------------------------------------ annotations
def built(func: ir.PrimFunc) -> tuple[dict[str, ir.PrimFunc], Module]:
    """What each pass of lowering made, and the module."""
    made: dict[str, ir.PrimFunc] = {}

    def note(name: str, before: ir.PrimFunc, after: ir.PrimFunc) -> None:
        made[name] = after

    return made, bw.build(func, on_pass=note)


def test_classic_annotations_are_carried_out_by_build() -> None:
    a = np.random.default_rng(0).standard_normal((16, 32)).astype("float32")
    sch = Schedule(program(CHAIN))
    annotate(sch, [0, 1], [0, 1])
    seen, module = built(sch.func)
    assert "load_prologue" in seen["make_pipelines"].script()
    out = np.zeros_like(a)
    module["main"](a, out)
    np.testing.assert_array_equal(out, a * 2 + 1)


def test_an_annotation_that_became_illegal_stops_the_build() -> None:
    """Between the annotation and the build the loop has got a third statement."""
    text = CHAIN.replace(
        "for i in range(16):",
        "for i in T.serial(16, annotations={'software_pipeline_stage': [0, 1, 1],"
        " 'software_pipeline_order': [0, 1, 2]}):",
    )
    with pytest.raises(ScheduleError, match="2 statements"):
        bw.build(program(text))
    with pytest.raises(bw.ValidationError, match="2 statements"):
        bw.validate(program(text))


def test_double_buffer_scope_is_carried_out_by_build() -> None:
    sch = Schedule(program(CHAIN))
    sch.annotate(sch.get_block("load"), "double_buffer_scope", 0)
    made, module = built(sch.func)
    assert shapes(made["make_pipelines"])["B"] == (2, 32)
    a = np.random.default_rng(0).standard_normal((16, 32)).astype("float32")
    out = np.zeros_like(a)
    module["main"](a, out)
    np.testing.assert_array_equal(out, a * 2 + 1)


def test_double_buffer_scope_asks_for_two_versions_in_a_pipeline() -> None:
    sch = Schedule(program(CHAIN), verify="full")
    sch.annotate(sch.get_block("load"), "double_buffer_scope", 0)
    sch.software_pipeline(outer_loop(sch), [0, 1], [1, 0])
    assert shapes(sch.func) == {"B": (2, 32)}


# -------------------------------------------------------------------------------- a matrix product
GEMM = """
@T.prim_func
def main(a: T.handle, b: T.handle, c: T.handle):
    n = T.int64()
    k = T.int64()
    A = T.match_buffer(a, (n, k), "float32")
    B = T.match_buffer(b, (k, 64), "float32")
    C = T.match_buffer(c, (n, 64), "float32")
    for i, j, r in T.grid(n, 64, k):
        with T.block("C"):
            vi, vj, vr = T.axis.remap("SSR", [i, j, r])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vr] * B[vr, vj]
"""


def pipelined_gemm(stages: list[int], orders: list[int]) -> Schedule:
    """Tiles of A and B are fetched ahead, under a parallel loop, for any n and k."""
    sch = Schedule(from_source(GEMM), verify="full")
    block = sch.get_block("C")
    i, j, r = sch.get_loops(block)
    io, ii = sch.split(i, [None, 8])
    ro, ri = sch.split(r, [None, 4])
    sch.reorder(io, ro, ii, ri, j)
    fetched = [sch.cache_read(block, at, "global") for at in (0, 1)]
    for fetch in fetched:
        sch.compute_at(fetch, ro)
    sch.vectorize(sch.split(j, [None, 8])[1])
    sch.decompose_reduction(block, ro)
    sch.parallel(io)
    sch.software_pipeline(ro, stages, orders)
    return sch


@pytest.mark.parametrize(("stages", "orders"), [([0, 0, 1], [0, 1, 2]), ([0, 1, 3], [2, 1, 0])])
def test_a_pipelined_matrix_product(stages: list[int], orders: list[int]) -> None:
    sch = pipelined_gemm(stages, orders)
    depth = max(stages)
    found = shapes(sch.func)
    first = depth + (orders[0] < orders[2])
    assert found["A_global"] == (first, 8, 4)
    assert found["B_global"][1:] == (4, 64)
    module = bw.build(sch.func)
    for n, k in [(1, 1), (8, 4), (21, 7), (40, 33), (3, 0)]:
        assert_same_meaning(from_source(GEMM), sch.func, sizes={"n": n, "k": k})
        rng = np.random.default_rng(n)
        a = rng.standard_normal((n, k)).astype("float32")
        b = rng.standard_normal((k, 64)).astype("float32")
        c = np.full((n, 64), 7, "float32")
        module["main"](a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def test_no_version_has_a_negative_size_where_an_iteration_touches_nothing() -> None:
    """Two elements for each of `n`, one less: of none, no memory."""
    func = from_source("""
@T.prim_func
def main(a: T.handle, c: T.handle):
    T.func_attr({"tir_var_lower_bound": {"n": 0}})
    n = T.int64()
    A = T.match_buffer(a, (4, n * 2 + 3), "float32")
    C = T.match_buffer(c, (4, n), "float32")
    B = T.alloc_buffer((4, n * 2 + 3), "float32")
    for i in range(4):
        for j in range(n * 2 - 1):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] + T.float32(1)
        for j in range(n):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj * 2]
""")
    sch = Schedule(func, verify="full")
    sch.double_buffer(sch.get_block("B"), 0)
    for n in (0, 1, 3):
        assert_same_meaning(func, sch.func, sizes={"n": n}, exact=True)


TERMS = """
@T.prim_func
def main(x: T.handle, C: T.Buffer((1,), "float32")):
    T.func_attr({"tir_var_lower_bound": {"m": LEAST}})
    m = T.int32()
    A = T.match_buffer(x, (m,), "float32")
    B = T.alloc_buffer((m,), "float32")
    for i in range(m):
        with T.block("load"):
            vi = T.axis.spatial(m, i)
            B[vi] = A[vi] * 2.0
        with T.block("use"):
            vj = T.axis.spatial(1, 0)
            vk = T.axis.reduce(m, i)
            with T.init():
                C[vj] = T.float32(7)
            C[vj] = C[vj] + B[vk]
"""


@pytest.mark.parametrize("least", [0, 1])
def test_a_pipeline_inside_of_a_sum_keeps_its_initial_value(least: int) -> None:
    func = from_source(TERMS.replace("LEAST", str(least)))
    sch = Schedule(func, verify="full")
    inner = sch.split(outer_loop(sch), [None, 3])[1]
    if least:
        sch.software_pipeline(inner, [0, 1])
        assert_same_meaning(func, sch.func, sizes={"m": 8})
        return
    with pytest.raises(ScheduleError, match=r"BW365.*initial value would be lost"):
        sch.software_pipeline(inner, [0, 1])
