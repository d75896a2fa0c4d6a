"""What schedules draw: tiles, categories and places, decided by the seed and kept in the trace."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest

from blockwright import ir
from blockwright.schedule import RECORDS, Schedule, ScheduleError, Trace
from blockwright.schedule.rewrite.sampling import count_tiles, divisors
from blockwright.script.ir import from_source
from blockwright.testing.check import assert_same_meaning

SOURCE = """
@T.prim_func
def main(A: T.Buffer((48, 64), "float32"), C: T.Buffer((48, 64), "float32")):
    B = T.alloc_buffer((48, 64), "float32")
    for i, j in T.grid(48, 64):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for i, j in T.grid(48, 64):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + T.float32(1)
"""
SYMBOLIC = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] + T.float32(1)
"""


def program(source: str = SOURCE) -> ir.PrimFunc:
    parsed = from_source(source)
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


@pytest.fixture
def sch() -> Schedule:
    return Schedule(program(), verify="full")


def sketch(seed: int) -> Schedule:
    """A schedule with something of every kind drawn."""
    sch = Schedule(program(), seed=seed)
    i, j = sch.get_loops("C")
    i0, _, _ = sch.split(i, sch.sample_perfect_tile(i, 3))
    width = sch.sample_categorical([4, 8, 12], [0.5, 0.3, 0.2])
    _, j1 = sch.split(j, [None, width])
    sch.annotate(i0, "depth", width * 2)
    sch.vectorize(j1)
    b = sch.get_block("B")
    sch.compute_at(b, sch.sample_compute_location(b))
    return sch


def values(sch: Schedule, numbers: list[ir.Var]) -> list[int]:
    return [sch.get(v) for v in numbers]


def test_perfect_tiles_multiply_to_the_extent(sch: Schedule) -> None:
    i = sch.axis("C", "i")
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(3000):
        tile = values(sch, sch.sample_perfect_tile(i, 2, max_innermost_factor=8))
        assert math.prod(tile) == 48
        assert tile[-1] <= 8
        seen[tuple(tile)] += 1
    assert set(seen) == {(48 // d, d) for d in (1, 2, 3, 4, 6, 8)}
    assert max(seen.values()) < 1.4 * min(seen.values())  # 500 each: 5 deviations are 110


@pytest.mark.parametrize(("extent", "parts"), [(1, 3), (12, 2), (48, 3), (64, 4), (97, 2)])
def test_tiles_are_counted_right(extent: int, parts: int) -> None:
    def listed(rest: int, left: int) -> int:
        return (
            int(rest == 1)
            if left == 0
            else sum(listed(rest // d, left - 1) for d in divisors(rest))
        )

    assert count_tiles(extent, parts) == listed(extent, parts)


def test_partitioned_tiles_hold_whole_units(sch: Schedule) -> None:
    i = sch.axis("C", "i")
    for _ in range(200):
        tile = values(sch, sch.sample_partitioned_tile(i, 4, 2, 8))
        assert math.prod(tile) == 48
        assert tile[2] * tile[3] % 8 == 0


def test_imperfect_tiles_need_not_divide() -> None:
    sch = Schedule(program(SYMBOLIC), verify="full")
    (i,) = sch.get_loops("B")
    drawn = [values(sch, sch.sample_imperfect_tile(i, 3)) for _ in range(100)]
    assert all(len(tile) == 2 and tile[1] <= 16 for tile in drawn)
    assert len({tuple(tile) for tile in drawn}) > 20
    sch.split(i, [None, *sch.sample_imperfect_tile(i, 3)])
    assert_same_meaning(program(SYMBOLIC), sch.func, sizes={"n": 37}, exact=True)
    with pytest.raises(ScheduleError, match="extent of loop i_0 is symbolic") as caught:
        sch.sample_perfect_tile(sch.axis("B", "i_0"), 2)
    assert caught.value.code == "BW354"
    assert "sample_imperfect_tile" in str(caught.value)


def test_weights_decide_how_often(sch: Schedule) -> None:
    drawn = [sch.get(sch.sample_categorical([1, 2, 3], [0, 3, 1])) for _ in range(400)]
    counts = Counter(drawn)
    assert counts[1] == 0
    assert 220 < counts[2] < 380


def test_places_are_drawn_among_the_legal_ones() -> None:
    seen: set[int] = set()
    for seed in range(40):
        sch = Schedule(program(), "full", seed)
        b = sch.get_block("B")
        sch.compute_at(b, sch.sample_compute_location(b))
        (place,) = sch.trace.decisions.values()
        seen.add(place)
        assert sch.alive(b) == (place != -2)
        assert_same_meaning(program(), sch.func, exact=True)
    assert seen == {-2, -1, 0, 1}
    sch = Schedule(program())
    place = sch.sample_compute_location("B", decision=-1)
    with pytest.raises(ScheduleError, match=r"is a sampled location \(where it is\)") as caught:
        sch.parallel(place)
    assert caught.value.code == "BW301"


def test_the_seed_decides_everything() -> None:
    programs = [sketch(seed).func for seed in (1, 1, 2, 3, 4)]
    ir.assert_structural_equal(programs[0], programs[1])
    assert any(not ir.structural_equal(programs[0], p) for p in programs[2:])
    one, two = Schedule(program(), seed=5), Schedule(program(), seed=5)
    assert one.fork_seed() == two.fork_seed() != one.fork_seed()
    two.seed(9)
    one.seed(9)
    assert one.fork_seed() == two.fork_seed()
    assert Schedule(program(), seed=None).fork_seed() != Schedule(program(), seed=None).fork_seed()


@pytest.mark.parametrize("seed", range(8))
def test_decisions_stand_in_the_trace(seed: int) -> None:
    sch = sketch(seed)
    as_python = Schedule(program(), seed=99)
    exec(sch.trace.as_python(), {"sch": as_python})
    data = json.loads(json.dumps(sch.trace.as_json()))
    as_json = Trace.from_json(data, RECORDS, program())
    for again in (
        as_python.func,
        as_json.apply_to(program(), seed=98),
        sch.trace.apply_to(program()),
    ):
        ir.assert_structural_equal(again, sch.func)
    assert as_json.decisions == sch.trace.decisions


def test_without_decisions_a_trace_draws_anew() -> None:
    trace = sketch(0).trace.without_decisions()
    assert set(trace.decisions.values()) == {None}
    made = [trace.apply_to(program(), seed=seed) for seed in range(6)]
    ir.assert_structural_equal(made[0], sketch(0).func)
    assert any(not ir.structural_equal(made[0], other) for other in made[1:])


def test_a_decision_can_be_changed() -> None:
    sch = Schedule(program())
    i = sch.axis("C", "i")
    sch.split(i, sch.sample_perfect_tile(i, 2, decision=[3, 16]))
    (number,) = sch.trace.decisions
    changed = sch.trace.with_decision(number, [12, 4])
    again = Schedule(changed.apply_to(program()))
    assert ir.const_int(again.get(again.axis("C", "i_1")).extent) == 4
    assert sch.trace.decisions == {number: (3, 16)}
    with pytest.raises(
        ScheduleError, match="breaks a rule: 2 factors whose product is 48"
    ) as caught:
        sch.trace.with_decision(number, [5, 5]).apply_to(program())
    assert caught.value.code == "BW318"
    with pytest.raises(ScheduleError, match="step 0 of the trace is not a sampling step") as caught:
        sch.trace.with_decision(0, [5, 5])
    assert caught.value.code == "BW306"


def test_numbers_are_used_like_numbers(sch: Schedule) -> None:
    j = sch.axis("C", "j")
    a, b = sch.sample_perfect_tile(j, 2, decision=[16, 4])
    sch.split(j, [None, a // 2, b])
    sch.transform_layout("B", ("write", 0), lambda i, j: (i, j // b, j % b))
    text = sch.trace.as_python()
    assert f"[None, {a.name} // 2, {b.name}]" in text
    assert f"lambda i0, i1: (i0, i1 // {b.name}" not in text.replace("T.int64", "")
    again = Schedule(program())
    from blockwright.script import tir as T

    exec(text, {"sch": again, "T": T})
    ir.assert_structural_equal(again.func, sch.func)


@pytest.mark.parametrize(
    ("method", "args", "code", "words"),
    [
        ("sample_categorical", ([1, 2], [1.0]), "BW304", "2 candidates have 1 weights"),
        ("sample_categorical", ([], []), "BW304", "not probabilities"),
        ("sample_categorical", ([1, 2], [1.0, -1.0]), "BW304", "not probabilities"),
        ("sample_categorical", ([1, 2], [math.nan, 1.0]), "BW304", "not probabilities"),
        ("sample_categorical", ([1, 2], [1.0, math.inf]), "BW304", "not probabilities"),
        ("sample_categorical", ([1, 2], [1.0, 1.0], 2), "BW304", "not a position among 2"),
        ("sample_perfect_tile", ("i", 0), "BW304", "a tile of 0 factors"),
        ("sample_perfect_tile", ("i", 2, 0), "BW304", "allows no factor"),
        ("sample_perfect_tile", ("i", 2, 16, [5, 9]), "BW318", "breaks a rule"),
        ("sample_partitioned_tile", ("i", 2, 1, 5), "BW318", "not a multiple of 5"),
        ("sample_partitioned_tile", ("i", 2, 2, 4), "BW304", "not a valid part"),
        ("sample_partitioned_tile", ("i", 2, 1, 8, [16, 3]), "BW318", "breaks a rule"),
        ("sample_imperfect_tile", ("i", 1), "BW304", "a tile of 1 factors"),
        ("sample_imperfect_tile", ("i", 2, 0), "BW304", "allows no factor"),
        ("sample_imperfect_tile", ("i", 2, 8, [1, 2]), "BW318", "breaks a rule"),
        ("sample_compute_location", ("C",), "BW322", "nothing reads what block C writes"),
        ("sample_compute_location", ("B", 2), "BW304", "is out of range"),
    ],
)
def test_draws_that_have_no_meaning(
    sch: Schedule, method: str, args: tuple[object, ...], code: str, words: str
) -> None:
    given = [sch.axis("C", "i"), *args[1:]] if args[0] == "i" else list(args)
    with pytest.raises(ScheduleError, match=f"{method}: .*{words}") as caught:
        getattr(sch, method)(*given)
    assert caught.value.code == code


def test_a_number_taken_back_is_dead(sch: Schedule) -> None:
    sch.compute_inline("B")
    v = sch.sample_categorical([4], [1.0])
    sch.undo()
    with pytest.raises(ScheduleError, match="number behind v1 is gone") as caught:
        sch.split(sch.axis("C", "i"), [None, v])
    assert caught.value.code == "BW301"
