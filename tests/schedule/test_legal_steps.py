"""Steps of classic schedules that are legal, and illegal ones beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError

Step = Callable[[Schedule], object]


def scheduled(source: str, step: Step) -> tuple[ir.PrimFunc, Schedule]:
    func = bw.from_source(source)
    sch = Schedule(func, verify="full")
    step(sch)
    return func, sch


def refused(code: str, source: str, step: Step) -> None:
    with pytest.raises(ScheduleError) as caught:
        scheduled(source, step)
    assert caught.value.code == code, str(caught.value)


def check(source: str, step: Step, native: bool = True) -> ir.PrimFunc:
    """A schedule is taken, is not refuted, and computes what the program did."""
    before, sch = scheduled(source, step)
    after = sch.func
    bw.validate(after)
    assert bw.verify(before, after).verdict != "refuted"
    given = [_filled(b) for b in before.buffers]
    expected = [x.copy() for x in given]
    bw.interpret(before, *expected)

    def compare(run: Callable[..., Any]) -> None:
        found = [x.copy() for x in given]
        run(*found)
        for have, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-6)

    compare(lambda *x: bw.interpret(after, *x))
    compare(lambda *x: bw.interpret(after, *x, order="reverse"))
    if native:
        compare(bw.build(after))
    return after


def _filled(buffer: ir.Buffer) -> np.ndarray[Any, Any]:
    """Small whole numbers, whose sums are exact in any order."""
    shape = [ir.const_int(n) or 0 for n in buffer.shape]
    return np.random.default_rng(len(buffer.name)).integers(0, 4, shape).astype(str(buffer.dtype))


# ------------------------------------------------------------------ tiles that are computed again
HALO = """
@T.prim_func
def main(A: T.Buffer((34, 34), "float32"), C: T.Buffer((32, 32), "float32")):
    B = T.alloc_buffer((34, 34), "float32")
    for i, j in T.grid(34, 34):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for i, j in T.grid(32, 32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + B[vi + 1, vj] + B[vi + 2, vj + 2]
"""
HALO_SUM = HALO.replace(
    """    for i, j in T.grid(34, 34):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
""",
    """    for i, j, k in T.grid(34, 34, 5):
        with T.block("B"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                B[vi, vj] = T.float32(0)
            B[vi, vj] = B[vi, vj] + A[vi, vk]
""",
)


def _tiled(s: Schedule) -> list[Any]:
    io, _ = s.split(s.get_loops("C")[0], [None, 8])
    s.compute_at("B", io)
    return s.get_loops("B")[1:]


@pytest.mark.parametrize("source", [HALO, HALO_SUM], ids=["map", "sum"])
def test_reorder_inside_a_tile_with_halo(source: str) -> None:
    after = check(source, lambda s: s.reorder(*_tiled(s)[::-1]))
    extents = [ir.const_int(f.extent) for f in ir.loops(after.body)]
    assert extents[1 : 3 if source is HALO else 4] == ([34, 10] if source is HALO else [5, 34, 10])


def test_tiles_in_two_dimensions() -> None:
    def step(s: Schedule) -> None:
        i, j = s.get_loops("C")
        io, ii = s.split(i, [None, 8])
        jo, ji = s.split(j, [None, 16])
        s.reorder(io, jo, ii, ji)
        s.compute_at("B", jo)
        s.reorder(*s.get_loops("B")[:1:-1])

    check(HALO, step)


STENCIL = """
@T.prim_func
def main(A: T.Buffer((50, 50), "float32"), C: T.Buffer((48, 48), "float32")):
    B = T.alloc_buffer((50, 50), "float32")
    for i, j in T.grid(50, 50):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
    for i, j in T.grid(48, 48):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + B[vi + 2, vj + 2]
"""


@pytest.mark.parametrize(("rows", "columns"), [(7, 7), (16, 7), (7, 16)])
@pytest.mark.parametrize("kind", ["parallel", "vectorize", "bind"])
def test_halos_cut_at_the_border_are_fetched_together(rows: int, columns: int, kind: str) -> None:
    """The loops over a tile are fused and divided among threads; conditions on single digits of the
    fused loop, which cut the last tiles, do not make iterations write the same element."""

    def step(s: Schedule) -> None:
        i, j = s.get_loops("C")
        io, ii = s.split(i, [None, rows])
        jo, ji = s.split(j, [None, columns])
        s.reorder(io, jo, ii, ji)
        s.compute_at("B", jo)
        outer, inner = s.split(s.fuse(*s.get_loops("B")[2:]), [None, 8])
        if kind == "bind":
            s.bind(inner, "threadIdx.x")
        elif kind == "vectorize":
            s.vectorize(inner)
        else:
            s.parallel(outer)

    check(STENCIL, step, native=kind != "bind")


@pytest.mark.parametrize("tiles", [[13, 4], [7, 8], [None, 3]])
def test_consumers_move_to_blocks_of_uneven_tiles(tiles: list[int | None]) -> None:
    source = STENCIL.replace("48", "50").replace(" + B[vi + 2, vj + 2]", "")

    def step(s: Schedule) -> None:
        i, _ = s.get_loops("B")
        outer, inner = s.split(i, tiles)
        s.blockize(inner)
        s.reverse_compute_at("C", outer)

    check(source, step)


def test_terms_that_meet_inside_a_tile_stay_in_place() -> None:
    source = """
@T.prim_func
def main(A: T.Buffer((16,), "float32"), C: T.Buffer((2, 16), "float32")):
    for o, i, j in T.grid(2, 8, 8):
        with T.block("C"):
            vo = T.axis.spatial(2, o)
            vi = T.axis.spatial(16, i + j)
            C[vo, vi] = A[vi]
"""
    refused("BW315", source, lambda s: s.reorder(*s.get_loops("C")[:0:-1]))


# ------------------------------------------------------------------ loops bound to another axis
ROWS = """
@T.prim_func
def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    for i, j in T.grid(8, 8):
        with T.block("C"):
            vi = T.axis.spatial(64, i * 8 + j)
            C[vi] = A[vi] * T.float32(2)
"""


def test_bound_again() -> None:
    def step(s: Schedule) -> None:
        i, j = s.get_loops("C")
        s.bind(i, "threadIdx.x")
        s.bind(i, "blockIdx.x")
        for axis in ("threadIdx.x", "threadIdx.y", "threadIdx.x"):
            s.bind(j, axis)

    _, sch = scheduled(ROWS, step)
    tags = [f.thread.thread_tag for f in ir.loops(sch.func.body) if f.thread]
    assert tags == ["blockIdx.x", "threadIdx.x"]
    check(ROWS, step, native=False)


def test_bound_again_keeps_handles() -> None:
    sch = Schedule(bw.from_source(ROWS))
    root = sch.get_block("root")
    i, j = sch.get_loops("C")
    sch.bind(i, "threadIdx.x")
    sch.bind(i, "blockIdx.x")
    sch.bind(j, "threadIdx.x")
    assert isinstance(sch.get(root), ir.Block)
    assert isinstance(sch.get(i), ir.For)


def test_bound_again_is_checked_like_a_first_time() -> None:
    source = ROWS.replace("C[vi] = A[vi]", "C[vi] = C[(vi + 8) % 64] + A[vi]")
    refused("BW314", source, lambda s: s.bind(s.get_loops("C")[0], "blockIdx.x"))
    bound = source.replace(
        "for i, j in T.grid(8, 8):",
        """for i in T.thread_binding(8, "threadIdx.x"):
      for j in range(8):""",
    )
    refused("BW314", bound, lambda s: s.bind(s.get_loops("C")[0], "blockIdx.x"))


def test_copies_of_members_tie_the_axis() -> None:
    """Each thread finds its own copy of B in the second loop; threads of another axis would not."""
    source = """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32", scope="local")
    for t in T.thread_binding(8, thread="threadIdx.x"):
        with T.block("B"):
            vi = T.axis.spatial(8, t)
            B[vi] = A[vi]
    for t in T.thread_binding(8, thread="threadIdx.x"):
        with T.block("C"):
            vi = T.axis.spatial(8, t)
            C[vi] = B[vi]
"""
    refused("BW312", source, lambda s: s.bind(s.get_loops("C")[0], "threadIdx.y"))
    refused("BW312", source, lambda s: s.bind(s.get_loops("B")[0], "threadIdx.y"))


def test_loops_that_share_an_axis_keep_it() -> None:
    source = """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32", scope="shared")
    for i in T.thread_binding(8, thread="threadIdx.x"):
        for j in T.thread_binding(8, thread="threadIdx.x"):
            with T.block("B"):
                vj = T.axis.spatial(8, j)
                B[vj] = A[vj]
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi]
"""
    refused("BW381", source, lambda s: s.bind(s.get_loops("C")[0], "threadIdx.y"))
    refused("BW381", source, lambda s: s.bind(s.get_loops("B")[1], "threadIdx.y"))


# ------------------------------------------------------------------ allocation statements
ALLOCATED = """
@T.prim_func
def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    B = T.{form}
    for i in range(64):
        with T.block("B"):
            vi = T.axis.spatial(64, i)
            B[vi] = A[vi] * T.float32(2)
    for i in range(64):
        with T.block("C"):
            vi = T.axis.spatial(64, i)
            C[vi] = B[vi] + T.float32(1)
"""
MOVES: dict[str, Step] = {
    "compute_at": lambda s: s.compute_at("B", s.get_loops("C")[0]),
    "reverse_compute_at": lambda s: s.reverse_compute_at("C", s.get_loops("B")[0]),
    "compute_inline": lambda s: s.compute_inline("B"),
    "reverse_compute_inline": lambda s: s.reverse_compute_inline("C"),
    "cache_write": lambda s: s.cache_write("B", 0, "global"),
    "set_scope": lambda s: s.set_scope("B", 0, "shared"),
    "transform_layout": lambda s: s.transform_layout("B", ("write", 0), lambda i: (i // 8, i % 8)),
}


@pytest.mark.parametrize("step", MOVES)
@pytest.mark.parametrize("form", ['decl_buffer((64,), "float32")', 'allocate((64,), "float32")'])
def test_moves_under_allocations(form: str, step: str) -> None:
    after = check(ALLOCATED.format(form=form), MOVES[step], native=step != "set_scope")
    if "inline" in step:
        assert "B" not in {b.name for b in ir.collect(after.body, ir.Buffer)}


ROW = """
@T.prim_func
def main(A: T.Buffer((8, 16), "float32"), C: T.Buffer((8, 16), "float32")):
    for i in {loop}:
        with T.block("row"):
            vi = T.axis.spatial(8, i)
            B = T.allocate((16,), "float32")
            for j in range(16):
                with T.block("B"):
                    vj = T.axis.spatial(16, j)
                    B[vj] = A[vi, vj] * T.float32(2)
            for j in range(16):
                with T.block("C"):
                    vj = T.axis.spatial(16, j)
                    C[vi, vj] = B[vj] + T.float32(1)
"""


@pytest.mark.parametrize("step", ["compute_at", "reverse_compute_at", "compute_inline"])
def test_allocations_in_blocks(step: str) -> None:
    check(ROW.format(loop="range(8)"), MOVES[step])


def test_parallel_rows_of_an_allocation() -> None:
    check(ROW.format(loop="range(8)"), lambda s: s.parallel(s.get_loops("row")[0]))


def test_allocations_under_conditions_and_threads_stay() -> None:
    source = ALLOCATED.format(form='allocate((64,), "float32")')
    head, body = source.split("    B = ")
    for around in ("if A[0] > T.float32(0):", 'for t in T.thread_binding(1, "threadIdx.x"):'):
        inside = "    B = " + body
        text = f"{head}    {around}\n" + "\n".join("    " + line for line in inside.splitlines())
        _, sch = scheduled(text, lambda s: s.split(s.get_loops("B")[-1], [4, 16]))
        assert ir.collect(sch.func.body, ir.Allocate)
        if around.startswith("if"):
            refused("BW351", text, MOVES["compute_at"])


def test_names_end_with_their_allocation() -> None:
    """A consumer moves out of the scope of a buffer that it reads: its allocation moves too."""
    source = """
@T.prim_func
def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    B = T.allocate((64,), "float32")
    for i in range(64):
        with T.block("B"):
            vi = T.axis.spatial(64, i)
            B[vi] = A[vi] * T.float32(2)
    D = T.allocate((64,), "float32")
    for i in range(64):
        with T.block("D"):
            vi = T.axis.spatial(64, i)
            D[vi] = B[vi] + A[vi]
    for i in range(64):
        with T.block("C"):
            vi = T.axis.spatial(64, i)
            C[vi] = B[vi] * D[vi]
"""
    check(
        source,
        lambda s: (
            s.reverse_compute_at("D", s.get_loops("B")[0]),
            s.reverse_compute_at("C", s.get_loops("B")[0]),
        ),
    )


# ------------------------------------------------------------------ atomic updates in spatial loops
BINS = """
@T.prim_func
def main(A: T.Buffer((64,), "int32"), C: T.Buffer((4,), "int32")):
    for i in range(64):
        with T.block("C"):
            vi = T.axis.spatial(64, i)
            {update}
"""
ADDED = BINS.format(update="T.atomic_add(C[A[vi] % 4], A[vi] + 1)")
FREE: dict[str, Step] = {
    "parallel": lambda s: s.parallel(s.get_loops("C")[0]),
    "parallel outer": lambda s: s.parallel(s.split(s.get_loops("C")[0], [None, 10])[0]),
    "bind": lambda s: s.bind(s.get_loops("C")[0], "threadIdx.x"),
    "reorder": lambda s: s.reorder(*s.split(s.get_loops("C")[0], [8, 8])[::-1]),
    "split, bind": lambda s: [
        s.bind(loop, axis)
        for loop, axis in zip(
            s.split(s.get_loops("C")[0], [4, 16]), ("blockIdx.x", "threadIdx.x"), strict=True
        )
    ],
}


@pytest.mark.parametrize("step", FREE)
def test_atomic_updates_meet(step: str) -> None:
    check(ADDED, FREE[step], native="bind" not in step)


@pytest.mark.parametrize("step", ["parallel", "reorder"])
def test_two_blocks_that_update_alike(step: str) -> None:
    second = """
        with T.block("D"):
            vi = T.axis.spatial(64, i)
            T.atomic_add(C[vi % 4], 1)
"""
    source = ADDED.rstrip() + second
    check(source, FREE[step])
    with pytest.raises(ScheduleError):
        scheduled(source.replace("C[vi % 4], 1", "C[0], C[1]"), FREE[step])
    refused("BW314", source.replace("atomic_add(C[vi % 4]", "atomic_max(C[vi % 4]"), FREE[step])


@pytest.mark.parametrize("step", ["parallel", "bind", "reorder"])
@pytest.mark.parametrize(
    "update",
    [
        "C[A[vi] % 4] = C[A[vi] % 4] + A[vi]",  # not atomic
        "T.atomic_add(C[A[vi] % 4], C[0])",  # the order decides what is added
        "T.atomic_add(C[T.atomic_add(C[0], 1) % 4], 1)",  # the result is used
        "T.atomic_add(C[A[vi] % 4], 1); T.atomic_max(C[0], 9)",  # two that do not commute
    ],
)
def test_other_updates_do_not(update: str, step: str) -> None:
    source = BINS.format(update=update.replace("; ", "\n            "))
    refused("BW314", source, FREE[step])


def test_atomic_updates_are_no_lanes() -> None:
    refused("BW314", ADDED, lambda s: s.vectorize(s.get_loops("C")[0]))


def test_who_reads_an_atomic_sum_waits_for_it() -> None:
    source = """
@T.prim_func
def main(A: T.Buffer((64,), "int32"), C: T.Buffer((4,), "int32"), D: T.Buffer((64,), "int32")):
    for i in range(64):
        with T.block("C"):
            vi = T.axis.spatial(64, i)
            T.atomic_add(C[vi % 4], A[vi])
        with T.block("D"):
            vi = T.axis.spatial(64, i)
            D[vi] = C[vi % 4]
"""
    for step in ("parallel", "bind", "reorder"):
        refused("BW314", source, FREE[step])


# ------------------------------------------------------------------ stated regions
WINDOW = """
@T.prim_func
def main(A: T.Buffer((20,), "float32"), C: T.Buffer((16,), "float32")):
    B = T.alloc_buffer((20,), "float32")
    D = T.alloc_buffer((16,), "float32")
    for i in range(20):
        with T.block("B"):
            vi = T.axis.spatial(20, i)
            B[vi] = A[vi] * T.float32(2)
    for i in range(16):
        with T.block("D"):
            vi = T.axis.spatial(16, i)
            D[vi] = A[vi] + T.float32(1)
    for i in range(16):
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = B[vi] + B[vi + 2] * D[vi]
"""
REWRITES: dict[str, Step] = {
    "none": lambda s: None,
    "compute_inline": lambda s: s.compute_inline("D"),
    "split": lambda s: s.split(s.get_loops("C")[0], [4, 4]),
    "cache_read of another": lambda s: s.cache_read("C", "D", "global"),
    "cache_read": lambda s: s.cache_read("C", "B", "global"),
    "cache_write": lambda s: s.cache_write("C", 0, "global"),
    "set_scope": lambda s: s.set_scope("B", 0, "shared"),
    "transform_layout of another": lambda s: s.transform_layout(
        "D", ("write", 0), lambda i: (i // 4, i % 4)
    ),
}


@pytest.mark.parametrize("step", REWRITES)
def test_stated_regions_last(step: str) -> None:
    def steps(s: Schedule) -> None:
        s.annotate_buffer_access("C", "B", "read", lambda i: ((i, i + 5),))
        REWRITES[step](s)

    _, sch = scheduled(WINDOW, steps)
    block = sch.get(sch.get_block("C"))
    assert isinstance(block, ir.Block)
    wide = [r for r in block.reads if r.buffer.name.startswith("B")]
    assert [ir.const_int(r.region[0].extent) for r in wide] == [5]
    check(WINDOW, steps, native=step != "set_scope")


def test_producers_make_what_is_stated() -> None:
    def steps(s: Schedule) -> None:
        s.annotate_buffer_access("C", "B", "read", lambda i: ((i, i + 5),))
        s.compute_inline("D")
        s.compute_at("B", s.split(s.get_loops("C")[0], [4, 4])[0])

    after = check(WINDOW, steps)
    extents = [ir.const_int(f.extent) for f in ir.loops(after.body)]
    assert extents == [4, 8, 4]  # not 6, which the body reads


def test_stated_regions_follow_iterators() -> None:
    for step, count in (
        (lambda s: s.transform_block_layout("C", lambda i: (i // 4, i % 4)), 1),
        (lambda s: s.blockize(s.split(s.get_loops("C")[0], [4, 4])[1]), 2),
    ):

        def steps(s: Schedule, step: Step = step) -> None:
            s.annotate_buffer_access("C", "B", "read", lambda i: ((i, i + 5),))
            step(s)

        after = check(WINDOW, steps)
        found = [r for b in ir.blocks(after.root.body)[2:] for r in b.reads if r.buffer.name == "B"]
        assert [ir.const_int(r.region[0].extent) for r in found] == [8, 5][2 - count :]


def test_stated_regions_hold_the_layout() -> None:
    def steps(s: Schedule) -> None:
        s.annotate_buffer_access("C", "B", "read", lambda i: ((i, i + 5),))
        s.transform_layout("B", ("write", 0), lambda i: (i // 4, i % 4))

    refused("BW366", WINDOW, steps)


def test_stated_regions_widen_with_the_body() -> None:
    def steps(s: Schedule) -> None:
        s.annotate_buffer_access("C", "A", "read", lambda i: ((i, i + 5),))
        s.compute_inline("B")

    source = WINDOW.replace("* D[vi]", "* A[vi]").replace("B[vi + 2]", "B[(vi + 9) % 20]")
    _, sch = scheduled(source, steps)
    block = sch.get(sch.get_block("C"))
    assert isinstance(block, ir.Block)
    (region,) = block.reads
    assert region.region[0].extent is not None
    assert ir.const_int(region.region[0].extent) != 5
    check(source, steps)


def test_stated_regions_can_be_taken_back() -> None:
    _, sch = scheduled(
        WINDOW, lambda s: s.annotate_buffer_access("C", "B", "read", lambda i: ((i, i + 5),))
    )
    sch.unannotate("C", "explicit_read_region")
    sch.compute_inline("D")
    block = sch.get(sch.get_block("C"))
    assert isinstance(block, ir.Block)
    assert 3 in [ir.const_int(r.region[0].extent) for r in block.reads]
