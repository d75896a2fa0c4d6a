"""The cost model on programs whose traffic and cycles can be counted by hand."""

from __future__ import annotations

import msgspec
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.cost import (
    AccessNode,
    BufferNode,
    LoopNode,
    StatementNode,
    around,
    estimate,
)
from blockwright.cost.kernels import cycles, kernels
from blockwright.cost.read import Reader
from blockwright.cost.traffic import cache_levels, page_levels, traffic
from blockwright.schedule import Schedule
from blockwright.target import Target

ONE = Target("x86-64-v3", num_threads=1)
TWO = Target("x86-64-v3", num_threads=2)
LINE = 64


def program(text: str) -> ir.PrimFunc:
    return bw.from_source(text)


def fetched(func: ir.PrimFunc, level: int, target: Target = ONE, **sizes: int) -> dict[str, float]:
    """Lines into a cache by buffer, everything in memory before."""
    found = kernels(Reader(func, target, sizes).body, target)
    total: dict[str, float] = {}
    lines = traffic(found, cache_levels(target)[level - 1], again=False)
    for (_, storage), many in lines.items():
        total[storage.name] = total.get(storage.name, 0) + many
    return total


def copy(n: int, step: int = 1) -> ir.PrimFunc:
    return program(f"""
@T.prim_func
def copy(A: T.Buffer(({n * step},), "float32"), B: T.Buffer(({n},), "float32")):
    for i in range({n}):
        with T.block("B"):
            vi = T.axis.spatial({n}, i)
            B[vi] = A[vi * {step}] + T.float32(1)
""")


def matmul(m: int, n: int, k: int) -> ir.PrimFunc:
    return program(f"""
@T.prim_func
def matmul(
    A: T.Buffer(({m}, {k}), "float32"), B: T.Buffer(({k}, {n}), "float32"),
    C: T.Buffer(({m}, {n}), "float32"),
):
    for i, j, k in T.grid({m}, {n}, {k}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""")


def test_a_copy_fetches_every_line_once_into_every_cache() -> None:
    n = 1 << 20
    for level in (1, 2, 3):
        assert fetched(copy(n), level) == pytest.approx({"A": n / 16, "B": n / 16})


def test_a_strided_read_fetches_a_line_for_each_element() -> None:
    assert fetched(copy(1 << 16, 16), 1)["A"] == pytest.approx(1 << 16, rel=1e-3)
    assert fetched(copy(1 << 16, 4), 1)["A"] == pytest.approx((1 << 16) / 4, rel=1e-3)


def test_a_product_in_cache_reads_each_matrix_once() -> None:
    assert fetched(matmul(32, 32, 32), 1) == pytest.approx({"A": 64, "B": 64, "C": 64})


def test_a_product_beyond_the_cache_reads_its_right_operand_for_every_row() -> None:
    """Columns of B are far apart: an element of C walks through all lines of B, one per step, which
    the next 15 elements find only if all of them stay; in the first cache they do not."""
    size = 1024
    lines = fetched(matmul(size, size, size), 1)
    assert lines["B"] == pytest.approx(size**3)
    assert lines["A"] == pytest.approx(size * size * size / 16, rel=0.01)


def test_a_blocked_product_moves_what_its_blocks_need() -> None:
    """Blocks of 32 × 32 × 32: three of them fit the first cache; A's and B's are fetched for each
    of (n / 32)³ steps, C's once for (n / 32)²."""
    size, block = 1056, 32  # no power of two, which would drive rows out of their sets
    sch = Schedule(matmul(size, size, size))
    sch.tile("C", "i j k -> i0 j0 k0 i1 k1 j1", i1=block, j1=block, k1=block)
    lines = fetched(sch.func, 1)
    many = size // block
    assert lines["B"] == pytest.approx(many**3 * block * block / 16)
    assert lines["A"] == pytest.approx(many**3 * block * block / 16)
    assert lines["C"] == pytest.approx(many**2 * block * block / 16)


def test_rows_a_power_of_two_apart_drive_each_other_out() -> None:
    """16 rows whose lines share one set of 8 ways: nothing survives until the next element."""
    text = """
@T.prim_func
def rows(A: T.Buffer((16, {pitch}), "float32"), B: T.Buffer((16,), "float32")):
    for k, i in T.grid(512, 16):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
"""
    apart, together = (program(text.replace("{pitch}", str(p))) for p in (1024, 1040))
    assert fetched(together, 1)["A"] == pytest.approx(512 / 16 * 16, rel=0.05)
    assert fetched(apart, 1)["A"] == pytest.approx(512 * 16)


def test_a_register_tile_costs_what_its_ports_allow() -> None:
    """6 × 16 in vectors of 8: 12 products at two a cycle, beside them 8 loads at two a cycle."""
    sch = Schedule(matmul(6, 16, 256))
    nest = sch.tile("C", "i j k -> k i j0 j1", j1=8)
    sch.cache_write("C", 0, "local")
    sch.decompose_reduction("C", nest.k)
    for name in ("C", "C_init"):
        i, j0, j1 = sch.get_loops(name)[-3:]
        sch.unroll(i)
        sch.unroll(j0)
        sch.vectorize(j1)
    found = kernels(Reader(sch.func, ONE, {}).body, ONE)
    (update,) = (k for k in found if len(k.loops) == 1 and k.loops[0].count == 256)
    assert cycles(update, ONE) == pytest.approx(256 * 6 + ONE.core.mispredict_cycles)


def test_exits_of_short_loops_of_constant_length_are_predicted() -> None:
    times: list[float] = []
    for predicted in (False, True):
        step = LoopNode(16, predicted=predicted)
        step.body = [StatementNode((), 1)]
        around_it = LoopNode(100, body=[step])
        (kernel,) = kernels([around_it], ONE)
        times.append(cycles(kernel, ONE))
    assert times[0] - times[1] == pytest.approx(100 * ONE.core.mispredict_cycles)


def test_what_a_part_of_an_iteration_writes_is_partly_there_for_the_next() -> None:
    """16 KiB are written, then read with 24 KiB beside them: 32 KiB of these 40 stay in L1."""
    passed, other = BufferNode("passed", 16 << 10), BufferNode("other", 24 << 10)
    first, second, line = LoopNode(256), LoopNode(384), LoopNode(16, "lanes")
    writes = AccessNode(passed, {first: LINE, line: 4}, stored=True)
    line.body = [StatementNode((writes,))]
    first.body = [line]
    lanes = LoopNode(16, "lanes")
    reads = AccessNode(passed, {second: LINE, lanes: 4})
    beside = AccessNode(other, {second: LINE, lanes: 4})
    lanes.body = [StatementNode((reads, beside))]
    second.body = [lanes]
    found = kernels([LoopNode(100, body=[first, second])], ONE)
    lines = traffic(found, cache_levels(ONE)[0], again=False)
    assert lines[1, passed] == pytest.approx(100 * 256 * (1 - 32 / 40), rel=0.01)
    assert lines[1, other] == pytest.approx(100 * 384, rel=0.01)


def test_iterations_beyond_the_end_cost_nothing() -> None:
    """Tasks of 48 of 100 rows: three, the last of which has four rows."""

    def rows(together: int) -> float:
        sch = Schedule(matmul(100, 64, 64))
        sch.split(sch.get_loops("C")[0], [None, together])
        return estimate(sch.func, ONE).seconds

    assert rows(48) == pytest.approx(rows(50), rel=0.05)


def test_what_is_left_out_where_a_loop_is_cut_costs_nothing() -> None:
    """Products of a row with the columns up to its own, and a function of each."""
    func = program("""
@T.prim_func
def triangle(
    A: T.Buffer((256, 64), "float32"), B: T.Buffer((256, 64), "float32"),
    D: T.Buffer((256, 256), "float32"),
):
    C = T.alloc_buffer((256, 256), "float32", scope="local")
    for i, j in T.grid(256, 256):
        for k in range(64):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vj, vk]
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.Select(vj <= vi, C[vi, vj], T.float32(-1))
""")
    sch = Schedule(func)
    whole = estimate(sch.func, ONE).seconds
    sch.annotate(sch.get_loops("D")[1], "loop_partition", True)
    assert estimate(sch.func, ONE).seconds == pytest.approx(whole / 2, rel=0.05)


def test_one_accumulator_waits_for_itself() -> None:
    func = program("""
@T.prim_func
def total(A: T.Buffer((4096,), "float32"), B: T.Buffer((1,), "float32")):
    for k in range(4096):
        with T.block("B"):
            vk = T.axis.reduce(4096, k)
            with T.init():
                B[0] = T.float32(0)
            B[0] = B[0] + A[vk]
""")
    (kernel,) = kernels(Reader(func, ONE, {}).body, ONE)
    assert cycles(kernel, ONE) == pytest.approx(4096 * ONE.core.latency, rel=0.01)


def test_units_miss_turns_where_updates_wait_for_each_other_as_long_as_they_take() -> None:
    """Ten sums of two units take five cycles at the least, of which each waits four."""
    core = ONE.core
    assert core.arithmetic == 2
    assert core.chained(6, 4) == 6
    assert core.chained(1, 4) == 4
    assert core.chained(5, 4) > 5
    assert core.chained(4, 4) > 4
    alone = msgspec.structs.replace(core, arithmetic=1)
    assert alone.chained(5, 4) == 5


def test_threads_share_the_work_and_pay_for_starting() -> None:
    sch = Schedule(matmul(256, 256, 256))
    sch.parallel(sch.get_loops("C")[0])
    one, two = (estimate(sch.func, target) for target in (ONE, TWO))
    working = [e.seconds - e.causes["threads"] for e in (one, two)]
    assert two.causes["threads"] > 0
    assert working[1] == pytest.approx(working[0] / 2, rel=0.02)


def test_a_task_more_than_threads_is_a_round_more() -> None:
    """Three tasks on two threads take as long as four."""

    def rows(many: int) -> ir.PrimFunc:
        sch = Schedule(matmul(many * 64, 64, 64))
        outer, _ = sch.split(sch.get_loops("C")[0], [None, 64])
        sch.parallel(outer)
        return sch.func

    three, four = (estimate(rows(n), TWO).seconds for n in (3, 4))
    assert three == pytest.approx(four, rel=0.05)


def test_tasks_that_are_soon_done_leave_their_thread_to_others() -> None:
    """Blocks of 256 columns of 272: the second block's tasks have a sixteenth of the first's work.
    Tasks of as many rows and all columns are as fast."""

    def blocked(columns: int) -> float:
        sch = Schedule(matmul(256, 272, 64))
        nest = sch.tile("C", "i j k -> j0 i0 i1 k j1", i1=8, j1=columns)
        sch.parallel(sch.fuse(nest.j0, nest.i0))
        found = estimate(sch.func, TWO)
        return found.seconds - found.causes["threads"]

    assert blocked(256) == pytest.approx(blocked(272), rel=0.1)


def test_a_last_task_that_is_not_whole_takes_what_it_has_to_do() -> None:
    """Tasks of 64, 64, and 8 rows: who has the last one has 72."""

    def rows(together: int) -> float:
        sch = Schedule(matmul(136, 64, 64))
        outer, _ = sch.split(sch.get_loops("C")[0], [None, together])
        sch.parallel(outer)
        found = estimate(sch.func, TWO)
        return found.seconds - found.causes["threads"]

    assert rows(64) == pytest.approx(rows(68) * 72 / 68, rel=0.05)


def test_a_loop_that_ends_within_a_digit_has_no_more_tasks() -> None:
    """105 pieces of work, one behind the other in images of 98: the second image has seven."""
    func = program("""
@T.prim_func
def images(A: T.Buffer((210, 64), "float32"), B: T.Buffer((2, 98, 64), "float32")):
    for t in T.parallel(105):
        for i, j in T.grid(1, 64):
            with T.block("B"):
                vn = T.axis.spatial(2, t // 98)
                vh = T.axis.spatial(98, t % 98)
                vj = T.axis.spatial(64, j)
                B[vn, vh, vj] = A[vn * 98 + vh, vj] * T.float32(2)
""")
    whole = program("""
@T.prim_func
def rows(A: T.Buffer((210, 64), "float32"), B: T.Buffer((210, 64), "float32")):
    for t in T.parallel(105):
        for i, j in T.grid(1, 64):
            with T.block("B"):
                vi = T.axis.spatial(210, t)
                vj = T.axis.spatial(64, j)
                B[vi, vj] = A[vi, vj] * T.float32(2)
""")
    found, wanted = (estimate(f, TWO) for f in (func, whole))
    working = [e.seconds - e.causes["threads"] for e in (found, wanted)]
    assert working[0] == pytest.approx(working[1], rel=0.1)


def test_fused_loops_are_taken_apart_again() -> None:
    """Tasks of fused rows and columns touch what the two loops touched."""

    def blocked(fused: bool) -> ir.PrimFunc:
        sch = Schedule(matmul(512, 512, 64))
        nest = sch.tile("C", "i j k -> i0 j0 i1 k j1", i1=32, j1=32)
        if fused:
            sch.fuse(nest.i0, nest.j0)
        return sch.func

    assert fetched(blocked(True), 1) == pytest.approx(fetched(blocked(False), 1))


def test_intermediates_are_as_small_as_lowering_makes_them() -> None:
    func = program("""
@T.prim_func
def twice(A: T.Buffer((1024, 1024), "float32"), C: T.Buffer((1024, 1024), "float32")):
    B = T.alloc_buffer((1024, 1024), "float32")
    for i, j in T.grid(1024, 1024):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for i, j in T.grid(1024, 1024):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + T.float32(1)
""")
    sch = Schedule(func)
    sch.compute_at("B", sch.get_loops("C")[0])
    apart, together = fetched(func, 2), fetched(sch.func, 2)
    assert apart["B"] == pytest.approx(2 * 1024 * 64)
    assert together["B"] <= 64
    assert estimate(sch.func, ONE).seconds < estimate(func, ONE).seconds


def test_pages_are_counted_like_lines() -> None:
    """A column of 4096 rows touches a page in each: more than the first buffer holds."""
    column = program("""
@T.prim_func
def column(A: T.Buffer((4096, 1024), "float32"), B: T.Buffer((4, 4096), "float32")):
    for r, i in T.grid(4, 4096):
        with T.block("B"):
            vr, vi = T.axis.remap("SS", [r, i])
            B[vr, vi] = A[vi, vr]
""")
    found = kernels(Reader(column, ONE, {}).body, ONE)
    first, _ = page_levels(ONE)
    pages = {s.name: n for (_, s), n in traffic(found, first, again=False).items()}
    assert pages["A"] == pytest.approx(4 * 4096, rel=1e-3)


def test_elements_stored_one_by_one_take_their_time_besides_all_else() -> None:
    """A vector whose elements go to eight lines: one store for each; along a line, none alone."""

    def stored(index: str) -> ir.PrimFunc:
        func = program(f"""
@T.prim_func
def spread(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")):
    for i, j in T.grid(64, 64):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[{index}] = A[vi, vj]
""")
        sch = Schedule(func)
        sch.vectorize(sch.split(sch.get_loops("B")[1], [None, 8])[1])
        return sch.func

    slow = Target(ONE, core=msgspec.structs.replace(ONE.core, lone_store_cycles=11.0))
    for index, elements in (("vj, vi", 64 * 64), ("vi, vj", 0)):
        func = stored(index)
        more = estimate(func, slow).seconds - estimate(func, ONE).seconds
        cycles_each = 11.0 - ONE.core.lone_store_cycles
        assert more * ONE.core.frequency_hz == pytest.approx(elements * cycles_each)


def test_symbolic_sizes_are_given_by_name() -> None:
    func = program("""
@T.prim_func
def double(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] * T.float32(2)
""")
    assert fetched(func, 1, n=1 << 18)["A"] == pytest.approx((1 << 18) / 16)
    assert not estimate(func, ONE, {"n": 64}).notes
    assert "n is assumed to be 128" in estimate(func, ONE).notes[0]


@pytest.mark.parametrize("size", [64, 128, 256, 512])
def test_more_work_takes_longer(size: int) -> None:
    small, large = (estimate(matmul(n, n, n), ONE).seconds for n in (size, 2 * size))
    assert large > 4 * small


def test_a_faster_machine_is_faster() -> None:
    sch = Schedule(copy(1 << 22))
    sch.vectorize(sch.split(sch.get_loops("B")[0], [None, 8])[1])
    func = sch.func
    core = msgspec.structs.replace(
        ONE.core, cache_bandwidth=(64.0, 32.0, 32.0), dram_bandwidth=32.0
    )
    slow, fast = (estimate(func, t, again=False) for t in (ONE, Target(ONE, core=core)))
    assert slow.limits == "memory"
    assert fast.seconds < slow.seconds


def test_causes_add_up() -> None:
    found = estimate(matmul(300, 300, 300), TWO)
    assert sum(found.causes.values()) == pytest.approx(found.seconds)
    assert found.limits in found.causes


def nest(target: Target, body: StatementNode, *loops: LoopNode) -> float:
    """Cycles of a statement inside loops, the first one outermost, with data in the first cache."""
    (kernel,) = kernels(around(loops, [body]), target)
    return cycles(kernel, target)


def test_chains_that_begin_anew_overlap_as_far_as_the_reorder_window_reaches() -> None:
    """Eight updates of one accumulator in each of 1,000 iterations."""
    sums = BufferNode("sums", 32, registers=True)
    outer, unrolled, lane = LoopNode(1000), LoopNode(8, "unrolled"), LoopNode(8, "lanes")
    store = AccessNode(sums, {lane: 4}, stored=True)
    step = StatementNode((store,), 1, chained=True, restarts=True)
    instructions = 8 + 2  # and those of the loop
    for window, waits in ((instructions, 8 * 4), (instructions * 4, 8), (1000, 0.32)):
        core = msgspec.structs.replace(ONE.core, reorder_window=window, mispredict_cycles=0)
        found = nest(Target(ONE, core=core), step, outer, unrolled, lane)
        assert found == pytest.approx(1000 * core.chained(4, waits), rel=0.01)


def test_half_vectors_start_at_a_rate_of_their_own() -> None:
    machine = Target("x86-64-v4", num_threads=1)
    assert (machine.core.arithmetic, machine.core.narrow_arithmetic) == (1, 2)
    data = BufferNode("data", 64)
    for lanes, rate in ((16, 1), (8, 2)):
        lane = LoopNode(lanes, "lanes")
        step = StatementNode((AccessNode(data, {lane: 4}),), 12)
        assert nest(machine, step, LoopNode(1000, predicted=True), lane) == 1000 * 12 / rate


def test_lines_at_a_multiple_of_the_size_of_a_way_share_a_set() -> None:
    """Nine lines 4 KiB apart do not fit the eight ways of one set; each is fetched again."""
    first = cache_levels(ONE)[0]
    assert (first.ways, first.lines / first.ways * first.line) == (8, 4096)
    for apart, again in ((4096, True), (4096 + 64, False)):
        data, times, rows = BufferNode("data", 1 << 16), LoopNode(100), LoopNode(9, "unrolled")
        step = StatementNode((AccessNode(data, {rows: apart}),), 1)
        found = kernels(around([times, rows], [step]), ONE)
        (lines,) = traffic(found, first, again=False).values()
        assert lines == (900 if again else 9)
