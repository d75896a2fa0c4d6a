"""A buffer that one block fills and another overwrites in part, as decompose_padding leaves it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright import ir
from blockwright.schedule import LoopRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning

PADDED = """
@T.prim_func
def main(X: T.Buffer((10, 10), "float32"), Y: T.Buffer((12, 10), "float32")):
    P = T.alloc_buffer((12, 12), "float32")
    for h, w in T.grid(12, 12):
        with T.block("pad"):
            vh, vw = T.axis.remap("SS", [h, w])
            P[vh, vw] = T.if_then_else(1 <= vh and vh < 11 and 1 <= vw and vw < 11, X[vh - 1, vw - 1], T.float32(0))
    for h, w in T.grid(12, 10):
        with T.block("Y"):
            vh, vw = T.axis.remap("SS", [h, w])
            Y[vh, vw] = P[vh, vw] + P[vh, vw + 2]
"""  # noqa: E501


def loop(sch: Schedule, block: str, at: int) -> LoopRV:
    return sch.get_loops(sch.get_block(block))[at]


def opened(inside: int) -> tuple[ir.PrimFunc, Schedule]:
    """The padding taken apart at one of its loops: zeros first, then what is inside."""
    func = from_source(PADDED)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    sch.decompose_padding(sch.get_block("pad"), loop(sch, "pad", inside))
    return func, sch


Steps = Callable[[Schedule], object]
WHOLE: dict[str, Steps] = {
    "the part that writes last moves": lambda s: s.compute_at(
        s.get_block("pad"), loop(s, "Y", 0)),
    "consumers read a copy": lambda s: s.cache_read(s.get_block("Y"), 0, "local"),
    "the inside is written to a copy": lambda s: s.cache_write(s.get_block("pad"), 0, "local"),
    "a row is copied where it is read": lambda s: s.read_at(
        loop(s, "Y", 0), s.get_block("Y"), 0, "local"),
    "a row is copied where it is written": lambda s: s.write_at(
        loop(s, "pad", 0), s.get_block("pad"), 0, "local"),
}  # fmt: skip
BY_ROWS: dict[str, Steps] = {
    "a consumer comes to both": lambda s: s.reverse_compute_at(
        s.get_block("Y"), loop(s, "pad", 0)),
    "and each row has memory of its own": lambda s: (
        s.reverse_compute_at(s.get_block("Y"), loop(s, "pad", 0)),
        s.store_at(s.get_block("pad"), loop(s, "Y", 0))),
    "consumers read a copy": lambda s: s.cache_read(s.get_block("Y"), 0, "local"),
}  # fmt: skip


@pytest.mark.parametrize(("inside", "name"), [*((0, n) for n in WHOLE), *((1, n) for n in BY_ROWS)])
def test_both_writers_stay_in_order(inside: int, name: str) -> None:
    func, sch = opened(inside)
    (BY_ROWS if inside else WHOLE)[name](sch)
    assert_same_meaning(func, sch.func, exact=True)


@pytest.mark.parametrize("step", ["store_at", "cache_read", "cache_write", "double_buffer"])
def test_what_was_moved_before_it_was_taken_apart_is_scheduled_on(step: str) -> None:
    func = from_source(PADDED)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    pad, rows = sch.get_block("pad"), loop(sch, "Y", 0)
    sch.compute_at(pad, rows)
    sch.decompose_padding(pad, sch.get_loops(pad)[1])
    steps: dict[str, Steps] = {
        "store_at": lambda s: s.store_at(pad, rows),
        "cache_read": lambda s: s.cache_read(s.get_block("Y"), 0, "local"),
        "cache_write": lambda s: s.cache_write(pad, 0, "local"),
        "double_buffer": lambda s: s.double_buffer(pad, 0),
    }
    steps[step](sch)
    assert_same_meaning(func, sch.func, exact=True)


def test_zeros_do_not_move_past_what_overwrites_them() -> None:
    _, sch = opened(0)
    with pytest.raises(ScheduleError, match="before the writers are separated") as caught:
        sch.compute_at(sch.get_block("pad_pad_const"), loop(sch, "Y", 0))
    assert caught.value.code == "BW314"
    _, sch = opened(1)
    with pytest.raises(ScheduleError, match="pad_pad_const uses P") as caught:
        sch.compute_at(sch.get_block("pad"), loop(sch, "Y", 0))
    assert caught.value.code == "BW316"


PART = """
@T.prim_func
def main(A: T.Buffer((10,), "float32"), C: T.Buffer((12,), "float32")):
    B = T.alloc_buffer((12,), "float32")
    for i in range(ROUNDS):
        with T.block("B"):
            vi = T.axis.spatial(12, VALUE)
            B[vi] = A[vi - 1] * 2.0
    for i in range(12):
        with T.block("C"):
            vi = T.axis.spatial(12, i)
            C[vi] = T.if_then_else(1 <= vi and vi < 11 and vi % STEP == STEP - 1, B[vi], T.float32(0))
"""  # noqa: E501


@pytest.mark.parametrize(("rounds", "value", "step"), [(10, "i + 1", 1), (5, "i * 2 + 1", 2)])
@pytest.mark.parametrize("tile", [None, 5])
def test_instances_that_never_ran_are_not_run_elsewhere(
    rounds: int, value: str, step: int, tile: int | None
) -> None:
    """A domain that loops do not run through: more of it would read outside of A."""
    text = PART.replace("ROUNDS", str(rounds)).replace("VALUE", value).replace("STEP", str(step))
    func = from_source(text)
    assert isinstance(func, ir.PrimFunc)
    assert_same_meaning(func, func)
    sch = Schedule(func)
    place = loop(sch, "C", 0) if tile is None else sch.split(loop(sch, "C", 0), [None, tile])[0]
    with pytest.raises(ScheduleError) as caught:
        sch.compute_at(sch.get_block("B"), place)
    assert caught.value.code in ("BW316", "BW361")


def test_an_epilogue_of_a_part_stays_apart() -> None:
    func = from_source("""
@T.prim_func
def main(A: T.Buffer((12, 4), "float32"), D: T.Buffer((12,), "float32"), C: T.Buffer((12,), "float32")):
    B = T.alloc_buffer((12,), "float32")
    for i, k in T.grid(12, 4):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
    for i in range(10):
        with T.block("C"):
            vi = T.axis.spatial(12, i + 1)
            C[vi] = B[vi] + D[vi]
""")  # noqa: E501
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func)
    with pytest.raises(ScheduleError, match="do not reach its whole domain") as caught:
        sch.fuse_reduction_epilogue(sch.get_block("B"), sch.get_block("C"))
    assert caught.value.code == "BW361"


WINDOWS = """
@T.prim_func
def main(A: T.Buffer((14, 12), "float32"), C: T.Buffer((10, 10), "float32")):
    B = T.alloc_buffer((12, 12), "float32")
    for i, j in T.grid(12, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + A[vi + 2, vj]
    for i, j in T.grid(10, 10):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + B[vi + 1, vj + 1] + B[vi + 2, vj + 2]
"""


@pytest.mark.parametrize("tile", [5, 4, 3])
@pytest.mark.parametrize("inner", [False, True])
def test_windows_slide_in_storage_kept_at_an_outer_loop(tile: int, inner: bool) -> None:
    """Stored per tile, computed per row or element, and rolled: also where tiles are ragged."""
    func = from_source(WINDOWS)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    i, j = sch.get_loops(sch.get_block("C"))
    tiles, rows = sch.split(i, [None, tile])
    sch.compute_at(sch.get_block("B"), j if inner else rows)
    sch.store_at(sch.get_block("B"), tiles)
    sch.rolling_buffer(sch.get_block("B"), 0)
    assert_same_meaning(func, sch.func, exact=True)


@pytest.mark.parametrize("guard", ["v >= 2", "v < 3"])
def test_a_condition_of_the_block_around_stays(guard: str) -> None:
    """No loop of the scope moves `v`: the condition on it is made anew, or the step refused."""
    text = """
@T.prim_func
def main(A: T.Buffer((2, 8), "float32"), C: T.Buffer((4, 8), "float32")):
    for u in range(4):
        with T.block("outer"):
            v = T.axis.spatial(4, u)
            B = T.alloc_buffer((2, 8), "float32")
            for j in range(8):
                with T.block("B"):
                    vi = T.axis.spatial(2, AT)
                    vj = T.axis.spatial(8, j)
                    T.where(GUARD)
                    B[vi, vj] = A[vi, vj] * 2.0
            for j in range(8):
                with T.block("C"):
                    vj = T.axis.spatial(8, j)
                    T.where(GUARD)
                    C[v, vj] = B[AT, vj]
"""
    place = "v - 2" if guard == "v >= 2" else "v % 2"
    func = from_source(text.replace("GUARD", guard).replace("AT", place))
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    rows = loop(sch, "C", 0)
    if guard == "v < 3":
        with pytest.raises(ScheduleError, match="predicate beyond the domains"):
            sch.compute_at(sch.get_block("B"), rows)
        return
    sch.compute_at(sch.get_block("B"), rows)
    assert_same_meaning(func, sch.func, exact=True)


PIPELINED = """
@T.prim_func
def main(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32"), Z: T.Buffer((1,), "float32")):
    P = T.alloc_buffer((8,), "float32")
    with T.block("first"):
        P[0] = X[0]
    for i in range(7):
        with T.block("use"):
            vi = T.axis.spatial(7, i)
            Y[vi] = P[vi]
        with T.block("fill"):
            vi = T.axis.spatial(7, i)
            P[vi + 1] = X[vi + 1]
    for j in range(1):
        with T.block("last"):
            vj = T.axis.spatial(1, j)
            Z[vj] = P[vj + 7]
"""


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (lambda s: s.compute_inline("fill"), "BW322"),
        (lambda s: s.compute_at("fill", loop(s, "last", 0)), "BW316"),
    ],
)
def test_what_an_earlier_iteration_wrote_is_not_taken_away(
    step: Callable[[Schedule], object], code: str
) -> None:
    """`use` stands before `fill` and reads what it wrote one iteration before."""
    func = from_source(PIPELINED)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    with pytest.raises(ScheduleError) as refused:
        step(sch)
    assert refused.value.code == code
    sch.reverse_compute_at("last", loop(sch, "fill", 0))  # what it reads is written there
    assert_same_meaning(func, sch.func)
