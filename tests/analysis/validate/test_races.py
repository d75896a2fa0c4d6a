"""Races between iterations that run concurrently."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from tests.analysis.validated import GPU, codes, problems, program


@pytest.mark.parametrize(
    ("index", "met"),
    [("vi, 0", None), ("0, 0", "B[0, 0]"), ("vi // 2, 0", "B[0, 0]"), ("(vi + 1) % 32, 0", None)],
)
def test_parallel_iterations_write_different_elements(index: str, met: str | None) -> None:
    found = problems(program(f"""
for i in T.parallel(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[{index}] = A[vi, 0]
"""))  # fmt: skip
    assert [code for code, _ in found] == ([] if met is None else ["BW240"])
    assert met is None or met in found[0][1]


def test_no_parallel_iteration_reads_what_another_writes() -> None:
    scan = """
for i in T.{kind}(31):
    with T.block("B"):
        vi = T.axis.spatial(31, i)
        B[vi + 1, 0] = B[vi, 0] + A[vi, 0]
"""
    assert codes(program(scan.format(kind="serial"))) == []
    assert codes(program(scan.format(kind="parallel"))) == ["BW240"]


@pytest.mark.parametrize("when", ["t == 0", "t == 3", "t == 5", "t >= 2 and t < 4"])
def test_iterations_meet_in_any_iteration_of_the_loops_around(when: str) -> None:
    """Neither the first nor the last one has to be it."""
    func = program(f"""
for t in range(9):
    for i in T.parallel(4):
        with T.block("B"):
            vt, vi = T.axis.remap("SS", [t, i])
            T.where({when})
            B[vt, 0] = A[vt, vi]
""")
    assert codes(func) == ["BW240"]


@pytest.mark.parametrize(
    "update",
    ["T.atomic_add(B[0, 0], A[vi, 0])", "B[vi, 2] = T.atomic_add(B[0, 0], A[vi, 0])"],
)
def test_atomic_updates_do_not_go_with_plain_accesses(update: str) -> None:
    func = program(f"""
for i in T.parallel(32):
    with T.block("add"):
        vi = T.axis.spatial(32, i)
        {update}
    with T.block("look"):
        vi = T.axis.spatial(32, i)
        B[vi, 1] = B[0, 0]
""")
    assert codes(func) == ["BW240"]


def test_a_buffer_of_its_own_for_each_iteration() -> None:
    """Halos overlap between iterations; each has its own copy."""
    func = program("""
for i in T.parallel(8):
    for j in range(5):
        with T.block("C"):
            vi = T.axis.spatial(32, i * 4 + j)
            T.where(i * 4 + j < 32)
            C[vi] = A[vi, 0]
    for j in range(4):
        with T.block("B"):
            vi = T.axis.spatial(32, i * 4 + j)
            B[vi, 0] = C[vi] + C[T.min(vi + 1, 31)]
""", allocate='C = T.alloc_buffer((32,), "float32")')  # fmt: skip
    assert codes(func) == []


def test_races_in_the_last_iteration_of_the_loops_around_are_seen() -> None:
    func = program("""
for k in range(3):
    for tx in T.thread_binding(4, thread="threadIdx.x"):
        with T.block("B"):
            vk = T.axis.spatial(3, k)
            T.where(2 <= k)
            B[vk, 0] = A[vk, 0]
""")
    assert codes(func) == ["BW240"]


def test_races_in_the_last_member_of_another_axis_are_seen() -> None:
    func = program(
        """
for b in T.thread_binding(4, thread="blockIdx.x"):
    for t in T.thread_binding(32, thread="threadIdx.x"):
        with T.block("copy"):
            vb = T.axis.spatial(4, b)
            T.where(1 <= b)
            S[vb, 0] = A[vb, 0]
        with T.block("B"):
            vb, vt = T.axis.remap("SS", [b, t])
            T.where(1 <= b)
            B[vb, vt] = S[vb, 0]
""",
        allocate='S = T.alloc_buffer((32, 32), "float32", scope="shared")',
    )
    assert codes(func) == ["BW240"]


def test_what_a_view_shows_is_touched_where_it_is() -> None:
    """On-chip memory that is read through a view outside of its kernel."""
    func = program("""
for tx in T.thread_binding(32, thread="threadIdx.x"):
    with T.block("C"):
        vi = T.axis.spatial(32, tx)
        C[vi] = A[vi, 0]
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        T.reads(C[vi])
        T.writes(B[vi, 0])
        V = T.match_buffer(C[vi], (1,), "float32", scope="shared", offset_factor=1)
        B[vi, 0] = V[0]
""", allocate='C = T.alloc_buffer((32,), "float32", scope="shared")')  # fmt: skip
    assert codes(func) == ["BW238"]


@pytest.mark.parametrize(("scope", "expected"), [("shared", ["BW240"]), ("local", [])])
def test_shared_memory_is_one_for_all_threads_wherever_it_is_allocated(
    scope: str, expected: list[str]
) -> None:
    func = program(f"""
for tx in T.thread_binding(4, thread="threadIdx.x"):
    with T.block("rows"):
        vx = T.axis.spatial(4, tx)
        T.reads(A[0, 0])
        T.writes(B[vx, 0])
        first = T.alloc_buffer((1,), "float32", scope="{scope}")
        with T.block("first"):
            T.reads(A[0, 0])
            T.writes(first[0])
            first[0] = A[0, 0]
        with T.block("B"):
            T.reads(first[0])
            T.writes(B[vx, 0])
            B[vx, 0] = first[0]
""")
    assert codes(func, GPU) == expected


ONCE = ("vi", "7 - vi", "vi * 3 % 8", "vi // 2 * 2 + vi % 2")


AGAIN = ("vi % 4", "vi // 2", "(vi + 1) // 2", "0", "T.max(vi, 2)")


@pytest.mark.parametrize("loop", ["parallel", "vectorized"])
@pytest.mark.parametrize("index", [*ONCE, *AGAIN])
def test_iterations_that_come_back_to_an_element_meet(index: str, loop: str) -> None:
    func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((8,), "float32")):
    for i in T.{loop}(8):
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            A[{index}] = T.float32(3)
""")
    assert isinstance(func, ir.PrimFunc)
    assert codes(func) == ([] if index in ONCE else ["BW240"])


@pytest.mark.parametrize(
    ("index", "mask", "met"),
    [
        ("T.ramp(0, 1, 4)", "", False),
        ("T.broadcast(0, 4)", "", True),
        ("T.ramp(2, 0, 4)", "", True),
        ("T.ramp(0, -1, 4)", "", False),
        ("T.broadcast(0, 4)", ", predicate=T.broadcast(vi < 1, 4)", False),
    ],
)
def test_the_lanes_of_a_store_access_different_elements(index: str, mask: str, met: bool) -> None:
    """A mask may leave a single lane."""
    func = program(f"""
for i in range(1):
    with T.block("B"):
        vi = T.axis.spatial(1, i)
        B.vstore([0, {index}], A[0, T.ramp(0, 1, 4)]{mask})
""")
    assert codes(func) == (["BW240"] if met else [])
